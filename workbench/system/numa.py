"""The memory nodes (NUMA) of a machine: which one a GPU is at, and the cores of it that a process may have for itself.

Linux tells it in /sys. `root` is where `sys` lies (tests bring their own). Imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from workbench.system.processor import number

_NODE = re.compile(r"node(\d+)")


def node_of_device(pci: str, root: Path = Path("/")) -> int | None:
    """Return the memory node that a PCI device ("0000:81:00.0") is at; None where the system does not say."""
    node = number(root / "sys/bus/pci/devices" / pci / "numa_node")
    return None if node is None or node < 0 else node


def cores_beside(
    nodes: Sequence[int | None], place: int, allowed: set[int], root: Path = Path("/")
) -> set[int] | None:
    """Return the CPUs for process `place` of several on this machine, whose GPUs are at `nodes`: its part of its node's
    `allowed` cores, each with all of its threads.

    None where to be bound to them would leave cores idle: a node is unknown, or has cores and none of the processes.
    """
    cpus = {node: allowed.intersection(cores) for node, cores in cores_of_nodes(root).items()}
    busy = {node for node, there in cpus.items() if there}
    if set(nodes) != busy or len(busy) < 2:
        return None
    node = nodes[place]
    assert node is not None
    sharing = [other for other, at in enumerate(nodes) if at == node]
    cores: dict[int, set[int]] = {}
    for cpu in cpus[node]:
        siblings = _list(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(min(siblings, default=cpu), set()).add(cpu)
    first, last = (len(cores) * (sharing.index(place) + end) // len(sharing) for end in (0, 1))
    return set().union(*(cores[core] for core in sorted(cores)[first:last])) or None


def cores_of_nodes(root: Path = Path("/")) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each memory node that has any, in the nodes' order."""
    try:
        names = [
            match
            for path in (root / "sys/devices/system/node").iterdir()
            if (match := _NODE.fullmatch(path.name))
        ]
    except OSError:
        return {}
    nodes = {
        number: _list(root / f"sys/devices/system/node/node{number}/cpulist")
        for number in sorted(int(m[1]) for m in names)
    }
    return {number: cores for number, cores in nodes.items() if cores}


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the numbers in a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _list(path: Path) -> tuple[int, ...]:
    try:
        return parse_cores(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return ()
