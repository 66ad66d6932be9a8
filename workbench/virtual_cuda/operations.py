"""Puts off every operation on device memory, and shows tensors there as CUDA's to Python.

To torch's C++ a tensor in device memory is the CPU's, so that its autograd needs no CUDA. Two modes make up for it: one
below autograd, which sees each operation and queues it; one above, which answers `tensor.device` and the like.

Modes are a thread's own: `Modes.enter` is called by each thread before it meets device memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,  # torch documents it as the way to write such a mode
)
from torch.utils._pytree import tree_flatten, tree_map

from workbench.virtual_cuda.memory import DeviceMemory, bytes_of
from workbench.virtual_cuda.races import Bytes
from workbench.virtual_cuda.streams import Operation, Queues

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten

AUTOGRAD = "virtual-autograd"
LARGEST_WITH_VALUES = 1 << 20
"""Bytes of host memory that is written where no values are kept: batches and counters are, weights are not."""

WITHOUT_WORK = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
"""Operations whose result has no value yet."""
HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
"""Operations that take indices from the host, and copy them to the device themselves."""


class PinnedMemory:
    """Host memory that the device reaches by itself: the addresses that were registered, and buffers made pinned."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        """Bytes by address."""
        self.buffers: list[Tensor] = []

    def __bool__(self) -> bool:
        return bool(self.registered or self.buffers)

    def holds(self, tensor: Tensor) -> bool:
        start, stop = bytes_of(tensor)
        ranges = (*self.registered.items(), *((b.data_ptr(), b.nbytes) for b in self.buffers))
        return any(at <= start and stop <= at + nbytes for at, nbytes in ranges)

    def check(self, tensor: Tensor) -> None:
        """Raise RuntimeError, as CUDA does, where a copy leaves the registered piece that it begins or ends in."""
        start, stop = bytes_of(tensor)
        if any(
            start < at + nbytes and at < stop and not (at <= start and stop <= at + nbytes)
            for at, nbytes in self.registered.items()
        ):
            raise RuntimeError("CUDA error: invalid argument: a copy leaves a piece of registered memory")


class _ThreadState(threading.local):
    """A thread's knowledge that torch's C++ does not have.

    `leaving`: a tensor is taken off the device on purpose. `on_device`: what C++ makes now belongs on the device.
    `shapes`: the mode that finds an operation's results without their values. `asked`: functions that subclasses of
    Tensor answer right now, the innermost last.
    """

    leaving = False
    on_device = False

    def __init__(self) -> None:
        self.shapes = FakeTensorMode()
        self.asked: list[Any] = []


class DeviceOperations:
    """Carries one operation out: at once where it only looks at shapes, queued where it computes."""

    def __init__(self, memory: DeviceMemory, queues: Queues, pinned: PinnedMemory) -> None:
        self.memory = memory
        self.queues = queues
        self.pinned = pinned
        self.pageable_copies = 0
        """Copies from or to memory that is not pinned, which hold the host up."""
        self.thread = _ThreadState()

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        here = any(map(self.memory.owns, tensors))
        wanted = kwargs.get("device")
        here = here or (wanted is not None and (torch.device(wanted).type == "cuda" or self.thread.on_device))
        if not here:
            if not self.queues.values and any(tensor.nbytes > LARGEST_WITH_VALUES for tensor in tensors):
                return self._without_values(func, args, kwargs)
            if self.queues.races is not None and self.pinned:
                self._on_the_host(func, args, kwargs, tensors)
            return func(*args, **kwargs)
        packet = func.overloadpacket
        if packet is aten._to_copy:
            return self._to_copy(args[0], **kwargs)
        if packet is aten.copy_:
            return self._copy(
                args[0], args[1], non_blocking=bool(kwargs.get("non_blocking", args[2:] == (True,)))
            )
        returns = func._schema.returns
        if (
            func.is_view or packet is aten._unsafe_view
        ):  # no view by its schema, and none of its work is a kernel's
            return func(*args, **kwargs)
        if packet is aten.record_stream:
            return None
        if any(r.alias_info is not None and r.alias_info.is_write for r in returns) or not returns:
            return self._in_place(func, args, kwargs)
        if not self.queues.values and packet is aten._local_scalar_dense:
            self.queues.current.synchronize()
            return torch.zeros((), dtype=args[0].dtype).item()
        if not all(str(r.type) in ("Tensor", "List[Tensor]") for r in returns):
            return self._read(func, args, kwargs)
        return self._new(func, args, kwargs)

    # Kinds of operations

    def _new(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation with results of its own: their shapes now, their values later."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        try:
            with self.thread.shapes:
                fake_args, fake_kwargs = tree_map(_without_values, (args, kwargs))
                shapes = func(*fake_args, **fake_kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            # The shape depends on values: CUDA waits for them, too.
            return tree_map(self._sent, self._read(func, args, kwargs))
        results = tree_map(self._like, shapes)
        if func.overloadpacket in WITHOUT_WORK:
            return results
        call = self._call(func, args, kwargs)
        outputs = [self.memory.alias(r) for r in tree_flatten(results)[0] if isinstance(r, Tensor)]

        def work() -> None:
            values = [v for v in tree_flatten(call())[0] if isinstance(v, Tensor)]
            for output, value in zip(outputs, values, strict=True):
                output.copy_(value)

        self._kernel(func, args, kwargs, work, outputs, results)
        return results

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation whose result the host has to have."""
        leaves = tree_flatten((args, kwargs))[0]
        reads = [bytes_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        return self.queues.read(_name(func), self._call(func, args, kwargs), reads)

    def _on_the_host(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Look at an operation of the host on memory that the device reaches."""
        reached = [tensor for tensor in tensors if self.pinned.holds(tensor)]
        if reached and not func.is_view:
            written = [leaf for leaf in tree_flatten(_written(func, args, kwargs))[0] if leaf is not None]
            writes = [bytes_of(tensor) for tensor in reached if any(tensor is leaf for leaf in written)]
            self.queues.host_access(_name(func), list(map(bytes_of, reached)), writes)

    def _without_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on large host memory where no values are kept: what it would write is not written."""
        returns = func._schema.returns
        if func.is_view or not returns:
            return func(*args, **kwargs)
        if any(r.alias_info is not None and r.alias_info.is_write for r in returns):
            return kwargs.get("out", args[0])
        with self.thread.shapes:
            fake_args, fake_kwargs = tree_map(_without_values, (args, kwargs))
            shapes = func(*fake_args, **fake_kwargs)
        return tree_map(
            lambda x: (
                torch.empty_strided(x.size(), x.stride(), dtype=x.dtype) if isinstance(x, Tensor) else x
            ),
            shapes,
        )

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that writes into what it is given, and returns that."""
        written: list[Tensor] = []
        returned: dict[str, Any] = {}
        for number, argument in enumerate(func._schema.arguments):
            value = kwargs.get(argument.name, args[number] if number < len(args) else None)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]
                returned.update(dict.fromkeys(argument.alias_info.before_set, value))
        call = self._call(func, args, kwargs)
        self._kernel(func, args, kwargs, call, written, written)
        results = tuple(returned[next(iter(r.alias_info.before_set))] for r in func._schema.returns)
        return results[0] if len(results) == 1 else results or None

    def _to_copy(self, source: Tensor, **options: Any) -> Tensor:
        non_blocking = bool(options.pop("non_blocking", False))
        options.pop("pin_memory", None)
        wanted = options.pop("device", None)
        if self.memory.owns(source):
            if self.thread.leaving:
                self.pageable_copies += 1
                if not self.queues.values:
                    self.queues.current.synchronize()
                    return torch.zeros(source.size(), dtype=options.get("dtype") or source.dtype)
                return self._read(aten._to_copy.default, (source,), options)  # type: ignore[no-any-return]
            return self._new(aten._to_copy.default, (source,), options)  # type: ignore[no-any-return]
        assert wanted is not None and torch.device(wanted).type == "cuda"
        converted = aten._to_copy.default(source, **options) if options.get("dtype") else source
        sent: Tensor = self._like(converted)
        return self._copy(sent, converted, non_blocking=non_blocking)

    def _copy(self, destination: Tensor, source: Tensor, *, non_blocking: bool) -> Tensor:
        """A copy within the device, or between it and the host: CUDA's rules of when the host waits."""
        up, down = self.memory.owns(destination), self.memory.owns(source)
        host = None if up and down else source if up else destination
        pinned = host is None or self.pinned.holds(host)
        if host is not None:
            self.pinned.check(host)
        self.pageable_copies += not pinned and (down or source.dim() > 0)
        call = self._call(aten.copy_.default, (destination, source), {})
        name = "copy" if up and down else "upload" if up else "download"
        seconds = 0.0
        if self.queues.clock is not None:
            seconds = self.queues.clock.copy_s(name, destination.nbytes)
        self._issue(name, call, [bytes_of(source)], [bytes_of(destination)], seconds)
        # A number travels with the kernel. Of pageable memory CUDA says that the call may wait, or may not: values are
        # those of one that does not, times those of one that does.
        waits = not non_blocking or not (pinned or self.queues.values)
        if host is not None and waits and (host.dim() or down):
            self.queues.current.synchronize()
        return destination

    def _sent(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        there = self._like(value)
        self._issue("result", self._call(aten.copy_.default, (there, value), {}), [], [bytes_of(there)])
        return there

    # Calls that are carried out later

    def _call(self, func: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
        """Return the operation on the memory that its tensors have now, whatever they will be bound to by then."""
        if func.overloadpacket not in INDEXED and func.overloadpacket is not aten.copy_:
            leaves = tree_flatten((args, kwargs))[0]
            if any(isinstance(x, Tensor) and x.dim() and not self.memory.owns(x) for x in leaves):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but {_name(func)} got cuda:0 and cpu"
                )
        args, kwargs = tree_map(self._alias, (args, kwargs))
        if self.queues.values and any(argument.name == "generator" for argument in func._schema.arguments):
            # Random numbers are those of the moment of issue, as a GPU's are: its generator counts on the host.
            generator = torch.Generator()
            generator.set_state(torch.get_rng_state())
            stand_in = tree_map(_scratch, (args, kwargs))
            func(*stand_in[0], **stand_in[1])
            kwargs["generator"] = generator
        return lambda: func(*args, **kwargs)

    def _alias(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return CPU if isinstance(value, torch.device) else value
        if self.memory.owns(value):
            return self.memory.alias(value)
        # A number of the host's is read when the operation is issued.
        return value.detach() if value.dim() else value.detach().clone()

    def _like(self, value: Any) -> Any:
        """Return device memory of the shape of a result."""
        if not isinstance(value, Tensor):
            return value
        return self.memory.empty(value.size(), value.stride(), value.dtype)

    def _kernel(
        self, func: Any, args: Any, kwargs: Any, work: Callable[[], Any], outputs: list[Tensor], results: Any
    ) -> None:
        """Queue an operation on the device alone."""
        leaves = tree_flatten((args, kwargs))[0]
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and self.memory.owns(leaf)]
        seconds = 0.0
        if self.queues.clock is not None:
            nbytes = sum(tensor.nbytes for tensor in (*inputs, *outputs))
            seconds = self.queues.clock.kernel_s(func, args, kwargs, results, nbytes)
        self._issue(_name(func), work, list(map(bytes_of, inputs)), list(map(bytes_of, outputs)), seconds)

    def _issue(
        self,
        name: str,
        work: Callable[[], Any],
        reads: list[Bytes],
        writes: list[Bytes],
        seconds: float = 0.0,
    ) -> None:
        self.queues.issue(Operation(self.queues.current, name, work), reads, writes, seconds)


class _Below(TorchDispatchMode):
    """Sees each operation below autograd."""

    def __init__(self, operations: DeviceOperations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operations.perform(func, args, kwargs or {})


class _Above(TorchFunctionMode):
    """Answers what C++ would answer for a tensor of the CPU."""

    def __init__(self, modes: Modes) -> None:
        super().__init__()
        self._modes = modes
        self._memory = modes.operations.memory
        answers = {
            torch.Tensor.device.__get__: lambda tensor: CUDA,
            torch.Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda tensor: False,  # type: ignore[attr-defined]
            torch.Tensor.get_device: lambda tensor: 0,
            torch.Tensor.cpu: lambda tensor: self._leave(tensor),
            torch.Tensor.tolist: lambda tensor: self._leave(tensor).tolist(),
            torch.Tensor.numpy: _no_array,
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: lambda tensor, *args, **kwargs: tensor,
        }
        self._answers: dict[Any, Callable[..., Any]] = answers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = next((kind for kind in types if _has_function_of_its_own(kind)), None)
        asked = self._modes.operations.thread.asked
        if own is not None and func not in asked[-1:]:
            asked.append(func)
            try:
                with self:  # the mode is off meanwhile, and what the subclass asks is to be answered, too
                    return own.__torch_function__(func, types, args, kwargs)
            finally:
                asked.pop()
        answer = self._answers.get(func)
        if answer is not None and self._memory.owns(args[0]):
            return answer(*args, **kwargs)
        if func is torch.Tensor.to:
            device, dtype, non_blocking, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
            if device is not None and device.type == "cuda":
                options = {} if dtype is None else {"dtype": dtype}
                return aten._to_copy.default(args[0], device=CUDA, non_blocking=non_blocking, **options)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs = {**kwargs, "device": CUDA}
        if func in HOOKS:
            args = (args[0], self._with_this_mode(args[1]))
        if func is torch.Tensor.backward and threading.current_thread().name != AUTOGRAD:
            return self._modes.in_thread(functools.partial(func, *args, **kwargs))
        if kwargs.get("pin_memory"):
            buffer = func(*args, **{**kwargs, "pin_memory": False})
            self._modes.operations.pinned.buffers.append(buffer)
            return buffer
        thread = self._modes.operations.thread
        before = thread.on_device
        leaves = tree_flatten((args, kwargs))[0]
        thread.on_device = any(isinstance(leaf, Tensor) and self._memory.owns(leaf) for leaf in leaves)
        try:
            return func(*args, **kwargs)
        finally:
            thread.on_device = before

    def _with_this_mode(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Autograd calls hooks without function modes, and a hook may ask where a tensor is."""

        @functools.wraps(hook)
        def run(*args: Any) -> Any:
            with _Above(self._modes):
                return hook(*args)

        return run

    def _leave(self, tensor: Tensor, **options: Any) -> Tensor:
        thread = self._modes.operations.thread
        thread.leaving = True
        try:
            return aten._to_copy.default(tensor, **options)  # type: ignore[no-any-return]
        finally:
            thread.leaving = False

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        copies = kwargs.pop("copy", False)
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if args and isinstance(args[0], Tensor):
            device, dtype = args[0].device, args[0].dtype
        if device is not None and device.type == "cpu":
            return self._leave(tensor, dtype=dtype or tensor.dtype)
        return torch.Tensor.to(tensor, dtype or tensor.dtype, copy=copies)


class Modes:
    """The two modes, on every thread that asks for them."""

    def __init__(self, operations: DeviceOperations) -> None:
        self.operations = operations
        self._threads = threading.local()

    def enter(self) -> None:
        """Put the modes on the calling thread until `leave`, or until it ends."""
        if not getattr(self._threads, "entered", None):
            self._threads.entered = [_Above(self), _Below(self.operations)]
            for mode in self._threads.entered:
                mode.__enter__()

    def leave(self) -> None:
        for mode in reversed(self._threads.entered):
            mode.__exit__(None, None, None)
        self._threads.entered = None

    def in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` on a thread of its own, as autograd's for a GPU is, and return what it returns."""
        outcome: list[Any] = []
        queues = self.operations.queues
        enabled, stream = torch.is_grad_enabled(), queues.current
        if queues.clock is not None:
            work = queues.clock.host.lent(work)

        def run() -> None:
            self.enter()
            queues.current = stream
            torch.set_grad_enabled(enabled)
            self.operations.thread.on_device = True
            try:
                outcome.append((work(), None))
            except BaseException as error:
                outcome.append((None, error))
            finally:
                self.leave()

        thread = threading.Thread(target=run, name=AUTOGRAD)
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result


def _without_values(value: Any) -> Any:
    """Return a tensor of the same shape without memory, within a mode of such tensors."""
    if not isinstance(value, Tensor) or value.untyped_storage().data_ptr() == 0:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)


def _scratch(value: Any) -> Any:
    return torch.full_like(value, 0.5) if isinstance(value, Tensor) else value


def _has_function_of_its_own(kind: Any) -> bool:
    function = getattr(kind.__torch_function__, "__func__", None)
    return function is not None and function is not torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operation writes into."""
    return [
        kwargs.get(argument.name, args[number] if number < len(args) else None)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _name(func: Any) -> str:
    return str(func).removeprefix("aten.")


def _no_array(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
