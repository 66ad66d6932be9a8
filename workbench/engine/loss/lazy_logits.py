"""Logits that are not there yet: a tensor that remembers what a model does to them until their cross entropy is asked.

A model scales its logits, caps them, shifts them and takes their cross entropy in code of its own. Here that code runs
as it is: the head returns a `LazyLogits`, which takes note of what treats each token alone, and computes the
cross entropy a chunk of tokens at a time. Whatever else it is asked for, it becomes real logits first.

Invariant: an operation is either noted or done on the real logits, never guessed; so the loss is the model's own, and
only memory depends on what was noted. Where operations in place meet views taken earlier that does not hold: see
`ChunkedLoss.check`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from workbench.engine.loss.chunked_cross_entropy import Pointwise, chunked_cross_entropy


@dataclass
class LogitsTrace:
    """The use that one call of a model made of its logits."""

    chunk_tokens: int
    in_chunks: int = 0
    """Cross entropies that were computed in chunks."""
    forced_by: list[str] = field(default_factory=list)
    """Names of operations that needed the whole logits."""


class LazyLogits(Tensor):
    """`pointwise(linear(hidden, weight, bias))`, not computed.

    `hidden` [..., width], of any number of dimensions; shape, dtype and device are those of the logits.
    """

    _hidden: Tensor
    _weight: Tensor
    _bias: Tensor | None
    _pointwise: tuple[Pointwise, ...]
    _tally: LogitsTrace
    _whole: Tensor | None

    @staticmethod
    def make(
        tally: LogitsTrace,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        pointwise: tuple[Pointwise, ...] = (),
    ) -> LazyLogits:
        # Their dtype and number of classes are what the functions make of one token's.
        sample = torch.empty(1, weight.shape[0], dtype=hidden.dtype, device="meta")
        for function in pointwise:
            sample = function(sample)
        shape = (*hidden.shape[:-1], sample.shape[-1])
        made: LazyLogits = Tensor._make_wrapper_subclass(
            LazyLogits, shape, dtype=sample.dtype, device=hidden.device
        )
        made._hidden, made._weight, made._bias = hidden, weight, bias
        made._pointwise, made._tally, made._whole = pointwise, tally, None
        return made

    def then(self, function: Pointwise) -> LazyLogits:
        """Return the same with one more function of each token's logits."""
        return self.make(self._tally, self._hidden, self._weight, self._bias, (*self._pointwise, function))

    def of(self, hidden: Tensor) -> LazyLogits:
        """Return the same for other hidden states."""
        return self.make(self._tally, hidden, self._weight, self._bias, self._pointwise)

    def whole(self) -> Tensor:
        """Return the logits, computed once."""
        if self._whole is None:
            logits = functional.linear(self._hidden, self._weight, self._bias)
            for function in self._pointwise:
                logits = function(logits)
            self._whole = logits
        return self._whole

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        noted = _NOTED.get(func)
        me = next((a for a in args if isinstance(a, LazyLogits)), None)
        if noted is not None and me is not None and me._whole is None:
            result = noted(func, me, args, kwargs)
            if result is not NotImplemented:
                return result
        for value in (*args, *kwargs.values()):
            if isinstance(value, LazyLogits) and value._whole is None:
                value._tally.forced_by.append(getattr(func, "__name__", repr(func)))
        return func(*tree_map(_real_of, args), **tree_map(_real_of, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Such a call has gone past autograd: made real now, the logits would lose their gradient in silence.
        raise NotImplementedError(f"{func} reads logits that are computed in chunks")


def _real_of(value: Any) -> Any:
    return value.whole() if isinstance(value, LazyLogits) else value


def _elementwise(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    """Note an operation with numbers, dtypes and the like, or with a constant tensor of one element."""
    others = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a is not me]
    if any(isinstance(o, LazyLogits) or o.dim() or o.requires_grad for o in others):
        return NotImplemented
    if sum(a is me for a in args) != 1 or any(isinstance(a, (torch.device, list, tuple)) for a in args):
        return NotImplemented
    if {"out", "device"} & kwargs.keys():
        return NotImplemented
    place = next(i for i, a in enumerate(args) if a is me)
    # Bound by position: a partial of the operation itself would keep `me` and its hidden states alive.
    return me.then(functools.partial(_apply, func, args[:place], args[place + 1 :], kwargs))


def _apply(func: Any, before: Any, after: Any, kwargs: Any, logits: Tensor) -> Tensor:
    on_logits_device = [
        [a.to(logits.device) if isinstance(a, Tensor) else a for a in part] for part in (before, after)
    ]
    result: Tensor = func(*on_logits_device[0], logits, *on_logits_device[1], **kwargs)
    return result


def _contiguous(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    return me


def _getitem(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    """Note slices: those of tokens are taken of the hidden states, those of the vocabulary of each token's logits."""
    key = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(k is not Ellipsis and not isinstance(k, slice) for k in key):
        return NotImplemented
    if Ellipsis in key:
        at = key.index(Ellipsis)
        missing = me.dim() - (len(key) - 1)
        key = (*key[:at], *[slice(None)] * missing, *key[at + 1 :])
    if Ellipsis in key or len(key) > me.dim():
        return NotImplemented
    key = (*key, *[slice(None)] * (me.dim() - len(key)))
    vocabulary = key[-1]
    sliced = me.of(me._hidden[key[:-1]])
    return sliced if vocabulary == slice(None) else sliced.then(functools.partial(_classes, vocabulary))


def _classes(which: slice, logits: Tensor) -> Tensor:
    return logits[..., which]


def _reshape(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    if kwargs or args[0] is not me:
        return NotImplemented
    shape = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    sizes = list(shape)
    if not sizes or any(type(s) is not int for s in sizes):
        return NotImplemented
    classes, width = me.shape[-1], me._hidden.shape[-1]
    if sizes[-1] == -1 and -1 not in sizes[:-1]:
        tokens = 1
        for size in sizes[:-1]:
            tokens *= size
        if tokens * classes != me.numel():
            return NotImplemented
    elif sizes[-1] != classes:
        return NotImplemented
    return me.of(me._hidden.reshape(*sizes[:-1], width))


def _flatten(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    bounds = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | kwargs
    start, end = (d % me.dim() for d in (bounds.get("start_dim", 0), bounds.get("end_dim", -1)))
    return me.of(me._hidden.flatten(start, end)) if end < me.dim() - 1 else NotImplemented


def _cross_entropy(func: Any, me: LazyLogits, args: Any, kwargs: Any) -> Any:
    names = (
        "input",
        "target",
        "weight",
        "size_average",
        "ignore_index",
        "reduce",
        "reduction",
        "label_smoothing",
    )
    asked = dict(zip(names, args, strict=False)) | kwargs
    targets, reduction = asked["target"], asked.get("reduction", "mean")
    unusual = (
        asked["input"] is not me
        or me.dim() != 2
        or targets.shape != me.shape[:1]
        or targets.dtype != torch.int64
        or any(asked.get(name) is not None for name in ("weight", "size_average", "reduce"))
        or reduction not in ("mean", "sum")
    )
    if unusual:
        return NotImplemented
    if me.shape[0] <= me._tally.chunk_tokens:
        # One chunk: nothing to save, and the model's own is as fast as it gets.
        return func(me.whole(), *args[1:], **kwargs)
    me._tally.in_chunks += 1
    loss = chunked_cross_entropy(
        me._hidden,
        me._weight,
        me._bias,
        targets,
        chunk_tokens=me._tally.chunk_tokens,
        pointwise=me._pointwise,
        ignore_index=asked.get("ignore_index", -100),
        reduction=reduction,
        label_smoothing=asked.get("label_smoothing", 0.0),
    )
    return loss.to(me.dtype)


_FACTS = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu")
        ),
        *(
            Tensor.size,
            Tensor.dim,
            Tensor.numel,
            Tensor.is_floating_point,
            torch.is_floating_point,
            torch.numel,
        ),
    ]
)
"""Questions that need no logits."""

_NOTED: dict[Any, Callable[[Any, LazyLogits, Any, Any], Any]] = {
    **dict.fromkeys(
        (
            *(
                Tensor.mul,
                Tensor.div,
                Tensor.true_divide,
                Tensor.multiply,
                Tensor.tanh,
                Tensor.add,
                Tensor.sub,
            ),
            *(torch.mul, torch.div, torch.true_divide, torch.multiply, torch.tanh, torch.add, torch.sub),
            *(Tensor.neg, Tensor.clamp, torch.clamp, Tensor.float, Tensor.bfloat16, Tensor.half, Tensor.to),
        ),
        _elementwise,
    ),
    Tensor.contiguous: _contiguous,
    Tensor.__getitem__: _getitem,
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    functional.cross_entropy: _cross_entropy,
}
"""The operations that are noted, each with its handler, which gives `NotImplemented` where its arguments are not of
that kind."""
