"""The seconds of a task alone on a machine, and its demand of what lanes share.

A demand is (cores, host memory bandwidth, disk, link up, link down, link both ways), each a share of the whole.

Invariant: every rate comes from the machine profile; a profile that lacks a figure lends the nearest one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from workbench.layout import ITEM_BYTES, StateFormat
from workbench.plan.sharing import Demand
from workbench.profiles.machine_profile import DiskProfile, LinkProfile, MachineProfile, PeersProfile
from workbench.sizes import sums_by_machine

UNMEASURED_SHARE = 0.6
"""Of its speed alone, what reading and writing keep when a disk does both; where the profile does not say."""
TASK_S = 60e-6
"""Handing a task to a lane and taking it there: Python's part, beside which the rates are of memory alone."""
AHEAD: dict[StateFormat, float] = {"exact": 1.25, "half": 1.4, "compact": 1.6}
REDONE: dict[StateFormat, float] = {"exact": 1.75, "half": 1.8, "compact": 2.1}
"""An update ahead of the verdict, and one that is undone and done again, of a plain one, where the profile does not say
(docs/benchmarks.md)."""
FUSED_BYTES = 2 * 4 * 4
"""Bytes that an update on the device moves by parameter: master, both moments and gradient, read and written in fp32
(the kernel writes the gradients that it scales)."""
COPY_BYTES = 4 + 2
"""Those of a change between fp32 and 16 bits: of the gradient before, of the master to the working copy after."""
GLOO = PeersProfile(gpus=1, gpu_bytes_per_s=0.8e9, network_bytes_per_s=0.8e9, exchange_s=0.5e-3)
"""Between processes on CPUs: 16 MiB between two of them in 10 ms, on 2 cores (docs/distributed.md)."""
PCIE_SHARE = 0.5
"""Of a link's rate while it copies both ways, what one GPU sends another through the host where the profile does not
say."""
ETHERNET = 1.1e9
"""Bytes a second of a machine's network where the profile does not say: 10 Gb/s."""
EXCHANGE_S = 40e-6
"""An NCCL collective of a few bytes with its launch, where the profile does not say."""
ATTENTION_SHARE = 0.5
"""Of the speed of products, that of attention where the profile does not say: about flash attention's on an A100."""


class Rates:
    """A machine's rates for a run with so many host threads. Seconds, bytes; all for one task alone.

    Of `ranks`, `local` are on this machine and do the same at the same time: they share its cores, its memory and its
    disk; each has a link of its own.
    """

    def __init__(
        self, machine: MachineProfile, threads: int | Literal["auto"], ranks: int = 1, local: int = 1
    ) -> None:
        self.machine = machine
        self.host = machine.host
        self.shared = machine.device.shared_memory
        self._threads = threads
        self.ranks, self.local = ranks, local

    # The host optimizer

    @cached_property
    def _row(self) -> int | None:
        """Index of the configured number of threads in the profile's rows; None: each figure's best."""
        if self._threads == "auto":
            return None
        fitting = [place for place, threads in enumerate(self.host.threads) if threads <= self._threads]
        return fitting[-1] if fitting else 0

    def _least(self, row: tuple[float, ...]) -> tuple[float, int]:
        """Return the figure and the threads it needs: the configured ones', or the smallest."""
        place = self._row if self._row is not None else min(range(len(row)), key=row.__getitem__)
        return row[place], self.host.threads[place]

    def _most(self, row: tuple[float, ...]) -> tuple[float, int]:
        place = self._row if self._row is not None else max(range(len(row)), key=row.__getitem__)
        return row[place], self.host.threads[place]

    def update_s(self, elements: int, dtype: str, state_format: StateFormat) -> float:
        """Return the seconds of an update of so many parameters on the host."""
        nanoseconds, _ = self._least(self._update_row(dtype, state_format))
        return self.local * elements * nanoseconds * 1e-9

    def ahead_s(self, elements: int, dtype: str, state_format: StateFormat) -> float:
        """Return the seconds of an update of so many parameters ahead of the verdict."""
        ratio = self._ratio(self.host.ahead_ratio, AHEAD, dtype, state_format)
        return ratio * self.update_s(elements, dtype, state_format)

    def redo_s(self, elements: int, dtype: str, state_format: StateFormat) -> float:
        """Return the seconds in which an update ahead of the verdict is undone and done again."""
        ratio = self._ratio(self.host.redo_ratio, REDONE, dtype, state_format)
        return ratio * self.update_s(elements, dtype, state_format)

    def _update_row(self, dtype: str, state_format: StateFormat) -> tuple[float, ...]:
        figures: Mapping[str, tuple[float, ...]] = self.host.optimizer_ns
        names = (f"{dtype}-{state_format}", f"bfloat16-{state_format}", f"{dtype}-exact")
        row = next((figures[name] for name in names if name in figures), None)
        return next(iter(figures.values())) if row is None else row

    def _ratio(
        self,
        measured: Mapping[StateFormat, tuple[float, ...]],
        otherwise: Mapping[StateFormat, float],
        dtype: str,
        state_format: StateFormat,
    ) -> float:
        """Return the ratio with the threads that update."""
        if state_format not in measured:
            return otherwise[state_format]
        _, threads = self._least(self._update_row(dtype, state_format))
        return measured[state_format][self.host.threads.index(threads)]

    def norm_s(self, elements: int, dtype: str) -> float:
        rows = self.host.norm_bytes_per_s
        row = rows.get(dtype) or next(iter(rows.values()), self.host.read_bytes_per_s)  # type: ignore[call-overload]
        return self.local * elements * ITEM_BYTES[dtype] / float(self._most(row)[0])

    def accumulate_s(self, elements: int, dtype: str) -> float:
        """Return the seconds of adding so many elements of gradients in `dtype` to fp32 sums."""
        rows = self.host.accumulate_bytes_per_s
        row = rows.get(dtype) or next(iter(rows.values()), self.host.copy_bytes_per_s)  # type: ignore[call-overload]
        return self.local * elements * 4 / float(self._most(row)[0])

    @cached_property
    def host_demand(self) -> Demand:
        """The demand of work on the host optimizer's threads."""
        row = next(iter(self.host.optimizer_ns.values()))
        threads = self._least(row)[1] if self._threads == "auto" else min(int(self._threads), self.host.cores)
        return min(1.0, threads / self.host.cores), 0.9

    # Copies

    def down_s(self, nbytes: int) -> float:
        """Return the seconds of a copy from device to host; within one memory, one thread copies."""
        return (
            self.host_copy_s(nbytes) if self.shared else nbytes / self._of_links(self._link.down_bytes_per_s)
        )

    def up_s(self, nbytes: int) -> float:
        return self.host_copy_s(nbytes) if self.shared else nbytes / self._of_links(self._link.up_bytes_per_s)

    def _of_links(self, bytes_per_s: float) -> float:
        """Return the rate of a link while those of the machine's other ranks go through the same host memory."""
        return min(bytes_per_s, max(self.host.read_bytes_per_s) / self.local)

    def host_copy_s(self, nbytes: int) -> float:
        """Return the seconds of a copy within the host's memory by one thread."""
        return max(
            nbytes / self.host.copy_bytes_per_s[0], self.local * nbytes / self.host.copy_bytes_per_s[-1]
        )

    @cached_property
    def host_copy_demand(self) -> Demand:
        return 1 / self.host.cores, 0.3

    def weights_copy_s(self, nbytes: int) -> float:
        """Return the seconds in which new weights are copied within the host's memory for the forward: of all its
        threads beside a device of its own, of one where the host computes."""
        return self.host_copy_s(nbytes) if self.shared else nbytes / self._most(self.host.copy_bytes_per_s)[0]

    @cached_property
    def weights_copy_demand(self) -> Demand:
        if self.shared:
            return self.host_copy_demand
        _, threads = self._most(self.host.copy_bytes_per_s)
        return min(1.0, threads / self.host.cores), 0.9

    @cached_property
    def down_demand(self) -> Demand:
        """The demand of a copy to the host: the link one way, and the host's memory."""
        if self.shared:
            return self.host_copy_demand
        link = self._link
        both = 0.5 * link.down_bytes_per_s / link.both_down_bytes_per_s
        return 0.0, self._of_memory(link.down_bytes_per_s), 0.0, 0.0, 1.0, both

    @cached_property
    def up_demand(self) -> Demand:
        if self.shared:
            return self.host_copy_demand
        link = self._link
        both = 0.5 * link.up_bytes_per_s / link.both_up_bytes_per_s
        return 0.0, self._of_memory(link.up_bytes_per_s), 0.0, 1.0, 0.0, both

    def _of_memory(self, bytes_per_s: float) -> float:
        return min(1.0, bytes_per_s / max(self.host.read_bytes_per_s))

    @property
    def _link(self) -> LinkProfile:
        assert self.machine.link is not None, "a device with memory of its own has a link"
        return self.machine.link

    # The disk

    def read_s(self, nbytes: int) -> float:
        return self.local * nbytes / self._disk.checked_read_bytes_per_s

    def write_s(self, nbytes: int) -> float:
        return self.local * nbytes / self._disk.checked_write_bytes_per_s

    @cached_property
    def disk_demand(self) -> Demand:
        """The demand of disk records. The lane's own thread computes checksums; reading and writing share the disk."""
        disk = self._disk
        of_core = max(0.0, 1 - disk.checked_read_bytes_per_s / disk.read_bytes_per_s)
        at_once = UNMEASURED_SHARE
        if disk.both_read_bytes_per_s is not None and disk.both_write_bytes_per_s is not None:
            reading = disk.both_read_bytes_per_s / disk.checked_read_bytes_per_s
            writing = disk.both_write_bytes_per_s / disk.checked_write_bytes_per_s
            at_once = min(1.0, (reading + writing) / 2)
        # Two that ask for so much each are slowed to `at_once`.
        return of_core / self.host.cores, 0.1, 0.5 / at_once

    @property
    def _disk(self) -> DiskProfile:
        assert self.machine.disk is not None, "who plans with a disk tier has a disk"
        return self.machine.disk

    # Between ranks

    @cached_property
    def _peers(self) -> PeersProfile:
        if self.machine.peers is not None:
            return self.machine.peers
        if self.shared:
            return GLOO
        return PeersProfile(
            gpus=self.local,
            gpu_bytes_per_s=PCIE_SHARE * self._link.both_down_bytes_per_s,
            network_bytes_per_s=ETHERNET,
            exchange_s=EXCHANGE_S,
        )

    @property
    def exchange_s(self) -> float:
        """The seconds of an exchange of a few bytes."""
        return self._peers.exchange_s

    def reduce_s(self, nbytes: int, sum_bytes: int) -> float:
        """Return the seconds in which each rank gets what all have of its share of `nbytes`; where the ranks of each
        machine add up first, machines exchange `sum_bytes`."""
        if not sums_by_machine(self.ranks, self.local):
            return max(self._inside_s(nbytes), self.local * self._between_s(nbytes))
        inside_s = nbytes * (self.local - 1) / self.local / self._peers.gpu_bytes_per_s
        return inside_s + self._between_s(sum_bytes)

    def gather_s(self, nbytes: int) -> float:
        """Return the seconds in which each rank gets all of `nbytes`: between machines once."""
        return max(self._inside_s(nbytes), self._between_s(nbytes))

    def _inside_s(self, nbytes: int) -> float:
        return nbytes * (self.local - 1) / self.ranks / self._peers.gpu_bytes_per_s

    def _between_s(self, nbytes: int) -> float:
        return nbytes * (self.ranks - self.local) / self.ranks / self._peers.network_bytes_per_s

    @cached_property
    def exchange_demand(self) -> Demand:
        return (1 / self.host.cores, 0.3) if self.shared else ()

    # The device

    @cached_property
    def compute_demand(self) -> Demand:
        """The demand of forward and backward: all cores where they run on the host."""
        return (1.0, 0.3) if self.shared else (0.0, 0.0)

    def device_update_s(self, elements: int, dtype: str, *, summed: bool) -> float:
        """Return the seconds of an update on the device by torch's fused kernel. `summed`: gradients are fp32 sums."""
        per = FUSED_BYTES
        if dtype != "float32":
            per += COPY_BYTES if summed else 2 * COPY_BYTES
        return self.elements_s(elements * per)

    def matrix_s(self, flops: float, dtype: str, *, tf32: bool = False) -> float:
        """Return the seconds of matrix products in `dtype`. `tf32`: float32 is rounded where the device can."""
        speeds = self.machine.device.matrix_flops_per_s
        speed = speeds.get("tf32") if tf32 and dtype == "float32" else None
        speed = speed or speeds.get(dtype) or next(iter(speeds.values()))  # type: ignore[call-overload]
        return float(flops / speed)

    def attention_s(self, flops: float, dtype: str) -> float:
        """Return the seconds of fused attention that takes `flops` for the pairs of tokens that it goes through."""
        speed = self.machine.device.attention_flops_per_s.get(dtype)  # type: ignore[call-overload]
        return flops / float(speed) if speed else self.matrix_s(flops / ATTENTION_SHARE, dtype)

    def elements_s(self, nbytes: float) -> float:
        """Return the seconds of operations on elements that read and write so many bytes."""
        return nbytes / self.machine.device.memory_bytes_per_s

    @property
    def launch_s(self) -> float:
        return self.machine.device.launch_s
