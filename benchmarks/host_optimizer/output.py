"""stdout is data: whatever else writes to it, from Python or from C, is sent to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Give the real stdout, while file descriptor 1 leads to stderr (packages print on it, some of them from C)."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(real), "w") as data:
            yield data
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def say(message: str) -> None:
    """Tell the user how the work goes."""
    print(message, file=sys.stderr, flush=True)
