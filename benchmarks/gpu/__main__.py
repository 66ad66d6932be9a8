"""`python -m benchmarks.gpu`: the engine on a GPU beside plain torch, torchao and DeepSpeed."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from benchmarks.gpu.command import main

    sys.exit(main(sys.argv[1:]))
