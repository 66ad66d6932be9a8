"""What Linux says of a process: the bytes it moved to and from disks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class DiskTraffic(NamedTuple):
    """Bytes that this process had read from and written to block devices; None where the system does not tell."""

    read: int | None
    written: int | None

    def since(self, earlier: DiskTraffic) -> DiskTraffic:
        def difference(now: int | None, before: int | None) -> int | None:
            return None if now is None or before is None else now - before

        return DiskTraffic(difference(self.read, earlier.read), difference(self.written, earlier.written))


def disk_traffic(counters: Path = Path("/proc/self/io")) -> DiskTraffic:
    """So far; all threads together."""
    try:
        text = counters.read_text()
    except OSError:
        return DiskTraffic(None, None)
    values = dict(re.findall(r"^(\w+): (\d+)$", text, re.MULTILINE))
    return DiskTraffic(int(values["read_bytes"]), int(values["write_bytes"]))
