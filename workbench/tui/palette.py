"""The command palette's entries: every action of the screen that is seen, presets and runs.

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

NEWEST_RUNS = 200


class Row(NamedTuple):
    text: str
    help: str
    choose: Callable[[], object]


def actions_of(screen: Screen[object]) -> Iterator[SystemCommand]:
    """Yield the actions that hold on `screen` now, each with its key."""
    from textual.app import SystemCommand

    seen = set()
    for node, binding, enabled, _ in screen.active_bindings.values():
        if enabled and binding.description and not binding.system and binding.action not in seen:
            seen.add(binding.action)
            run = partial(screen.app.run_action, binding.action, default_namespace=node)
            yield SystemCommand(binding.description, f"Key: {screen.app.get_key_display(binding)}", run)


class PresetsAndRuns(Provider):
    """Presets, which open in the form, and runs, which open on the run's screen."""

    async def startup(self) -> None:
        self._rows = await asyncio.to_thread(lambda: [*self._presets(), *self._runs()])

    def _presets(self) -> Iterator[Row]:
        try:
            presets = list_presets()
        except WorkbenchError:
            return
        for preset in presets:
            choose = partial(self.app.post_message, OpenPreset(preset.path))
            yield Row(f"Preset: {preset.name}", preset.description, choose)

    def _runs(self) -> Iterator[Row]:
        root = self.app.context.runs_root  # type: ignore[attr-defined]
        for run in RunDirectory.list(root)[:NEWEST_RUNS]:
            yield Row(f"Run: {run.name}", str(run.path), partial(self.app.post_message, OpenRun(run)))

    async def discover(self) -> Hits:
        for row in self._rows:
            yield DiscoveryHit(row.text, row.choose, help=row.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for row in self._rows:
            if (score := matcher.match(row.text)) > 0:
                yield Hit(score, matcher.highlight(row.text), row.choose, help=row.help)
