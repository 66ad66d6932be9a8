"""`python -m benchmarks.engine overhead|memory|large`: what the engine costs on a CPU, in time and in memory."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from benchmarks.engine.command import main

    sys.exit(main(sys.argv[1:]))
