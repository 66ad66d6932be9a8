"""Devices whose lanes are held up at random, so that every order of tasks that the timeline allows comes up.

Without a GPU the processor plays the device with memory of its own: everything is copied down and up then, as it would
be there. For verifying only; the delays make nothing right that was wrong, they make races show.
"""

from __future__ import annotations

import random
import time

from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import CpuDevice, Device
from workbench.timeline import Lane

LONGEST_S = 0.004


class Delays:
    """Seconds to wait before a lane's next task, drawn lane by lane from `seed`; none at all without one."""

    def __init__(self, seed: int | None) -> None:
        self._random = (
            None if seed is None else {lane: random.Random(f"{seed}/{lane.value}") for lane in Lane}
        )

    def hold(self, lane: Lane) -> None:
        if self._random is not None:
            # Mostly short, now and then long: both orders of every pair of lanes come up.
            time.sleep(self._random[lane].random() ** 4 * LONGEST_S)


class SlowCpu(CpuDevice):
    """The CPU with memory apart from the host's."""

    def __init__(self, seed: int | None) -> None:
        super().__init__(shared_memory=False)
        self._delays = Delays(seed)

    def before_task(self, lane: Lane) -> None:
        super().before_task(lane)
        self._delays.hold(lane)


class SlowCuda(CudaDevice):
    """A GPU, with its own streams."""

    def __init__(self, device: Device, seed: int | None) -> None:
        super().__init__(device.torch_device)
        self._delays = Delays(seed)

    def before_task(self, lane: Lane) -> None:
        super().before_task(lane)
        self._delays.hold(lane)


def slow_device(like: Device, seed: int | None) -> Device:
    """A device of the kind of `like`, in a memory apart from the host's."""
    return SlowCuda(like, seed) if like.torch_device.type == "cuda" else SlowCpu(seed)
