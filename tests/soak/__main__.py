"""`python -m tests.soak [PART ...] [--minutes 60] [--seed 0]`: faults by the thousand, a summary line for each part.

Exit status 1 where anything went wrong; a line on stdout says how to repeat it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.families import try_families
from soak.growth import try_growth
from soak.kills import try_kills
from soak.mutated_files import try_files
from soak.rank_kills import try_rank_kills

Part = Callable[[Iterator[int], float, Callable[[str], None]], Counter[str]]
PARTS: dict[str, Part] = {
    "files": try_files,
    "kills": try_kills,
    "rank-kills": try_rank_kills,
    "families": try_families,
    "growth": try_growth,
}
"""Each tries the seeds that it is given until a moment on the monotonic clock, and reports what went wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="parts to try; all of them without one"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="in all, shared by the parts")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    wrong = 0
    for name in parts:
        until = time.monotonic() + 60 * options.minutes / len(parts)
        counts = PARTS[name](itertools.count(options.seed), until, lambda line: print(line, flush=True))
        wrong += counts["wrong"]
        found = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("tried", "refused", "taken", "wrong"))
        print(f"{name}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
