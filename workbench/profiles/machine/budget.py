"""How much time and room a probe may take. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.formatting import MIB


@dataclass(frozen=True)
class Budget:
    """Times in seconds, sizes in bytes unless said.

    `repetitions`: of each measurement, fewer where a part has taken `part_s`. `sample_s`: the least length of one.
    `buffer_bytes` and `elements`: of each buffer, of parameters; where the caches are large, both grow to be
    `cache_multiple` times these. `product_s`: about the length of a matrix product. `disk_bytes`: of all files
    together; `disk_s`: for all of their reads and writes.
    """

    repetitions: int
    sample_s: float
    part_s: float
    buffer_bytes: int
    elements: int
    cache_multiple: float
    product_s: float
    disk_bytes: int
    disk_s: float


FULL = Budget(
    repetitions=7,
    sample_s=0.02,
    part_s=8.0,
    buffer_bytes=256 * MIB,
    elements=1 << 24,
    cache_multiple=3.0,
    product_s=0.05,
    disk_bytes=512 * MIB,
    disk_s=6.0,
)
QUICK = Budget(
    repetitions=3,
    sample_s=0.01,
    part_s=1.5,
    buffer_bytes=128 * MIB,
    elements=1 << 23,
    cache_multiple=2.0,
    product_s=0.02,
    disk_bytes=256 * MIB,
    disk_s=1.5,
)
