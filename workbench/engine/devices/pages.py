"""Memory of whole pages, which a disk's direct I/O reads into and writes from as it lies."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

from workbench.layout import padded


def page_aligned(nbytes: int) -> Tensor:
    """Zeroed memory of its own pages: uint8, 1-D, `padded(nbytes)` long; it goes back to the system when freed.

    Buffers of the engine's own: a forked child that touches one is killed.
    """
    size = padded(nbytes)
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # After a fork the first write moves a shared page, and a read under way would go on into the old one (open(2)).
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with contextlib.suppress(OSError, AttributeError):
            mapping.madvise(getattr(mmap, advice))
    return torch.frombuffer(mapping, dtype=torch.uint8)
