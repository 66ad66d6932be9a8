"""How many ranks a configuration has, and which of them is named when one is lost."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rank_processes import RankProcesses

import workbench.training.ranks as ranks_module
from workbench.config import RunConfig, parse_config
from workbench.errors import ConfigurationError
from workbench.profiles.this_machine import Gpu
from workbench.runs import RunDirectory, Status, write_status
from workbench.training import session
from workbench.training.ranks import RankDirectory, RunRanks, lost_rank, ranks_of


def config(gpus: object, device: str) -> RunConfig:
    text = f'[model]\narchitecture = "gpt2"\n[train]\ndevice = "{device}"\n[parallel]\ngpus = {gpus}\n'
    return parse_config(text, "my.toml")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ranks_module, "visible_gpus", lambda: [Gpu("a card", 1 << 34, 1 << 34, "1", True)] * 2
    )


@pytest.mark.parametrize(
    ("gpus", "device", "ranks"),
    [('"auto"', "cuda", 2), (2, "cuda", 2), (1, "cuda", 1), (3, "cpu", 3), ('"auto"', "cpu", 1)],
)
def test_gpus_are_counted_and_on_the_cpu_processes(
    two_gpus: None, gpus: object, device: str, ranks: int
) -> None:
    assert ranks_of(config(gpus, device)) == ranks


def test_more_gpus_than_there_are_is_refused_with_their_number(two_gpus: None) -> None:
    with pytest.raises(ConfigurationError, match=r"parallel\.gpus = 3: this machine shows 2 GPUs"):
        ranks_of(config(3, "cuda"))


def test_torchrun_decides_where_it_has_started_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks_of(config(2, "cpu")) == 4


class FirstOfThree(RunRanks):
    size = 3


def test_of_three_ranks_the_one_whose_process_is_gone_is_named(run: RunDirectory) -> None:
    write_status(RankDirectory.of(run, 1), Status(phase="training"))
    gone = Status(phase="training", pid=2**22 + 1, pid_started=1.0, host=os.uname().nodename)
    write_status(RankDirectory.of(run, 2), gone)
    error = RuntimeError("another rank ended")
    error.find_silent = lambda: [1, 2]  # type: ignore[attr-defined]
    wrapped = RuntimeError("lane communicate")
    wrapped.__cause__ = error
    assert lost_rank(wrapped, run, FirstOfThree()).startswith(f"rank 2: its process {gone.pid} is gone")
    assert lost_rank(RuntimeError("an error of its own"), run, FirstOfThree()) == ""


def wait_for_rank_1(rank: int, size: int) -> object:
    """Rank 0 waits for what rank 1 tells, which does something else meanwhile."""
    from workbench.engine.ranks import RankFailedError, Ranks

    ranks = Ranks(1.0)
    ranks.connect()
    if rank == 1:
        time.sleep(5.0)
        return None
    try:
        ranks.tell(b"here")
    except RankFailedError as error:
        assert error.find_silent is not None
        return error.find_silent()
    return "all told"


def test_the_rank_that_hangs_is_named_by_who_waits_for_it(tmp_path: Path) -> None:
    processes = RankProcesses(2, tmp_path)
    try:
        assert processes.run(wait_for_rank_1) == [[1], None]
    finally:
        processes.kill()


@pytest.mark.parametrize("nodes", [[0, 1], [0, 0]])
def test_a_rank_runs_on_its_part_of_the_cores_beside_its_gpu(
    monkeypatch: pytest.MonkeyPatch, nodes: list[int]
) -> None:
    """Two ranks here, of whom this is the second, and one on another machine."""
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x81, pci_device_id=0)
    asked: list[str] = []
    bound: list[set[int]] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(session, "node_of_device", lambda pci: asked.append(pci) or nodes[1])
    monkeypatch.setattr(
        session, "cores_beside", lambda at, place, allowed: {place} if set(at) == {0, 1} else None
    )
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: bound.append(cores))
    here = socket.gethostname()
    ranks: Any = SimpleNamespace(rank=1, tell=lambda own: [[here, nodes[0]], own, ["elsewhere", 0]])
    prepared: Any = SimpleNamespace(device=SimpleNamespace(torch_device=torch.device("cuda:1")))
    is_bound = session._bind_to_node(prepared, ranks)
    assert asked == ["0000:81:00.0"]
    assert (is_bound, bound) == ((True, [{1}]) if nodes == [0, 1] else (False, []))
