"""The checksum of what is saved is zlib's CRC-32, whoever computes it: a checkpoint can be checked on any machine."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib

import pytest

from workbench.system.files import crc32


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 255, 4096, 65_537])
def test_it_is_zlibs_value_at_any_length_offset_and_beginning(length: int) -> None:
    data = random.Random(length).randbytes(length + 3)
    for offset in range(3):
        part = memoryview(data)[offset : offset + length]
        assert crc32(part) == zlib.crc32(part)
        assert crc32(part, 0xDEADBEEF) == zlib.crc32(part, 0xDEADBEEF)
        middle = length // 3
        assert crc32(part[middle:], crc32(part[:middle])) == zlib.crc32(part)


def test_without_the_fast_one_zlibs_is_taken() -> None:
    code = """
import sys, zlib
sys.modules["isal"] = None
from workbench.system.files import crc32
assert crc32 is zlib.crc32
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
