"""Documents to token files: made once, kept in a cache, opened memory-mapped.

A prepared folder holds `train.tokens` and `validation.tokens` (raw little-endian uint16, the documents joined
by the end-of-text token) and `tokens.json`, which describes them. It appears with a rename, so that a folder
that is there is whole. Memory stays flat however large the source is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cache import cache_folder
from workbench.data.sources import find_documents
from workbench.data.split import Piece, Split, split
from workbench.data.tokenizers import Tokenizer, load_tokenizer
from workbench.errors import ConfigurationError, WorkbenchError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
_READ_BYTES = 1 << 20
_TOKEN_BYTES = 2
_ABANDONED_S = 86_400.0

Progress = Callable[[int, int], None]
"""Called with the bytes of text done and the bytes there are."""


@dataclass(frozen=True)
class TokenData:
    train: Tensor
    """uint16 [training tokens], memory-mapped and read only as it is used. Not to be written to."""
    validation: Tensor
    """uint16 [validation tokens], likewise."""
    tokenizer: Tokenizer
    fingerprint: str
    """Says which tokens these are: equal for equal tokens and tokenizer, wherever the text lies."""
    documents: int
    warnings: tuple[str, ...] = ()
    """What the user should know, a sentence each."""


def prepare(
    source: str | Sequence[str],
    tokenizer: str,
    validation_fraction: float,
    sequence_length: int,
    progress: Progress | None = None,
) -> TokenData:
    """The tokens of `source`, from the cache where they are there.

    Raises ConfigurationError for a source, tokenizer or fraction that does not do, and where either side has
    fewer tokens than one sequence.
    """
    loaded = load_tokenizer(tokenizer)
    documents = find_documents(source)
    parts = split(documents, validation_fraction)
    _check_enough(parts, loaded, validation_fraction, sequence_length)
    folder = cache_folder() / "tokens" / _key(parts, loaded)
    warnings: tuple[str, ...] = ()
    header = _read_header(folder, loaded)
    if header is None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            header = _make(folder, parts, loaded, progress)
        except OSError as error:
            reason = error.strerror or error
            warnings = (
                f"the token cache {folder.parent} cannot be written ({reason}): the text will be prepared "
                "anew each time; set WORKBENCH_CACHE to a folder that can be written",
            )
    if header is not None:
        return _open(folder, header, loaded, len(documents), warnings)
    try:
        # What is mapped stays readable after its name is gone, so that nothing is left behind.
        with tempfile.TemporaryDirectory(prefix="workbench-tokens-") as temporary:
            folder = Path(temporary, "tokens")
            header = _make(folder, parts, loaded, progress)
            return _open(folder, header, loaded, len(documents), warnings)
    except OSError as error:
        raise WorkbenchError(
            f"the tokens can be written neither to the cache nor to {tempfile.gettempdir()}: "
            f"{error.strerror or error}; set WORKBENCH_CACHE to a folder with room"
        ) from error


def _check_enough(
    parts: Split, tokenizer: Tokenizer, validation_fraction: float, sequence_length: int
) -> None:
    """Refuse text that cannot fill one sequence, before any of it is read."""
    training, validation = (_token_count(side, tokenizer) for side in (parts.training, parts.validation))
    if training >= sequence_length and validation >= sequence_length:
        return
    total = training + validation
    if total < 2 * sequence_length:
        advice = "add text, or lower data.sequence_length"
    elif validation < sequence_length:
        advice = "raise data.validation_fraction, add text, or lower data.sequence_length"
    else:
        advice = "lower data.validation_fraction, add text, or lower data.sequence_length"
    raise ConfigurationError(
        f"data.source has too little text: data.sequence_length = {sequence_length} needs as many tokens "
        f"on either side, and data.validation_fraction = {validation_fraction} gives {training} for training "
        f"and {validation} for validation; {advice}"
    )


def _token_count(pieces: Sequence[Piece], tokenizer: Tokenizer) -> int:
    """How many tokens the pieces become; exact while a byte is a token."""
    assert tokenizer.spec == "bytes"
    return sum(piece.stop - piece.start for piece in pieces) + len(pieces) - 1


def _key(parts: Split, tokenizer: Tokenizer) -> str:
    """The prepared folder's name: it follows each file's name, size and time, the split, the tokenizer."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {tokenizer.spec}".encode())
    for side in (parts.training, parts.validation):
        digest.update(b"\0\0")
        for piece in side:
            document = piece.document
            try:
                modified = document.path.stat().st_mtime_ns
            except OSError as error:
                raise _unreadable(document.path, error) from error
            place = [document.name, str(document.path)]
            line = json.dumps([*place, document.size, modified, piece.start, piece.stop])
            digest.update(line.encode())
    return digest.hexdigest()[:32]


def _make(folder: Path, parts: Split, tokenizer: Tokenizer, progress: Progress | None) -> dict[str, Any]:
    """Write the prepared folder, gives its header. OSError means that it cannot be written."""
    assert tokenizer.vocabulary_size <= 1 << 16
    _sweep(folder)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        digest = hashlib.blake2b(f"{FORMAT_VERSION} {tokenizer.spec}".encode(), digest_size=16)
        sides = (("train", parts.training), ("validation", parts.validation))
        report = _counted(progress, sum(piece.stop - piece.start for _, side in sides for piece in side))
        header: dict[str, Any] = {
            "version": FORMAT_VERSION,
            "dtype": "uint16",
            "byte_order": "little",
            "tokenizer": tokenizer.spec,
            "vocabulary_size": tokenizer.vocabulary_size,
        }
        for name, side in sides:
            count = 0
            with (working / f"{name}.tokens").open("wb") as file:
                for data in _packed(side, tokenizer, report):
                    file.write(data)
                    digest.update(data)
                    count += len(data) // _TOKEN_BYTES
                file.flush()
                os.fsync(file.fileno())
            digest.update(count.to_bytes(8, "little"))
            header[f"{name}_tokens"] = count
        header["fingerprint"] = digest.hexdigest()
        with (working / "tokens.json").open("w") as text:
            json.dump(header, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        _put_in_place(working, folder, tokenizer)
        return header
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left of this folder; what is younger than a day may be another's work."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def _put_in_place(working: Path, folder: Path, tokenizer: Tokenizer) -> None:
    """Rename `working` to `folder`; another process's whole folder is as good, a damaged one is replaced."""
    try:
        working.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if _read_header(folder, tokenizer) is None:
            damaged = working.with_name(working.name + "-damaged")
            folder.rename(damaged)
            working.rename(folder)
            shutil.rmtree(damaged, ignore_errors=True)
            with contextlib.suppress(OSError):
                damaged.unlink()


def _packed(pieces: Sequence[Piece], tokenizer: Tokenizer, report: Callable[[int], None]) -> Iterator[bytes]:
    """The pieces as packed tokens, some at a time, the end of text between them."""
    separator = tokenizer.end_of_text.to_bytes(_TOKEN_BYTES, "little")
    for index, piece in enumerate(pieces):
        if index:
            yield separator
        for data in _text(piece):
            yield tokenizer.encode_packed(data)
            report(len(data))


def _text(piece: Piece) -> Iterator[bytes]:
    path = piece.document.path
    left = piece.stop - piece.start
    try:
        with path.open("rb") as file:
            file.seek(piece.start)
            while left:
                data = file.read(min(left, _READ_BYTES))
                if not data:
                    raise ConfigurationError(f"data.source: {path} became shorter while it was read")
                left -= len(data)
                yield data
    except OSError as error:
        raise _unreadable(path, error) from error


def _counted(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def report(amount: int) -> None:
        nonlocal done
        done += amount
        if progress is not None:
            progress(done, total)

    return report


def _read_header(folder: Path, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The header of a prepared folder; None where there is none, or one that does not fit its files."""
    try:
        header = json.loads((folder / "tokens.json").read_bytes())
        whole = (
            header["version"] == FORMAT_VERSION
            and header["tokenizer"] == tokenizer.spec
            and isinstance(header["fingerprint"], str)
            and all(
                (folder / f"{name}.tokens").stat().st_size == _TOKEN_BYTES * header[f"{name}_tokens"]
                for name in ("train", "validation")
            )
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return header if whole else None


def _open(
    folder: Path, header: dict[str, Any], tokenizer: Tokenizer, documents: int, warnings: tuple[str, ...]
) -> TokenData:
    import torch

    train, validation = (
        torch.from_file(
            str(folder / f"{name}.tokens"), shared=False, size=header[f"{name}_tokens"], dtype=torch.uint16
        )
        for name in ("train", "validation")
    )
    return TokenData(train, validation, tokenizer, header["fingerprint"], documents, warnings)


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"data.source: {path} cannot be read: {error.strerror or error}")
