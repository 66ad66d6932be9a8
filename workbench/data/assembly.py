"""Parts put together to a prepared folder: each document on its side, in the order of the parts.

Invariant: no document or token is lost but the end of text after a side's last text, behind which nothing stands, and
none is added but the end of text behind the beginning of a document that is cut. Memory holds some million tokens at a
time, however long a document is; only for a cut it holds each document's length and share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from workbench.data.part_files import DOCUMENT, PartFiles, file_of
from workbench.data.split import choose_sides, is_near
from workbench.data.token_files import SIDES, Header, fingerprint, token_bytes, write_header
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError

_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True)
class _Plan:
    """Which documents are for validation: those whose share is below `fraction`, or where they are named, `held`."""

    fraction: float
    held: Any | None = None
    """bool [documents]."""
    cut: int | None = None
    """The token of the whole source, counted from 0, with which the held-out end of a document begins."""
    cut_document: int = -1
    by_name: bool = True

    def of(self, shares: Any, numbers: Any) -> Any:
        """Whether documents are for validation: bool [documents]."""
        return shares < self.fraction if self.held is None else self.held[numbers]


def assemble(
    parts: Sequence[PartFiles],
    folder: Path,
    tokenizer: Tokenizer,
    fraction: float,
    *,
    cut_before: bool = False,
    whole: bool = False,
) -> Header:
    """Write the prepared folder's files into `folder`; gives its header, which is written last.

    `cut_before`: the parts are of one document, which was cut in two. `whole`: no document is cut but a single one.

    Raises:
        OSError: they cannot be written.
        ConfigurationError: the parts have no document, or only one that cannot be cut.
    """
    plan = _decide(parts, fraction, whole=whole)
    itemsize = token_bytes(tokenizer)
    counted = any(part.counted for part in parts)
    total = offset = 0
    with contextlib.ExitStack() as files:
        writers = [files.enter_context(_SideWriter(folder, side, itemsize, counted)) for side in SIDES]
        for part in parts:
            total += _distribute(part, writers, plan, itemsize, total, offset, tokenizer.end_of_text)
            offset += part.tokens
        for writer in writers:
            writer.end()
    tokens = {writer.side: writer.tokens for writer in writers}
    documents = {writer.side: writer.documents for writer in writers}
    header = Header(
        tokenizer=tokenizer.spec,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=tokenizer.vocabulary_size,
        train_tokens=tokens["train"],
        train_documents=documents["train"],
        validation_tokens=tokens["validation"],
        validation_documents=documents["validation"],
        documents=total - cut_before,
        counted=counted,
        fingerprint=fingerprint(folder, tokenizer, tokens, counted=counted),
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        by_name=plan.by_name,
        dtype="uint16" if itemsize == 2 else "uint32",
    )
    write_header(folder, header)
    return header


class _SideWriter:
    """The three files of one side."""

    def __init__(self, folder: Path, side: str, itemsize: int, counted: bool) -> None:
        self.side = side
        self.tokens = self.documents = 0
        self._folder = folder
        self._itemsize = itemsize
        self._counted = counted
        self._last = (0, False)
        self._files = contextlib.ExitStack()

    def __enter__(self) -> _SideWriter:
        suffixes = ("tokens", "documents", "counted") if self._counted else ("tokens", "documents")
        self._file = {
            suffix: self._files.enter_context((self._folder / f"{self.side}.{suffix}").open("wb"))
            for suffix in suffixes
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, tokens: Any, counted: Any | None, starts: Any, last: tuple[int, bool] | None) -> None:
        """`starts`: where documents begin, counted from the first of `tokens`; `last`: the place where the last of them
        begins, or -1 for one that began before, and whether it is a text."""
        self._file["tokens"].write(tokens.tobytes())
        self._file["documents"].write((starts + self.tokens).astype("<u8").tobytes())
        if self._counted:
            marks = np.ones(len(tokens), np.uint8) if counted is None else counted
            self._file["counted"].write(marks.tobytes())
        if last is not None:
            begin = self._last[0] if last[0] < 0 else self.tokens + last[0]
            self._last = (begin, last[1])
        self.tokens += len(tokens)
        self.documents += len(starts)

    def end(self) -> None:
        """Nothing follows: the end of text after the last text separates nothing."""
        begin, is_text = self._last
        if is_text and self.tokens - begin > 1:
            self.tokens -= 1
            self._file["tokens"].truncate(self.tokens * self._itemsize)
            if self._counted:
                self._file["counted"].truncate(self.tokens)


def _decide(parts: Sequence[PartFiles], fraction: float, *, whole: bool) -> _Plan:
    count = validation = held = 0
    tokens = sum(part.tokens for part in parts)
    for part in parts:
        table = _table(part)
        chosen = table["share"] < fraction
        begins = table["begins"] != 0
        count += int(begins.sum())
        validation += int((chosen & begins).sum())
        held += int(table["tokens"][chosen].sum())
    if not count:
        raise ConfigurationError("data.source has no text: its records and files are empty")
    if count == 1:
        return _Plan(fraction, np.zeros(1, bool), _cut(parts, fraction), 0)
    if 0 < validation < count and (whole or is_near(held / tokens, fraction)):
        return _Plan(fraction)
    shares, lengths, may_be_cut = _documents(parts)
    sides = choose_sides(shares, lengths, may_be_cut & (not whole), fraction)
    cut = int(lengths[: sides.cut + 1].sum()) - sides.tail if sides.cut >= 0 else None
    return _Plan(fraction, sides.held, cut, sides.cut, sides.by_name)


def _documents(parts: Sequence[PartFiles]) -> tuple[Any, Any, Any]:
    """Of every document its share, its tokens and whether it may be cut: what has prompts beside it may not."""
    shares: list[Any] = []
    lengths: list[Any] = []
    free: list[Any] = []
    for part in parts:
        table = _table(part)
        begins = np.flatnonzero(table["begins"])
        sizes = table["tokens"].astype(np.int64)
        before = int(sizes[: begins[0]].sum()) if len(begins) else int(sizes.sum())
        if lengths and before:
            lengths[-1][-1] += before
        if len(begins):
            shares.append(table["share"][begins])
            lengths.append(np.add.reduceat(sizes, begins))
            free.append(np.full(len(begins), not part.counted))
    return np.concatenate(shares), np.concatenate(lengths), np.concatenate(free)


def _cut(parts: Sequence[PartFiles], fraction: float) -> int:
    """The token from which a single document is for validation."""
    if any(part.counted for part in parts):
        raise ConfigurationError(
            "data.source has one record only: training and validation need one each; add records"
        )
    tokens = sum(part.tokens for part in parts)
    last = next(_table(part)[-1] for part in reversed(parts) if part.documents)
    tokens -= int(last["is_text"])
    return tokens - max(1, round(tokens * fraction))


def _table(part: PartFiles) -> Any:
    return np.fromfile(file_of(part.path, "documents"), DOCUMENT)


def _distribute(
    part: PartFiles,
    writers: Sequence[_SideWriter],
    plan: _Plan,
    itemsize: int,
    number: int,
    offset: int,
    end_of_text: int,
) -> int:
    """Write the documents of `part`, of which the first that begins has this number and the first token is number
    `offset` of the source; gives how many begin."""
    table = _table(part)
    begins, is_text = table["begins"] != 0, table["is_text"] != 0
    begun = int(begins.sum())
    numbers = number + np.cumsum(begins) - 1
    stops = np.cumsum(table["tokens"].astype(np.int64))
    starts = stops - table["tokens"].astype(np.int64)
    is_validation = plan.of(table["share"], numbers)
    cut = -1 if plan.cut is None else plan.cut - offset
    if plan.cut is not None:
        row = int(np.searchsorted(stops, cut, "right"))
        if cut >= 0 and row < len(table) and starts[row] < cut:  # one row becomes two
            starts, stops = np.insert(starts, row + 1, cut), np.insert(stops, row, cut)
            begins, is_text = np.insert(begins, row + 1, True), np.insert(is_text, row + 1, is_text[row])
            numbers = np.insert(numbers, row + 1, numbers[row])
            is_validation = np.insert(is_validation, row + 1, True)
        tail = (numbers == plan.cut_document) & (starts >= cut)
        is_validation |= tail
        begins |= tail & (starts == cut)
    for first, tokens, counted in _blocks(part, itemsize, cut):
        last = first + len(tokens)
        low = int(np.searchsorted(stops, first, "right"))
        high = int(np.searchsorted(starts, last, "left"))
        lengths = np.minimum(stops[low:high], last) - np.maximum(starts[low:high], first)
        opening = begins[low:high] & (starts[low:high] >= first)
        for writer, chosen in zip(writers, (~is_validation[low:high], is_validation[low:high]), strict=True):
            if not chosen.any():
                continue
            mask = np.repeat(chosen, lengths)
            kept = lengths * chosen
            places = np.cumsum(kept) - kept
            final = int(np.flatnonzero(chosen)[-1])
            writer.add(
                tokens[mask],
                None if counted is None else counted[mask],
                places[chosen & opening],
                (int(places[final]) if opening[final] else -1, bool(is_text[low + final])),
            )
        if last == cut:
            # The beginning of the document that is cut is a text of its own.
            writers[0].add(np.array([end_of_text], tokens.dtype), None, np.zeros(0, np.int64), (-1, True))
    return begun


def _blocks(part: PartFiles, itemsize: int, cut: int) -> Iterator[tuple[int, Any, Any | None]]:
    """The tokens of a part some at a time: the number of the first, their ids, and which are learnt.

    None of them goes over token number `cut`.
    """
    dtype = np.dtype("<u2" if itemsize == 2 else "<u4")
    with contextlib.ExitStack() as files:
        tokens = files.enter_context(file_of(part.path, "tokens").open("rb"))
        counted = files.enter_context(file_of(part.path, "counted").open("rb")) if part.counted else None
        first = 0
        while first < part.tokens:
            count = min(_BLOCK_TOKENS, (cut if first < cut < part.tokens else part.tokens) - first)
            marks = None if counted is None else np.fromfile(counted, np.uint8, count)
            yield first, np.fromfile(tokens, dtype, count), marks
            first += count
