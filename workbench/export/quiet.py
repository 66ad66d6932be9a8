"""transformers' remarks and progress bars, left out for a while: what matters is said in this program's words."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within this transformers and peft say nothing."""
    from transformers.utils import logging as remarks

    before, bars = remarks.get_verbosity(), remarks.is_progress_bar_enabled()
    remarks.set_verbosity(logging.CRITICAL)
    remarks.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.set_verbosity(before)
        if bars:
            remarks.enable_progress_bar()
