"""`python -m benchmarks.host_optimizer`: what an AdamW step on the host costs, ours beside the alternatives."""

from __future__ import annotations

import sys

from workbench.optimizer import missing_extension

if __name__ == "__main__":
    if (missing := missing_extension()) is not None:
        sys.exit(missing)
    from benchmarks.host_optimizer.command import main

    main(sys.argv[1:])
