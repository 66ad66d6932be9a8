"""Which cores a process gets beside its GPU, on machines of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.system.numa import cores_beside, cores_of_nodes, node_of_device

NODES = {0: "0-3,8-11", 1: "4-7,12-15"}
"""Two nodes of four cores, whose second threads are 8 further on."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for node, cores in NODES.items():
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", cores)
    write(tmp_path / "sys/devices/system/node/node2/cpulist", "")  # Memory without cores.
    for cpu in range(16):
        first = cpu % 8
        write(
            tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            f"{first},{first + 8}",
        )
    for bus, node in (("01", 0), ("81", 1), ("c1", -1)):
        write(tmp_path / f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node", str(node))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_a_gpu_is_at_the_node_that_the_system_says(root: Path) -> None:
    assert [node_of_device(f"0000:{bus}:00.0", root) for bus in ("01", "81", "c1", "ff")] == [
        0,
        1,
        None,
        None,
    ]
    assert cores_of_nodes(root) == {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)}


def test_processes_of_a_node_part_its_cores_with_all_of_their_threads(root: Path) -> None:
    every = set(range(16))
    nodes = [0, 1, 0, 1, 1]
    found = [cores_beside(nodes, place, every, root) for place in range(5)]
    assert found == [{0, 1, 8, 9}, {4, 12}, {2, 3, 10, 11}, {5, 13}, {6, 7, 14, 15}]
    assert cores_beside([0, 1], 1, {0, 1, 4, 12}, root) == {4, 12}


@pytest.mark.parametrize("nodes", [[0, 0], [0, None], [0, 1, None], [1]])
def test_no_process_is_bound_where_cores_would_be_idle(root: Path, nodes: list[int | None]) -> None:
    assert cores_beside(nodes, 0, set(range(16)), root) is None


def test_a_machine_of_one_node_binds_nobody(root: Path) -> None:
    assert cores_beside([0, 0], 0, {0, 1, 2, 3}, root) is None
    assert cores_beside([0, 1], 0, {0, 1}, root / "none") is None
