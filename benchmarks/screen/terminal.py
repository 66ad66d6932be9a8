"""A program in a terminal of its own: when its words were written, and how much of its own time that took.

Invariant: the program is gone when the `with` block is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Reached(NamedTuple):
    """`wall_s`: since the program was started. `cpu_s`: of its own, in all threads."""

    wall_s: float
    cpu_s: float

    def since(self, before: Reached) -> Reached:
        return Reached(self.wall_s - before.wall_s, self.cpu_s - before.cpu_s)

    @classmethod
    def median(cls, found: Sequence[Reached]) -> Reached:
        """Of each of the two."""
        return cls(*(statistics.median(values) for values in zip(*found, strict=True)))


@functools.cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """One folder as long as this process lasts."""
    return tempfile.TemporaryDirectory(prefix="workbench-benchmark-compiled-")


def environment(folder: str) -> dict[str, str]:
    """This process's own, with all that workbench keeps in `folder`; Python's compiled files are kept beside it."""
    return {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "PYTHON"))
        },
        "PYTHONPYCACHEPREFIX": _compiled().name,
        "PYTHONPATH": str(ROOT),
        "WORKBENCH_CACHE": str(Path(folder) / "cache"),
        "WORKBENCH_RUNS": str(Path(folder) / "runs"),
        "WORKBENCH_PRESETS": str(Path(folder) / "presets"),
        "TERM": "xterm-256color",
    }


class InTerminal:
    """`command` in a terminal of `size` (columns, rows); use it in a `with` block."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (80, 24)
    ) -> None:
        self._command, self._environment, self._size = command, environment, size
        self._seen = b""
        self._last = Reached(0.0, 0.0)

    def __enter__(self) -> InTerminal:
        self._master, inner = pty.openpty()
        columns, rows = self._size
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env=self._environment,
        )
        os.close(inner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.02)  # else it waits for a reader
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    @property
    def reached(self) -> Reached:
        """Where it is now."""
        return Reached(time.perf_counter() - self._began, _cpu_s(self._process.pid))

    def first_frame(self, word: str = "") -> Reached:
        """When the first whole picture was there: with the terminal's last line, and with `word`.

        Raises TimeoutError, EOFError where there is none.
        """
        last_line = f"\x1b[{self._size[1]};1H".encode()
        return self._until(lambda: last_line in self._seen and word.encode() in self._seen)

    def shows(self, *words: str) -> Reached:
        """When all `words` had been written since the last key. Raises TimeoutError, EOFError."""
        wanted = [word.encode() for word in words]
        return self._until(lambda: all(word in self._seen for word in wanted))

    def matches(self, pattern: bytes, times: int) -> Reached:
        """When the pattern had been written so often since the last key. Raises TimeoutError, EOFError."""
        return self._until(lambda: len(re.findall(pattern, self._seen)) >= times)

    @property
    def peak_mib(self) -> float:
        """The most memory that the program has held (proc(5): VmHWM)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def forget(self) -> None:
        """What was shown until now."""
        self._seen = b""

    def send(self, key: str) -> Reached:
        """Write a key into the terminal, and forget what was shown before it."""
        self._seen = b""
        at = self._last = self.reached
        os.write(self._master, key.encode())
        return at

    def settle(self, quiet_s: float) -> Reached:
        """When the last was written before `quiet_s` of silence; raises TimeoutError where nothing is."""
        self._until(lambda: bool(self._seen))
        while self._read(quiet_s):
            pass
        return self._last

    def drain(self, seconds: float) -> None:
        """Read for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def _until(self, met: Callable[[], bool]) -> Reached:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{' '.join(self._command)}: not within {PATIENCE_S:.0f} s")
            if not self._read(0.05) and self._process.poll() is not None:
                raise EOFError(f"{' '.join(self._command)}: ended with {self._process.returncode}")
        return self.reached

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, timeout_s))
        if not ready:
            return False
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            self._seen += os.read(self._master, 1 << 16)
            self._last = self.reached
            return True
        return False


def _cpu_s(pid: int) -> float:
    """User and system time of a process, in s (proc(5): fields 14 and 15 of stat)."""
    with Path(f"/proc/{pid}/stat").open(encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
