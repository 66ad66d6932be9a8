"""`workbench doctor`: looks at everything that a run needs and says how to mend what is wrong.

Not for measuring how fast a machine is (`workbench probe`), nor for what one configuration needs (`workbench plan`).
No module here imports torch in the process that looks: it must say what is wrong where torch is missing or hangs.
"""

from workbench.errors import EXIT_WARNINGS

__all__ = ["EXIT_WARNINGS", "HELP"]

HELP = f"check everything a run needs and say how to mend it (exit 0: all ok, {EXIT_WARNINGS}: warnings, 1: failures)"
