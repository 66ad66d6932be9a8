"""A screen that looks around for what its draft names: files, folders, packages and architectures that are not there.

The disk is looked at in a thread, which only posts what it found: a folder on a network that is gone may take a minute
to answer. Invariant: one thread looks at a time, and the last look begins after the last edit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from textual import on, work
from textual.message import Message

from workbench.tui.context import AppContext
from workbench.tui.form.checking import Around, look_around
from workbench.tui.form.draft_screen import DraftScreen
from workbench.tui.form.sources import Sources


class LookingScreen(DraftScreen):
    """Call `look_around` after every edit; `show_around` is told what was found."""

    class Seen(Message):
        """A look has ended."""

        def __init__(self, around: Around) -> None:
            super().__init__()
            self.around = around

    def __init__(self, context: AppContext, path: Path, sources: Sources) -> None:
        super().__init__(context, path, sources)
        self.around = Around()
        """What was found last, which may be of a key before."""
        self._looking = False
        self._look_again = False
        """The draft was edited while a look went on."""

    def show_around(self) -> None:
        """Show `around`."""
        raise NotImplementedError

    def look_around(self) -> None:
        """Look for what the draft names."""
        self._look_again = self._looking
        if not self._looking:
            self._looking = True
            self._look_at(self.draft.values())

    @work(thread=True, group="around")
    def _look_at(self, values: dict[str, Any]) -> None:
        self.post_message(self.Seen(look_around(values)))

    @on(Seen)
    def _seen(self, event: Seen) -> None:
        event.stop()
        self._looking = False
        if self._look_again:
            self.look_around()
        if event.around != self.around:
            self.around = event.around
            self.show_around()

    async def all_is_there(self, what: str) -> bool:
        """Whether all that the draft names is there now; tells where it is not, and that it cannot be `what`.

        False, too, where the draft was edited while the disk was looked at.
        """
        values = self.draft.values()
        self.around = await asyncio.to_thread(look_around, values)
        self.show_around()
        return not self.refuses(self.around.missing, what) and values == self.draft.values()
