"""CRC-32, with zlib's polynomial, of everything that is saved; a fast one, for it must not set the pace of a save.

ISA-L's is three times as fast as zlib's where a core has carry-less multiplication. Both give the same value.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    # No wheel for this platform, and no compiler when it was installed.
    from zlib import crc32

__all__ = ["crc32"]
