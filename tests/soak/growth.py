"""A run that trains, evaluates, samples and saves for as long as it may: memory, descriptors and threads stay flat.

The median of the second half of the run is compared with that of the first half after its first tenth.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median_low

import psutil

from soak.kills import PATIENCE_S, PRESET, ended, history, kill, start, tail
from workbench.formatting import MIB

EVERY_S = 0.5
MOST_GROWTH = 8 * MIB
"""An allocator gives back less than it was given; a leak of a KiB a step is far more in an hour."""

Moment = tuple[int, int, int]
"""Resident bytes, descriptors and threads."""


def grown(moments: Sequence[Moment]) -> list[str]:
    """Return what the second half has more of than the first."""
    start, half = len(moments) // 10, len(moments) // 2
    before = [median_low(values) for values in zip(*moments[start:half], strict=True)]
    after = [median_low(values) for values in zip(*moments[half:], strict=True)]
    allowed = (MOST_GROWTH, 0, 0)
    names = ("bytes", "descriptors", "threads")
    return [
        f"{later:,} {name} after {earlier:,}"
        for name, earlier, later, more in zip(names, before, after, allowed, strict=True)
        if later > earlier + more
    ]


def try_growth(seeds: Iterator[int], until: float, report: Callable[[str], None]) -> Counter[str]:
    """Train the configuration of one seed until `until` (on the monotonic clock). Counts looks at the process."""
    import torch  # noqa: F401  # once, before the fork

    import workbench.training.command  # noqa: F401

    counts: Counter[str] = Counter()
    settings = {**history(next(seeds)).settings, "every": 50}
    with tempfile.TemporaryDirectory(prefix="soak-growth-") as name:
        folder = Path(name)
        text, disk, preset = folder / "text.txt", folder / "disk", folder / "long.toml"
        text.write_text("".join(random.Random(0).choices("abcdefgh ,.\n", k=20_000)))
        disk.mkdir()
        preset.write_text(PRESET.format(text=text, disk=disk, steps=10**8, **settings))
        words = ["run", str(preset), "--runs", str(folder / "runs"), "--set=sample.every=100"]
        child = start([*words, "--set=sample.tokens=8"], folder, None)
        process, moments, code = psutil.Process(child), [], None
        while code is None and time.monotonic() < until:
            with process.oneshot():
                moments.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
            code = ended(child, time.monotonic() + EVERY_S)
        wrong = [f"it ended with exit status {code}"] if code is not None else grown(moments)
        if code is None:
            os.kill(child, signal.SIGINT)
            if ended(child, time.monotonic() + PATIENCE_S) is None:
                kill(child)
                wrong.append("it did not end on SIGINT")
        counts["tried"], counts["wrong"] = len(moments), len(wrong)
        for problem in wrong:
            report(f"growth: {settings}: {problem}; {tail(folder)}")
        report(
            f"growth: MiB, descriptors, threads at the end: {moments[-1][0] / MIB:,.0f}, {moments[-1][1:]}"
        )
    return counts
