"""Asks a helper process one question and waits for the answer. Imports nothing heavy: that is what the helper is for.

The question is one line of JSON on its stdin, which stays open while the answer is wanted: the helper ends when it is
closed, so it never outlives this process. It answers in lines of JSON on its stdout.

Invariant: when `ask_helper` returns or raises, the process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import workbench
from workbench.errors import EXIT_CONFIGURATION, ConfigurationError, WorkbenchError

COMMAND = (sys.executable, "-m", "workbench.census")


def ask_helper(question: Mapping[str, Any], tell: Callable[[str], None]) -> Any:
    """What the helper answers; `tell` is given what it says on its way.

    Raises:
        ConfigurationError: the question asks for what cannot be; the helper's own message.
        WorkbenchError: it ended without an answer; one sentence with the last thing it said.
    """
    with contextlib.ExitStack() as files:
        try:
            said = files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                encoding="utf-8",
                env=_environment(),
            )
        except OSError as error:
            raise WorkbenchError(f"the {question['ask']} of the model could not be taken: {error}") from error
        try:
            return _converse(process, question, tell, said)
        finally:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            process.wait()


def _converse(
    process: subprocess.Popen[str], question: Mapping[str, Any], tell: Callable[[str], None], said: IO[str]
) -> Any:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass
    for line in process.stdout:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "tell" in message:
            tell(message["tell"])
        elif "answer" in message:
            return message["answer"]
        elif "error" in message:
            wrong = message["exit_code"] == EXIT_CONFIGURATION
            raise (ConfigurationError if wrong else WorkbenchError)(message["error"])
    raise WorkbenchError(f"the {question['ask']} of the model could not be taken: {_end(process, said)}")


def _end(process: subprocess.Popen[str], said: IO[str]) -> str:
    """How a process ended that gave no answer."""
    code = process.wait()
    if code == -signal.SIGKILL:
        return "its process was killed, as the system does when memory runs out"
    said.seek(0)
    lines = [line.strip() for line in said if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"its process {how}{last}"


def _environment() -> dict[str, str]:
    """This process's own, with this very package ahead of whatever lies in the current folder."""
    package = str(Path(workbench.__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONSAFEPATH": "1",
    }
