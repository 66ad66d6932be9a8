"""A continuation is taken for one only where there is still a terminal to go on in."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from workbench.tui.hangup import ignore_continuing_without_terminal


@pytest.fixture
def continued() -> Iterator[list[int]]:
    """How often the handler of SIGCONT was called."""
    calls: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGCONT, handle)
    yield calls
    signal.signal(signal.SIGCONT, before)


def test_on_a_terminal_that_was_hung_up_nothing_begins_anew(
    continued: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "rb", buffering=0) as terminal:
        monkeypatch.setattr(sys, "__stdin__", terminal)
        ignore_continuing_without_terminal()
        os.kill(os.getpid(), signal.SIGCONT)
        assert continued == [signal.SIGCONT]
        os.close(master)
        os.kill(os.getpid(), signal.SIGCONT)
        assert continued == [signal.SIGCONT]


def test_where_nothing_handles_it_nothing_is_changed() -> None:
    before = signal.signal(signal.SIGCONT, signal.SIG_DFL)
    try:
        ignore_continuing_without_terminal()
        assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCONT, before)
