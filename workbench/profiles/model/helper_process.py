"""A process that answers questions about a model. Imports nothing heavy: that is what the process is for.

A question is one line of JSON on its stdin, which stays open while answers are wanted: the process ends when it is
closed, so it never outlives this one, however that ends. It answers in lines of JSON on its stdout.

Invariant: one question at a time; what is said on its way to one answer never goes to another question.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import workbench
from workbench.errors import EXIT_CONFIGURATION, ConfigurationError, WorkbenchError

if TYPE_CHECKING:
    from typing_extensions import Self

COMMAND = (sys.executable, "-m", "workbench.profiles.model")
_POLL_S = 0.05
PATIENCE_S = 3.0
"""So long a new question waits for the answer to one that nobody waits for any more, before the process is ended."""

Tell = Callable[[str], None]


class GivenUpError(Exception):
    """Whoever asked does not want the answer any more."""


def ask_helper(question: Mapping[str, Any], tell: Tell) -> Any:
    """What a process of its own answers, which is gone afterwards; `tell` is given what it says on its way.

    Raises:
        ConfigurationError: the question asks for what cannot be; the process's own message.
        WorkbenchError: it ended without an answer; one sentence with the last thing it said.
    """
    with HelperProcess(warm=False) as helper:
        return helper.ask(question, tell)


class HelperProcess:
    """A process that stays for the next question. It is started by the first one, or by `start` ahead of it.

    `warm`: it imports what questions need at once, instead of with the first question. One that has died, or has ended
    itself because it had grown too large to wait, is started anew by the next question.
    """

    def __init__(self, *, warm: bool = True) -> None:
        self._command = (*COMMAND, "warm") if warm else COMMAND
        self._turn = threading.Lock()
        """Held by the question that is being answered."""
        self._lock = threading.Lock()
        """Held while the process is started or ended."""
        self._conversation: _Conversation | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Its process; None where there is none now."""
        there = self._conversation
        return None if there is None or there.has_ended else there.process.pid

    @property
    def idle_bytes(self) -> int | None:
        """The memory of its own that it holds while it waits; None where it has not said so yet."""
        there = self._conversation
        return None if there is None or there.has_ended else there.idle_bytes

    def start(self) -> None:
        """Have it ready for a question; returns at once. Where it cannot be started, the question says why."""
        with contextlib.suppress(OSError):
            self._living()

    def stop(self) -> None:
        """End it, from whatever thread: a question that it is answering fails, the next one starts it anew."""
        with self._lock:
            there, self._conversation = self._conversation, None
        if there is not None:
            there.end()

    def ask(self, question: Mapping[str, Any], tell: Tell, given_up: Callable[[], bool] | None = None) -> Any:
        """What it answers; `tell` is given what it says on its way, in this thread.

        `given_up`: asked again and again whether the answer is still wanted.

        Raises:
            ConfigurationError: the question asks for what cannot be; the process's own message.
            WorkbenchError: it ended without an answer; one sentence with the last thing it said.
            GivenUpError: `given_up` said so; the process goes on, and stays for the next question.
        """
        unwanted = given_up or _never
        while not self._turn.acquire(timeout=_POLL_S):
            if unwanted():
                raise GivenUpError
        try:
            conversation = self._ready(question, unwanted)
            return conversation.ask(question, tell, unwanted)
        finally:
            self._turn.release()

    def _ready(self, question: Mapping[str, Any], unwanted: Callable[[], bool]) -> _Conversation:
        """A process that waits for a question."""
        try:
            there = self._living()
            if not there.fall_silent(unwanted):
                self.stop()
                there = self._living()
        except OSError as error:
            raise WorkbenchError(f"the {question['ask']} of the model could not be taken: {error}") from error
        return there

    def _living(self) -> _Conversation:
        with self._lock:
            if self._conversation is not None and self._conversation.has_ended:
                self._conversation.end()
                self._conversation = None
            if self._conversation is None:
                self._conversation = _Conversation(self._command)
            return self._conversation


class _Conversation:
    """One process, from its start to its end."""

    def __init__(self, command: tuple[str, ...]) -> None:
        """Raises OSError where it cannot be started."""
        self._said: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=_environment(),
            )
        except OSError:
            self._said.close()
            raise
        self.idle_bytes: int | None = None
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """What it said and nobody has heard; None: it has ended."""
        self._owes = False
        """Whether an answer that nobody waits for is still to come."""
        self._leaves = False
        """Whether it has said that it ends itself now."""
        self._ended_here = False
        self._reader = threading.Thread(target=self._read, name="model_profile-helper", daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        return self._leaves or self.process.poll() is not None

    def ask(self, question: Mapping[str, Any], tell: Tell, unwanted: Callable[[], bool]) -> Any:
        """See `HelperProcess.ask`."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        self._owes = True
        while True:
            try:
                message = self._next(_POLL_S)
            except queue.Empty:
                if unwanted():
                    raise GivenUpError from None
                continue
            if message is None and self._ended_here:
                raise GivenUpError
            if message is None:
                raise WorkbenchError(
                    f"the {question['ask']} of the model could not be taken: {self._how_it_ended()}"
                )
            if "tell" in message:
                tell(message["tell"])
            elif "answer" in message:
                return message["answer"]
            elif "error" in message:
                wrong = message["exit_code"] == EXIT_CONFIGURATION
                raise (ConfigurationError if wrong else WorkbenchError)(message["error"])

    def fall_silent(self, unwanted: Callable[[], bool]) -> bool:
        """Hear out an answer that is still owed; False where that takes too long, or the process is gone.

        Raises:
            GivenUpError: see `HelperProcess.ask`.
        """
        until = time.monotonic() + PATIENCE_S
        while self._owes:
            try:
                if self._next(_POLL_S) is None:
                    return False
            except queue.Empty:
                if unwanted():
                    raise GivenUpError from None
                if time.monotonic() > until:
                    return False
        return not self.has_ended

    def end(self) -> None:
        """End the process, and wait until it is gone."""
        self._ended_here = True
        self.process.kill()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self._reader.join(timeout=1.0)
        self._said.close()

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next thing it said; raises queue.Empty where there is none within `timeout_s`."""
        message = self._messages.get(timeout=timeout_s)
        if message is None:
            self._messages.put(None)  # for whoever asks next
            self._owes = False
        elif "answer" in message or "error" in message:
            self._owes = False
        return message

    def _read(self) -> None:
        """In a thread: what the process says, until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue
                if isinstance(message, dict):
                    self.idle_bytes = message.get("idle_bytes", self.idle_bytes)
                    self._leaves = self._leaves or "leaves" in message
                    self._messages.put(message)
        self._messages.put(None)

    def _how_it_ended(self) -> str:
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed, as the system does when memory runs out"
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip()]
        last = f": {lines[-1]}" if lines else ""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}{last}"


def _never() -> bool:
    return False


def _environment() -> dict[str, str]:
    """This process's own, with this very package ahead of whatever lies in the current folder."""
    package = str(Path(workbench.__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONSAFEPATH": "1",
    }
