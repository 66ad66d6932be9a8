"""Processes that are the ranks of torch.distributed, on gloo: they live as long as the tests that share them."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

LIMIT_S = 60.0
"""No function that ranks run in a test takes longer, or all of them are killed."""


class RankError(Exception):
    """A rank's function raised; `error` is its last line, by rank in `errors`."""

    def __init__(self, errors: dict[int, str], texts: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}:\n{text}" for rank, text in texts.items()))
        self.errors = errors


class RankProcesses:
    """`size` processes, which `run` calls a function on."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        # A server that has imported torch starts them: each would take seconds for it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "workbench.engine", "workbench.virtual_cuda"])
        self._processes = []
        self._pipes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, str(folder / f"rendezvous-{size}"), there), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `function(rank, size, *args)` returns on each rank.

        Raises:
            RankError: it raised, or its process ended, on some of them.
        """
        for pipe in self._pipes:
            pipe.send((function, args))
        results: list[Any] = [None] * self.size
        errors, texts = {}, {}
        deadline = time.monotonic() + LIMIT_S
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    errors[rank], texts[rank] = "hangs", f"nothing came in {LIMIT_S:g} s"
                    continue
                results[rank], errors_of, text = pipe.recv()
            except (EOFError, ConnectionError, OSError):
                errors_of = text = "ended"
            if errors_of:
                errors[rank], texts[rank] = errors_of, text
        if errors:
            raise RankError(errors, texts)
        return results

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, size: int, rendezvous: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((function(rank, size, *args), "", ""))
            except BaseException as error:
                pipe.send((None, f"{type(error).__name__}: {error}", traceback.format_exc()))
    os._exit(0)


def of_rank(rank: int, size: int, steps: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Every `size`-th micro-batch of each step's one order, from number `rank` on."""
    return [list(micro_batches[rank::size]) for micro_batches in steps]
