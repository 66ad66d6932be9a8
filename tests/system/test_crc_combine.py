"""The checksum of a file that several ranks have written, from those of their parts."""

from __future__ import annotations

import random
import zlib

from workbench.system.files import crc32_combine


def test_the_checksum_of_two_stretches_is_zlibs_of_both() -> None:
    chance = random.Random(1)
    for _ in range(200):
        one, other = (chance.randbytes(chance.choice((0, 1, 7, 4096, 70_001))) for _ in range(2))
        combined = crc32_combine(zlib.crc32(one), zlib.crc32(other), len(other))
        assert combined == zlib.crc32(one + other)
