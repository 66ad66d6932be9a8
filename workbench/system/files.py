"""Files written whole or not at all, and the checksum of everything that is saved."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

try:
    # ISA-L's CRC-32 is three times as fast as zlib's where a core has carry-less multiplication.
    from isal.isal_zlib import crc32
except ImportError:
    # No wheel for this platform, and no compiler when it was installed. The value is the same.
    from zlib import crc32

__all__ = ["crc32", "crc32_combine", "remove_unfinished", "sync", "sync_folder", "write_atomically"]

_UNFINISHED = re.compile(r"\..+\.\d+-[0-9a-f]{8}")
"""The names of files that `write_atomically` has begun."""


_POLYNOMIAL = 0xEDB88320
"""CRC-32's, its bits reversed."""


def crc32_combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two stretches of bytes, one behind the other, from those of each (zlib's crc32_combine)."""
    return _product(_power(second_bytes), first) ^ second


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2) modulo CRC-32's, bits reversed: the highest bit is 1."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache
def _power(nbytes: int) -> int:
    """Return x to the power of so many bits."""
    square, power = 1 << 23, 1 << 31  # x to the 8th, and 1
    while nbytes:
        if nbytes & 1:
            power = _product(square, power)
        square, nbytes = _product(square, square), nbytes >> 1
    return power


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace the file at `path` by one with `content`; a reader sees the old file or the new one, never a part.

    A str is written as UTF-8. With `durable` the content has reached the disk when this returns.

    Raises:
        OSError: the folder cannot be written; the temporary file is removed and the old file stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what `write_atomically` has left in `folder` where it was killed; nobody else may write there now."""
    for path in list(folder.iterdir()):
        if _UNFINISHED.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until names created, renamed or removed in `folder` have reached the disk."""
    sync(folder)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, have reached the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
