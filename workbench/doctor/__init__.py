"""`workbench doctor`: check everything that a run needs, and say how to repair what is wrong.

It measures no speeds (`workbench probe`) and plans no configuration (`workbench plan`). Invariant: the process that
checks never imports torch, so that it can report a torch that is missing or that hangs.
"""

from workbench.errors import EXIT_WARNINGS

__all__ = ["EXIT_WARNINGS", "HELP"]

HELP = f"check everything a run needs and how to repair it (exit 0: all ok, {EXIT_WARNINGS}: warnings, 1: failures)"
