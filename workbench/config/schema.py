"""Every field of a run's configuration: its type, default, range, unit and one sentence of help.

This is the only place where a field is declared. The checks, `workbench config schema`, the documentation and
the screen's form all read it, so a field whose help is missing here is missing everywhere. What a well-formed
configuration may still not ask for (contradictions, features to come) is in `config.rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo

LARGEST_INTEGER = 2**63 - 1
"""The largest whole number that TOML promises to carry."""


def documented(
    default: Any, help: str, *, unit: str = "", must_be: str = "", strict: bool | None = None, **bounds: Any
) -> Any:
    """Return a field with one sentence of help; `must_be` replaces the sentence derived from type and bounds."""
    notes: dict[str, JsonValue] = {"unit": unit, "must_be": must_be}
    return Field(default=default, description=help, json_schema_extra=notes, strict=strict, **bounds)


def step_count(default: int, help: str, *, least: int = 0) -> Any:
    """Return a field that counts optimizer steps."""
    return documented(default, help, unit="steps", ge=least, le=1_000_000_000)


class Table(BaseModel):
    """The base of all tables: exact types, no unknown keys, finite numbers, unchangeable once made."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Table):
    """The model to train: an architecture with random weights, or pretrained weights.

    With `pretrained`, `architecture` and `config` may still describe the model: it is then planned without its files,
    and refused where these turn out to be of another.
    """

    architecture: str = documented(
        "",
        "Name of any causal language model architecture in transformers, started from random weights unless there are "
        "pretrained ones.",
    )
    pretrained: str = documented(
        "", "Folder or hub id of pretrained weights to start from; empty starts from random ones."
    )
    revision: str = documented(
        "", "Branch, tag or commit of a hub id to start from; empty takes its main branch."
    )
    trust_remote_code: bool = documented(
        False, "Let code that comes with a pretrained model run on this machine."
    )
    config: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Sizes and options passed unchanged to the architecture's configuration class.",
    )
    freeze: list[Annotated[str, Field(min_length=1)]] = documented(
        [],
        'Patterns of parameter names, such as "*.wte.*", that are not trained.',
        must_be="an array of patterns of parameter names",
    )


RecordField = Literal["prompt", "completion", "messages", "instruction", "input", "output", "system", "tools"]


class DataConfig(Table):
    """The text to train on, and its tokens."""

    source: str | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] = documented(
        "stdlib",
        'What to train on: "stdlib" (the source of this Python\'s standard library), files and folders of text, JSON '
        'lines, parquet or tokens, or "hub:OWNER/NAME" for a dataset of the hub.',
        must_be='"stdlib", a path, "hub:OWNER/NAME", or an array of at least one of these',
    )
    subset: str = documented("", "Configuration of a hub dataset; empty takes its only or default one.")
    split: str = documented("train", "Split of a hub dataset that is trained on.", min_length=1)
    text_field: str = documented(
        "text", "Field of a JSON line or of a table's row that holds its text.", min_length=1
    )
    columns: dict[RecordField, Annotated[str, Field(min_length=1)]] = documented(
        {},
        'Other names of fields in records: {prompt = "question", completion = "answer"}.',
        must_be='a table of names, such as {prompt = "question", completion = "answer"}; what can be named is '
        + ", ".join(get_args(RecordField)),
    )
    loss_on: Literal["answers", "everything"] = documented(
        "answers",
        "Tokens of prompts and chats that the loss counts: completions and assistant messages, or all; plain text "
        "always counts.",
    )
    tokenizer: str = documented(
        "bytes",
        'How text becomes tokens: "bytes", a folder or hub id, or "bpe:SIZE", trained on the source.',
        min_length=1,
    )
    sequence_length: int = documented(
        1024, "Tokens in one training sequence.", unit="tokens", ge=2, le=16_777_216
    )
    separate_documents: bool = documented(
        False, "Let tokens attend only to their own document where a sequence holds several."
    )
    validation_fraction: float = documented(
        0.01,
        "Share of the source, by document, that is kept for evaluation and never trained on.",
        gt=0,
        le=0.5,
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """Return `source` as a tuple, also where one text was written."""
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Return the names of fields that hold text in records here, beside the usual ones."""
        return (self.text_field, *self.columns.values())


class TrainConfig(Table):
    """Length, batch sizes and precision of the training."""

    device: str = documented(
        "auto",
        'Where the model computes: "auto" takes the first GPU, or the CPU where there is none.',
        pattern=r"^(auto|cpu|cuda|cuda:[0-9]{1,3})$",
        must_be='"auto", "cpu", "cuda", or a numbered GPU such as "cuda:1"',
    )
    steps: int = step_count(1000, "Optimizer steps in the whole run.", least=1)
    epochs: float = documented(
        0.0,
        "Passes over the training data, which then decide how many steps there are; 0 goes by steps.",
        ge=0,
        le=1e6,
    )
    micro_batch_size: int = documented(
        8, "Sequences that go through the model at once.", unit="sequences", ge=1, le=65_536
    )
    gradient_accumulation: int = documented(
        1,
        "Micro-batches whose gradients are added up before one step.",
        unit="micro-batches",
        ge=1,
        le=65_536,
    )
    gradient_clipping: float = documented(
        1.0, "Largest norm of the whole gradient, beyond which it is scaled down; 0 turns clipping off.", ge=0
    )
    label_smoothing: float = documented(
        0.0,
        "Share of each target's probability that is spread evenly over all tokens; evaluations measure the plain loss.",
        ge=0,
        lt=1,
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = documented(
        "auto",
        'Number format of the weights: "auto" is bf16 on a GPU that computes in it, fp16 on an older one, fp32 on a '
        "CPU; a CPU without 16-bit arithmetic computes 16-bit weights in fp32.",
    )
    tf32: bool = documented(
        False,
        "Round what fp32 matrix products read to TF32 on a GPU that has it (Ampere and later): up to 8 times faster, "
        "with 10 bits of mantissa instead of 23.",
    )
    activation_checkpointing: bool = documented(
        True, "Compute activations again in backward instead of keeping them: less memory, more time."
    )
    seed: int = documented(
        1234,
        "Start of every random number of the run: weights, order of the data, dropout.",
        ge=0,
        le=LARGEST_INTEGER,
    )
    deterministic: bool = documented(
        False, "Use only GPU kernels that give the same bits every time: slower."
    )


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Table):
    """The optimizer and its constants."""

    type: Literal["adamw", "adam"] = documented(
        "adamw", 'The update rule: "adamw" decays the weights directly, "adam" through the gradient.'
    )
    learning_rate: float = documented(
        3e-4, "Size of the update at the schedule's highest point.", gt=0, le=10
    )
    betas: tuple[Beta, Beta] = documented(
        (0.9, 0.95),
        "Decay rates of the running mean of gradients and of their squares.",
        must_be="an array of two numbers, each from 0 to below 1",
        strict=False,  # TOML has arrays, not tuples; the numbers inside stay strict
    )
    eps: float = documented(1e-8, "Added to the denominator of the update.", gt=0, le=1)
    weight_decay: float = documented(
        0.1, "Share of a weight, times the learning rate, that each step takes away.", ge=0, le=10
    )
    no_decay: list[Annotated[str, Field(min_length=1)]] = documented(
        [],
        "Patterns of parameter names without weight decay; those of fewer than two dimensions never have it.",
        must_be="an array of patterns of parameter names",
    )
    learning_rate_scales: dict[str, Annotated[float, Field(gt=0, le=1000)]] = documented(
        {}, "Factors of the learning rate by patterns of parameter names, the first that matches."
    )


class LossScaleConfig(Table):
    """The scale of the loss while weights are fp16; without effect in another precision."""

    fixed: float = documented(0.0, "A fixed scale; 0 adjusts it while training.", ge=0, le=2.0**32)
    initial_power: int = documented(16, "The initial scale, as a power of two.", ge=0, le=32)
    window: int = step_count(1000, "Steps without an overflow after which the scale doubles.", least=1)
    hysteresis: int = documented(
        2, "Overflows tolerated before the scale is halved.", unit="overflows", ge=1, le=1_000_000
    )
    minimum: float = documented(1.0, "The scale is never lowered below this.", gt=0, le=2.0**32)


class ScheduleConfig(Table):
    """The learning rate over the run."""

    type: Literal["constant", "linear", "cosine", "wsd"] = documented(
        "cosine", "Shape of the learning rate after warm-up: wsd is constant with a decay at the end."
    )
    warmup_steps: int = step_count(0, "Steps over which the learning rate rises.")
    warmup_fraction: float = documented(
        0.0,
        "Share of all steps, at the begin, over which the learning rate rises; 0 goes by warmup_steps.",
        ge=0,
        le=1,
    )
    warmup_type: Literal["linear", "log"] = documented(
        "linear", "Shape of the rise: linear, or with the logarithm of the step."
    )
    warmup_ratio: float = documented(
        0.0, "Share of the learning rate that the warm-up starts from.", ge=0, le=1
    )
    min_ratio: float = documented(
        0.1, "Share of the learning rate that is left at the last step.", ge=0, le=1
    )
    decay_fraction: float = documented(
        0.2, "Share of all steps, at the end, over which wsd decays.", gt=0, le=1
    )
    total_steps: int = step_count(
        0, "Step at which the shape ends, and the learning rate stays; 0 is the last step of the run."
    )


class OffloadConfig(Table):
    """The place of weights and optimizer state, and the overlap of the work on them with training."""

    weights: Literal["device", "host", "disk", "auto"] = documented(
        "device", 'Where the blocks\' weights live between uses: "auto" is the fastest place that fits.'
    )
    state: Literal["device", "host", "disk", "auto"] = documented(
        "host", 'Where the optimizer\'s state lives: "auto" is the fastest place that fits.'
    )
    device_fraction: float = documented(
        0.0,
        "Share of the trainable weights, in whole units in forward order, that stay on the device with their state.",
        ge=0,
        le=1,
    )
    state_format: Literal["exact", "half", "compact"] = documented(
        "exact", "Format of the state on the host: 12, 8 or about 6 bytes per parameter."
    )
    overlap: Literal["serial", "exact", "delayed"] = documented(
        "exact",
        'How the update overlaps with training: "exact" gives the same bits as "serial"; "delayed" lags one step.',
    )
    delay_warmup: int = step_count(40, "Steps before delayed overlap begins.")
    activations: Literal["device", "host"] = documented(
        "device", "Place of the activations that backward needs."
    )
    gradient_sums: Literal["device", "host", "auto"] = documented(
        "auto",
        'Place where micro-batches are summed if the state is on the host: "auto" is the device where there is room.',
    )
    chunk_mib: int = documented(
        16, "Working weights that are transferred and updated as one piece.", unit="MiB", ge=1, le=1024
    )
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = documented(
        "auto",
        'Threads of the host optimizer: "auto" uses the cores that this process may use.',
        unit="threads",
        must_be='"auto" or a whole number from 1 to 4,096',
    )
    disk_path: str = documented(
        "", "Existing folder on a fast local disk: needed if weights or state live on disk."
    )


class ParallelConfig(Table):
    """The processes that train one model together."""

    gpus: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = documented(
        1,
        'GPUs of this machine that train together, a process each: "auto" takes all; without a GPU, processes on the '
        "CPU.",
        unit="GPUs",
        must_be='"auto" or a whole number from 1 to 4,096',
    )


class EvaluateConfig(Table):
    """When the validation loss is measured."""

    every: int = step_count(100, "Steps between evaluations; 0 evaluates only at the end.")
    tokens: int = documented(
        65_536, "Validation tokens that one evaluation reads.", unit="tokens", ge=1, le=LARGEST_INTEGER
    )
    source: str = documented(
        "",
        "Files or a folder to evaluate on, all of it, as data.source is read; empty holds out a share of data.source.",
    )
    sources: dict[str, Annotated[str, Field(min_length=1)]] = documented(
        {},
        "More files or folders, by names of your own; their losses are reported only.",
    )
    patience: int = documented(
        0,
        "Evaluations in a row without a lower validation loss after which the run ends; 0 never ends it early.",
        unit="evaluations",
        ge=0,
        le=1_000_000,
    )


class SampleConfig(Table):
    """When the model writes some text to be looked at."""

    every: int = step_count(0, "Steps between samples; 0 writes one only at the end.")
    prompt: str = documented("", "Text that a sample continues; empty starts from the end-of-text token.")
    tokens: int = documented(
        200, "Tokens generated for a sample; 0 turns samples off.", unit="tokens", ge=0, le=1_048_576
    )


class CheckpointConfig(Table):
    """When the run is saved."""

    every: int = step_count(200, "Steps between checkpoints; 0 saves only at the end.")
    keep: int = documented(
        2, "Newest checkpoints that are kept; older ones are deleted.", unit="checkpoints", ge=1, le=1_000_000
    )
    keep_every: int = step_count(
        0, "Steps between checkpoints that are kept for good; 0 keeps only the newest."
    )
    keep_best: bool = documented(
        False, "Save a step with the lowest validation loss so far, and keep it until there is a better one."
    )


class LogConfig(Table):
    """Progress lines and metrics."""

    every: int = step_count(1, "Steps between progress lines.", least=1)
    tracker: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] = documented(
        [],
        "Programs that get the metrics too, written on this machine (wandb: until `wandb sync`).",
        must_be='a list of "tensorboard", "wandb", "trackio", "mlflow"',
    )


class AdapterConfig(Table):
    """Small trainable matrices beside frozen weights; without this table all weights are trained."""

    type: Literal["lora"] = documented("lora", "The kind of adapter.")
    rank: int = documented(16, "Inner width of the adapter's matrices.", ge=1, le=65_536)
    alpha: float = documented(32.0, "Scale of the adapter's output, divided by the rank.", gt=0)
    dropout: float = documented(0.0, "Share of the adapter's inputs dropped in training.", ge=0, lt=1)
    targets: list[Annotated[str, Field(min_length=1)]] = documented(
        [],
        "Names of the modules that get an adapter; empty takes every linear layer of the blocks.",
        must_be="an array of module names",
    )


class RunConfig(Table):
    """A whole run: what a preset says, with every default filled in."""

    description: str = documented("", "One line that says what the preset is for.")
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    offload: OffloadConfig = OffloadConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    sample: SampleConfig = SampleConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    adapter: AdapterConfig | None = None


TABLES: dict[str, type[Table]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "loss_scale": LossScaleConfig,
    "offload": OffloadConfig,
    "parallel": ParallelConfig,
    "evaluate": EvaluateConfig,
    "sample": SampleConfig,
    "checkpoint": CheckpointConfig,
    "log": LogConfig,
    "adapter": AdapterConfig,
}
"""The tables by name, in the order in which they are written."""


@dataclass(frozen=True)
class DocumentedField:
    """One field as a reader sees it. `table` is empty for what stands above all tables."""

    table: str
    key: str
    type: str
    default: Any
    choices: tuple[str, ...]
    minimum: float | None
    """Lower bound, or None; `range` says whether the bound itself is allowed."""
    maximum: float | None
    range: str
    unit: str
    help: str

    @property
    def name(self) -> str:
        """Return the dotted name that `--set` takes."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def must_be(self) -> str:
        """Describe a right value, in words that finish "must be ..."."""
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        return f"{self.type} {self.range}".strip()


def fields() -> Iterator[DocumentedField]:
    """Yield every field of a configuration, in the order of a preset."""
    yield _document("", "description", RunConfig.model_fields["description"])
    for table, model in TABLES.items():
        for key, info in model.model_fields.items():
            yield _document(table, key, info)


_PLAIN_TYPES: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _document(table: str, key: str, info: FieldInfo) -> DocumentedField:
    notes = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    minimum, maximum, span = _bounds(info.metadata)
    return DocumentedField(
        table=table,
        key=key,
        type=str(notes.get("must_be") or _type_in_words(info.annotation)),
        default=info.get_default(call_default_factory=True),
        choices=tuple(get_args(info.annotation)) if get_origin(info.annotation) is Literal else (),
        minimum=minimum,
        maximum=maximum,
        range=span,
        unit=str(notes.get("unit", "")),
        help=info.description or "",
    )


def _type_in_words(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return "a choice"
    if origin in (Union, UnionType):
        return " or ".join(_type_in_words(member) for member in get_args(annotation))
    if origin is dict:
        return "a table"
    return _PLAIN_TYPES[annotation]


def _bounds(metadata: list[Any]) -> tuple[float | None, float | None, str]:
    minimum: float | None = None
    maximum: float | None = None
    words = ""
    for bound in metadata:  # pydantic keeps lower bounds before upper ones
        if isinstance(bound, Ge):
            minimum = _number(bound.ge)
            words = f"from {minimum:,}"
        elif isinstance(bound, Gt):
            minimum = _number(bound.gt)
            words = f"above {minimum:,}"
        elif isinstance(bound, Le):
            maximum = _number(bound.le)
            words += f" to {maximum:,}" if words.startswith("from") else f" and up to {maximum:,}"
        elif isinstance(bound, Lt):
            maximum = _number(bound.lt)
            words += f" to below {maximum:,}" if words.startswith("from") else f" and below {maximum:,}"
    return minimum, maximum, words


def _number(bound: Any) -> float:
    assert isinstance(bound, (int, float))
    return bound
