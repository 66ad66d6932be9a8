"""The head of a report: machine, versions, date, load and command."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
from collections.abc import Sequence

import psutil

from benchmarks.host_optimizer.machine import cpu_model
from workbench.system.processor import usable_cpus

GIB = 1 << 30


def describe(package: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Lines that say where, when and how the figures came about; call it before there is load."""
    import torch

    return (
        f"Machine: {cpu_model()}, {usable_cpus()} usable cores, {psutil.virtual_memory().total / GIB:.0f} GiB; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; Python {platform.python_version()}",
        f"Date: {datetime.date.today().isoformat()}; load average at the start: {os.getloadavg()[0]:.2f}",
        f"Command: `{shlex.join(['python', '-m', package, *arguments])}`",
    )
