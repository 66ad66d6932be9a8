"""The log as a part of the run's screen: escape ends a search there, and without one leaves the screen."""

from __future__ import annotations

from textual.actions import SkipAction

from workbench.tui.panels.log_view import LogView


class RunLog(LogView):
    """A `LogView` that lets escape pass where nothing is searched for."""

    def action_end_search(self) -> None:
        if not self.searched:
            raise SkipAction
        super().action_end_search()
