"""A model cut down to its first blocks and a small vocabulary, so that its blocks can be run for real.

The blocks keep their places and their full width: whatever their code asks of an index or of the configuration is as
in the whole model. What comes before and after them is real too, only with fewer tokens to know.

Invariant: blocks are called by the model's own code; what it gives them is what they are measured with.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from workbench.engine.blocks.discovery import find_blocks, find_units
from workbench.model.build import UnitInitializer

SEED = 1234
VOCABULARY = 64


def cut(model: nn.Module, blocks: Iterable[str]) -> None:
    """Take away every block of a meta model after the last of `blocks` in each list of blocks; one stays."""
    wanted = set(blocks)
    lists: dict[str, int] = {}
    for name in find_blocks(model):
        container, _, key = name.rpartition(".")
        place = list(dict(model.get_submodule(container).named_children())).index(key)
        lists[container] = max(lists.get(container, 1), place + 1 if name in wanted else 1)
    for container, kept in lists.items():
        members: Any = model.get_submodule(container)
        del members[kept:]
    text = _text_config(model)
    if text is not None:
        # Some models go through as many blocks as this says; others refuse the change and do without.
        with contextlib.suppress(Exception):
            text.num_hidden_layers = max(lists.values(), default=text.num_hidden_layers)


def shrink_vocabulary(model: Any) -> None:
    """Leave a meta model `VOCABULARY` rows of its embeddings; ties stay tied."""
    text = _text_config(model)
    before = text.vocab_size
    smaller: dict[int, nn.Parameter] = {}
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is None:
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.shape[0] == before > VOCABULARY:
                small = nn.Parameter(parameter[:VOCABULARY].detach(), requires_grad=parameter.requires_grad)
                module._parameters[name] = smaller.setdefault(id(parameter), small)
        for name in ("num_embeddings", "out_features"):
            if getattr(module, name, None) == before:
                setattr(module, name, min(before, VOCABULARY))
        if getattr(module, "padding_idx", None) is not None:
            module.padding_idx = None
    for owner in (text, *model.modules()):
        if getattr(owner, "vocab_size", None) == before:
            owner.vocab_size = min(before, VOCABULARY)


def materialise(model: nn.Module) -> None:
    """Give every parameter real fp32 values, drawn as the architecture draws them."""
    initialize = UnitInitializer(model, SEED)
    for unit in find_units(model):
        initialize(unit)


def tokens(sequences: int, length: int, vocabulary: int) -> Tensor:
    """Random tokens, int64 [sequences, length]; the same ones at every call."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, min(VOCABULARY, vocabulary), (sequences, length), generator=generator)


@dataclass(frozen=True)
class Call:
    """What a block was called with; no graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def fresh(self, dtype: torch.dtype) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
        """(hidden states, all positional, all named arguments) in `dtype`; the hidden states are new memory.

        Raises:
            ValueError: the block is given no hidden states.
        """
        args, kwargs = tree_map_only(Tensor, functools.partial(_as, dtype), (self.args, self.kwargs))
        for place, value in enumerate(args):
            if _is_floating(value):
                hidden = value.clone()
                return hidden, (*args[:place], hidden, *args[place + 1 :]), kwargs
        named = sorted(kwargs, key=lambda key: key != "hidden_states")
        key = next((key for key in named if _is_floating(kwargs[key])), None)
        if key is None:
            raise ValueError("no hidden states are given to it")
        hidden = kwargs[key].clone()
        return hidden, args, {**kwargs, key: hidden}


class _AllCapturedError(Exception):
    pass


def capture(model: nn.Module, blocks: Iterable[str], ids: Tensor) -> dict[str, Call]:
    """Run `model` on `ids` without a graph up to the last of `blocks`, and keep what each of them is called with.

    Raises:
        ValueError: a block is not called.
    """
    found: dict[str, Call] = {}
    wanted = list(blocks)

    def keep(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.setdefault(name, Call(args, kwargs))
        if len(found) == len(wanted):
            raise _AllCapturedError

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(functools.partial(keep, name), with_kwargs=True)
        for name in wanted
    ]
    try:
        with seeded(), torch.no_grad(), contextlib.suppress(_AllCapturedError):
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{', '.join(missing)} is not called")
    return found


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """The same random numbers at every entry; those outside go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def hidden_of(result: Any, like: Tensor) -> Tensor:
    """The hidden states among what a block returns: the first tensor of the shape of those that went in.

    Raises:
        ValueError: there are none.
    """
    candidates = result if isinstance(result, (tuple, list)) else (result,)
    for value in candidates:
        if isinstance(value, Tensor) and value.shape == like.shape:
            return value
    raise ValueError("it returns no hidden states of the shape that it is given")


Build = Callable[[], nn.Module]


def real_model(build: Build, blocks: Iterable[str], *, small: bool) -> nn.Module:
    """A model from `build` cut to `blocks`, with real values; `small`: with a small vocabulary."""
    model = build()
    cut(model, blocks)
    if small:
        shrink_vocabulary(model)
    materialise(model)
    return model


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", None)
    return None if config is None else config.get_text_config()


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.detach().to(dtype) if tensor.is_floating_point() else tensor


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@contextlib.contextmanager
def pass_blocks(model: nn.Module, ids: Tensor) -> Iterator[None]:
    """Within this every block returns the hidden states that it is given, in the place where it returns its own.

    `ids`: some tokens that show, once, what the blocks return.
    """
    blocks = list(find_blocks(model).values())
    forms: dict[nn.Module, int | None] = {}

    def look(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        hidden, _, _ = Call(args, kwargs).fresh(torch.float32)
        forms[block] = None
        if not isinstance(result, Tensor):
            own = hidden_of(result, hidden)
            forms[block] = next(place for place, value in enumerate(result) if value is own)

    hooks = [block.register_forward_hook(look, with_kwargs=True) for block in blocks]
    try:
        with seeded(), torch.no_grad():
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    try:
        for block, place in forms.items():
            vars(block)["forward"] = functools.partial(_pass, place)
        yield
    finally:
        for block in forms:
            vars(block).pop("forward", None)


def _pass(place: int | None, *args: Any, **kwargs: Any) -> Any:
    named = [kwargs[key] for key in sorted(kwargs, key=lambda key: key != "hidden_states")]
    hidden = next(value for value in (*args, *named) if _is_floating(value))
    if torch.is_grad_enabled() and not hidden.requires_grad:
        # What comes out of a block that is trained wants a gradient, whether the embedding is frozen or not.
        hidden = hidden.detach().requires_grad_()
    return hidden if place is None else (*[None] * place, hidden)
