"""The weights of a checkpoint: converted to another dtype or other files, or its adapter merged into its base.

The base of an adapter is what the run was started from: pretrained files, or random weights drawn again from the run's
seed, which gives the same ones.

Invariant: one tensor, or one unit of an adapter's base, is in memory at a time. Floating-point tensors are rounded
once, to the nearest; all others keep their bits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import RunConfig, parse_config
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.engine.devices.buffers import give_large_blocks_back
from workbench.engine.precision import DTYPES, PRECISIONS, dtype_name
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.adapter import CONFIG_FILE as ADAPTER_CONFIG
from workbench.model.adapter import WEIGHTS_FILE as ADAPTER_FILE
from workbench.model.adapter import adapter_file_names, adapter_layers, find_targets, shared_targets
from workbench.model.hub import INDEX_FILE, WEIGHTS_FILE, Log
from workbench.model.safetensors_files import (
    LARGEST_FILE_BYTES,
    SafetensorsFiles,
    StoredTensor,
    mapped_files,
    stored_tensors,
)
from workbench.model.saving import save_model
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep, newest_checkpoint
from workbench.system.foreign import parse_json, parse_toml
from workbench.training.starting_model import give_token_ids, starting_model

FP16_MAX = torch.finfo(torch.float16).max
MAPPED_BYTES = 32 << 20
"""The bytes that are read before a file is mapped again: until then they count as this process's memory."""


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers and peft: their warnings and progress bars are not this program's output."""
    from transformers.utils import logging as transformers_logging

    before, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()


def write_changed(
    run: RunDirectory,
    saved: SavedStep,
    working: Path,
    *,
    to: str | None,
    merge: bool,
    largest_file_bytes: int | None,
    check_room: Callable[[int], None],
    log: Log,
) -> None:
    """Write the model of `saved` into the folder `working`; `check_room` gets its bytes before.

    `to`: the dtype of the weights, a value of `--dtype`; None leaves it, and for a merged adapter takes the run's own.

    Raises:
        ConfigurationError: an adapter's base cannot be had, or the adapter cannot be merged.
        WorkbenchError: a value is beyond what the dtype holds, or a file cannot be read.
        DamagedFileError: a file of the checkpoint is not what was saved.
        OSError: the disk does not take it.
    """
    dtype = None if to is None else PRECISIONS[to]
    largest = largest_file_bytes or LARGEST_FILE_BYTES
    with quiet_transformers():
        if merge:
            config = run_config(run)
            model = open_adapted(config, saved, log, merging=True)
            dtype = dtype or DTYPES[saved.manifest.weights_dtype]
            check_room(
                sum(
                    p.numel() * (dtype if p.is_floating_point() else p.dtype).itemsize
                    for p in model.plain.parameters()
                )
            )
            log("merging the adapter, a block at a time")
            _write_merged(model, saved, working, dtype, largest)
        else:
            stored = checkpoint_tensors(saved)
            check_room(bytes_in(stored, dtype))
            convert(saved, stored, working, dtype=dtype, largest_file_bytes=largest)


def convert(
    saved: SavedStep,
    stored: list[StoredTensor],
    working: Path,
    *,
    dtype: torch.dtype | None,
    largest_file_bytes: int = LARGEST_FILE_BYTES,
) -> None:
    """Write the model of `saved`, whose tensors are `stored`, into the folder `working` in `dtype` (None: as it is).

    Raises:
        WorkbenchError: a value is beyond what `dtype` holds, or a file cannot be read any more.
        OSError: the disk does not take it.
    """
    _copy_beside_weights(saved, working)
    adapter = is_adapter(saved)
    # An adapter is one file for whoever loads it.
    largest = 1 << 62 if adapter else largest_file_bytes
    with SafetensorsFiles(working, {tensor.name: tensor.shape for tensor in stored}, largest) as files:
        for name, tensor in _tensors(stored):
            files.add({name: tensor if dtype is None else rounded(name, tensor, dtype)})
            del tensor
    if adapter:
        (working / WEIGHTS_FILE).rename(working / ADAPTER_FILE)
    elif dtype is not None:
        path = working / "config.json"
        described: dict[str, Any] = parse_json(path.read_bytes())
        described.pop("torch_dtype", None)
        described["dtype"] = dtype_name(dtype)
        path.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor` in `dtype` where it is floating point, rounded to nearest, ties to even.

    Raises:
        WorkbenchError: a finite value would become infinite.
    """
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    result = tensor.to(dtype)
    if dtype == torch.float16 and tensor.numel():
        least, most = torch.aminmax(tensor)
        # Also where one is NaN: a look at each value comes only then.
        if not (float(least) >= -FP16_MAX and float(most) <= FP16_MAX):
            finite = tensor.isfinite()
            if not torch.equal(result.isfinite(), finite):
                raise WorkbenchError(
                    f"export: {name} holds {float(tensor[finite].abs().max()):,.0f}, and fp16 ends at 65,504; "
                    "--dtype bf16 holds it"
                )
    return result


def checkpoint_tensors(saved: SavedStep) -> list[StoredTensor]:
    """Return every tensor of the checkpoint's model, in the order in which they lie in its files.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    names = sorted(name for name in saved.manifest.model_files if name.endswith(".safetensors"))
    return tensors_in(saved.path / name for name in names)


def tensors_in(files: Iterable[Path]) -> list[StoredTensor]:
    """Return every tensor of the safetensors files; see `checkpoint_tensors`."""
    try:
        return [tensor for path in files for tensor in stored_tensors(path).values()]
    except ConfigurationError as error:
        raise DamagedFileError(str(error)) from error


def bytes_in(stored: Iterable[StoredTensor], dtype: torch.dtype | None) -> int:
    """Return the bytes that the tensors take in `dtype`; None leaves each in its own."""
    return sum(
        math.prod(tensor.shape)
        * (dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype).itemsize
        for tensor in stored
    )


def is_adapter(saved: SavedStep) -> bool:
    """Return True where a checkpoint holds an adapter, and not a whole model."""
    return ADAPTER_CONFIG in saved.manifest.model_files


def run_config(run: RunDirectory) -> RunConfig:
    """Return the configuration that `run` was trained by.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        text = run.config.read_text(encoding="utf-8")
        model = parse_toml(text).get("model")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"run {run.name}: its {run.config.name} cannot be read: {error}") from error
    if isinstance(model, dict) and model.get("architecture") == "" and not model.get("pretrained"):
        raise ConfigurationError(_of_own_model(run))
    return parse_config(text, str(run.config))


def _of_own_model(run: RunDirectory) -> str:
    saved = newest_checkpoint(run.checkpoints)
    how = "load its safetensors with safetensors.torch.load_file and model.load_state_dict"
    if saved is not None and "config.json" in saved.manifest.model_files:
        how = "load it with from_pretrained of the model's class"
    return (
        f"run {run.name} was made from Python with a model of its own, which only its program can build; "
        f"its checkpoint is {saved.path if saved else 'not there yet'}: {how}"
    )


@dataclass(frozen=True)
class AdaptedModel:
    """A checkpoint's adapter on its base, on the meta device. `plain`: the base alone. `values`: of the adapter, fp32,
    by the names of their parameters in `model`."""

    model: Any
    plain: Any
    materialize: Callable[[FoundUnit], None]
    values: dict[str, Tensor]

    def whole(self, dtype: torch.dtype = torch.float32) -> Any:
        """Return `model` with all its values in `dtype`, on the CPU, ready to compute."""
        for _ in self._units(dtype):
            pass
        return self.model.eval()

    def merged(self) -> Iterator[dict[str, Tensor]]:
        """Yield W + scale x B A in fp32, by the names of `plain`'s parameters, a unit at a time."""
        plain = {unit.name: unit for unit in find_units(self.plain)}
        for unit in self._units(torch.float32):
            owners = {id(module) for module in unit.modules()}
            for layer in adapter_layers(self.model.modules()):
                if id(layer.get_base_layer()) in owners:
                    layer.merge(adapter_names=list(layer.active_adapters))
            if unit.name in plain:
                yield {name: self._value(unit, name) for name in plain[unit.name].parameters}
            for name, parameter in list(unit.parameters.items()):
                unit.replace(name, nn.Parameter(parameter.data.to("meta"), requires_grad=False))

    def _units(self, dtype: torch.dtype) -> Iterator[FoundUnit]:
        """Yield the units of `model` with real values in `dtype`, those of the adapter as saved."""
        for unit in find_units(self.model):
            self.materialize(unit)
            for name, parameter in list(unit.parameters.items()):
                if name in self.values or parameter.is_floating_point():
                    value = self.values.get(name, parameter.data).to(dtype)
                    unit.replace(name, nn.Parameter(value, requires_grad=False))
            yield unit

    def _value(self, unit: FoundUnit, name: str) -> Tensor:
        path, _, attribute = name.rpartition(".")
        known = unit.parameters.get(name)
        return (unit.parameters[f"{path}.base_layer.{attribute}"] if known is None else known).data


def open_adapted(config: RunConfig, saved: SavedStep, log: Log, *, merging: bool = False) -> AdaptedModel:
    """Return the adapter that `saved` holds on the base of its run; `log` gets a download's progress.

    Raises:
        ConfigurationError: the base cannot be had, peft is missing, or (`merging`) the adapter cannot be merged.
        WorkbenchError: the base cannot be fetched.
        DamagedFileError: the adapter's file is not what was saved.
    """

    def progress(sentence: str) -> None:
        if not sentence.startswith("warning:"):  # the run has printed them
            log(sentence)

    if config.adapter is None:
        raise ConfigurationError(
            f"{saved.path} holds an adapter, and the run's configuration has no [adapter]"
        )
    path = saved.path / ADAPTER_CONFIG
    try:
        described = parse_json(path.read_bytes())
        kept = {"rank": int(described["r"]), "alpha": float(described["lora_alpha"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    adapter = config.adapter.model_copy(update=kept)
    start = starting_model(config, None, progress)
    shared = shared_targets(start.model, find_targets(start.model, adapter.targets))
    if merging and shared:
        one, other = shared[0]
        raise ConfigurationError(
            f"export: --merge would change {other} as well: {one} shares its matrix with it; export the adapter itself"
        )
    end_of_text = _end_of_text(saved)
    if end_of_text is not None:
        give_token_ids(start, end_of_text)
    start = start.with_adapter(adapter, torch.float32, progress)
    materialize = start.weights(config.train.seed, progress)
    assert start.plain is not None
    return AdaptedModel(start.model, start.plain, materialize, _adapter_values(saved, start.model))


def _adapter_values(saved: SavedStep, model: nn.Module) -> dict[str, Tensor]:
    """Return the values of the adapter in `saved`, fp32, by the names of the parameters of `model`.

    Raises:
        DamagedFileError: its file cannot be read, or is of another adapter.
    """
    path = saved.path / ADAPTER_FILE
    found = {name: tensor.float() for name, tensor in _tensors(tensors_in([path]))}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    names = adapter_file_names(model)
    for name, stored in names.items():
        if stored not in found or found[stored].shape != shapes[name]:
            raise DamagedFileError(f"{path} holds no {stored} of shape {list(shapes[name])}")
    return {name: found[stored] for name, stored in names.items()}


def _end_of_text(saved: SavedStep) -> int | None:
    """Return the token that the saved tokenizer ends a text with; None where it has none, or there is no tokenizer."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    with contextlib.suppress(Exception):
        found = load(saved.path).eos_token_id
        return found if isinstance(found, int) else None
    return None


def _write_merged(
    model: AdaptedModel, saved: SavedStep, working: Path, dtype: torch.dtype, largest_file_bytes: int
) -> None:
    """Write the base with its adapter merged, rounded once to `dtype`, and what lies beside it, into `working`."""

    def units() -> Iterator[dict[str, Tensor]]:
        for unit in model.merged():
            yield {name: rounded(name, tensor, dtype) for name, tensor in unit.items()}
            del unit

    give_large_blocks_back()
    _copy_beside_weights(saved, working)
    for name in (ADAPTER_CONFIG, "README.md"):
        (working / name).unlink(missing_ok=True)
    save_model(model.plain, units(), working, largest_file_bytes=largest_file_bytes)


def _copy_beside_weights(saved: SavedStep, working: Path) -> None:
    """Copy what a checkpoint's model has beside its weights: configurations, tokenizer, code of its own."""
    for name in saved.manifest.model_files:
        if name != INDEX_FILE and not name.endswith(".safetensors"):
            shutil.copyfile(saved.path / name, working / name)


def _tensors(stored: list[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor by its name, mapped from its file."""
    waiting = iter(stored)
    tensor = next(waiting, None)
    while tensor is not None:
        with mapped_files() as read:
            done = 0
            while tensor is not None and done < MAPPED_BYTES:
                yield tensor.name, read(tensor)
                done += tensor.nbytes
                tensor = next(waiting, None)
