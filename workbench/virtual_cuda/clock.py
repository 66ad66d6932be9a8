"""Virtual seconds of operations on the virtual device, by a machine profile.

An operation on the device takes its launch on the host, and then the longer of its arithmetic and its bytes. A copy
takes the link, an update what the profile has measured of the host optimizer; both take the host's memory, and share it
with what else runs. On a lane's thread each takes Python's part before. All by `plan.rates`, so that clock and plan
know one machine; who waits for whom is the engine's own doing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from workbench.engine import arithmetic
from workbench.engine.devices import pinned  # the engine imports `cuda_device` when it opens one
from workbench.engine.devices.host_copier import HostCopier
from workbench.plan.rates import TASK_S, Rates
from workbench.plan.sharing import Demand
from workbench.profiles.machine_profile import MachineProfile
from workbench.virtual_cuda.collectives import NAMES as COLLECTIVES
from workbench.virtual_cuda.fluid_time import Work
from workbench.virtual_cuda.host_threads import HostThreads
from workbench.virtual_cuda.streams import Operation

STANDARD_MODULES = ("threading", "queue", "time")


aten = torch.ops.aten
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: (0, 2, 4),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (1, 5, 7),
}
"""Fused attention: the place of its query, the number of its matrix products, the place of its `is_causal`."""
READS_ROWS = {aten.embedding, aten.gather, aten.index_select}
"""Of their first tensor they read no more than they give."""


class VirtualClock:
    """Virtual time on `machine`, for the engine's threads and the device's streams.

    `kernels`, `device_bytes`: how many operations the device had, and what they read and wrote. `link_bytes`: by
    direction.
    """

    def __init__(self, machine: MachineProfile, values: bool = True) -> None:
        self._values = values
        self.rates = Rates(machine, "auto")
        self.host = HostThreads()
        self.kernels = 0
        self.device_bytes = 0
        self.link_bytes = {"upload": 0, "download": 0}
        self._tables: WeakKeyDictionary[Any, tuple[int, str, Any]] = WeakKeyDictionary()

    # The device

    def place(self, operation: Operation, seconds: float) -> None:
        """Take in an operation that the host issues now."""
        on_link = operation.name in self.link_bytes
        if operation.work is not None:
            self.host.advance(TASK_S if on_link and self.host.on_a_lane else self.rates.launch_s)
        demand: Demand = ()
        if operation.name in COLLECTIVES:
            demand = self.rates.up_demand
        elif on_link:
            demand = self.rates.up_demand if operation.name == "upload" else self.rates.down_demand
        after = None if operation.waits is None else operation.waits.timed
        operation.timed = Work(seconds, demand, after)
        self.host.fluid.add(operation.stream.name, operation.timed, self.host.now())

    def mark(self) -> Work:
        """Return a moment of the compute stream: behind all that has been issued on it."""
        moment = Work()
        self.host.fluid.add("compute", moment, self.host.now())
        return moment

    def kernel_s(self, func: Any, args: Any, kwargs: Any, results: Any, nbytes: int) -> float:
        """Return the seconds of an operation on the device, whose tensors that it reads and writes have `nbytes`."""
        if func.overloadpacket in READS_ROWS:
            nbytes += results.nbytes - args[0].nbytes
        elif func.overloadpacket is aten.scatter_:
            source = args[3].nbytes if isinstance(args[3], Tensor) else 0
            nbytes += source - 2 * args[0].nbytes
        self.kernels += 1
        self.device_bytes += nbytes
        dtype = str(next((x.dtype for x in args if isinstance(x, Tensor)), torch.float32)).removeprefix(
            "torch."
        )
        count = flop_registry.get(func.overloadpacket)
        arithmetic_s = 0.0
        if func.overloadpacket in ATTENTION:
            flops = _attention_flops(*ATTENTION[func.overloadpacket], args, kwargs)
            arithmetic_s = self.rates.attention_s(flops, dtype)
        elif count is not None:
            arithmetic_s = self.rates.matrix_s(float(count(*args, **kwargs, out_val=results)), dtype)
        return max(arithmetic_s, self.rates.elements_s(nbytes))

    def copy_s(self, name: str, nbytes: int) -> float:
        """Return the seconds of a copy within the device, or over the link."""
        if name == "copy":
            self.kernels += 1
            self.device_bytes += 2 * nbytes
            return self.rates.elements_s(2 * nbytes)
        self.link_bytes[name] += nbytes
        return self.rates.up_s(nbytes) if name == "upload" else self.rates.down_s(nbytes)

    def collective_s(self, nbytes: int) -> float:
        """Return the seconds in which `nbytes` go to other ranks, or come from them: over the same link, as between
        GPUs that have none of their own."""
        return self.rates.up_s(nbytes)

    # The host

    @contextlib.contextmanager
    def in_the_engine(self) -> Iterator[None]:
        """Let the engine's modules take threads and time from here, and the host's work take its seconds."""
        import workbench.engine.devices.cuda_device  # noqa: F401 - which the engine imports when it opens one

        with contextlib.ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith("workbench.engine"):
                    for standard in STANDARD_MODULES:
                        if getattr(module, standard, None) is sys.modules[standard]:
                            stack.enter_context(
                                mock.patch.object(module, standard, getattr(self.host, standard))
                            )
            for method, seconds in self._host_work().items():
                inner = getattr(arithmetic.HostArithmetic, method)
                # Nothing is left of an update ahead of its verdict.
                timed = self._timed(inner, seconds, self.rates.host_demand, method != "speculate")
                stack.enter_context(mock.patch.object(arithmetic.HostArithmetic, method, timed))
            stack.enter_context(
                mock.patch.object(
                    arithmetic.HostArithmetic, "table", self._table(arithmetic.HostArithmetic.table)
                )
            )
            for holder, method, seconds, demand in self._host_copies():
                timed = self._timed(getattr(holder, method), seconds, demand)
                stack.enter_context(mock.patch.object(holder, method, timed))
            yield

    def _host_work(self) -> dict[str, Callable[..., float]]:
        rates = self.rates

        def update(arith: Any, table: Any, settings: Any, *scales: float) -> float:
            return rates.update_s(*self._tables[table])

        def speculate(arith: Any, table: Any, settings: Any, *scales: float) -> float:
            return rates.ahead_s(*self._tables[table])

        def redo(arith: Any, table: Any, settings: Any, *scales: float) -> float:
            return rates.redo_s(*self._tables[table])

        def measure(arith: Any, table: Any) -> float:
            elements, dtype, _ = self._tables[table]
            return rates.norm_s(elements, dtype)

        def accumulate(arith: Any, to: Tensor, of: Tensor, *, overwrite: bool) -> float:
            return rates.accumulate_s(of.numel(), str(of.dtype).removeprefix("torch."))

        return {
            "update": update,
            "measure_and_update": update,
            "speculate": speculate,
            "complete": lambda *args: 0.0,
            "undo": speculate,
            "redo": redo,
            "sum_of_squares": measure,
            "accumulate": accumulate,
            "split": lambda arith, source, high, low: 0.0,
            "narrow": lambda arith, to, of: 0.0,
        }

    def _host_copies(self) -> Iterator[tuple[Any, str, Callable[..., float], Demand]]:
        """Return what copies within the host's memory, with its seconds and its demand."""
        rates = self.rates
        yield pinned, "move", lambda to, of: rates.host_copy_s(of.nbytes), rates.host_copy_demand
        yield (
            HostCopier,
            "copy",
            lambda copier, to, of: rates.weights_copy_s(of.nbytes),
            rates.weights_copy_demand,
        )

    def _timed(
        self,
        inner: Callable[..., Any],
        seconds: Callable[..., float],
        demand: Demand,
        without_values: Any = True,
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs) if self._values else without_values
            self.host.advance(TASK_S if self.host.on_a_lane else 0.0)
            self.host.work(seconds(*args, **kwargs), demand)
            return result

        return call

    def _table(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def table(arith: Any, views: Any) -> Any:
            made = inner(arith, views)
            views = list(views)
            working = (
                views[0].working
                if views and views[0].working is not None
                else views[0].high
                if views
                else None
            )
            dtype = "float32" if working is None else str(working.dtype).removeprefix("torch.")
            self._tables[made] = (
                sum(view.exp_avg.numel() for view in views),
                dtype,
                views[0].state_format if views else "exact",
            )
            return made

        return table


def _attention_flops(first: int, products: int, causal: int, args: Any, kwargs: Any) -> float:
    """Return the operations of fused attention; a token that looks back only has half of the pairs."""
    query, key, value = args[first : first + 3]
    is_causal = kwargs.get("is_causal", args[causal] if len(args) > causal else False)
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    width = (query.shape[3] + value.shape[3]) / 2
    return float(2 * products * pairs * width * (0.5 if is_causal else 1.0))
