"""The model profile: a model's parameters unit by unit, what a block of each kind keeps and computes, and its times.

Taken by `block_costs` and `block_times`; from then on plain data, without torch. The planner reads nothing else of a
model.

Invariant: sizes are of the model itself, whatever a run makes of it (placement, precision, state format).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workbench.config import RunConfig
from workbench.layout import Layout, ParameterSpec, StateFormat, Unit, UnitSpec, build_layout, stay_on_device

VERSION = 4
TIMES_VERSION = 4
"""Counts up with every change of what is timed."""
SIXTEEN_BITS = ("bfloat16", "float16")
ComputeWidth = Literal["32", "16"]
"""Bits of the dtype that a block computes in; what it keeps depends on nothing else of it."""


Seconds = Annotated[float, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Curve(_Part):
    """An amount for `sequences` of `tokens` each: fixed + sequences x tokens x (per_token + per_token_pair x tokens).

    With `beside` it is the largest of several such amounts: a peak may lie in attention for long sequences, else
    elsewhere.
    """

    per_token: float
    per_token_pair: float = 0.0
    fixed: float = 0.0
    beside: tuple[Curve, ...] = ()

    def at(self, sequences: int, tokens: int) -> float:
        own = self.fixed + sequences * tokens * (self.per_token + self.per_token_pair * tokens)
        return max(own, *(curve.at(sequences, tokens) for curve in self.beside)) if self.beside else own


class BlockCost(_Part):
    """The costs of one block of a kind beside its parameters, at one compute width. Bytes unless said.

    `input`: the hidden states that come in, which activation checkpointing keeps. `saved`: kept by its graph from
    forward to backward, its input included. `passing`: the sum of all that a forward with a graph makes and drops
    again. `forward_peak`: the most that is alive in a forward without a graph, input included. `graph_peak` and
    `backward_peak`: the same in a forward with a graph, and in its backward beside the parameters' gradients.
    `element_bytes`: read and written by the operations on elements of a forward; `backward_element_bytes` likewise.
    `operations` and `backward_operations`: the number of operations that it launches. `left_out_*`: of a forward's
    products, bytes and operations those after the last tensor that its graph keeps, where torch breaks off when a
    checkpoint computes it again.
    """

    input: Curve
    saved: Curve
    passing: Curve
    forward_peak: Curve
    graph_peak: Curve
    backward_peak: Curve
    element_bytes: Curve
    backward_element_bytes: Curve
    operations: int
    backward_operations: int
    left_out_flops: Curve = Curve(per_token=0.0)
    left_out_element_bytes: Curve = Curve(per_token=0.0)
    left_out_operations: int = 0


class ParameterProfile(_Part):
    """`name`: within its block where it has one. `dtype`: as the model comes. `embeds`: rows that are looked up."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    embeds: bool = False

    @property
    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


class BlockKind(_Part):
    """Blocks that are alike. `costs`: by compute width; None where no block could be run; `problem` says why.

    `flops`: of the matrix products and attention (all pairs of tokens) of a forward; a backward has twice as many.
    `accelerator`: the costs on a device that is no CPU, where they differ: there dropout keeps a byte an element and
    attention stays one operation with it. Empty where they are those of `costs`.
    """

    parameters: tuple[ParameterProfile, ...]
    flops: Curve
    costs: dict[ComputeWidth, BlockCost] | None
    accelerator: dict[ComputeWidth, BlockCost] = {}
    problem: str = ""

    @cached_property
    def frozen_share(self) -> float:
        """Of the elements of its matrices."""
        matrices = [p for p in self.parameters if len(p.shape) > 1 and not p.embeds]
        return sum(p.numel for p in matrices if not p.trainable) / max(1, sum(p.numel for p in matrices))

    def cost(self, width: ComputeWidth, *, on_cpu: bool) -> BlockCost | None:
        """Return the costs of a block at `width` on a device of that kind; None where they are not known."""
        known = self.costs if on_cpu else self.accelerator or self.costs
        return None if known is None else known.get(width)


class ModelProfile(_Part):
    """A model. `blocks`: in forward order, each block's name and the number of its kind.

    `loss_in_chunks`: whether its loss is computed without all logits at once. `head_width`: of what goes into the head.
    `adapter`: whether what is trained is an adapter, which stays fp32 beside weights in any precision.
    """

    version: int = VERSION
    model: str
    parameters: int
    hidden_size: int
    head_width: int
    vocab_size: int
    layers: int
    positions: int | None
    before: tuple[ParameterProfile, ...]
    after: tuple[ParameterProfile, ...]
    kinds: tuple[BlockKind, ...]
    blocks: tuple[tuple[str, int], ...]
    loss_in_chunks: bool = True
    adapter: bool = False

    @model_validator(mode="after")
    def _has_the_kinds_of_its_blocks(self) -> ModelProfile:
        for name, kind in self.blocks:
            if not 0 <= kind < len(self.kinds):
                raise ValueError(f"block {name} is of kind {kind}, and there are {len(self.kinds)}")
        return self

    def layout(
        self,
        precision: str | None,
        chunk_bytes: int,
        state_format: StateFormat = "exact",
        device_fraction: float = 0.0,
    ) -> Layout:
        """Return the layout that the engine gives this model: `workbench.engine.blocks.discovery.lay_out`."""
        units = list(self._units())
        mixed = self.adapter or any(p.dtype in SIXTEEN_BITS for _, _, parameters in units for p in parameters)
        stay = stay_on_device([sum(p.numel for p in s[2] if p.trainable) for s in units], device_fraction)
        # Blocks of a kind differ in their names only, and laying one out takes a while.
        built: dict[tuple[int, bool], Unit] = {}
        laid_out = []
        for index, ((name, prefix, parameters), stays) in enumerate(zip(units, stay, strict=True)):
            alike = built.get((id(parameters), stays))
            if alike is None:
                specs = tuple(
                    ParameterSpec(
                        prefix + p.name,
                        p.shape,
                        stored_dtype(p.dtype, precision, mixed and (p.trainable or not self.adapter)),
                        p.trainable,
                        "exact" if stays or len(p.shape) < 2 or p.embeds else state_format,
                    )
                    for p in parameters
                )
                (unit,) = build_layout(
                    [UnitSpec(name, "block" if prefix else "outer", specs)], chunk_bytes
                ).units
                built[id(parameters), stays] = unit = replace(unit, index=index)
            else:
                before = len(alike.name) + 1
                unit = replace(
                    alike,
                    index=index,
                    name=name,
                    segments=tuple(replace(s, name=prefix + s.name[before:]) for s in alike.segments),
                    frozen=tuple(replace(f, name=prefix + f.name[before:]) for f in alike.frozen),
                )
            laid_out.append(unit)
        return Layout(tuple(laid_out))

    @cached_property
    def trains_head(self) -> bool:
        """True where the head's matrix gets a gradient: the last matrix with a row for each token."""
        rows = [p for p in (*self.before, *self.after) if len(p.shape) == 2 and p.shape[0] == self.vocab_size]
        heads = [p for p in rows if not p.embeds and p.shape[1] == self.head_width] or rows
        return heads[-1].trainable if heads else True

    @cached_property
    def trains_embedding(self) -> bool:
        """True where any rows that are looked up get a gradient."""
        return any(p.trainable and p.embeds for p in (*self.before, *self.after))

    def _units(self) -> list[tuple[str, str, tuple[ParameterProfile, ...]]]:
        """Return (name, prefix of its parameters, parameters) in forward order."""
        found: list[tuple[str, str, tuple[ParameterProfile, ...]]] = []
        if self.before:
            found.append(("embedding", "", self.before))
        found += [(name, f"{name}.", self.kinds[kind].parameters) for name, kind in self.blocks]
        if self.after:
            found.append(("head", "", self.after))
        return found


class KindTimes(_Part):
    """Seconds of one block of a kind: a forward without a graph, one with a graph, and the backward of that.

    `again_s`: of what a checkpoint computes again: a forward with a graph, up to the last tensor that it keeps.
    """

    forward_s: Seconds
    graph_s: Seconds
    again_s: Seconds
    backward_s: Seconds


class ModelTimes(_Part):
    """Seconds of a micro-batch of `sequences` x `tokens` computed in `dtype`, piece by piece, on one machine.

    `kinds`: by the number of the kind in the model profile. `outer_forward_s` and `outer_backward_s`: embedding, last
    norm, head and loss. `matrix_flops_per_s`: of a large product in `dtype`. `fingerprint`: the machine's.
    """

    fingerprint: str
    sequences: Whole
    tokens: Whole
    dtype: str
    kinds: tuple[KindTimes, ...]
    outer_forward_s: Seconds
    outer_backward_s: Seconds
    matrix_flops_per_s: Annotated[float, Field(gt=0)]


def stored_dtype(dtype: str, precision: str | None, mixed: bool) -> str:
    """Return the dtype that a parameter of `dtype` is stored in under `precision`; `mixed`: beside it are 16-bit ones.

    As `workbench.engine.blocks.discovery.storage_dtypes` has it.
    """
    if precision is None or not (dtype.startswith("float") or dtype == "bfloat16"):
        return dtype
    if mixed and dtype == "float32" and precision in SIXTEEN_BITS:
        return "float32"
    return precision


def model_table(config: RunConfig) -> dict[str, Any]:
    """Return all of a configuration that its model profile follows from: the [model] table, and the adapter on it."""
    adapter = None if config.adapter is None else config.adapter.model_dump()
    # Without a pattern it is left out: the profiles that are shipped and kept know nothing of it.
    table = config.model.model_dump(exclude=set() if config.model.freeze else {"freeze"})
    return {**table, "adapter": adapter}


def model_profile_key(model: Mapping[str, Any], versions: Sequence[str] = ()) -> str:
    """Return the cache key of a [model] table's model profile; `versions`: of the packages that build the model."""
    content = json.dumps([VERSION, model, list(versions)], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
