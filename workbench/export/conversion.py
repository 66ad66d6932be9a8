"""A checkpoint's weights in another dtype, or in files of another size, one tensor at a time.

Invariant: names and shapes stay; floating-point tensors are rounded once, to the nearest; all others keep their bits.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.engine.arithmetic.precision import dtype_name
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.adapter import WEIGHTS_FILE as ADAPTER_FILE
from workbench.model.safetensors_files import INDEX_FILE, LARGEST_FILE_BYTES, WEIGHTS_FILE, SafetensorsFiles
from workbench.model.safetensors_reading import TensorInFile, read_header, read_into, read_pieces
from workbench.runs.checkpoints import DamagedFileError, SavedStep

FP16_MAX = torch.finfo(torch.float16).max

Entries = dict[str, TensorInFile]


def weight_files(saved: SavedStep) -> list[Path]:
    """The checkpoint's safetensors files."""
    names = sorted(name for name in saved.manifest["model_files"] if name.endswith(".safetensors"))
    return [saved.path / name for name in names]


def stored_tensors(files: Iterable[Path]) -> Entries:
    """Every tensor of the files, in the order in which they lie there.

    Raises:
        DamagedFileError: a header cannot be read, or does not fit its file.
    """
    found: Entries = {}
    for path in files:
        try:
            header = read_header(path)
        except ConfigurationError as error:
            raise DamagedFileError(str(error)) from error
        found.update(sorted(header.items(), key=lambda item: item[1].start))
    return found


def stored_bytes(entries: Mapping[str, TensorInFile], dtype: torch.dtype | None) -> int:
    """What the tensors take in `dtype`; None leaves each in its own."""
    return sum(
        math.prod(entry.shape)
        * (dtype if dtype is not None and entry.dtype.is_floating_point else entry.dtype).itemsize
        for entry in entries.values()
    )


def read(entry: TensorInFile) -> Tensor:
    """A tensor, in memory of its own. Raises WorkbenchError where its file cannot be read any more."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    read_into([(entry, tensor)])
    return tensor


def convert(
    saved: SavedStep,
    entries: Entries,
    working: Path,
    *,
    dtype: torch.dtype | None,
    largest_file_bytes: int | None,
) -> None:
    """Write the model of `saved`, whose tensors are `entries`, into the folder `working` in `dtype`.

    Raises:
        WorkbenchError: a value is beyond what `dtype` holds, or a file cannot be read any more.
        OSError: the disk does not take it.
    """
    copy_beside_weights(saved, working)
    adapter = ADAPTER_FILE in saved.manifest["model_files"]
    # An adapter is one file for whoever loads it.
    largest = 1 << 62 if adapter else largest_file_bytes or LARGEST_FILE_BYTES
    shapes = {name: entry.shape for name, entry in entries.items()}
    with SafetensorsFiles(working, shapes, largest) as files:
        for name, tensor in _tensors(entries, dtype):
            files.add({name: tensor})
            del tensor
    if adapter:
        (working / WEIGHTS_FILE).rename(working / ADAPTER_FILE)
    elif dtype is not None:
        _describe_dtype(working / "config.json", dtype)


def copy_beside_weights(saved: SavedStep, working: Path) -> None:
    """Copy what a checkpoint's model has beside its weights: configurations, tokenizer, code of its own."""
    for name in saved.manifest["model_files"]:
        if name != INDEX_FILE and not name.endswith(".safetensors"):
            shutil.copyfile(saved.path / name, working / name)


def rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in `dtype` where it is floating point, rounded to nearest, ties to even.

    Raises:
        WorkbenchError: a finite value would become infinite.
    """
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    result = tensor.to(dtype)
    if dtype == torch.float16 and _may_overflow(tensor):
        finite = tensor.isfinite()
        if not torch.equal(result.isfinite(), finite):
            largest = float(tensor[finite].abs().max())
            raise WorkbenchError(
                f"export: {name} holds {largest:,.0f}, and fp16 ends at 65,504; --dtype bf16 holds it"
            )
    return result


def _may_overflow(tensor: Tensor) -> bool:
    """Whether something in `tensor` is beyond fp16, or not a number: a look at each value where it is."""
    if not tensor.numel():
        return False
    least, most = torch.aminmax(tensor)
    return not (float(least) >= -FP16_MAX and float(most) <= FP16_MAX)


def _describe_dtype(config: Path, dtype: torch.dtype) -> None:
    """Say in a model's `config.json` what its weights are stored in."""
    described: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    described.pop("torch_dtype", None)
    described["dtype"] = dtype_name(dtype)
    config.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tensors(entries: Entries, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in `dtype`; beside it at most a piece of it is held in its own."""
    for name, entry in entries.items():
        if dtype is None or dtype == entry.dtype or not entry.dtype.is_floating_point:
            yield name, read(entry)
            continue
        tensor = torch.empty(entry.shape, dtype=dtype)
        flat = tensor.view(-1)
        for first, piece in read_pieces(entry):
            flat[first : first + piece.numel()] = rounded(name, piece, dtype)
        yield name, tensor
