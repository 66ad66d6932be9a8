"""Python processes of this package: asked in JSON lines, or their output read line by line. Imports nothing heavy.

The screen's process stays free of torch, and a thread cannot be ended: what needs torch, or takes seconds and may be
unwanted by then, runs in a process of its own. `ChildProcess` stays for the next question; the child answers with
`serve`. `run_lines` reads all that a module prints.

Invariant: a child never outlives its parent, however that ends: the child ends when its stdin closes, and only the
parent holds the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import workbench
from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_ERROR, ConfigurationError, WorkbenchError

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_S = 0.05
KILLED_S = 10.0
PATIENCE_S = 3.0
"""Seconds that a question waits for an earlier, cancelled one to finish before the process is replaced."""

Report = Callable[[str], None]
"""Called with one sentence of progress."""


class CancelledError(Exception):
    """The caller cancelled what it asked for."""


class ChildError(WorkbenchError):
    """The child could not answer, for a reason of its own: the end of a sentence that begins with what was asked."""


_ERRORS: dict[int | None, type[WorkbenchError]] = {EXIT_CONFIGURATION: ConfigurationError, None: ChildError}


def package_environment() -> dict[str, str]:
    """Return this process's environment with this very package ahead of whatever lies in the current folder."""
    paths = [str(Path(workbench.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def module_arguments(module: str, *, safe_path: bool = sys.version_info >= (3, 11)) -> tuple[str, ...]:
    """Return Python's arguments that run `module` as a program without the current folder on the import path.

    With `safe_path` PYTHONSAFEPATH keeps it off; Python 3.10 does not know that, and has it as the first entry.
    """
    if safe_path:
        return ("-m", module)
    run = f"run_module({module!r}, run_name='__main__', alter_sys=True)"
    return ("-c", f"import sys; del sys.path[0]; from runpy import run_module; {run}")


class ChildProcess:
    """A process that answers questions with `serve`. The first question starts it, or `start` ahead of that.

    A process that has died is started again by the next question. Every method may be called from any thread;
    questions of several threads take turns.
    """

    def __init__(self, *arguments: str) -> None:
        """`arguments`: Python's own, such as those of `module_arguments`."""
        self._arguments = arguments
        self._turn = threading.Lock()
        """Held while a question is being answered."""
        self._lock = threading.Lock()
        """Held while the process is started or ended."""
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Return the process's number; None where none runs."""
        running = self._running
        return None if running is None or running.process.poll() is not None else running.process.pid

    @property
    def held_bytes(self) -> int:
        """Memory that the process shares with no file; 0 where none runs, or the system does not say."""
        import psutil

        with contextlib.suppress(psutil.Error, AttributeError):
            memory = psutil.Process(self.pid).memory_info() if self.pid is not None else None
            return 0 if memory is None else int(memory.rss - memory.shared)
        return 0

    def start(self) -> None:
        """Start the process, and return at once. A failure to start is reported by the next question."""
        with contextlib.suppress(OSError):
            self._started()

    def stop(self) -> None:
        """End the process. A question that it is answering raises CancelledError."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.end()

    def ask(
        self,
        question: Mapping[str, Any],
        report: Report | None = None,
        cancelled: threading.Event | None = None,
    ) -> Any:
        """Return the answer to `question`; `report` is called with the child's progress, in this thread.

        Raises:
            ConfigurationError, WorkbenchError: the child refused the question; its own message.
            ChildError: the process failed, ended without an answer, or could not be started.
            CancelledError: `cancelled` was set. The process stays for the next question.
        """
        cancelled = cancelled or threading.Event()
        while not self._turn.acquire(timeout=POLL_S):
            if cancelled.is_set():
                raise CancelledError
        try:
            running = self._idle(cancelled)
            running.send(question)
            while (message := running.next_message(cancelled)) is not None:
                if "answer" in message:
                    return message["answer"]
                if "error" in message:
                    raise _ERRORS.get(message["exit_code"], WorkbenchError)(message["error"])
                if report is not None:
                    report(message["report"])
            raise ChildError(running.ending())
        except OSError as error:
            raise ChildError(f"its process could not be started: {error}") from error
        finally:
            self._turn.release()

    def _idle(self, cancelled: threading.Event) -> _Running:
        """Return a process that waits for a question; one that answers a cancelled question for too long is ended."""
        running = self._started()
        until = time.monotonic() + PATIENCE_S
        with contextlib.suppress(TimeoutError):
            while running.owes_answer and running.next_message(cancelled, until) is not None:
                pass
        if running.owes_answer:
            self.stop()
        return self._started()

    def _started(self) -> _Running:
        with self._lock:
            if self._running is not None and self._running.process.poll() is not None:
                self._running.end()
                self._running = None
            if self._running is None:
                self._running = _Running(self._arguments)
            return self._running


def run_lines(arguments: tuple[str, ...], cancelled: threading.Event) -> Iterator[str]:
    """Yield what `python -m ARGUMENTS` prints, stdout and stderr together, line by line.

    The process is gone when the iterator is exhausted or closed.

    Raises:
        CancelledError: `cancelled` was set.
        OSError: the process could not be started.
    """
    if cancelled.is_set():
        raise CancelledError
    running = _Running((*module_arguments(__name__), *arguments), merged=True)
    try:
        while (line := running.next_line(cancelled)) is not None:
            yield line
    finally:
        running.end()


class _Running:
    """One process, from its start to its end. `owes_answer`: it has been sent a question and has not answered yet."""

    def __init__(self, arguments: tuple[str, ...], *, merged: bool = False) -> None:
        """`merged`: stderr is read among stdout. Raises OSError where the process cannot be started."""
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                (sys.executable, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else self._errors,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=package_environment(),
            )
        except OSError:
            self._errors.close()
            raise
        self.owes_answer = False
        self._ended_here = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Unread lines; None once the process has ended."""
        self._reader = threading.Thread(target=self._read, name="child-process", daemon=True)
        self._reader.start()

    def send(self, question: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.owes_answer = True
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def next_message(self, cancelled: threading.Event, until: float | None = None) -> dict[str, Any] | None:
        """Return the next JSON object that the process prints; None when it has ended. See `next_line`."""
        while (line := self.next_line(cancelled, until)) is not None:
            with contextlib.suppress(ValueError):  # something else that a library printed
                message = json.loads(line)
                if isinstance(message, dict) and message.keys() & {"answer", "error", "report"}:
                    self.owes_answer = "report" in message
                    return message
        return None

    def next_line(self, cancelled: threading.Event, until: float | None = None) -> str | None:
        """Return the next line; None when the process has ended.

        Raises:
            CancelledError: `cancelled` was set, or `end` was called.
            TimeoutError: it is later than `until`, in the seconds of `time.monotonic`.
        """
        while True:
            if cancelled.is_set() or self._ended_here:
                raise CancelledError
            try:
                line = self._lines.get(timeout=POLL_S)
            except queue.Empty:
                if until is not None and time.monotonic() > until:
                    raise TimeoutError from None
                continue
            if line is None:
                self._lines.put(None)  # for the next call
            return line

    def ending(self) -> str:
        """Return how the process ended, in words, with the last line of its stderr."""
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed, usually because memory ran out"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}{f': {lines[-1]}' if lines else ''}"

    def end(self) -> None:
        """Kill the process and wait for its end, `KILLED_S` at most: one that hangs in a driver cannot be killed."""
        self._ended_here = True
        self.process.kill()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILLED_S)
        self._reader.join(timeout=1.0)
        self._errors.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put(None)


# In the child


def serve(
    answer: Callable[[Mapping[str, Any], Report], Any], warm_up: Callable[[], None] | None = None
) -> NoReturn:
    """Answer the questions that come as JSON lines on stdin until that closes; then the process ends at once.

    `warm_up`: called first, so that the first question does not wait for imports.
    `answer` gets a question and a function to report progress with, and returns plain data. Its WorkbenchErrors go to
    the parent as they are. What libraries print goes to stderr, as stdout is for answers.
    """
    questions: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_questions, args=(questions,), daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        if warm_up is not None:
            warm_up()

        def send(message: Mapping[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        while True:
            question = questions.get()
            try:
                send({"answer": answer(question, lambda sentence: send({"report": sentence}))})
            except WorkbenchError as error:
                send({"error": str(error), "exit_code": error.exit_code})
            except Exception as error:
                words = next(iter(str(error).splitlines()), "")
                send({"error": f"{type(error).__name__}: {words}", "exit_code": None})


def _read_questions(questions: queue.SimpleQueue[Mapping[str, Any]]) -> None:
    for line in sys.stdin:
        questions.put(json.loads(line))
    os._exit(EXIT_DONE)


def _run_module(arguments: list[str]) -> None:
    """Run a module as `python -m` does, in a process that ends when its stdin closes."""

    def wait_for_end_of_input() -> None:
        # Not through sys.stdin: its lock, held at the interpreter's end, would be a fatal error.
        while os.read(0, 4096):
            pass
        os._exit(EXIT_ERROR)

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module(sys.argv[1:])
