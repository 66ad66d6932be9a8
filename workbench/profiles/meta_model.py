"""The model of a [model] table on the meta device: its parameters unit by unit, and a cut of it that can be run.

Units, names, order and ties are the engine's own: `find_units` finds them. This is the one place that knows what a
[model] table may say. A cut model has its first blocks only, so that one block of each kind runs at full width: they
keep their places, and what comes before and after them is real, if wanted with a small vocabulary.

Invariants: two blocks are of one kind only where the same operations run on the same shapes in both. Blocks are called
by the model's own code, and measured with the arguments that it gives them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_blocks, find_units
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.engine.precision import dtype_name
from workbench.errors import WorkbenchError
from workbench.model.adapter import add_adapter
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.freezing import freeze
from workbench.model.pretrained import find_pretrained, pretrained_config
from workbench.model.saving import has_adapter
from workbench.profiles.model_profile import BlockKind, Curve, ModelProfile, ParameterProfile
from workbench.profiles.storage_tracker import StorageTracker

SOME_DROPOUT = 0.1
LONG_WINDOW = 2048
"""Runs are seldom longer than wider windows: those blocks are run as if there were none."""
SEED = 1234
VOCABULARY = 64


def model_name(table: Mapping[str, Any]) -> str:
    return str(table.get("architecture") or table.get("pretrained") or "")


def shape_of(table: Mapping[str, Any]) -> Any:
    """Return the transformers configuration that a [model] table describes, else that of the pretrained files it names.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the files' configuration cannot be fetched.
    """
    architecture = str(table.get("architecture") or "")
    if table.get("pretrained") and not architecture:
        trusted, revision = bool(table.get("trust_remote_code")), str(table.get("revision") or "")
        name = str(table["pretrained"])
        files = find_pretrained(name, revision, weights=False, fresh=False, trust_remote_code=trusted)
        return pretrained_config(files, trust_remote_code=trusted)
    return model_config(architecture, dict(table.get("config") or {}))


def meta_model(table: Mapping[str, Any], *, windows_below: int | None = None) -> nn.Module:
    """Return the model in training mode. `windows_below`: attention windows are made shorter than so many tokens.

    Raises:
        ConfigurationError: the model cannot be built.
    """
    shape = shape_of(table)
    if windows_below is not None:
        _narrow_windows(shape.get_text_config(), windows_below)
    model = build_on_meta(shape, trust_remote_code=bool(table.get("trust_remote_code")))
    adapter = table.get("adapter")
    if adapter:
        add_adapter(
            model,
            AdapterConfig(
                rank=adapter["rank"],
                dropout=SOME_DROPOUT if adapter["dropout"] else 0.0,
                targets=list(adapter["targets"]),
            ),
        )
    freeze(model, table.get("freeze") or ())
    return model


def _narrow_windows(text: Any, below: int) -> None:
    """Shorten attention windows: only one that is shorter than the sequence gives attention a mask."""
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and below <= window <= LONG_WINDOW:
            setattr(text, name, max(1, below // 2))


def count_parts(model: nn.Module, name: str) -> ModelProfile:
    """Return the model profile of `model` (on any device, meta among them) without its blocks' costs.

    `flops` are those of the blocks' matrices, without attention. `name`: the model's name in the profile.

    Raises:
        WorkbenchError: a block owns a parameter that lies outside of it.
    """
    units = find_units(model)
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if config is not None else None
    head = _embedding(model, "get_output_embeddings")
    entry = _embedding(model, "get_input_embeddings")
    hidden = getattr(text, "hidden_size", None) or (0 if entry is None else entry.shape[1])
    outer = {s.name: tuple(_parameter(s, n, n) for n in s.parameters) for s in units if s.block is None}
    positions = getattr(text, "max_position_embeddings", None)
    signatures: dict[Hashable, int] = {}
    kinds: list[BlockKind] = []
    blocks: list[tuple[str, int]] = []
    for unit in units:
        if unit.block is None:
            continue
        parameters = tuple(_parameter(unit, n, _inside(unit, n)) for n in unit.parameters)
        number = signatures.setdefault((parameters, signature(unit.block)), len(kinds))
        if number == len(kinds):
            matrices = sum(p.numel for p in parameters if len(p.shape) > 1 and not p.embeds)
            kinds.append(BlockKind(parameters=parameters, flops=Curve(per_token=2.0 * matrices), costs=None))
        blocks.append((unit.name, number))
    return ModelProfile(
        model=name,
        parameters=sum(p.numel() for s in units for p in s.parameters.values()),
        hidden_size=int(hidden),
        head_width=int(hidden if head is None else head.shape[1]),
        vocab_size=int(getattr(text, "vocab_size", None) or (0 if head is None else head.shape[0])),
        layers=len(blocks),
        positions=positions if isinstance(positions, int) else None,
        before=outer.get("embedding", ()),
        after=outer.get("head", ()),
        kinds=tuple(kinds),
        blocks=tuple(blocks),
        loss_in_chunks=ChunkedLoss(model).refusal is None,
        adapter=has_adapter(model),
    )


def first_blocks(profile: ModelProfile) -> list[str]:
    """Return the name of the first block of each kind, in the order of the kinds."""
    names: dict[int, str] = {}
    for name, kind in profile.blocks:
        names.setdefault(kind, name)
    return [names[kind] for kind in sorted(names)]


def quiet_transformers() -> None:
    """Keep transformers' warnings out of a process that only profiles a model."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def signature(block: nn.Module) -> Hashable:
    """Return what decides which operations a block runs: its modules' classes and their public switches.

    Switches are strings and booleans as they are; of a number only its presence counts (a sliding window).
    """
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, value if isinstance(value, (str, bool)) else value is None)
                for key, value in sorted(vars(module).items())
                if not key.startswith("_") and (value is None or isinstance(value, (str, bool, int)))
            ),
        )
        for name, module in block.named_modules()
    )


def _parameter(unit: FoundUnit, known: str, name: str) -> ParameterProfile:
    parameter = unit.parameters[known]
    embeds = any(isinstance(o.module, (nn.Embedding, nn.EmbeddingBag)) for o in unit.owners[known])
    return ParameterProfile(
        name=name,
        shape=tuple(parameter.shape),
        dtype=dtype_name(parameter.dtype),
        trainable=parameter.requires_grad,
        embeds=embeds,
    )


def _inside(unit: FoundUnit, known: str) -> str:
    prefix = f"{unit.name}."
    if not known.startswith(prefix):
        raise WorkbenchError(
            f"block {unit.name} owns {known}, which lies outside of it: no model profile of that"
        )
    return known[len(prefix) :]


def _embedding(model: nn.Module, name: str) -> Any:
    """Return the weight of the input or output embedding; None where the model has none."""
    getter = getattr(model, name, None)
    module = getter() if callable(getter) else None
    weight = getattr(module, "weight", None)
    return weight if weight is not None and weight.dim() == 2 else None


# A model cut down to its first blocks


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
        # The output of a trained block needs a gradient, whether the embedding is frozen or not.
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
