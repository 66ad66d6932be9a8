"""What the command palette finds beside Textual's own commands: every action of the screen that is seen, presets, runs.

Invariant: nothing here touches a widget; a chosen row is a message or an action of the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from textual.command import DiscoveryHit, Hit, Hits, Provider

from workbench.errors import WorkbenchError
from workbench.presets import list_presets
from workbench.runs import RunDirectory
from workbench.tui.messages import OpenPreset, OpenRun

if TYPE_CHECKING:
    from textual.app import SystemCommand
    from textual.screen import Screen

MOST_RUNS = 200
"""The newest of them."""


class Row(NamedTuple):
    text: str
    help: str
    choose: Callable[[], object]


def actions_of(screen: Screen[object]) -> Iterator[SystemCommand]:
    """The actions that hold on `screen` now, each with its key."""
    from textual.app import SystemCommand

    seen = set()
    for node, binding, enabled, _ in screen.active_bindings.values():
        if not enabled or not binding.description or binding.system or binding.action in seen:
            continue
        seen.add(binding.action)
        key = screen.app.get_key_display(binding)
        run = partial(screen.app.run_action, binding.action, default_namespace=node)
        yield SystemCommand(binding.description, f"Key: {key}", run)


class PresetsAndRuns(Provider):
    """Presets open in the form, runs on the run screen."""

    async def startup(self) -> None:
        self._rows = await asyncio.to_thread(lambda: [*self._presets(), *self._runs()])

    def _presets(self) -> Iterator[Row]:
        try:
            presets = list_presets()
        except WorkbenchError:
            return
        for preset in presets:
            yield Row(
                f"Preset: {preset.name}",
                preset.description,
                partial(self.app.post_message, OpenPreset(preset.path)),
            )

    def _runs(self) -> Iterator[Row]:
        root = self.app.context.runs_root  # type: ignore[attr-defined]
        for run in RunDirectory.list(root)[:MOST_RUNS]:
            yield Row(f"Run: {run.name}", str(run.path), partial(self.app.post_message, OpenRun(run)))

    async def discover(self) -> Hits:
        for row in self._rows:
            yield DiscoveryHit(row.text, row.choose, help=row.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for row in self._rows:
            score = matcher.match(row.text)
            if score > 0:
                yield Hit(score, matcher.highlight(row.text), row.choose, help=row.help)
