"""The ranks of torch.distributed that share an engine's state, seen from one of them: what they tell each other.

Every rank calls the same functions in the same order, from one thread at a time: the lane between ranks while a step
runs, the model's thread while none does. Blocks' weights are fetched beside that, from all ranks, over connections of
their own (`beside`). A rank that fails leaves: its connections close, and whoever waits for it meets an error that says
which rank it was and why.

Invariant: groups are the engine's own, so that a program may use its own meanwhile; and what comes out of a function
is the same on all ranks where it says so, to the last bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FAILED = "failed"
LONGEST_REASON = 500
ANSWER_S = 3.0
"""For the others to say that they have waited in vain, too."""


class RankFailedError(RuntimeError):
    """Another rank has failed, or has gone; the message says which one and why, where it has told.

    `find_silent`: where none has told, a function that asks, for seconds, which ranks did not wait in vain as well.
    """

    find_silent: Callable[[], list[int]] | None = None


def open_ranks(process_group: Any, limit_s: float) -> Ranks | None:
    """Return the ranks of `process_group`, None of which is torch.distributed's default one; None where there is one
    rank.

    `limit_s`: how long a rank may keep the others waiting; 0: as long as torch.distributed lets it.

    Raises:
        ValueError: the group is not the default one.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    if process_group not in (None, dist.group.WORLD):
        raise ValueError(
            "process_group: expected None or the default group: a state is shared by all ranks or by none"
        )
    return Ranks(limit_s) if dist.get_world_size() > 1 else None


class Ranks:
    """`size` ranks, of which this is number `rank`. All make their engines in the same order."""

    def __init__(self, limit_s: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._limit = timedelta(seconds=limit_s) if limit_s > 0 else None
        self._group: dist.ProcessGroup | None = None
        self._on_device: dist.ProcessGroup | None = None
        """The same ranks, for tensors on a device of its own."""
        self._store: Any = None
        self._beside: list[Ranks] = []

    # What all take part in

    def connect(self, gpu: torch.device | None = None) -> None:
        """Connect this rank with all others: what any of them may refuse by itself comes before. `gpu`: where its
        tensors are, if they are on a GPU.

        Raises:
            RankFailedError: one of them is not there.
            ValueError: two of them have the same GPU.
        """
        try:
            self._group = dist.new_group(backend="gloo", timeout=self._limit)
        except RuntimeError as error:
            raise RankFailedError(f"another rank could not be reached ({_first_words(error)})") from error
        self._store = self._store or self._group.get_group_store()
        if gpu is not None:
            self._check_apart(f"{torch.cuda.get_device_properties(gpu).uuid} of {socket.gethostname()}")
            self._on_device = dist.new_group(backend="nccl", timeout=self._limit)

    def beside(self, gpu: torch.device | None) -> Ranks:
        """Connect all ranks once more, for what goes on beside this one's calls in an order of its own; `leave` here
        leaves there, too. `gpu` is as for `connect`."""
        other = Ranks(0.0 if self._limit is None else self._limit.total_seconds())
        other._store = self._store  # Where one leaves word of why it failed.
        other.connect(gpu)
        self._beside.append(other)
        self._meet()
        return other

    def by_machine(self, gpu: torch.device | None) -> tuple[Ranks, Ranks] | None:
        """Connect the ranks of each machine among themselves, and those that have the same place in theirs; return both
        as this rank has them. None where there is one machine, or not as many ranks one after the other on each."""
        hosts = self.tell(hashlib.sha256(_machine()).digest())
        machines = len(set(hosts))
        here = self.size // machines
        if machines == 1 or here == 1 or hosts != [hosts[rank // here * here] for rank in range(self.size)]:
            return None
        inside = [list(range(first, first + here)) for first in range(0, self.size, here)]
        across = [list(range(place, self.size, here)) for place in range(here)]
        found = self._within(inside, gpu), self._within(across, gpu)
        self._meet()
        return found

    def _within(self, groups: Sequence[list[int]], gpu: torch.device | None) -> Ranks:
        """Connect the ranks of each group; return this one's."""
        other = Ranks(0.0 if self._limit is None else self._limit.total_seconds())
        other._store = self._store
        for group in groups:
            # Every rank takes part in the making of every group.
            host = dist.new_group(ranks=group, backend="gloo", timeout=self._limit)
            on_device = (
                None if gpu is None else dist.new_group(ranks=group, backend="nccl", timeout=self._limit)
            )
            if self.rank in group:
                other.rank, other.size = group.index(self.rank), len(group)
                other._group, other._on_device = host, on_device
        self._beside.append(other)
        return other

    def _meet(self) -> None:
        """Return when all ranks have connected: one that left before would break what another one still makes."""
        self.tell(b".")

    def _check_apart(self, gpu: str) -> None:
        digests = self.tell(hashlib.sha256(gpu.encode()).digest())
        for rank, digest in enumerate(digests):
            if digest in digests[:rank]:
                raise ValueError(
                    f"ranks {digests.index(digest)} and {rank} have the same GPU: each needs one of its own, as "
                    'device = "cuda" gives it under torchrun'
                )

    def tell(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, in their order. All are of one length."""
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        told = [torch.empty_like(mine) for _ in range(self.size)]
        with self._among() as group:
            dist.all_gather(told, mine, group=group)
        return [bytes(one.tolist()) for one in told]

    def exchange(
        self, received: Tensor, received_bytes: Sequence[int], sent: Tensor, sent_bytes: Sequence[int]
    ) -> None:
        """Send each rank its part of `sent`, and fill `received` with what they send: bytes, in the order of ranks.

        Returns when this rank's buffers may be used again; on a GPU, by what comes later on the current stream.
        """
        sent, received = sent[: sum(sent_bytes)], received[: sum(received_bytes)]
        with self._among(received) as group:
            dist.all_to_all_single(received, sent, list(received_bytes), list(sent_bytes), group=group)

    def gather(self, parts: Sequence[Tensor]) -> None:
        """Give all ranks every part, of which each owns the one of its number: contiguous, empty where it has none.

        It returns as `exchange` does.
        """
        with self._among(parts[0]) as group:
            works = [
                dist.broadcast(part.view(torch.uint8), group_src=rank, group=group, async_op=True)
                for rank, part in enumerate(parts)
                if part.numel()
            ]
            for work in works:
                work.wait()

    def take_first(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor by that of the first rank."""
        if tensor.numel():
            with self._among(tensor) as group:
                dist.broadcast(tensor.view(-1).view(torch.uint8), group_src=0, group=group)

    def check_alike(self, description: str) -> None:
        """Raise ValueError where the ranks describe what they are about to do in different words."""
        digests = self.tell(hashlib.sha256(description.encode()).digest())
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:
            raise ValueError(
                f"rank {odd[0]} has another model, or other arguments of OffloadEngine, than rank 0: ranks that share "
                "a state need the same"
            )

    # The end

    def leave(self, reason: BaseException | None = None) -> None:
        """Take no part any more, because of `reason`: whoever waits for this rank meets an error. Idempotent."""
        groups = [group for group in (self._on_device, self._group) if group is not None]
        self._on_device = self._group = None
        if not groups:
            return
        if reason is not None and not _is_of_another(reason):
            with contextlib.suppress(Exception):
                if not self._store.check([FAILED]):
                    self._store.set(FAILED, f"rank {self.rank}: {reason}"[:LONGEST_REASON])
        # The last reference: connections close with it, once a function that is under way has ended.
        for group in groups:
            dist.destroy_process_group(group)
        for other in self._beside:
            other.leave()

    def wait(self, landing: Callable[[], None]) -> None:
        """Wait for the end of what was begun on a device.

        Raises:
            RankFailedError: another rank has failed meanwhile.
        """
        with self._among():
            landing()

    @contextlib.contextmanager
    def _among(self, tensor: Tensor | None = None) -> Iterator[dist.ProcessGroup]:
        """Return the group for a tensor, or for messages; raise what became of the rank for which this one waited in
        vain."""
        group = self._group if tensor is None or tensor.device.type == "cpu" else self._on_device
        if group is None:
            raise RankFailedError("this rank has left the others")
        try:
            yield group
        except RuntimeError as error:
            reason = self._told_reason()
            failed = RankFailedError(
                f"{reason or 'another rank ended, or kept this one waiting for too long'} ({_first_words(error)})"
            )
            if not reason:
                failed.find_silent = self._silent
            raise failed from error

    def _told_reason(self) -> str:
        with contextlib.suppress(Exception):
            if self._store.check([FAILED]):
                return bytes(self._store.get(FAILED)).decode(errors="replace")
        return ""

    def _silent(self) -> list[int]:
        """Return the ranks that do not say, as this one does, that they have waited in vain."""
        silent = list(range(self.size))
        with contextlib.suppress(Exception):
            self._store.set(f"waited-{self.rank}", "")
            until = time.monotonic() + ANSWER_S
            while silent and time.monotonic() < until:
                silent = [rank for rank in silent if not self._store.check([f"waited-{rank}"])]
                time.sleep(0.1)
        return silent


def _first_words(error: BaseException) -> str:
    """Return what a backend says, without its advice."""
    return str(error).split("\n")[0].split(". This is typically")[0]


def _machine() -> bytes:
    """Return what tells this machine from all others."""
    return socket.gethostname().encode()


def _is_of_another(reason: BaseException) -> bool:
    cause: BaseException | None = reason
    while cause is not None and not isinstance(cause, RankFailedError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
