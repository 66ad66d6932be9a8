"""The waiting of all tests of the screen: nothing is looked at before everything that was begun has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest
from screen_host import text_of
from settled_pilot import settled
from textual import on, work
from textual.app import App, ComposeResult
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

LINKS = 7


class Chain(App[None]):
    """A thread posts a message, which begins another, and so on; the last lets a timer draw."""

    class Link(Message):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, *, restless: bool = False) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.restless = restless
        self.shown = Static("nothing yet")
        self.answer: str | None = None

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_mount(self) -> None:
        self._read(1)
        if self.restless:
            self.may_end.set()
            self.set_interval(0.001, lambda: self.shown.update(f"{asyncio.get_running_loop().time()}"))

    @work(thread=True, group="read")
    def _read(self, number: int) -> None:
        self.post_message(self.Link(number))

    @work(thread=True, group="alone", exclusive=True, exit_on_error=False)
    def wait(self) -> None:
        self.may_end.wait()

    @work(group="ask")
    async def ask(self) -> None:
        self.answer = await self.push_screen_wait(ModalScreen[str]())

    @on(Link)
    def _go_on(self, event: Link) -> None:
        if event.number < 3:
            self.wait()  # the one before it is cancelled
        if event.number < LINKS:
            self._read(event.number + 1)
        else:
            self.may_end.set()
            self.set_timer(0.05, lambda: self.shown.update("all of it"))


def test_a_chain_of_threads_and_timers_is_waited_for_to_its_end() -> None:
    async def play() -> None:
        app = Chain()
        async with app.run_test(size=(20, 2)) as pilot:
            await settled(pilot)
            assert text_of(app).startswith("all of it") and not len(app.workers)
            app.ask()
            await settled(pilot)  # a worker that waits for an answer holds nobody up
            assert app.answer is None and len(app.workers) == 1
            app.screen.dismiss("yes")
            await settled(pilot)
            assert app.answer == "yes"

    asyncio.run(play())


def test_a_screen_that_never_rests_is_reported_unless_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("settled_pilot.LONGEST_S", 0.1)

    async def play(ended: bool) -> None:
        async with Chain(restless=True).run_test() as pilot:
            if ended:
                pilot.app.exit()
            await pilot.pause()

    asyncio.run(play(ended=True))
    with pytest.raises(AssertionError, match="does not come to rest"):
        asyncio.run(play(ended=False))
