"""The helper process (see `helper_process.py`); or, with `ship`, writes the censuses of the shipped presets."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import IO, Any

from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_ERROR, WorkbenchError


def main(arguments: list[str]) -> int:
    if arguments == ["ship"]:
        from workbench.census.ship import ship

        ship(lambda sentence: print(sentence, file=sys.stderr))
        return EXIT_DONE
    if arguments:
        print("usage: python -m workbench.census [ship]", file=sys.stderr)
        return EXIT_CONFIGURATION
    # Whatever libraries print goes to stderr: stdout is for the answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        question = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_the_asker, daemon=True).start()
        return _serve(question, answers)


def answer(question: Mapping[str, Any], tell: Any) -> dict[str, Any]:
    """The census or the times that `question` asks for, as plain data."""
    from workbench.census.measure import measure_times
    from workbench.census.take import take_census
    from workbench.plan.census import Census

    if question["ask"] == "census":
        return take_census(question["model"], tell).model_dump(mode="json")
    return measure_times(
        question["model"],
        Census.model_validate(question["census"]),
        **{
            name: question[name]
            for name in ("sequences", "tokens", "dtype", "device", "fingerprint", "budget_s")
        },
        tell=tell,
    ).model_dump(mode="json")


def _serve(question: Mapping[str, Any], answers: IO[str]) -> int:
    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    warnings.simplefilter("ignore")
    try:
        send({"answer": answer(question, lambda sentence: send({"tell": sentence}))})
        return EXIT_DONE
    except WorkbenchError as error:
        send({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except Exception as error:
        words = next(iter(str(error).splitlines()), "")
        send(
            {
                "error": f"the {question['ask']} of the model could not be taken: {type(error).__name__}: {words}",
                "exit_code": EXIT_ERROR,
            }
        )
        return EXIT_ERROR


def _end_with_the_asker() -> None:
    """Nobody waits for the answer any more when stdin is closed."""
    sys.stdin.read()
    os._exit(EXIT_ERROR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
