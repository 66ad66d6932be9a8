"""The libraries of the hub kept silent: their bars and their remarks on each attempt are not this program's output."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    bars: Any = importlib.import_module("huggingface_hub.utils")
    remarks: Any = importlib.import_module("huggingface_hub.utils.logging")
    shown, verbosity = not bars.are_progress_bars_disabled(), remarks.get_verbosity()
    bars.disable_progress_bars()
    remarks.set_verbosity_error()
    try:
        yield
    finally:
        remarks.set_verbosity(verbosity)
        if shown:
            bars.enable_progress_bars()
