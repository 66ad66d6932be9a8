"""The screen in a real terminal: a run started in it outlives it, is found again and stopped; and the terminal is left
as it was, whatever ends the screen.

What a terminal shows is read as it is written. Textual writes a panel's words in one piece, so that they can be waited
for; escape sequences lie between them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from trainers import PATIENCE_S, Trainers, at_step, preset, wait_for

from workbench.runs import RunDirectory, liveness, read_run_metrics, read_status

pexpect = pytest.importorskip("pexpect")

SWITCHED = {
    "alternate screen": ("\x1b[?1049h", "\x1b[?1049l"),
    "hidden cursor": ("\x1b[?25l", "\x1b[?25h"),
    "mouse": ("\x1b[?1000h", "\x1b[?1000l"),
    "mouse movement": ("\x1b[?1003h", "\x1b[?1003l"),
    "mouse in SGR": ("\x1b[?1006h", "\x1b[?1006l"),
    "focus reports": ("\x1b[?1004h", "\x1b[?1004l"),
    "bracketed paste": ("\x1b[?2004h", "\x1b[?2004l"),
    "lines cut off": ("\x1b[?7l", "\x1b[?7h"),
}
"""What the screen switches on and off again, by the sequences of xterm (XTerm Control Sequences, DECSET)."""
SHELL = 'before=$(stty -g); "$@"; code=$?; [ "$before" = "$(stty -g)" ] && echo "as before, $code"'
"""A shell that starts the screen and goes on in the same terminal."""


class Log:
    """What a terminal was written, as pexpect hands it on."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)

    def flush(self) -> None: ...


class Terminals:
    """Terminals with commands in them; all that was started in them is gone at the end."""

    def __init__(self, trainers: Trainers) -> None:
        self.trainers = trainers
        self.folder = trainers.folder / "empty"
        self.folder.mkdir(exist_ok=True)
        self.environment = {
            **trainers.environment,
            "TERM": "xterm-256color",
            "XDG_CONFIG_HOME": str(trainers.folder / "config"),
            "LC_ALL": "C.UTF-8",
            "PS1": "",
        }
        for name in ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION"):
            self.environment.pop(name, None)
        self._open: list[pexpect.spawn] = []

    def open(self, *command: str, size: tuple[int, int] = (24, 80)) -> pexpect.spawn:
        terminal = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=str(self.folder),
            env=self.environment,
            dimensions=size,
            timeout=PATIENCE_S,
            encoding="utf-8",
            codec_errors="replace",
        )
        terminal.delaybeforesend = None
        terminal.logfile_read = Log()
        self._open.append(terminal)
        return terminal

    def workbench(self, *words: str) -> pexpect.spawn:
        return self.open(sys.executable, "-m", "workbench", *words)

    def in_shell(self, *command: str) -> pexpect.spawn:
        return self.open("/bin/sh", "-c", SHELL, "sh", *command)

    def end(self) -> None:
        for terminal in self._open:
            if terminal.isalive():
                for child in psutil.Process(terminal.pid).children(recursive=True):
                    if str(self.trainers.folder) not in " ".join(child.cmdline()):  # trainers end themselves
                        child.kill()
            terminal.close(force=True)


@pytest.fixture
def terminals(trainers: Trainers) -> Iterator[Terminals]:
    opened = Terminals(trainers)
    try:
        yield opened
    finally:
        opened.end()


def words_in(text: str) -> str:
    """Without escape sequences."""
    return re.sub(r"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07]*\x07|.)", "", text)


def left_switched_on(written: str) -> list[str]:
    """What was switched on last and not off again."""
    return [
        what
        for what, (on, off) in SWITCHED.items()
        if on not in written or written.rfind(on) > written.rfind(off)
    ]


def written_to(terminal: pexpect.spawn) -> str:
    """All that was written to it."""
    return "".join(terminal.logfile_read.parts)


def child_of(terminal: pexpect.spawn) -> int:
    """The process of the screen that a shell has started."""
    [child] = psutil.Process(terminal.pid).children()
    return int(child.pid)


def test_a_run_started_on_the_screen_outlives_it_and_is_stopped_on_another(
    trainers: Trainers, terminals: Terminals
) -> None:
    own = trainers.folder / "config" / "workbench" / "presets"
    own.mkdir(parents=True)
    text = preset(trainers.text).replace("steps = 20", "steps = 1000000") + "[log]\nevery = 1000000\n"
    (own / "zz-tiny.toml").write_text(text)

    screen = terminals.workbench()
    screen.expect_exact("Presets")
    screen.expect_exact("quickstart")
    screen.send("\x1b[F")  # End: the last of the list
    screen.expect_exact("zz-tiny")
    screen.send("\r")
    screen.expect_exact("Make it fit")
    screen.send("\x1b[15~")  # F5
    screen.expect_exact("starting")
    run = wait_for(lambda: trainers.run_of("zz-tiny"), "a run directory")
    assert isinstance(run, RunDirectory)
    screen.expect_exact("training")
    wait_for(at_step(run, 3), "steps")

    # Killed, it cannot say a word; the trainer does not notice.
    trainer = read_status(run).pid
    os.kill(screen.pid, signal.SIGKILL)
    screen.expect(pexpect.EOF)
    screen.wait()
    assert screen.signalstatus == signal.SIGKILL
    step = int(read_run_metrics(run).last()["step"])
    wait_for(at_step(run, step + 3), "steps after the screen's end")
    assert read_status(run).pid == trainer and liveness(read_status(run)) == "running"

    # Found again, the latest run is stopped.
    again = terminals.workbench("attach")
    again.expect_exact(run.name)
    again.expect_exact("running")  # of the run: a chart has the name of what it does before it was read
    again.send("s")
    again.expect_exact("Stop and save")
    again.send("y")
    wait_for(lambda: liveness(read_status(run)) == "stopped", "the end")
    again.expect_exact("exit code 143")
    again.send("q")  # back to the list of runs
    again.expect_exact("BEGUN")
    again.send("\x11")  # Control-Q: a letter begins a filter there
    again.expect(pexpect.EOF)
    again.wait()
    assert again.exitstatus == 0
    assert not left_switched_on(written_to(again))
    status = read_status(run)
    assert (status.phase, status.exit_code) == ("stopped", 143)
    saved = [path for path in run.checkpoints.iterdir() if (path / "DONE").exists()]
    assert [path.name for path in saved] == [f"step-{status.step:08}"]


CRASHING = """
import sys
from workbench.tui.app import WorkbenchApp
def fail(self):
    raise RuntimeError("of a test")
WorkbenchApp.action_help = fail
from workbench.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("?", 1),
        (signal.SIGTERM, 143),
        *(
            pytest.param(how, code, marks=pytest.mark.slow)
            for how, code in (("\x11", 0), (signal.SIGHUP, 129), (signal.SIGINT, 130))
        ),
    ],
    ids=str,
)
def test_the_terminal_is_as_before_whatever_ended_the_screen(
    terminals: Terminals, how: str | signal.Signals, code: int
) -> None:
    terminal = terminals.in_shell(sys.executable, "-c", CRASHING)
    terminal.expect_exact("quickstart")
    if isinstance(how, str):
        terminal.send(how)
    else:
        os.kill(child_of(terminal), how)
    terminal.expect(pexpect.EOF)
    written = written_to(terminal)
    assert not left_switched_on(written)
    after = words_in(written[written.rindex("\x1b[?1049l") :]).split("\r\n")
    if how == "?":
        message = after.pop(0)
        assert message.count("Error: ") == 1 and "RuntimeError: of a test" in message
        place = message.removesuffix(")").rpartition(" ")[2]
        assert "of a test" in Path(place).read_text()
    assert after == [f"as before, {code}", ""]
    assert "Traceback" not in written


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("top",)], ids=["workbench", "top"])
def test_a_screen_whose_terminal_is_gone_ends(terminals: Terminals, words: Sequence[str]) -> None:
    terminal = terminals.workbench(*words)
    terminal.expect_exact(" Quit ")
    terminal.ptyproc.fileobj.close()
    terminal.ptyproc.closed = True  # there is nothing left to close
    wait_for(lambda: not terminal.isalive(), "its end")
    assert terminal.exitstatus == 128 + signal.SIGHUP
