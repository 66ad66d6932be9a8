"""What each preset of a list comes to here: its parameters, and whether it fits. No textual.

Invariant: a forecast is made for what the file says now; a broken preset has an error and no forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from workbench.errors import ConfigurationError
from workbench.presets import Preset, list_presets, recent_presets
from workbench.tui.form.verdict import Verdict, verdict, verdict_words

if TYPE_CHECKING:
    from workbench.plan.planner import Plan
    from workbench.tui.form.planning import Planning


@dataclass(frozen=True)
class PresetRow:
    """One preset of the list. `pending`: its forecast is being worked out. `recent`: 0 for the one used last.

    `said`: the verdict in words, or why there is none.
    """

    preset: Preset
    recent: int | None = None
    parameters: int | None = None
    plan: Plan | None = None
    verdict: Verdict | None = None
    said: str = ""
    pending: bool = False


def preset_rows() -> list[PresetRow]:
    """Every preset without a forecast: the ones used last first, the others as `list_presets` has them."""
    recent = {path: place for place, path in enumerate(recent_presets())}
    rows = [
        PresetRow(preset, recent.get(preset.path.absolute()), pending=preset.error is None)
        for preset in list_presets()
    ]
    return sorted(rows, key=lambda row: (row.recent is None, row.recent or 0))


def forecasts(
    rows: Iterable[PresetRow], planning: Planning, cancelled: Event, unwanted: Callable[[], bool]
) -> Iterator[PresetRow]:
    """The rows with their forecasts, one after the other; those whose model profile has to be taken first come last.

    Raises:
        CancelledError: `cancelled` was set.
    """
    later = []
    for row in rows:
        if unwanted():
            return
        if row.preset.error is None:
            made = _forecast(row, planning, cancelled, take=False)
            if made.pending:
                later.append(row)
            yield made
    for row in later:
        if unwanted():
            return
        yield _forecast(row, planning, cancelled, take=True)


def _forecast(row: PresetRow, planning: Planning, cancelled: Event, *, take: bool) -> PresetRow:
    from workbench.config import load_config

    preset, recent = row.preset, row.recent
    try:
        config = load_config(preset.path)
    except ConfigurationError as error:  # it was changed meanwhile
        return PresetRow(preset._replace(error=str(error), description=""), recent)
    planning.obtain(config, _not_told, cancelled, take=take)
    model_profile = planning.model_profile(config)
    parameters = None if model_profile is None else model_profile.parameters
    outlook = planning.look(config)
    if outlook.lacks:
        return PresetRow(
            preset, recent, parameters, said="the model's model profile is taken first", pending=True
        )
    if outlook.plan is None:
        return PresetRow(preset, recent, parameters, said=outlook.refused)
    memory = outlook.plan.memory
    return PresetRow(preset, recent, memory.parameters, outlook.plan, verdict(memory), verdict_words(memory))


def matches(query: str, row: PresetRow) -> float | None:
    """How well a row answers to what was typed, the less the better; None: not at all.

    Letters count in their order, with others between them or not, in the name; whole words in the description, too.
    """
    query = query.lower().strip()
    name, text = row.preset.name.lower(), row.preset.description.lower()
    if not query:
        return 0.0
    if query in name:
        return name.index(query) / 1000
    if all(word in f"{name} {text} {row.preset.origin}" for word in query.split()):
        return 1.0
    spread = _spread(query.replace(" ", ""), name)
    return None if spread is None else 2.0 + spread


def _spread(query: str, text: str) -> int | None:
    """Over how many letters of `text` those of `query` are spread, in their order; None: they are not in it."""
    best: int | None = None
    for start, letter in enumerate(text):
        if letter != query[0]:
            continue
        at = start
        for wanted in query[1:]:
            at = text.find(wanted, at + 1)
            if at < 0:
                break
        else:
            best = min(at - start, best if best is not None else at)
    return best


def _not_told(sentence: str) -> None:
    """A list has no room for what goes on."""
