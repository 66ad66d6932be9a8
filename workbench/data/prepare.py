"""A source to token files: made once, kept in a cache, opened memory-mapped.

What a prepared folder holds is said in `workbench.data.token_files`. Invariant: what was tokenised is not done again: a
preparation that was killed goes on from the parts that were done, and memory stays flat however large the source is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.config import DataConfig
from workbench.config.tokenizers import BPE
from workbench.data.assembly import assemble
from workbench.data.encoding import PartEncoder
from workbench.data.enough import TooLittleError, check_enough, held_out, held_share
from workbench.data.first_records import check_first_records
from workbench.data.material import Material, find_material
from workbench.data.parallel import Tally, work_through
from workbench.data.part_files import PartFiles, PartWriter, read_part
from workbench.data.parts import Part
from workbench.data.records import RecordEncoder
from workbench.data.split import is_near
from workbench.data.token_files import FORMAT_VERSION, Header, map_side, read_header, token_bytes
from workbench.data.tokenizers import Tokenizer, load_tokenizer
from workbench.data.tokenizers.bpe_training import trained_tokenizer
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system.folders import cache_folder
from workbench.system.processor import usable_cpus

if TYPE_CHECKING:
    from torch import Tensor

_ABANDONED_S = 86_400.0
_UNFINISHED_S = 7 * 86_400.0
"""How long the parts of a preparation that was killed wait for it to go on."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes of the source done and the bytes there are."""


@dataclass(frozen=True)
class TokenData:
    train: Tensor
    """uint16 or uint32 [training tokens], memory-mapped and read only as it is used. Not to be written to."""
    validation: Tensor
    """Likewise [validation tokens]."""
    tokenizer: Tokenizer
    fingerprint: str
    """Says which tokens these are: equal for equal tokens and tokenizer, wherever the text lies."""
    documents: int
    warnings: tuple[str, ...] = ()
    """What the user should know, a sentence each."""
    train_documents: Tensor | None = None
    """uint64 [training documents], the first token of each; None for a single one."""
    train_counted: Tensor | None = None
    """uint8 [training tokens], whether it is learnt; None where every token is."""
    validation_documents: Tensor | None = None
    validation_counted: Tensor | None = None


def prepare(
    config: DataConfig,
    *,
    revision: str = "",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    begun_with: str = "",
) -> TokenData:
    """The tokens of `config.source`, from the cache where they are there.

    `revision` is of the tokenizer, where that is a hub id; `trust_remote_code` lets code run that comes with it.
    `begun_with`: the fingerprint of the tokens that a run which goes on was begun with. Where it was begun when no
    document of several was cut, it keeps that split.

    Raises ConfigurationError for a source, tokenizer or fraction that does not do, for a record that is wrong, and
    where either side has fewer tokens than one sequence.
    """
    material = find_material(config)
    if material.prepared is not None:
        return _open_prepared(material.prepared, config, revision, trust_remote_code)
    if config.tokenizer.startswith(BPE):
        _check_first_records(
            config, material, load_tokenizer("bytes")
        )  # what a trained one can read, bytes can
        tokenizer: Tokenizer = trained_tokenizer(config, material, progress)
    else:
        tokenizer = load_tokenizer(config.tokenizer, revision=revision, trust_remote_code=trust_remote_code)
    cut, uncut = (_Work(config, material, tokenizer, progress, whole=whole) for whole in (False, True))
    try:
        data, by_name = _tokens(cut)
    except TooLittleError as error:
        # The end of a document may be too short for a sequence where a whole one is not.
        try:
            return _tokens(uncut)[0]
        except TooLittleError:
            raise error from None
    if begun_with and data.fingerprint != begun_with and not by_name:
        with contextlib.suppress(TooLittleError):  # so it was not begun with that
            older, _ = _tokens(uncut, begun=True)
            if older.fingerprint == begun_with:
                return older
    return data


def _tokens(work: _Work, *, begun: bool = False) -> tuple[TokenData, bool]:
    """The tokens, and whether each document's side follows from its name alone. `begun`: a run was begun with them.

    Raises TooLittleError where either side has fewer than one sequence.
    """
    config, tokenizer = work.config, work.tokenizer
    if tokenizer.spec == "bytes":
        counts = work.material.byte_counts(whole=work.whole)
        if counts is not None:
            check_enough(*counts, config)
    folder, header = _kept(work)
    warnings = tokenizer.warnings
    if header is None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            header = _make(folder, work)
        except OSError as error:
            reason = error.strerror or error
            warnings += (
                f"the token cache {folder.parent} cannot be written ({reason}): the text will be prepared "
                "anew each time; set WORKBENCH_CACHE to a folder that can be written",
            )
    if header is not None:
        told = warnings + held_out(header, config, whole=work.whole, begun=begun)
        return _open(folder, header, tokenizer, config, told), header.by_name
    try:
        # What is mapped stays readable after its name is gone, so that nothing is left behind.
        with tempfile.TemporaryDirectory(prefix="workbench-tokens-") as temporary:
            folder = Path(temporary, "tokens")
            header = _make(folder, work)
            told = warnings + held_out(header, config, whole=work.whole, begun=begun)
            return _open(folder, header, tokenizer, config, told), header.by_name
    except OSError as error:
        raise WorkbenchError(
            f"the tokens can be written neither to the cache nor to {tempfile.gettempdir()}: "
            f"{error.strerror or error}; set WORKBENCH_CACHE to a folder with room"
        ) from error


class _Work:
    """What has to be done, and the name of what comes out."""

    def __init__(
        self,
        config: DataConfig,
        material: Material,
        tokenizer: Tokenizer,
        progress: Progress | None,
        *,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        """Whether no document of several is cut, as before there were such cuts."""
        self.config = config
        self.material = material
        self.tokenizer = tokenizer
        self._progress = progress

    def key(self, *, whole: bool) -> str:
        """It follows the source (each file's name, size and time), the split, the tokenizer and the options."""
        options = [FORMAT_VERSION, self.tokenizer.spec == "bytes", self.tokenizer.fingerprint]
        if not self.material.is_text:
            options += [self.config.text_field, self.config.loss_on]
        if not whole:
            options.append("cut")
        digest = hashlib.sha256(json.dumps([*options, self.config.validation_fraction]).encode())
        for line in self.material.identity():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return digest.hexdigest()[:32]

    def tokenize(self, working: Path) -> list[PartFiles]:
        """The parts of the source as files in `working`, where those that are done already may lie.

        Raises OSError where they cannot be written, ConfigurationError for what cannot be read.
        """
        dtype = "<u2" if token_bytes(self.tokenizer) == 2 else "<u4"
        parts = self.material.parts(self.tokenizer)
        paths = [working / f"{index:06d}" for index in range(len(parts))]
        done = [read_part(path, dtype) for path in paths]
        total = sum(part.size for part in parts)
        finished = sum(part.size for part, files in zip(parts, done, strict=True) if files is not None)
        hear = partial(self._progress, "tokenizing") if self._progress else _unheard
        tally = Tally(finished, lambda amount: hear(amount, total))
        records = _record_encoder(self.config, self.tokenizer)
        if not finished:
            check_first_records(parts, self.material.hub, records)
        encoder = PartEncoder(self.tokenizer, records, tally.add, self.material.hub)

        def work(item: tuple[Part, Path]) -> None:
            part, path = item
            with PartWriter(path, dtype) as writer:
                encoder.encode(part, writer)
                writer.finish()

        left = [(part, path) for part, path, files in zip(parts, paths, done, strict=True) if files is None]
        work_through(left, work, tally, usable_cpus())
        files = [read_part(path, dtype, whole=False) for path in paths]
        if any(one is None for one in files):
            raise OSError(errno.EIO, "files of the preparation have gone", str(working))
        return [one for one in files if one is not None]


def _kept(work: _Work) -> tuple[Path, Header | None]:
    """The folder of the cache for what has to be done, and its header where it is there.

    Of whole documents that come near the fraction, none would have been cut.
    """
    cache = cache_folder() / "tokens"
    folder = cache / work.key(whole=work.whole)
    header = _fitting(folder, work.tokenizer)
    if header is None and not work.whole:
        older = cache / work.key(whole=True)
        known = _fitting(older, work.tokenizer)
        if known is not None and is_near(held_share(known), work.config.validation_fraction):
            return older, known
    return folder, header


def _check_first_records(config: DataConfig, material: Material, tokenizer: Tokenizer) -> None:
    check_first_records(material.parts_with_text(), material.hub, _record_encoder(config, tokenizer))


def _record_encoder(config: DataConfig, tokenizer: Tokenizer) -> RecordEncoder:
    return RecordEncoder(tokenizer, text_field=config.text_field, loss_on=config.loss_on)


def _unheard(done: int, total: int) -> None:
    return


def _make(folder: Path, work: _Work) -> Header:
    """Write the prepared folder, gives its header. OSError means that it cannot be written."""
    _sweep(folder)
    with _parts_folder(folder) as parts_folder:
        try:
            parts = work.tokenize(parts_folder)
            working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                material = work.material
                header = assemble(
                    parts,
                    working,
                    work.tokenizer,
                    work.config.validation_fraction,
                    cut_before=material.split is not None,
                    whole=work.whole,
                )
                _put_in_place(working, folder, work.tokenizer)
            finally:
                shutil.rmtree(working, ignore_errors=True)
        except (OSError, WorkbenchError):
            shutil.rmtree(parts_folder, ignore_errors=True)  # no room, or a source that has to change first
            raise
        except BaseException:
            if not any(parts_folder.glob("*.json")):
                shutil.rmtree(parts_folder, ignore_errors=True)
            raise
        shutil.rmtree(parts_folder, ignore_errors=True)
        return header


@contextlib.contextmanager
def _parts_folder(folder: Path) -> Iterator[Path]:
    """A folder for the parts: the one that a killed preparation of the same left, unless it is being worked in."""
    shared = folder.with_name(f".{folder.name}-parts")
    shared.mkdir(parents=True, exist_ok=True)
    with (shared / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            own = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                yield own
            finally:
                shutil.rmtree(own, ignore_errors=True)
            return
        yield shared


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: of this folder after a day, unfinished parts of any after a week."""
    now = time.time()
    for pattern, kept_s in ((f".{folder.name}-*", _ABANDONED_S), (".*-parts", _UNFINISHED_S)):
        for left in folder.parent.glob(pattern):
            is_parts = left.name.endswith("-parts")
            with contextlib.suppress(OSError):
                if is_parts == (kept_s == _UNFINISHED_S) and now - left.stat().st_mtime > kept_s:
                    shutil.rmtree(left, ignore_errors=True)


def _put_in_place(working: Path, folder: Path, tokenizer: Tokenizer) -> None:
    """Rename `working` to `folder`; another process's whole folder is as good, a damaged one is replaced."""
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
    """A prepared folder that is the source itself."""
    header = read_header(folder)
    if header is None:
        raise ConfigurationError(
            f"data.source: {folder} was meant to be a prepared folder, and its files do not fit its tokens.json"
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
    return _open(folder, header, tokenizer, config, tokenizer.warnings)


def _open(
    folder: Path, header: Header, tokenizer: Tokenizer, config: DataConfig, warnings: Sequence[str]
) -> TokenData:
    if not header.counted:  # what has marks is packed by documents, and rows are filled up
        check_enough(header.train_tokens, header.validation_tokens, config)
    train, train_documents, train_counted = map_side(folder, header, "train")
    validation, validation_documents, validation_counted = map_side(folder, header, "validation")
    return TokenData(
        train=train,
        validation=validation,
        tokenizer=tokenizer,
        fingerprint=header.fingerprint,
        documents=header.documents,
        warnings=(*warnings, *header.notes),
        train_documents=train_documents,
        train_counted=train_counted,
        validation_documents=validation_documents,
        validation_counted=validation_counted,
    )
