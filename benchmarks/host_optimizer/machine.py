"""What the figures were measured on, in words for the head of a table."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from workbench.optimizer.host import choose_instruction_set
from workbench.system.processor import usable_cpus


def describe(arguments: Sequence[str]) -> tuple[str, ...]:
    """Lines that name the machine, the versions, the date, how busy the machine is now, and the command."""
    instruction_set = choose_instruction_set(os.environ.get("WORKBENCH_ISA", ""))
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    command = shlex.join(["python", "-m", "benchmarks.host_optimizer", *arguments])
    return (
        f"Machine: {cpu_model()}, {usable_cpus()} usable cores; Workbench's kernels: {instruction_set}; "
        f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), "
        f"Python {platform.python_version()}",
        f"Date: {datetime.date.today().isoformat()}; load average at the start: {load}",
        f"Command: `{command}`",
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's name, or its architecture where the system does not tell the name."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()
