"""The model that is verified: the run's architecture with fewer and narrower blocks, or the model itself.

Only sizes change: ties, dropout, attention, activation and all else of the architecture stay as configured. Nothing is
decided by a model's name: an architecture that refuses narrower blocks keeps its width.

Invariant: what comes out has been built, run forward and run backward once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import RunConfig
from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_blocks, find_units
from workbench.engine.devices.device import Device
from workbench.errors import ConfigurationError, DoesNotFitError, brief
from workbench.formatting import gib
from workbench.model.adapter import AdapterUnits, add_adapter
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.freezing import freeze
from workbench.model.saving import has_adapter
from workbench.profiles.meta_model import shape_of
from workbench.profiles.model_profile import model_table
from workbench.system.free_space import free_host_bytes
from workbench.verify.plain_torch import loss_of

BLOCKS = 5
"""More than the ring of device slots holds, so that slots are used again."""
HEADS = 4
HEAD_SIZE = 32
VOCABULARY = 512
POSITIONS = 64
SEQUENCE = 32
MICRO_BATCH = 2
ACCUMULATION = 3
LARGEST = 50_000_000
"""Parameters of a small model."""
NOISE = 0.05
DATA_SEED = 1
KEPT_BYTES = 36
"""Of the host, per parameter: the first weights, what one training by the engine and one by torch came to."""
AT_WORK_BYTES = 76
"""Per parameter: one more training by the engine, or what it came to beside plain torch in float64."""
ACTIVATIONS = 40
"""float64 numbers per token, block and unit of width that a block keeps for its backward, attention apart."""

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
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
_SIZES = {"vocab_size": VOCABULARY, "sliding_window": 16}
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_OF_FILES = ("architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Subject:
    """The model that is verified. `start`: real fp32 weights on the CPU, from which every training begins.

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
        """True where an adapter alone is trained."""
        return has_adapter(self.start)

    def token_steps(self, steps: int, accumulation: int) -> tuple[tuple[Tensor, ...], ...]:
        """Return the micro-batches of each step: rows of tokens that count up from a random one, so that there is
        something to learn.

        The micro-batches of a step differ in length, so that they do not weigh the same.
        """
        generator = torch.Generator().manual_seed(DATA_SEED)
        lengths = [max(2, self.sequence * eighths // 8) for eighths in (8, 3, 5)]

        def micro_batch(number: int) -> Tensor:
            first = torch.randint(self.vocabulary, (self.micro_batch, 1), generator=generator)
            stride = torch.randint(1, 4, (self.micro_batch, 1), generator=generator)
            return (first + stride * torch.arange(lengths[number % len(lengths)])) % self.vocabulary

        return tuple(tuple(micro_batch(n) for n in range(accumulation)) for _ in range(steps))

    def storage(self, name: str, storage: torch.dtype) -> torch.dtype:
        """Return the dtype that a trainable parameter is stored in beside weights in `storage`: adapters stay fp32."""
        return self.start.get_parameter(name).dtype if self.is_adapted else storage

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.start.parameters())

    @property
    def vocabulary(self) -> int:
        return int(self.shape.get_text_config().vocab_size)

    @property
    def has_dropout(self) -> bool:
        """True where training draws random numbers, as far as modules and configuration tell."""
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
    """Return the smallest model of the configured architecture that shows what its engine does.

    `storage`: of weights, which those beneath an adapter are rounded to.

    Raises:
        ConfigurationError: the model cannot be built, as configured or at all.
    """
    architecture, settings, shape = configured_shape(config)
    build_on_meta(shape)  # what is wrong with the preset's own model is said of that, not of a smaller one
    sequence = min(SEQUENCE, config.data.sequence_length)
    refusals: list[Exception] = []
    for changes in _shrinkings(shape, settings):
        try:
            small = model_config(architecture, {**settings, **changes})
            size = sum(parameter.numel() for parameter in build_on_meta(small).parameters())
            if size > LARGEST:
                raise ValueError(f"its smallest version here has {size / 1e6:,.0f} million parameters")
            start = real_model(small, config.train.seed, config.adapter, storage, config.model.freeze)
            _try_out(start, small, sequence)
        except Exception as error:
            refusals.append(error)
            continue
        micro_batch = min(MICRO_BATCH, config.train.micro_batch_size)
        accumulation = min(ACCUMULATION, config.train.gradient_accumulation)
        return Subject(start, small, config.train.seed, sequence, micro_batch, accumulation, shrunken=True)
    # The smallest and the largest that was tried: the second alone says only that it is large.
    reasons = "; ".join(dict.fromkeys(brief(error) for error in (refusals[0], refusals[-1])))
    raise ConfigurationError(
        f"model.architecture = {architecture!r}: no small model of it can be made: {reasons}; "
        "--full verifies the model itself"
    )


def configured_shape(config: RunConfig) -> tuple[str, dict[str, Any], Any]:
    """Return (architecture, its settings, its transformers configuration) of the configured model.

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
    """Return the configured model itself, with its own micro-batches and random weights. `storage`: as above.

    Raises:
        ConfigurationError: the model cannot be built.
    """
    shape = configured_shape(config)[2]
    return Subject(
        real_model(shape, config.train.seed, config.adapter, storage, config.model.freeze),
        shape,
        config.train.seed,
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.train.gradient_accumulation,
        shrunken=False,
    )


def check_room(config: RunConfig, shape: Any, model: nn.Module, device: Device) -> None:
    """Refuse to verify `model` (on any device, meta among them) where host or device have too little for it.

    Raises:
        DoesNotFitError: with the bytes needed and free.
    """
    text = shape.get_text_config()
    parameters = sum(p.numel() for p in model.parameters())
    tokens = config.train.micro_batch_size * config.data.sequence_length
    attention = 2 * getattr(text, "num_attention_heads", 1) * config.data.sequence_length
    blocks = text.num_hidden_layers * (ACTIVATIONS * text.hidden_size + attention)
    at_work = AT_WORK_BYTES * parameters + 8 * tokens * (blocks + 3 * text.vocab_size)
    needs = {"host": (KEPT_BYTES * parameters + at_work, free_host_bytes())}
    if device.torch_device.type == "cuda":
        needs["host"] = (KEPT_BYTES + AT_WORK_BYTES) * parameters, free_host_bytes()
        needs["device"] = at_work, torch.cuda.mem_get_info(device.torch_device)[0]
    for tier, (needed, free) in needs.items():
        if needed > free:
            raise DoesNotFitError(
                f"--full: {parameters / 1e6:,.0f} million parameters do not fit on the {tier} beside the plain torch "
                f"training, in fp32 and in float64, that they are verified by: that takes about {gib(needed)} and "
                f"{gib(free)} are free. Without --full a smaller model of the same configuration is verified"
            )


def real_model(
    shape: Any,
    seed: int,
    adapter: AdapterConfig | None = None,
    storage: torch.dtype = torch.float32,
    frozen: Sequence[str] = (),
) -> Any:
    """Return a model of `shape` on the CPU in fp32, as the architecture draws it, moved a little everywhere.

    Without that, gains of exactly one and biases of exactly zero would hide what decay does to them. With `adapter` the
    weights beneath it are frozen, and rounded to `storage`. `frozen`: patterns of names that are frozen too.
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
        freeze(model, frozen)
        for parameter in model.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.copy_(parameter.to(storage))
    return model


def _shrinkings(shape: Any, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield changes of `settings`, the most thorough first."""
    width, experts = _narrower(shape), _lowered(shape, _EXPERTS)
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
    """Return the architecture's own name of the setting that transformers calls `name` everywhere."""
    return str(getattr(shape, "attribute_map", {}).get(name, name))


def _number(shape: Any, name: str) -> int | None:
    try:
        value = getattr(shape, name, None)
    except RuntimeError:  # transformers': the layers differ in it
        return None
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
    changes = _lowered(shape, _SIZES)
    if (_number(shape, "vocab_size") or 0) > VOCABULARY:
        changes |= _lowered(shape, dict.fromkeys(_TOKENS, VOCABULARY - 1))
    if "rope" not in " ".join(shape.to_dict()):
        changes |= _lowered(shape, {"max_position_embeddings": POSITIONS})
    return changes


def _lowered(shape: Any, limits: dict[str, int]) -> dict[str, Any]:
    """Return the settings of `shape` that are above their limits, lowered to them."""
    return {
        _own_name(shape, name): limit for name, limit in limits.items() if (_number(shape, name) or 0) > limit
    }


def _one_of_each(kinds: list[Any]) -> list[Any]:
    """Return the settings of `BLOCKS` blocks out of those of more: every kind that there is, then from the first on."""
    first = [kinds.index(kind) for number, kind in enumerate(kinds) if kinds.index(kind) == number][:BLOCKS]
    others = (number for number in range(len(kinds)) if number not in first)
    return [kinds[number] for number in sorted([*first, *others][:BLOCKS])]


def _try_out(model: Any, shape: Any, sequence: int) -> None:
    # A copy: some architectures keep what a forward left behind, which nothing could be copied with later.
    modules = [type(module) for module in model.modules()]
    model = copy.deepcopy(model)
    if has_adapter(model):
        model = model.float()  # frozen weights may be narrow, which the CPU need not compute in
    ids = torch.arange(2 * sequence).view(2, sequence) % shape.get_text_config().vocab_size
    loss_of(model, ids).backward()
    replaced = [type(module) for module in model.modules()] != modules
    if replaced and any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()):
        raise ValueError(
            "its first forward replaces modules, and draws their weights among the numbers of dropout, so that no two "
            "trainings are alike; choose in [model.config] what it replaces them by, or dropout of 0"
        )
