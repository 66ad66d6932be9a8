"""Encode a source: read on one thread, encoded on several, and written in the order of the source.

Threads and not processes: the tokenizers library releases the interpreter lock while it works, and all threads share
one tokenizer. Invariant: the result is the same for any number of threads, and memory holds a few chunks per thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from workbench.data import RecordError
from workbench.data.records import RecordEncoder
from workbench.data.sources import SourceFiles
from workbench.data.sources.reading import Chunk, Item, Record, SourceReader, TextBlock, TokenBlock
from workbench.data.split import share_of
from workbench.data.token_files import DOCUMENT, Encoded, Header, StreamWriter, token_dtype
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError

FIRST_RECORDS = 100
"""Records of each file that are checked before anything is tokenized."""
LISTED = 5
"""Wrong records that a message lists before it counts the rest."""
_LOOK_ON_BYTES = 1 << 20
"""After a wrong record, this much more is read to report further ones with it."""

Progress = Callable[[str, int, int], None]
"""Called with the activity, the bytes of the source that are done, and all its bytes. May raise to stop the work."""

WrongRecord = tuple[str, str]
"""The place of a record ("chats.jsonl:12"), and what is wrong with it."""

A = TypeVar("A")
B = TypeVar("B")


def tokenize(
    source: SourceFiles,
    folder: Path,
    tokenizer: Tokenizer,
    records: RecordEncoder,
    validation_fraction: float,
    *,
    threads: int,
    progress: Progress | None = None,
) -> Header:
    """Write the prepared folder of `source` into `folder`, which is empty, and return its header.

    Raises:
        OSError: the files cannot be written.
        ConfigurationError: the source cannot be read, has wrong records, or has no text.
    """
    check_first_records(source, records)
    reader = SourceReader(source, tokenizer, validation_fraction)
    encoder = ChunkEncoder(tokenizer, records)
    errors: list[WrongRecord] = []
    done = read_on = 0
    with StreamWriter(folder, token_dtype(tokenizer)) as stream:
        with closing(in_order(encoder, reader.chunks(), threads)) as results:
            for encoded, wrong, size in results:
                errors += wrong
                if not errors:
                    stream.append(encoded)
                elif (read_on := read_on + size) > _LOOK_ON_BYTES:
                    break
                done += size
                if progress is not None:
                    progress("tokenizing", done, reader.total)
        _raise_if_any(errors)
        if progress is not None:
            progress("tokenizing", reader.total, reader.total)
        return stream.divide(tokenizer, validation_fraction, list(reader.notes))


def check_first_records(source: SourceFiles, encoder: RecordEncoder) -> None:
    """Raise ConfigurationError if one of the first records of a file is wrong: mostly all of its records are then."""
    errors: list[WrongRecord] = []
    for records in SourceReader(source).records():
        for record in islice(records, FIRST_RECORDS):
            try:
                value = record.parsed()
                if encoder.plain_text(value) is None:
                    encoder.encode(value)
            except RecordError as error:
                errors.append((record.place, str(error)))
    _raise_if_any(errors)


def _raise_if_any(wrong: Sequence[WrongRecord]) -> None:
    """Raise a ConfigurationError that lists the first `LISTED` wrong records, if there are any."""
    if len(wrong) == 1:
        [(place, reason)] = wrong
        raise ConfigurationError(f"data.source: {place}: {reason}")
    lines, before = ["data.source has wrong records:"], None
    for place, reason in wrong[:LISTED]:
        lines.append(f"  {place}: {'the same' if reason == before else reason}")
        before = reason
    if len(wrong) > LISTED:
        lines.append(f"  and {len(wrong) - LISTED:,} more so far")
    if wrong:
        raise ConfigurationError("\n".join(lines))


def in_order(work: Callable[[A], B], items: Iterator[A], threads: int) -> Generator[B]:
    """Yield `work(item)` for each of `items` in their order, worked out by `threads` threads.

    The first error in this order is raised, be it of `items` or of `work`, when all threads have stopped.
    """
    waiting: deque[Future[B]] = deque()
    failure: Exception | None = None
    with ThreadPoolExecutor(threads, thread_name_prefix="tokenize") as executor:
        try:
            while failure is None:
                try:
                    waiting.append(executor.submit(work, next(items)))
                except StopIteration:
                    break
                except Exception as error:  # raised after what the items before it raise
                    failure = error
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            if failure is not None:
                raise failure
        finally:
            executor.shutdown(cancel_futures=True)


class ChunkEncoder:
    """Encodes chunks with `tokenizer`. Several threads may call it at once."""

    def __init__(self, tokenizer: Tokenizer, records: RecordEncoder) -> None:
        self._tokenizer = tokenizer
        self._records = records
        self._dtype = token_dtype(tokenizer)

    def __call__(self, chunk: Chunk) -> tuple[Encoded, list[WrongRecord], int]:
        """Return the chunk's tokens, the place and reason of each wrong record, and the chunk's size."""
        items, size = chunk
        output = _Output(self._dtype)
        errors: list[WrongRecord] = []
        values = [self._value(item, errors) for item in items]
        texts = [value if isinstance(value, str) else self._records.plain_text(value) for value in values]
        encoded = iter(self._tokenizer.encode_batch([text for text in texts if text is not None]))
        end = self._tokenizer.end_of_text
        for item, value, text in zip(items, values, texts, strict=True):
            if isinstance(item, TokenBlock):
                self._ready_tokens(item, output)
            elif isinstance(item, TextBlock):
                output.add(next(encoded) if text is not None else item.text)
                if item.ends:
                    output.add([end])
                output.end_document(item.share, begins=item.begins, is_text=True)
            elif text is not None:
                ids = next(encoded)
                if text:
                    output.add([*ids, end])
                    output.end_document(share_of(item.source))
            elif value is not None:
                try:
                    output.add(*self._records.encode(value))
                except RecordError as error:
                    errors.append((item.place, str(error)))
                else:
                    output.end_document(share_of(item.source))
        return output.encoded(), errors, size

    def _value(self, item: Item, errors: list[WrongRecord]) -> Any:
        """Return the text of a text block, or a record's value; None for all else."""
        if isinstance(item, TextBlock):
            return item.text if isinstance(item.text, str) else None
        if isinstance(item, Record):
            try:
                return item.parsed()
            except RecordError as error:
                errors.append((item.place, str(error)))
        return None

    def _ready_tokens(self, block: TokenBlock, output: _Output) -> None:
        end = self._tokenizer.end_of_text
        stops = (np.flatnonzero(block.ids == end) + 1).tolist()
        if not stops or stops[-1] != len(block.ids):
            stops.append(len(block.ids))
        first, begins = 0, block.begins
        for stop in stops:
            output.add(block.ids[first:stop])
            if block.ends and stop == len(block.ids) and block.ids[-1] != end:
                output.add([end])
            output.end_document(block.share, begins=begins)
            first, begins = stop, True


class _Output:
    """Joins the tokens of documents."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._ids: list[Any] = []
        self._masks: list[Any] = []
        self._documents: list[tuple[int, float, bool, bool]] = []
        self._continues = False
        self._length = 0
        self._is_masked = self._has_mask = False

    def add(self, ids: Sequence[int] | bytes | Any, mask: Sequence[bool] | None = None) -> None:
        """Add tokens to the open document: ids, an array of them, or bytes that are ids."""
        if isinstance(ids, bytes):
            ids = np.frombuffer(ids, np.uint8)
        array = np.array(ids, self._dtype)
        self._ids.append(array)
        if mask is not None and not all(mask):
            self._is_masked = self._has_mask = True
            self._masks.append(np.array(mask, np.uint8))
        else:
            self._masks.append(len(array))
        self._length += len(array)

    def end_document(self, share: float, *, begins: bool = True, is_text: bool = False) -> None:
        """End the open document, or the part of it that is in this chunk. A record without tokens is no document."""
        length, self._length = self._length, 0
        is_masked, self._is_masked = self._is_masked, False
        if not begins and self._documents:
            length += self._documents.pop()[0]
        elif not begins:
            self._continues = True
        elif not length and not is_text:
            return
        self._documents.append((length, share, is_text, is_masked))

    def encoded(self) -> Encoded:
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, self._dtype)
        mask = None
        if self._has_mask:
            mask = np.concatenate([np.ones(m, np.uint8) if isinstance(m, int) else m for m in self._masks])
        return Encoded(ids, mask, np.array(self._documents, DOCUMENT), self._continues)
