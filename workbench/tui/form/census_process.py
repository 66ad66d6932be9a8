"""Takes one model's census for the screen: a [model] table as one line of JSON on stdin, answers as lines on stdout.

`obtain_census` waits for its helper and cannot be interrupted; this process can, and its helper ends with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from workbench.census.obtain import obtain_census
from workbench.errors import EXIT_DONE, WorkbenchError


def main() -> int:
    """Answer {"tell": sentence}, then {"answer": census} or {"error": message, "exit_code": number}."""
    table = json.loads(sys.stdin.readline())
    try:
        census = obtain_census(table, lambda sentence: _send({"tell": sentence}))
    except WorkbenchError as error:
        _send({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    assert census is not None, "it is taken where there is none"
    _send({"answer": census.model_dump(mode="json")})
    return EXIT_DONE


def _send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
