"""The next forward waits for what it reads: hooks that hold each block until its own weights are ready.

Invariant: no resident parameter is read by a forward, with or without gradients, while the step before still updates
it or copies it up. Where it is not certain when a unit is read, the whole forward waits for it. Streamed blocks
wait in the weight prefetcher instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.blocks.discovery import FoundUnit
from workbench.engine.devices.device import Device
from workbench.engine.execution import StepExecution
from workbench.engine.report import ComputeClock
from workbench.timeline import Kind


class ParamReadyBarrier:
    """Hooks on the model, its blocks, and the modules that own parameters outside them.

    Forwards wait for the units `updated` on lanes and resident; the blocks of units `watched` call `block_called`
    when they run forward with gradients: the unit, and an input of the block that requires a gradient, if any does.
    """

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[FoundUnit],
        updated: set[int],
        watched: set[int],
        clock: ComputeClock,
        block_called: Callable[[int, Tensor | None], None],
        device: Device,
    ) -> None:
        self._device = device
        self._block_called = block_called
        self._clock = clock
        self._execution: StepExecution | None = None
        self._called: set[int] = set()
        self._owners: dict[int, set[int]] = {}
        home = {id(p): index for index, unit in enumerate(found) for p in unit.parameters.values()}
        blocks = {id(unit.block): index for index, unit in enumerate(found) if unit.block is not None}
        inside = {id(m) for unit in found if unit.block is not None for m in unit.block.modules()}
        self._handles: list[Any] = []
        for module in model.modules():
            if id(module) in blocks:
                needs = sorted({home[id(p)] for p in module.parameters()} & updated)
                own = blocks[id(module)]
                if not needs and own not in watched:
                    continue
                hook = self._block_hook(own if own in watched else None, needs)
            elif id(module) in inside:
                continue
            else:
                needs = sorted({home[id(p)] for p in module._parameters.values() if p is not None} & updated)
                if not needs:
                    continue
                for unit in needs:
                    self._owners.setdefault(unit, set()).add(id(module))
                hook = self._owner_hook(id(module), needs)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        # Until a forward has shown that all owners of a unit outside the blocks are called, the whole forward waits
        # for it: its parameters may be read without their module being called.
        self._uncertain = set(self._owners)
        self._handles.append(
            model.register_forward_pre_hook(self._before_model, with_kwargs=True, prepend=True)
        )

    def hold_for(self, execution: StepExecution) -> None:
        """From now on forwards wait for the updates of this step, each block for its own."""
        self._execution = execution

    def release(self) -> None:
        """All updates are done: forwards wait for nothing."""
        self._execution = None

    def when_ready(self, unit: int, action: Callable[[], None]) -> None:
        """Call `action` when the unit's last update is done, now or from the thread that does it."""
        execution = self._execution
        if execution is None:
            action()
        else:
            execution.when_done(execution.timeline.ready[unit], action)

    def end_forward(self) -> None:
        """A forward has ended."""
        self._clock.end()
        self._uncertain -= {unit for unit in self._uncertain if self._owners[unit] <= self._called}

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._device.check_stream()
        if torch.is_grad_enabled() and not self._clock.computes:
            self._clock.begin(Kind.FORWARD)
            self._called.clear()
        self._wait_for(sorted(self._uncertain))

    def _owner_hook(self, owner: int, needs: list[int]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._called.add(owner)
            self._wait_for(needs)

        return hook

    def _block_hook(self, own: int | None, needs: list[int]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._wait_for(needs)
            if own is not None and torch.is_grad_enabled():
                inputs = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
                self._block_called(own, next((t for t in inputs if t.requires_grad), None))

        return hook

    def _wait_for(self, units: Iterable[int]) -> None:
        execution = self._execution
        if execution is None:
            return
        ready = [task for unit in units for task in execution.timeline.ready[unit]]
        if not execution.are_done(ready):
            with self._clock.waiting():
                execution.wait(ready)
