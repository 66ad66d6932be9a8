"""The process that measures models for others; or, with `ship`, writes the model profiles of the shipped presets."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE, WorkbenchError
from workbench.system.child_process import Report, serve

_SMALLEST = {
    "architecture": "gpt2",
    "config": {"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 32, "vocab_size": 16},
}


def main(arguments: list[str]) -> int:
    if arguments in ([], ["warm"]):
        serve(answer, _warm_up if arguments else None)
    if arguments[:1] == ["ship"]:
        from workbench.profiles.model.ship import ship

        try:
            ship(lambda sentence: print(sentence, file=sys.stderr), arguments[1:])
        except WorkbenchError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return EXIT_DONE
    print("usage: python -m workbench.profiles.model [warm|ship [PRESET ...]]", file=sys.stderr)
    return EXIT_CONFIGURATION


def _warm_up() -> None:
    """Profile a tiny model: only then all is imported that others need."""
    with contextlib.suppress(Exception):  # the first real question reports what is wrong
        answer({"ask": "model_profile", "model": _SMALLEST}, lambda sentence: None)


def answer(question: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the model profile or the times that `question` asks for, as plain data."""
    warnings.simplefilter("ignore")
    try:
        return _answer(question, report)
    finally:
        _release_memory()


def _answer(question: Mapping[str, Any], report: Report) -> dict[str, Any]:
    from workbench.plan.model_profile import ModelProfile
    from workbench.profiles.model.measure import measure_times
    from workbench.profiles.model.take import take_model_profile

    if question["ask"] == "model_profile":
        return take_model_profile(question["model"], report).model_dump(mode="json")
    return measure_times(
        question["model"],
        ModelProfile.model_validate(question["model_profile"]),
        **{
            name: question[name]
            for name in ("sequences", "tokens", "dtype", "device", "fingerprint", "budget_s")
        },
        tell=report,
    ).model_dump(mode="json")


def _release_memory() -> None:
    """Return freed memory to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # the C library may be another one
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
