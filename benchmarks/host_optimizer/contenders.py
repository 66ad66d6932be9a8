"""From a variant's name to the contender."""

from __future__ import annotations

from benchmarks.host_optimizer import limits, our_contenders, package_contenders, torch_contenders
from benchmarks.host_optimizer.buffers import Buffers
from benchmarks.host_optimizer.contender import Run
from benchmarks.host_optimizer.variants import Variant


def make(buffers: Buffers, variant: Variant, threads: int) -> Run:
    """The contender; torch's thread count must be `threads` already. Raises `UnavailableError`."""
    if variant.package is not None:
        return package_contenders.make(variant.name, buffers)
    if variant.name.startswith("limit_"):
        return limits.make(variant.name, buffers, threads)
    if variant.name.startswith("torch_"):
        return torch_contenders.make(variant.name, buffers)
    return our_contenders.make(variant.name, buffers, threads)
