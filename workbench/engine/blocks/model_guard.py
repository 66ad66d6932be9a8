"""Uses of a model that its engine cannot give the right result for: each is refused in a sentence.

docs/engine.md lists them ("What the engine asks of a model"). Invariant: no use that is refused here has changed
anything before the exception.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.loss.lazy_logits import LazyLogits

_HELD: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ModelGuard]] = weakref.WeakKeyDictionary()
"""The modules whose parameters an engine holds, until it is closed."""


_NAMES_ONLY = ContextVar("names only", default=False)


@contextmanager
def names_only() -> Iterator[None]:
    """While entered, `state_dict` is asked for names, shapes and identities, not for values: it is not refused."""
    token = _NAMES_ONLY.set(True)
    try:
        yield
    finally:
        _NAMES_ONLY.reset(token)


def check_is_free(model: nn.Module) -> None:
    """Raise ValueError where an engine holds `model`, or a part of it."""
    for module in model.modules():
        if module not in _HELD:
            continue
        if _HELD[module]() is not None:
            raise ValueError(
                f"another OffloadEngine holds this {type(model).__name__}: call its close() first"
            )
        raise ValueError(
            f"the OffloadEngine that held this {type(model).__name__} was dropped without close(), and its weights "
            "with it; create the model again"
        )


class ModelGuard:
    """Hooks on `model`, from construction to `remove`. `wait`: returns when its weights are those of the last step.

    With `streamed` blocks their weights are not in the model between uses, and no graph may be kept for a second
    backward: it would read what another block left in the slot.
    """

    def __init__(self, model: nn.Module, *, streamed: bool, wait: Callable[[], None]) -> None:
        self._streamed = streamed
        self._wait = wait
        self._steps = 0
        self._model = weakref.ref(model)
        guard = weakref.ref(self)

        def before_reading(module: nn.Module, prefix: str, keep_vars: bool) -> None:
            alive = guard()
            if alive is not None and not keep_vars and not _NAMES_ONLY.get():
                alive._before_reading()

        def before_loading(module: nn.Module, *_: Any) -> None:
            raise RuntimeError(
                "load_state_dict: an OffloadEngine holds this model, and its next update would undo what is loaded; "
                "load before the engine is made, or after its close()"
            )

        def after_forward(module: nn.Module, inputs: Any, output: Any) -> None:
            alive = guard()
            if alive is not None and torch.is_grad_enabled():
                alive._watch(output)

        self._handles: list[Any] = [model.register_forward_hook(after_forward)]
        for module in model.modules():
            _HELD[module] = guard
            self._handles.append(module.register_state_dict_pre_hook(before_reading))
            self._handles.append(module.register_load_state_dict_pre_hook(before_loading))

    def end_step(self) -> None:
        """The weights change now: graphs of earlier forwards are stale."""
        self._steps += 1

    def remove(self) -> None:
        """Take the hooks off; the model is free."""
        for handle in self._handles:
            handle.remove()
        model = self._model()
        for module in () if model is None else model.modules():
            _HELD.pop(module, None)

    def _before_reading(self) -> None:
        if self._streamed:
            raise RuntimeError(
                "state_dict: the weights of this model are in its OffloadEngine, which streams them; read "
                "engine.weights(), or call engine.close() first"
            )
        self._wait()

    def _watch(self, output: Any) -> None:
        """Have `_check` called as soon as a backward comes to this forward's output."""
        steps = self._steps
        guard = weakref.ref(self)

        def check(gradient: Tensor) -> None:
            alive = guard()
            if alive is not None:
                alive._check(steps)

        for tensor in _tensors(output):
            # Logits that are not computed yet would be, if they were asked: the loss made of them is watched.
            if not isinstance(tensor, LazyLogits) and tensor.requires_grad:
                tensor.register_hook(check)

    def _check(self, steps: int) -> None:
        if steps != self._steps:
            raise RuntimeError(
                "backward through a forward that ran before the last engine.step(): its weights were replaced; run "
                "the forward again"
            )
        if self._streamed and torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True through blocks whose weights are streamed (a gradient penalty, say): a second "
                'backward would read the weights of another block; use weights = "device" and a precision that needs '
                "no conversion"
            )


def _tensors(output: Any) -> Iterator[Tensor]:
    """Return the tensors of a model's output: one, or those in a tuple, a list or a mapping."""
    values = (
        output.values()
        if isinstance(output, Mapping)
        else output
        if isinstance(output, (tuple, list))
        else (output,)
    )
    return (value for value in values if isinstance(value, Tensor))
