"""Safetensors files: read through the format's own library, written as the tensors come.

Reading maps a file, so that a tensor takes no memory of its own until it is copied. Writing is not `save_file`, which
needs every tensor of a file (5 GB) in memory at once and leaves it in the page cache.

Invariant: the writer holds no tensor, except the few whose odd size would put the next ones out of alignment; those
close the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from workbench.errors import ConfigurationError
from workbench.model.direct_file import PAGE, DirectFile
from workbench.model.hub import INDEX_FILE, WEIGHTS_FILE
from workbench.system.files import crc32

LARGEST_FILE_BYTES = 5 * 10**9
ALIGNMENT = 8
METADATA = {"__metadata__": {"format": "pt"}}
Spans = tuple[tuple[int, int], ...]
"""The bytes and the CRC-32 of each span of a file, from its beginning to its end."""
WIDEST = {"dtype": "F8_E4M3", "data_offsets": [10**15, 10**15]}
DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the safetensors file at `path`."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes that the tensor takes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


Read = Callable[[StoredTensor], Tensor]


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors in the file at `path` by name, in the order in which they lie there.

    Raises:
        ConfigurationError: it cannot be read, is no safetensors file, is damaged or was cut off.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        return {name: StoredTensor(name, path, t.dtype, tuple(t.shape)) for name, t in tensors.items()}


@contextmanager
def mapped_files() -> Iterator[Read]:
    """Yield a function that returns a stored tensor mapped from its file; each file is opened once.

    A tensor stays valid after the end, and its file mapped until the last one is gone. Writing to it leaves the file
    as it is. The function raises ConfigurationError where a file cannot be read or was cut off.
    """
    with ExitStack() as stack:
        files: dict[Path, Any] = {}

        def read(stored: StoredTensor) -> Tensor:
            if stored.path not in files:
                files[stored.path] = stack.enter_context(_opened(stored.path))
            tensor: Tensor = files[stored.path].get_tensor(stored.name)
            return tensor

        yield read


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        size = path.stat().st_size
        raise ConfigurationError(
            f"{path} is not a complete safetensors file ({size:,} bytes; {error}); download it again"
        ) from error


class SafetensorsFiles:
    """Writes `model.safetensors` into `folder`, or `model-00001-of-0000N.safetensors` and their index.

    A context manager: the files get their names, and the index is written, at its end. A file is a length (8 bytes), a
    JSON header that says where each tensor lies, and their bytes without a gap. The header comes first and is known
    last: room for the longest that it can become is left, and filled with spaces.

    Args:
        folder: an existing folder without weights.
        awaited: the shape of every tensor that will be added, by name.
        largest_bytes: the most bytes of tensors in a file; a larger tensor has a file of its own.
    """

    def __init__(
        self, folder: Path, awaited: Mapping[str, tuple[int, ...]], largest_bytes: int = LARGEST_FILE_BYTES
    ) -> None:
        self.checksums: dict[str, Spans] = {}
        """The checksums of each file by its name, once all are written."""
        self._folder = folder
        self._awaited = dict(awaited)
        self._largest = largest_bytes
        self._headers: list[dict[str, Any]] = []
        self._file: DirectFile | None = None
        self._room = 0
        self._bytes = 0
        self._crc32 = 0
        self._written: list[Spans] = []
        self._uneven: dict[str, Tensor] = {}

    def __enter__(self) -> SafetensorsFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        elif self._file is not None:
            self._file.__exit__(kind, error, trace)

    def awaits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return True where all of `tensors` are awaited, in the shapes they have."""
        return all(self._awaited.get(name) == tuple(tensor.shape) for name, tensor in tensors.items())

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Write `tensors`, which may be on any device.

        Raises:
            ValueError: one is not expected, or not in its shape.
            OSError: the disk does not take them.
        """
        for name, tensor in tensors.items():
            if self._awaited.pop(name, None) != tuple(tensor.shape):
                raise ValueError(f"tensor {name} of shape {list(tensor.shape)} is not expected")
            held = sum(uneven.nbytes for uneven in self._uneven.values())
            if self._file is not None and self._bytes + held + tensor.nbytes > self._largest:
                self._end_file()
            if self._file is None:
                self._begin_file({name: tuple(tensor.shape), **self._awaited})
            if tensor.nbytes % ALIGNMENT:
                self._uneven[name] = tensor
            else:
                self._write(name, tensor)

    def _begin_file(self, may_hold: Mapping[str, tuple[int, ...]]) -> None:
        longest = {**METADATA, **{name: {**WIDEST, "shape": shape} for name, shape in may_hold.items()}}
        self._crc32 = 0
        # In whole pages, so that tensors in whole pages can be written from where they are.
        self._room = -(-(8 + len(json.dumps(longest))) // PAGE) * PAGE - 8
        self._bytes = 0
        self._file = DirectFile(self._part(len(self._headers)))
        self._headers.append({})
        self._file.write(torch.zeros(8 + self._room, dtype=torch.uint8))

    def _write(self, name: str, tensor: Tensor) -> None:
        assert self._file is not None
        whole = tensor.detach().cpu().contiguous()
        self._crc32 = crc32(whole.reshape(-1).view(torch.uint8).numpy().data, self._crc32)
        self._file.write(whole)
        end = self._bytes + tensor.nbytes
        self._headers[-1][name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self._bytes, end],
        }
        self._bytes = end

    def _end_file(self) -> None:
        if self._file is None:
            return
        # Widest items first: each tensor then begins at a multiple of its items' size.
        for name, tensor in sorted(self._uneven.items(), key=lambda item: -item[1].element_size()):
            self._write(name, tensor)
        self._uneven = {}
        header = json.dumps({**METADATA, **self._headers[-1]}).encode()
        beginning = self._room.to_bytes(8, "little") + header.ljust(self._room)
        self._file.close(beginning)
        self._written.append(((len(beginning), crc32(beginning)), (self._bytes, self._crc32)))
        self._file = None

    def _finish(self) -> None:
        if self._awaited:
            raise ValueError(f"{len(self._awaited)} tensors were not given, one of them {min(self._awaited)}")
        self._end_file()
        if len(self._headers) == 1:
            self._part(0).rename(self._folder / WEIGHTS_FILE)
            self.checksums = {WEIGHTS_FILE: self._written[0]}
            return
        weight_map = {}
        for number, header in enumerate(self._headers):
            name = f"model-{number + 1:05d}-of-{len(self._headers):05d}.safetensors"
            self._part(number).rename(self._folder / name)
            self.checksums[name] = self._written[number]
            weight_map.update(dict.fromkeys(header, name))
        entries = [entry for header in self._headers for entry in header.values()]
        metadata = {
            "total_parameters": sum(math.prod(entry["shape"]) for entry in entries),
            "total_size": sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in entries),
        }
        index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _part(self, number: int) -> Path:
        return self._folder / f"model-{number + 1:05d}.partial"
