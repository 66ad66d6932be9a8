"""The model that is verified: the run's architecture with fewer and narrower blocks, or the model itself.

Only sizes change: ties, dropout, attention, activation and all else of the architecture stay as configured. Nothing is
decided by a model's name: an architecture that refuses narrower blocks keeps its width.

Invariant: what comes out has been built, run forward and run backward once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import RunConfig
from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_blocks, find_units
from workbench.errors import ConfigurationError
from workbench.model.adapter import AdapterUnits, add_adapter
from workbench.model.build import UnitInitializer, brief, build_on_meta, model_config
from workbench.model.saving import has_adapter
from workbench.profiles.meta_model import shape_of
from workbench.profiles.model_profile import model_table

BLOCKS = 5
"""More than the ring of device slots holds, so that slots are used again."""
HEADS = 4
HEAD_SIZE = 32
VOCABULARY = 512
POSITIONS = 64
SEQUENCE = 32
WINDOW = 16
EXPERTS = 4
MICRO_BATCH = 2
ACCUMULATION = 3
LARGEST = 50_000_000
"""Parameters of a small model."""
NOISE = 0.05

_WIDTHS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "word_embed_proj_dim",
    "ffn_hidden_size",
    "ffn_dim",
    "n_inner",
    "d_ff",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_OF_FILES = ("architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Subject:
    """What is verified. `start`: real fp32 weights on the CPU, from which every training begins, in training mode.

    `shape`: the transformers configuration. `sequence` and `micro_batch` are the largest of a micro-batch,
    `accumulation` is how many make a step. `seed` is the run's.
    """

    start: Any
    shape: Any
    seed: int
    sequence: int
    micro_batch: int
    accumulation: int
    shrunken: bool

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter alone is trained."""
        return has_adapter(self.start)

    def storage(self, name: str, storage: torch.dtype) -> torch.dtype:
        """What a trainable parameter is stored in where weights are stored as `storage`: adapters stay fp32."""
        return self.start.get_parameter(name).dtype if self.is_adapted else storage

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.start.parameters())

    @property
    def vocabulary(self) -> int:
        return int(self.shape.get_text_config().vocab_size)

    @property
    def has_dropout(self) -> bool:
        """Whether training draws random numbers, as far as modules and configuration tell."""
        drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.start.modules())
        options = self.shape.get_text_config().to_dict()
        return drops or any("drop" in k and isinstance(v, float) and v > 0 for k, v in options.items())

    def __str__(self) -> str:
        text = self.shape.get_text_config()
        size = f"{self.parameters / 1e6:.1f} million parameters"
        blocks = len(find_blocks(self.start))
        what = (
            f"shrunk to {blocks} blocks of width {text.hidden_size}" if self.shrunken else "the model itself"
        )
        return f"{what}, {size}"


def shrunken_subject(config: RunConfig, storage: torch.dtype = torch.float32) -> Subject:
    """The smallest model of the configured architecture that shows what its engine does.

    `storage`: of weights, which those beneath an adapter are rounded to.

    Raises:
        ConfigurationError: the model cannot be built, as configured or at all.
    """
    architecture, settings, shape = configured_shape(config)
    build_on_meta(shape)  # what is wrong with the preset's own model is said of that, not of a smaller one
    refusals: list[Exception] = []
    for changes in _shrinkings(shape, settings):
        try:
            small = model_config(architecture, {**settings, **changes})
            size = sum(parameter.numel() for parameter in build_on_meta(small).parameters())
            if size > LARGEST:
                raise ValueError(f"its smallest form here has {size / 1e6:,.0f} million parameters")
            start = real_model(small, config.train.seed, config.adapter, storage)
            _try_out(start, small, min(SEQUENCE, config.data.sequence_length))
        except Exception as error:
            refusals.append(error)
            continue
        return Subject(
            start,
            small,
            config.train.seed,
            min(SEQUENCE, config.data.sequence_length),
            min(MICRO_BATCH, config.train.micro_batch_size),
            min(ACCUMULATION, config.train.gradient_accumulation),
            shrunken=True,
        )
    # The smallest and the largest that was tried: the second alone says only that it is large.
    reasons = "; ".join(dict.fromkeys(brief(error) for error in (refusals[0], refusals[-1])))
    raise ConfigurationError(
        f"model.architecture = {architecture!r}: no small model of it can be made: {reasons}; "
        "--full verifies the model itself"
    )


def configured_shape(config: RunConfig) -> tuple[str, dict[str, Any], Any]:
    """(architecture, its settings, the transformers configuration that they come to) of the configured model.

    Raises:
        ConfigurationError: it cannot be had.
        WorkbenchError: what describes a pretrained one cannot be fetched.
    """
    if config.model.architecture:
        settings = dict(config.model.config)
        return config.model.architecture, settings, model_config(config.model.architecture, settings)
    shape = shape_of(model_table(config))
    known = type(shape)().to_dict()
    settings = {key: v for key, v in shape.to_diff_dict().items() if key in known and key not in _OF_FILES}
    return shape.model_type, settings, shape


def full_subject(config: RunConfig, storage: torch.dtype = torch.float32) -> Subject:
    """The configured model itself, with its own micro-batches and random weights. `storage`: as above.

    Raises:
        ConfigurationError: the model cannot be built.
    """
    shape = configured_shape(config)[2]
    return Subject(
        real_model(shape, config.train.seed, config.adapter, storage),
        shape,
        config.train.seed,
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.train.gradient_accumulation,
        shrunken=False,
    )


def real_model(
    shape: Any, seed: int, adapter: AdapterConfig | None = None, storage: torch.dtype = torch.float32
) -> Any:
    """A model of `shape` on the CPU in fp32, as the architecture draws it, moved a little everywhere.

    Without that, gains of exactly one and biases of exactly zero would hide what decay does to them. With `adapter` the
    weights beneath it are frozen, and rounded to `storage`.
    """
    model = build_on_meta(shape)
    materialize: Callable[[FoundUnit], None]
    if adapter is None:
        materialize = UnitInitializer(model, seed)
    else:
        plain = add_adapter(model, adapter)
        materialize = AdapterUnits(model, plain, UnitInitializer(plain, seed), seed)
    for unit in find_units(model):
        materialize(unit)
    generator = torch.Generator().manual_seed(seed % (1 << 62))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2 or (adapter is not None and parameter.requires_grad):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=NOISE)
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(storage)
    return model


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """The model's own mean loss of [batch, length] token ids; all but the first of each row count."""
    loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def counted_tokens(ids: Tensor) -> int:
    """Over how many tokens `loss_of` is the mean."""
    return int(ids.shape[0] * (ids.shape[1] - 1))


def _shrinkings(shape: Any, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What to change in `settings`, the most thorough first."""
    width, experts = _narrower(shape), _fewer_experts(shape)
    free_heads = {name: value for name, value in width.items() if name != "head_dim"}
    depth, rest = _shallower(shape, settings), _shorter(shape)
    yield {**rest, **depth, **experts, **width}
    yield {**rest, **depth, **experts, **free_heads}
    yield {**rest, **depth, **free_heads}
    yield {**rest, **experts, **width}
    yield {**rest, **depth, **experts}
    yield {**rest, **depth}
    yield depth
    yield {}


def _own_name(shape: Any, name: str) -> str:
    """What the architecture calls the setting that transformers calls `name` everywhere."""
    return str(getattr(shape, "attribute_map", {}).get(name, name))


def _number(shape: Any, name: str) -> int | None:
    value = getattr(shape, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _narrower(shape: Any) -> dict[str, Any]:
    width, heads = _number(shape, "hidden_size"), _number(shape, "num_attention_heads")
    if width is None or heads is None:
        return {}
    head_size = _number(shape, "head_dim") or width // heads
    few, small = min(heads, HEADS), min(head_size, HEAD_SIZE)
    narrow = max(16, round(width * few * small / (heads * head_size) / 16) * 16)
    if head_size * heads == width:
        narrow = few * small
    if narrow >= width:
        return {}
    changes = {_own_name(shape, "hidden_size"): narrow, _own_name(shape, "num_attention_heads"): few}
    if "head_dim" in shape.to_dict():
        changes["head_dim"] = small
    for name in _KEY_HEADS:
        groups = _number(shape, name)
        if groups is not None:
            fewer = max(1, few * groups // heads)
            changes[_own_name(shape, name)] = next(n for n in range(fewer, 0, -1) if few % n == 0)
    for name in _WIDTHS:
        inner = _number(shape, name)
        if inner is not None:
            changes[_own_name(shape, name)] = max(16, round(inner * narrow / width / 16) * 16)
    rotated = _number(shape, "rotary_dim")
    if rotated is not None:
        changes["rotary_dim"] = min(rotated, small)
    return changes


def _fewer_experts(shape: Any) -> dict[str, Any]:
    changes = {}
    for name in _EXPERTS:
        experts = _number(shape, name)
        if experts is not None and experts > EXPERTS:
            changes[_own_name(shape, name)] = EXPERTS
            chosen = _number(shape, "num_experts_per_tok")
            if chosen is not None:
                changes["num_experts_per_tok"] = min(chosen, EXPERTS // 2)
    return changes


def _shallower(shape: Any, settings: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    layers = _number(shape, "num_hidden_layers")
    if layers is not None and layers > BLOCKS:
        changes[_own_name(shape, "num_hidden_layers")] = BLOCKS
        for name, value in settings.items():
            if isinstance(value, list) and len(value) == layers:
                changes[name] = _one_of_each(value)
    return changes


def _shorter(shape: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    vocabulary = _number(shape, "vocab_size")
    if vocabulary is not None and vocabulary > VOCABULARY:
        changes[_own_name(shape, "vocab_size")] = VOCABULARY
        for name in _TOKENS:
            token = getattr(shape, name, None)
            if isinstance(token, int) and token >= VOCABULARY:
                changes[name] = VOCABULARY - 1
    positions = _number(shape, "max_position_embeddings")
    if positions is not None and positions > POSITIONS and "rope" not in " ".join(shape.to_dict()):
        changes[_own_name(shape, "max_position_embeddings")] = POSITIONS
    window = _number(shape, "sliding_window")
    if window is not None:
        changes["sliding_window"] = min(window, WINDOW)
    return changes


def _one_of_each(kinds: list[Any]) -> list[Any]:
    """What is said block by block, for fewer blocks: every kind that there is, then from the first on."""
    first = [kinds.index(kind) for number, kind in enumerate(kinds) if kinds.index(kind) == number][:BLOCKS]
    others = (number for number in range(len(kinds)) if number not in first)
    return [kinds[number] for number in sorted([*first, *others][:BLOCKS])]


def _try_out(model: Any, shape: Any, sequence: int) -> None:
    # A copy: some architectures keep what a forward left behind, which nothing could be copied with later.
    model = copy.deepcopy(model)
    if has_adapter(model):
        model = model.float()  # frozen weights may be narrow, which the CPU need not compute in
    ids = torch.arange(2 * sequence).view(2, sequence) % shape.get_text_config().vocab_size
    loss_of(model, ids).backward()
