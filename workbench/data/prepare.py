"""Turn a source into memory-mapped token ids: made once, then found in the cache.

Invariant: a prepared folder (see `workbench.data.token_files`) appears in the cache with a rename, so that it is whole.
A preparation that is killed leaves a hidden folder, which a later one removes, and is done again.
"""

from __future__ import annotations

import contextlib
import errno
import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.config import DataConfig
from workbench.config.schema import EvaluateConfig
from workbench.config.tokenizers import BPE, is_made_here
from workbench.data.bpe_training import cached_tokenizer, trained_tokenizer
from workbench.data.records import RecordEncoder
from workbench.data.sources import SourceFiles, find_source
from workbench.data.split import is_near
from workbench.data.token_files import FORMAT_VERSION, Header, map_side, read_header
from workbench.data.tokenizers import Tokenizer, load_tokenizer
from workbench.data.tokenizing import Progress, check_first_records, tokenize
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system.folders import cache_folder
from workbench.system.processor import usable_cpus

if TYPE_CHECKING:
    from torch import Tensor

_ABANDONED_S = 86_400.0
"""A hidden folder in which nothing was written for so long belongs to a process that was killed."""


@dataclass(frozen=True)
class TokenData:
    """The tokens of both sides, memory-mapped. Do not write to them."""

    train: Tensor
    """uint16 or uint32 [training tokens]."""
    validation: Tensor
    """uint16 or uint32 [validation tokens]."""
    tokenizer: Tokenizer
    fingerprint: str
    """Equal for equal tokens, loss masks and tokenizers, wherever the source is."""
    documents: int
    warnings: tuple[str, ...] = ()
    """Sentences for the user."""
    train_documents: Tensor | None = None
    """uint64 [training documents], the first token of each; None for a single document."""
    train_loss_mask: Tensor | None = None
    """uint8 [training tokens], 1 for a token in the loss; None if every token is."""
    validation_documents: Tensor | None = None
    validation_loss_mask: Tensor | None = None
    others: Mapping[str, TokenData] = field(default_factory=dict)
    """Further data to evaluate on, their validation side, by name."""


def prepare(
    config: DataConfig,
    *,
    revision: str = "",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
) -> TokenData:
    """Return the tokens of `config.source`, from the cache if they are there.

    With a `validation_fraction` of 0 all of them are for training, with 1 all for validation.

    Args:
        tokenizer: to take in the place of `config.tokenizer`.
        revision: branch, tag or commit of the tokenizer, if that is a hub id.
        trust_remote_code: run Python code that comes with the tokenizer.
        progress: called now and then; may raise to stop.

    Raises:
        ConfigurationError: the source, the tokenizer or the fraction cannot be used, a record is wrong, or a side has
            fewer tokens than one sequence.
        WorkbenchError: the tokenizer cannot be fetched, or the tokens cannot be written.
    """
    source = find_source(config)
    if source.prepared is not None:
        return _open_prepared(source.prepared, config, revision, trust_remote_code)
    if tokenizer is not None:
        pass
    elif config.tokenizer.startswith(BPE):
        # A trained tokenizer takes every record that bytes take.
        check_first_records(source, _record_encoder(config, load_tokenizer("bytes")))
        tokenizer = trained_tokenizer(config, source, progress)
    else:
        tokenizer = load_tokenizer(config.tokenizer, revision=revision, trust_remote_code=trust_remote_code)
    folder = cache_folder() / "tokens" / _key(config, source, tokenizer)
    header = _fitting(folder, tokenizer)
    if header is None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            header = _make(folder, config, source, tokenizer, progress)
        except OSError as error:
            raise WorkbenchError(
                f"the tokens cannot be written to {folder.parent}: {error.strerror or error}; set WORKBENCH_CACHE to a "
                "folder that can be written and has room"
            ) from error
    return _open(folder, header, tokenizer, config)


def with_evaluation(data: TokenData, config: DataConfig, evaluate: EvaluateConfig) -> TokenData:
    """Return `data` with what `evaluate` names to evaluate on, by the tokenizer of `data`.

    Raises what `prepare` raises.
    """

    def of(source: str) -> TokenData:
        whole = config.model_copy(update={"source": source, "validation_fraction": 1.0})
        return prepare(whole, tokenizer=data.tokenizer)

    if evaluate.source:
        own = of(evaluate.source)
        data = replace(
            data,
            validation=own.validation,
            validation_documents=own.validation_documents,
            validation_loss_mask=own.validation_loss_mask,
            warnings=(*data.warnings, *own.warnings),
        )
    return replace(data, others={name: of(source) for name, source in evaluate.sources.items()})


def prepared_tokens(config: DataConfig) -> int | None:
    """Return the training tokens of `config.source` where it has been prepared before; nothing is made or fetched.

    None where it was not, or where the hub would have to be asked.
    """
    named_here = is_made_here(config.tokenizer) or Path(config.tokenizer).expanduser().is_dir()
    if not named_here or any(source.startswith("hub:") for source in config.sources):
        return None
    try:
        source = find_source(config)
        if source.prepared is not None:
            header = read_header(source.prepared)
        else:
            made_of_text = config.tokenizer.startswith(BPE)
            tokenizer = cached_tokenizer(config, source) if made_of_text else load_tokenizer(config.tokenizer)
            key = "" if tokenizer is None else _key(config, source, tokenizer)
            header = None if tokenizer is None else _fitting(cache_folder() / "tokens" / key, tokenizer)
    except WorkbenchError:
        return None
    return None if header is None else header.train_tokens


def _key(config: DataConfig, source: SourceFiles, tokenizer: Tokenizer) -> str:
    """Return the folder's name in the cache: a hash of the source's files, the tokenizer and the options."""
    options = [FORMAT_VERSION, tokenizer.spec == "bytes", tokenizer.fingerprint, config.validation_fraction]
    of_records = [config.text_field, config.loss_on, *sorted(config.columns.items())]
    return source.key(*options, *(of_records if source.has_records else ()))


def _record_encoder(config: DataConfig, tokenizer: Tokenizer) -> RecordEncoder:
    columns = {str(field): name for field, name in config.columns.items()}
    return RecordEncoder(tokenizer, text_field=config.text_field, loss_on=config.loss_on, columns=columns)


def _make(
    folder: Path, config: DataConfig, source: SourceFiles, tokenizer: Tokenizer, progress: Progress | None
) -> Header:
    """Write the prepared folder and return its header. Raises OSError if it cannot be written."""
    _remove_abandoned(folder.parent)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        header = tokenize(
            source,
            working,
            tokenizer,
            _record_encoder(config, tokenizer),
            config.validation_fraction,
            threads=usable_cpus(),
            progress=progress,
        )
        _put_in_place(working, folder, tokenizer)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return header


def _remove_abandoned(cache: Path) -> None:
    for hidden in cache.glob(".*"):
        with contextlib.suppress(OSError):
            written = max(path.stat().st_mtime for path in (hidden, *hidden.iterdir()))
            if time.time() - written > _ABANDONED_S:
                shutil.rmtree(hidden, ignore_errors=True)


def _put_in_place(working: Path, folder: Path, tokenizer: Tokenizer) -> None:
    """Rename `working` to `folder`. A whole folder of another process is kept, a damaged one is replaced."""
    try:
        working.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if _fitting(folder, tokenizer) is None:
            damaged = working.with_name(working.name + "-damaged")
            folder.rename(damaged)
            working.rename(folder)
            shutil.rmtree(damaged, ignore_errors=True)
            with contextlib.suppress(OSError):
                damaged.unlink()


def _fitting(folder: Path, tokenizer: Tokenizer) -> Header | None:
    header = read_header(folder)
    return header if header is not None and header.tokenizer_fingerprint == tokenizer.fingerprint else None


def _open_prepared(folder: Path, config: DataConfig, revision: str, trust_remote_code: bool) -> TokenData:
    """Open a prepared folder that is the source itself."""
    header = read_header(folder)
    if header is None:
        raise ConfigurationError(
            f"data.source: {folder} looks like a prepared folder, but its files do not match its tokens.json"
        )
    if config.tokenizer.startswith(BPE):
        raise ConfigurationError(
            f'data.tokenizer = "{config.tokenizer}" is trained on text, and {folder} holds tokens; name the folder of '
            "the tokenizer that they were made with"
        )
    tokenizer = load_tokenizer(config.tokenizer, revision=revision, trust_remote_code=trust_remote_code)
    if header.tokenizer_fingerprint != tokenizer.fingerprint:
        raise ConfigurationError(
            f'data.tokenizer = "{config.tokenizer}" is not the tokenizer that the tokens of {folder} were made with, '
            f'which was called "{header.tokenizer}" then; name that one'
        )
    return _open(folder, header, tokenizer, config)


def _open(folder: Path, header: Header, tokenizer: Tokenizer, config: DataConfig) -> TokenData:
    if not header.has_loss_mask:  # with a loss mask, rows are packed from whole documents and padded
        _check_enough(header, config)
    train, train_documents, train_loss_mask = map_side(folder, header, "train")
    validation, validation_documents, validation_loss_mask = map_side(folder, header, "validation")
    return TokenData(
        train=train,
        validation=validation,
        tokenizer=tokenizer,
        fingerprint=header.fingerprint,
        documents=header.documents,
        warnings=(*tokenizer.warnings, *_held_out(header, config), *header.notes),
        train_documents=train_documents,
        train_loss_mask=train_loss_mask,
        validation_documents=validation_documents,
        validation_loss_mask=validation_loss_mask,
    )


def _check_enough(header: Header, config: DataConfig) -> None:
    """Raise ConfigurationError if a side has fewer tokens than one sequence."""
    length, training, validation = config.sequence_length, header.train_tokens, header.validation_tokens
    fraction = config.validation_fraction
    if (training >= length or fraction == 1) and (validation >= length or fraction == 0):
        return
    if fraction in (0, 1):
        raise ConfigurationError(
            f"{config.source}: has {training + validation} tokens, and data.sequence_length = {length} needs as many"
        )
    if training + validation < 2 * length:
        advice = "add text, or lower data.sequence_length"
    elif validation < length:
        enough = math.ceil(1000 * length / (training + validation)) / 1000
        advice = f"raise data.validation_fraction (to {enough:g}), add text, or lower data.sequence_length"
    else:
        advice = "lower data.validation_fraction, add text, or lower data.sequence_length"
    raise ConfigurationError(
        f"data.source has too little text: data.sequence_length = {length} needs as many tokens for training and for "
        f"validation, and data.validation_fraction = {config.validation_fraction} gives {training} for training "
        f"and {validation} for validation; {advice}"
    )


def _held_out(header: Header, config: DataConfig) -> tuple[str, ...]:
    """Return a warning if documents that may not be cut make validation much larger than was asked for."""
    fraction, held = config.validation_fraction, header.held_out
    if held <= fraction or is_near(held, fraction):
        return ()
    return (
        f"data.validation_fraction = {fraction:g}: prompts, chats and ready tokens are not cut, and of these "
        f"{header.documents:,} documents such large ones are held out that {held:.0%} of the tokens are not trained "
        "on; add more and smaller ones",
    )
