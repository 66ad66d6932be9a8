"""The ranks of one run, as torchrun starts them: what trainers tell each other beside the engine's own exchanges.

Rank 0 chooses the run, writes its directory and reads its control file; every other rank has a folder of its own in it,
`ranks/N`, with a log, metrics and lanes. Invariant: all ranks tell at the same points of the loop, and decide by what
all of them told.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import EXIT_ERROR, ConfigurationError, WorkbenchError
from workbench.profiles.this_machine import resolved_device, visible_gpus
from workbench.runs.directory import Entry, RunDirectory
from workbench.runs.ending import cause_of_death
from workbench.runs.status import Status, process_started, read_status

if TYPE_CHECKING:
    from workbench.config import RunConfig
    from workbench.data.batches import Batch, Sampler

LONGEST_WAIT = timedelta(days=2)
"""For a rank that prepares a text, or waits in a paused run; one that ends is noticed at once."""

_ENDS_WITHIN_S = 1.0
"""A process closes its connections before it is gone."""


class OtherRankError(WorkbenchError):
    """Another rank has failed, which reports it; it ends with `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RunRanks:
    """`size` ranks, of which this is number `rank`; `local_size` of them are on this machine. One, unless torchrun has
    started several."""

    rank = 0
    size = 1
    local_size = 1

    def tell(self, message: Any) -> list[Any]:
        """Return the messages of all ranks in their order, values that JSON can hold.

        Raises:
            OtherRankError: another rank has failed.
        """
        return [message]

    def agree(self, error: WorkbenchError | None) -> None:
        """Raise `error`, or where another rank has one, its message: all go on, or none."""
        messages = self.tell(None if error is None else [str(error), error.exit_code])
        if error is not None:
            raise error
        for rank, message in enumerate(messages):
            if message is not None:
                raise OtherRankError(f"rank {rank}: {message[0]}", message[1])

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Do something on every rank that may fail on some: then it fails on all."""
        error = None
        try:
            yield
        except WorkbenchError as raised:
            error = raised
        self.agree(error)

    def leave(self, reason: BaseException | None) -> None:
        """Tell no more; the others meet `reason` when they tell next."""


ONE_RANK = RunRanks()


class SeveralRanks(RunRanks):
    """Those that torchrun has started, connected. This imports torch."""

    def __init__(self) -> None:
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        from workbench.engine.ranks import RankFailedError, Ranks

        self._failed = RankFailedError
        if not dist.is_initialized():
            store, rank, size = next(rendezvous("env://", timeout=LONGEST_WAIT))
            # torchrun keeps its store over restarts, with the addresses of processes that are no more.
            attempt = dist.PrefixStore(  # type: ignore[attr-defined]
                f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store
            )
            dist.init_process_group("gloo", store=attempt, rank=rank, world_size=size, timeout=LONGEST_WAIT)
        self._ranks = Ranks(LONGEST_WAIT.total_seconds())
        try:
            self._ranks.connect()
        except RankFailedError as error:
            raise OtherRankError(str(error)) from error
        self.rank, self.size = self._ranks.rank, self._ranks.size
        self.local_size = local_ranks(self.size)

    def tell(self, message: Any) -> list[Any]:
        text = json.dumps(message).encode()
        try:
            longest = max(
                int.from_bytes(told, "little") for told in self._ranks.tell(len(text).to_bytes(8, "little"))
            )
            told = self._ranks.tell(text.ljust(longest))
        except self._failed as error:
            raise OtherRankError(str(error)) from error
        return [json.loads(one) for one in told]

    def leave(self, reason: BaseException | None) -> None:
        self._ranks.leave(reason)


def started_by_torchrun() -> int:
    """Return how many processes torchrun has started, of which this is one; 1 where none or one."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def local_ranks(ranks: int) -> int:
    """Return how many of `ranks` are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if "RANK" in os.environ else ranks


def is_first_here() -> bool:
    """Return True for the one rank of this machine that looks at its memory: the others count in that."""
    return "RANK" not in os.environ or os.environ.get("LOCAL_RANK", os.environ["RANK"]) == "0"


def is_restarted() -> bool:
    """Return True where torchrun has started this process in the place of one that failed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def ranks_of(config: RunConfig) -> int:
    """Return how many ranks train `config`: those that torchrun has started, else as many as [parallel] asks for here.

    Raises:
        ConfigurationError: this machine has fewer GPUs.
    """
    wanted = config.parallel.gpus
    if "RANK" in os.environ:
        return started_by_torchrun()
    if wanted == 1:
        return 1
    if resolved_device(config.train.device) == "cpu":
        return 1 if wanted == "auto" else wanted
    there = len(visible_gpus())
    if wanted != "auto" and wanted > there:
        raise ConfigurationError(
            f'parallel.gpus = {wanted}: this machine shows {there} {"GPU" if there == 1 else "GPUs"}; "auto" takes all'
        )
    return max(1, there) if wanted == "auto" else wanted


def check_one_rank(what: str) -> None:
    """Raise ConfigurationError where this process is one of several: each would do `what` by itself."""
    ranks = started_by_torchrun()
    if ranks > 1:
        raise ConfigurationError(
            f"this is one of {ranks} processes that torchrun has started, and each would {what} by itself: start one "
            "without torchrun (docs/distributed.md)"
        )


def lost_rank(error: BaseException, run: RunDirectory, ranks: RunRanks) -> str:
    """Return which rank is gone or hangs, and why, where that is behind `error` and the rank could not say so itself;
    else an empty text. `run`: this rank's folder."""
    root = run.path.parents[1] if ranks.rank else run.path
    others = {rank: RunDirectory(root / "ranks" / str(rank)) for rank in range(1, ranks.size)}
    others = {rank: at for rank, at in {0: RunDirectory(root), **others}.items() if rank != ranks.rank}
    cause: BaseException | None = error
    while cause is not None:
        find_silent = getattr(cause, "find_silent", None)
        if find_silent is not None:
            until = time.monotonic() + _ENDS_WITHIN_S
            while time.monotonic() < until:
                for rank, directory in others.items():
                    if _is_gone(status := read_status(directory)):
                        return f"rank {rank}: {cause_of_death(status)}"
                time.sleep(0.1)
            silent = find_silent()
            return f"rank {' or '.join(map(str, silent))} hangs, or cannot be reached" if silent else ""
        cause = cause.__cause__
    return ""


def _is_gone(status: Status) -> bool:
    """Return True where a rank's process ended on this machine, without a word."""
    ended = status.exit_code is None and status.host == socket.gethostname()
    return ended and process_started(status.pid) is None


class _EntryOfAll(Entry):
    def __get__(self, directory: RunDirectory, owner: type[RunDirectory]) -> Path:
        return directory.path.parents[1] / self.name


class RankDirectory(RunDirectory):
    """The folder of a rank other than the first, in that of its run; it has no checkpoints of its own."""

    checkpoints = _EntryOfAll("checkpoints")

    @classmethod
    def of(cls, run: RunDirectory, rank: int) -> RankDirectory:
        """Return that of `rank`, made where it is not there yet."""
        directory = cls(run.path / "ranks" / str(rank))
        directory.samples.mkdir(parents=True, exist_ok=True)
        directory.events.touch()
        return directory


class EveryNth:
    """Gives a rank its own micro-batches of the run's one order: every `size`-th, from number `rank` on."""

    def __init__(self, sampler: Sampler, ranks: RunRanks) -> None:
        self._sampler = sampler
        self._ranks = ranks

    def next(self) -> Batch:
        return [self._sampler.next() for _ in range(self._ranks.size)][self._ranks.rank]

    def state(self) -> dict[str, int]:
        return self._sampler.state()

    def load_state(self, state: dict[str, int]) -> None:
        self._sampler.load_state(state)


def of_all(told: Sequence[Sequence[float]]) -> list[float]:
    """Return the sums, over the ranks, of the numbers that each told."""
    return [sum(numbers) for numbers in zip(*told, strict=True)]
