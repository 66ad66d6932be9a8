"""`python -m benchmarks.plan_accuracy`: plan a configuration, train it, and say how far apart the two are."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from benchmarks.plan_accuracy.command import main

    sys.exit(main(sys.argv[1:]))
