"""NCCL's collectives on the virtual device: put off on a stream of each group's own, and carried out by gloo.

As NCCL's, one comes after what the stream that is current had when it was called, and that stream goes on after it: at
once, or from the call of `wait` on where it was called with `async_op`. Each process has its own virtual time, in which
the others are ready whenever it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from workbench.virtual_cuda.memory import DeviceMemory, bytes_of
from workbench.virtual_cuda.races import Bytes
from workbench.virtual_cuda.streams import Operation, Queues, VirtualEvent, VirtualStream

NAMES = ("all_to_all", "broadcast")


class _Work:
    """The result of a collective that is called with `async_op`."""

    def __init__(self, queues: Queues, end: VirtualEvent) -> None:
        self._queues = queues
        self._end = end

    def wait(self) -> None:
        self._queues.current.wait_event(self._end)


class _HostWork:
    """The same of one in host memory, while which the threads of virtual time go on."""

    def __init__(self, queues: Queues, work: Any) -> None:
        self._queues = queues
        self._work = work

    def wait(self) -> None:
        self._queues.wait_for_others(self._work)


class Collectives:
    """Stands in for functions of `torch.distributed`, where they are given device memory."""

    def __init__(self, memory: DeviceMemory, queues: Queues) -> None:
        self._memory = memory
        self._queues = queues
        self._groups: dict[dist.ProcessGroup, VirtualStream] = {}
        self._all_to_all, self._broadcast = dist.all_to_all_single, dist.broadcast
        self._new_group, self._destroy = dist.new_group, dist.destroy_process_group
        self._all_gather = dist.all_gather

    def new_group(self, *, backend: str, **options: Any) -> Any:
        group = self._new_group(backend="gloo" if backend == "nccl" else backend, **options)
        if backend == "nccl":
            self._groups[group] = VirtualStream(self._queues, f"collectives {len(self._groups)}")
        return group

    def destroy_process_group(self, group: Any = None) -> None:
        self._groups.pop(group, None)
        self._destroy(group)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        splits = list(output_split_sizes), list(input_split_sizes)
        if not self._is_here(group, output, given):
            return self._between_hosts(self._all_to_all(output, given, *splits, group, True), async_op)
        received, sent = self._memory.alias(output), self._memory.alias(given)
        work = functools.partial(self._all_to_all, received, sent, *splits, group=group, async_op=True)
        own = dist.get_rank(group)
        moved = max(sum(sizes) - sizes[own] for sizes in splits) * output.element_size()
        return self._issue(group, "all_to_all", work, [bytes_of(given)], [bytes_of(output)], moved, async_op)

    def broadcast(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Any:
        if not self._is_here(group, tensor):
            return self._between_hosts(self._broadcast(tensor, src, group, True, group_src), async_op)
        work = functools.partial(self._broadcast, self._memory.alias(tensor), src, group, True, group_src)
        sends = dist.get_rank(group) == group_src
        touched = [bytes_of(tensor)]
        reads, writes = (touched, []) if sends else ([], touched)
        return self._issue(group, "broadcast", work, reads, writes, tensor.nbytes, async_op)

    def all_gather(self, received: list[Tensor], given: Tensor, group: Any = None) -> None:
        """Of host memory; like torch's own."""
        self._between_hosts(self._all_gather(received, given, group, True), async_op=False)

    def _between_hosts(self, work: Any, async_op: bool) -> _HostWork | None:
        ended = _HostWork(self._queues, work)
        if async_op:
            return ended
        ended.wait()
        return None

    def _is_here(self, group: Any, *tensors: Tensor) -> bool:
        here = {self._memory.owns(tensor) for tensor in tensors}
        if here != {group in self._groups}:
            raise RuntimeError(
                "No backend type associated with device type of a tensor: gloo has CPUs', nccl GPUs'"
            )
        return here == {True}

    def _issue(
        self,
        group: Any,
        name: str,
        work: Callable[[], Any],
        reads: list[Bytes],
        writes: list[Bytes],
        nbytes: int,
        async_op: bool,
    ) -> _Work | None:
        clock, stream = self._queues.clock, self._groups[group]
        seconds = 0.0 if clock is None else clock.collective_s(nbytes)
        stream.wait_stream(self._queues.current)
        self._queues.issue(Operation(stream, name, work, remote=True), reads, writes, seconds)
        ended = _Work(self._queues, stream.record_event())
        if async_op:
            return ended
        ended.wait()
        return None
