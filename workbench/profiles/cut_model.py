"""A model cut down to its first blocks, so that one block of each kind can be run at full width.

The blocks keep their places: whatever their code reads from an index or from the configuration is as in the whole
model. What comes before and after them is real, and can be given a small vocabulary.

Invariant: blocks are called by the model's own code; they are measured with the arguments that it gives them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from workbench.engine.blocks.discovery import find_blocks, find_units
from workbench.model.build import UnitInitializer
from workbench.profiles.storage_tracker import StorageTracker

SEED = 1234
VOCABULARY = 64


def cut(model: nn.Module, blocks: Iterable[str]) -> None:
    """Remove every block of a meta model after the last of `blocks` in each list of blocks; one stays."""
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


def materialise(model: nn.Module, *, blocks: bool) -> None:
    """Give parameters real fp32 values, drawn as the architecture draws them; `blocks`: also those of blocks."""
    initialize = UnitInitializer(model, SEED)
    for unit in find_units(model):
        if blocks or unit.block is None:
            initialize(unit)


def tokens(sequences: int, length: int, vocabulary: int) -> Tensor:
    """Return random tokens, int64 [sequences, length]; the same ones at every call."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, min(VOCABULARY, vocabulary), (sequences, length), generator=generator)


@dataclass(frozen=True)
class Call:
    """The arguments of a block; no graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def fresh(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
        """Return (hidden states, positional, named arguments) in `dtype` on `device`; the hidden states are new memory.

        Raises:
            ValueError: the block is given no hidden states.
        """

        def convert(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device, dtype if tensor.is_floating_point() else None)

        args, kwargs = tree_map_only(Tensor, convert, (self.args, self.kwargs))
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
    """Run `model` on `ids`, its blocks passed, and return the arguments of each of `blocks`.

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
        with pass_blocks(model), seeded(), torch.no_grad(), contextlib.suppress(_AllCapturedError):
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
    """Within this, random numbers are the same at every entry; those outside go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def hidden_of(result: Any, like: Tensor) -> Tensor:
    """Return the hidden states among what a block returns: the first tensor of the shape of those that went in.

    Raises:
        ValueError: there are none.
    """
    candidates = result if isinstance(result, (tuple, list)) else (result,)
    for value in candidates:
        if isinstance(value, Tensor) and value.shape == like.shape:
            return value
    raise ValueError("it returns no hidden states of the shape that it is given")


@contextlib.contextmanager
def pass_blocks(model: nn.Module) -> Iterator[None]:
    """Within this, every block returns the hidden states that it is given, in the place where it returns its own.

    The place is found by one run of the block, on the meta device where its parameters are.
    """
    blocks = list(find_blocks(model).values())
    try:
        for block in blocks:
            vars(block)["forward"] = functools.partial(_pass, block, [])
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _pass(block: nn.Module, places: list[int | None], *args: Any, **kwargs: Any) -> Any:
    if not places:
        places.append(_place_of_hidden(block, Call(args, kwargs)))
    named = [kwargs[key] for key in sorted(kwargs, key=lambda key: key != "hidden_states")]
    hidden = next(value for value in (*args, *named) if _is_floating(value))
    if torch.is_grad_enabled() and not hidden.requires_grad:
        # What comes out of a block that is trained wants a gradient, whether the embedding is frozen or not.
        hidden = hidden.detach().requires_grad_()
    (place,) = places
    return hidden if place is None else (*[None] * place, hidden)


def _place_of_hidden(block: nn.Module, call: Call) -> int | None:
    """Return the index of the hidden states in the tuple that a block returns; None where it returns them alone."""
    parameter = next(block.parameters())
    hidden, args, kwargs = call.fresh(parameter.dtype, parameter.device)
    # The tracker lets grouped products run on the meta device.
    with seeded(), torch.no_grad(), StorageTracker():
        result = type(block).forward(block, *args, **kwargs)
    if isinstance(result, Tensor):
        return None
    own = hidden_of(result, hidden)
    return next(place for place, value in enumerate(result) if value is own)


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", None)
    return None if config is None else config.get_text_config()


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
