"""The helper process (see `helper_process.py`); or, with `ship`, writes the model profiles of the shipped presets."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_ERROR, WorkbenchError

LARGEST_IDLE_BYTES = 1 << 30
"""A process that holds more memory of its own after an answer does not wait for another question."""

_SMALLEST = {
    "architecture": "gpt2",
    "config": {"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 32, "vocab_size": 16},
}

Send = Callable[[Mapping[str, Any]], None]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["ship"]:
        from workbench.profiles.model.ship import ship

        try:
            ship(lambda sentence: print(sentence, file=sys.stderr), arguments[1:])
        except WorkbenchError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return EXIT_DONE
    if arguments not in ([], ["warm"]):
        print("usage: python -m workbench.profiles.model [warm|ship [PRESET ...]]", file=sys.stderr)
        return EXIT_CONFIGURATION
    # Whatever libraries print goes to stderr: stdout is for answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def send(message: Mapping[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        questions = _Questions()
        if arguments:
            _warm_up(send)
        while _serve(questions.wait(), send):
            questions.done()
        return EXIT_DONE


def answer(question: Mapping[str, Any], tell: Any) -> dict[str, Any]:
    """The model profile or the times that `question` asks for, as plain data."""
    from workbench.plan.model_profile import ModelProfile
    from workbench.profiles.model.measure import measure_times
    from workbench.profiles.model.take import take_model_profile

    if question["ask"] == "model_profile":
        return take_model_profile(question["model"], tell).model_dump(mode="json")
    return measure_times(
        question["model"],
        ModelProfile.model_validate(question["model_profile"]),
        **{
            name: question[name]
            for name in ("sequences", "tokens", "dtype", "device", "fingerprint", "budget_s")
        },
        tell=tell,
    ).model_dump(mode="json")


class _Questions:
    """What is asked on stdin. When that closes, nobody waits for an answer any more, and the process ends at once."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._open = 0
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self) -> Mapping[str, Any]:
        return self._waiting.get()

    def done(self) -> None:
        """One has been answered."""
        self._open -= 1

    def _read(self) -> None:
        for line in sys.stdin:
            self._open += 1
            self._waiting.put(json.loads(line))
        os._exit(EXIT_ERROR if self._open else EXIT_DONE)


def _warm_up(send: Send) -> None:
    """Answer a question that nobody has asked: only then all is imported that others need."""
    warnings.simplefilter("ignore")
    with contextlib.suppress(Exception):  # what is wrong, the first real question tells
        answer({"ask": "model_profile", "model": _SMALLEST}, lambda sentence: None)
    _give_back()
    send({"idle_bytes": _own_bytes()})


def _serve(question: Mapping[str, Any], send: Send) -> bool:
    """Answer one question; whether to wait for another."""
    warnings.simplefilter("ignore")
    message: dict[str, Any]
    try:
        message = {"answer": answer(question, lambda sentence: send({"tell": sentence}))}
    except WorkbenchError as error:
        message = {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        words = next(iter(str(error).splitlines()), "")
        message = {
            "error": f"the {question['ask']} of the model could not be taken: {type(error).__name__}: {words}",
            "exit_code": EXIT_ERROR,
        }
    _give_back()
    held = _own_bytes()
    message["idle_bytes"] = held
    if held > LARGEST_IDLE_BYTES:
        message["leaves"] = True
    send(message)
    return "leaves" not in message


def _give_back() -> None:
    """Let the system have what was freed."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # the C library may be another one
        ctypes.CDLL(None).malloc_trim(0)


def _own_bytes() -> int:
    """The memory that this process does not share with files; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
