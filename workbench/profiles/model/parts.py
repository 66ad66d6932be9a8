"""The parameters of a model as a model profile has them, and which of its blocks are alike. Needs no more than
meta tensors.

Units, names, order and ties are the engine's own: `find_units` finds them.

Invariant: two blocks are of one kind only where the same operations run on the same shapes in both.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn

from workbench.engine.arithmetic.precision import dtype_name
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.errors import WorkbenchError
from workbench.model.saving import has_adapter
from workbench.plan.model_profile import BlockKind, Curve, ModelProfile, ParameterProfile


def count_parts(model: nn.Module, name: str) -> ModelProfile:
    """The model profile of `model` (on any device, meta among them) without its blocks' costs.

    `flops` are those of the blocks' matrices, without attention. `name`: what the model profile calls the model.

    Raises:
        WorkbenchError: a block's parameters lie outside of it.
    """
    units = find_units(model)
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if config is not None else None
    head = _embedding(model, "get_output_embeddings")
    entry = _embedding(model, "get_input_embeddings")
    hidden = getattr(text, "hidden_size", None) or (0 if entry is None else entry.shape[1])
    outer = {s.name: tuple(_parameter(s, n, n) for n in s.parameters) for s in units if s.block is None}
    signatures: dict[Hashable, int] = {}
    kinds: list[BlockKind] = []
    blocks: list[tuple[str, int]] = []
    for unit in units:
        if unit.block is None:
            continue
        parameters = tuple(_parameter(unit, n, _inside(unit, n)) for n in unit.parameters)
        number = signatures.setdefault((parameters, signature(unit.block)), len(kinds))
        if number == len(kinds):
            kinds.append(BlockKind(parameters=parameters, flops=_matrix_flops(parameters), costs=None))
        blocks.append((unit.name, number))
    return ModelProfile(
        model=name,
        parameters=sum(p.numel() for s in units for p in s.parameters.values()),
        hidden_size=int(hidden),
        head_width=int(hidden if head is None else head.shape[1]),
        vocab_size=int(getattr(text, "vocab_size", None) or (0 if head is None else head.shape[0])),
        layers=len(blocks),
        positions=_whole(getattr(text, "max_position_embeddings", None)),
        before=outer.get("embedding", ()),
        after=outer.get("head", ()),
        kinds=tuple(kinds),
        blocks=tuple(blocks),
        loss_in_chunks=ChunkedLoss(model).refusal is None,
        adapter=has_adapter(model),
    )


def signature(block: nn.Module) -> Hashable:
    """What decides which operations a block runs: its modules' classes and their public switches.

    Switches are texts and truth values as they are, and of numbers whether they are there at all (a sliding window).
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


def _matrix_flops(parameters: tuple[ParameterProfile, ...]) -> Curve:
    return Curve(per_token=2.0 * sum(p.numel for p in parameters if len(p.shape) > 1 and not p.embeds))


def _embedding(model: nn.Module, name: str) -> Any:
    """The weight of the input or output embedding; None where the model tells of none."""
    tell = getattr(model, name, None)
    module = tell() if callable(tell) else None
    weight = getattr(module, "weight", None)
    return weight if weight is not None and weight.dim() == 2 else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
