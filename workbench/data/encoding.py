"""One part of a source to tokens: reads its text or records, encodes them some at a time, and writes them down.

Invariant: no more is held at once than one record or some hundred kilobytes of text and their tokens, however large the
part is; and the tokens of a text do not depend on how it was cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.data.part_files import PartWriter
from workbench.data.parts import CompressedTextPart, Part, TextPart, TextSpan, TokensPart
from workbench.data.records import RecordEncoder, RecordError
from workbench.data.records.wrong_records import WrongRecords
from workbench.data.sources.reading import (
    READ_BYTES,
    Record,
    character,
    every_record,
    opened,
    read_bytes,
    read_compressed,
)
from workbench.data.sources.ready_tokens import documents_of
from workbench.data.split import share_of
from workbench.data.tokenizers import Tokenizer
from workbench.data.tokenizers.byte_tokenizer import ByteTokenizer
from workbench.data.tokenizers.pretrained_tokenizer import WHOLE, PretrainedTokenizer
from workbench.data.tokenizers.seams import pieces

_BATCH_RECORDS = 1024
_LOOK_ON_BYTES = 1 << 20
"""Behind a wrong record, to tell more of them at once."""


class PartEncoder:
    """Encodes parts with `tokenizer`; `hub` gives the rows of a hub dataset that parts name.

    `report` is called with the bytes of the source done, now and then, and may raise to break off.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        records: RecordEncoder,
        report: Callable[[int], None],
        hub: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._records = records
        self._report = report
        self._hub = hub or {}

    def encode(self, part: Part, writer: PartWriter) -> None:
        """Write what `part` becomes.

        Raises ConfigurationError for a file that cannot be read or has become shorter, and for a record that is wrong.
        """
        if isinstance(part, TextPart):
            self._texts(part, writer)
        elif isinstance(part, CompressedTextPart):
            self._compressed_text(part, writer)
        elif isinstance(part, TokensPart):
            self._ready_tokens(part, writer)
        else:
            self._write_records(every_record(part, self._hub), writer, part.size)

    # Text

    def _texts(self, part: TextPart, writer: PartWriter) -> None:
        waiting: list[tuple[TextSpan, str]] = []
        size = 0
        for span in part.spans:
            whole = (span.begin, span.end) == (span.start, span.stop) and span.end - span.begin <= WHOLE
            if isinstance(self._tokenizer, ByteTokenizer) or not whole:
                self._write_texts(waiting, writer)
                waiting, size = [], 0
                self._long_text(span, writer)
                continue
            data = read_bytes(span.path, span.begin, span.end)
            waiting.append((span, _decoded(data, span.path, writer)))
            size += span.end - span.begin
            if size >= WHOLE or len(waiting) >= _BATCH_RECORDS:
                self._write_texts(waiting, writer)
                waiting, size = [], 0
        self._write_texts(waiting, writer)

    def _write_texts(self, texts: list[tuple[TextSpan, str]], writer: PartWriter) -> None:
        if not texts:
            return
        for (span, _), ids in zip(
            texts, self._tokenizer.encode_batch([text for _, text in texts]), strict=True
        ):
            writer.write([*ids, self._tokenizer.end_of_text])
            writer.close_document(span.share, is_text=True)
        self._report(sum(span.end - span.begin for span, _ in texts))

    def _long_text(
        self, span: TextSpan, writer: PartWriter, *, named: Path | None = None, scale: float = 1.0
    ) -> None:
        """A text in pieces. `named`: what the user calls the file; `scale`: of the bytes reported."""
        tokenizer = self._tokenizer
        done = span.begin
        for upto, ids in self._pieces(span, writer, named or span.path):
            if isinstance(ids, bytes):
                writer.write_packed(ids)
            else:
                writer.write(ids)
            self._report(int(upto * scale) - int(done * scale))
            done = upto
        if span.end == span.stop:
            writer.write([tokenizer.end_of_text])
        writer.close_document(span.share, begins=span.begin == span.start, is_text=span.end == span.stop)

    def _pieces(
        self, span: TextSpan, writer: PartWriter, named: Path
    ) -> Iterator[tuple[int, bytes | list[int]]]:
        """Up to which byte, and the tokens up to there."""
        tokenizer = self._tokenizer
        if isinstance(tokenizer, ByteTokenizer):
            for begin in range(span.begin, span.end, READ_BYTES):
                end = min(begin + READ_BYTES, span.end)
                yield end, tokenizer.encode_packed(read_bytes(span.path, begin, end))
            return
        assert isinstance(tokenizer, PretrainedTokenizer)

        def read(first: int, last: int) -> str:
            data = read_bytes(span.path, character(span, first), character(span, last))
            return _decoded(data, named, writer)

        at = span.begin
        for piece in pieces(tokenizer, read, span.start, span.stop, WHOLE, begin=span.begin, end=span.end):
            at = min(at + WHOLE, span.end)
            yield at, tokenizer.encode_piece(read, piece)

    def _compressed_text(self, part: CompressedTextPart, writer: PartWriter) -> None:
        """Written out beside the tokens first: a long text is read back and forth."""
        plain = writer.scratch
        try:
            with opened(part.path, part.compression) as file, plain.open("wb") as target:
                while data := read_compressed(file, part.path):
                    target.write(data)
            size = plain.stat().st_size
            span = TextSpan(plain, 0, size, 0, size, part.share)
            self._long_text(span, writer, named=part.path, scale=part.size / max(1, size))
        finally:
            plain.unlink(missing_ok=True)

    # Records

    def _write_records(self, records: Iterator[tuple[Record, int]], writer: PartWriter, size: int) -> None:
        """Encode and write `records`, each of which comes with its bytes. `size`: to be reported in all."""
        waiting: list[Record] = []
        wrong = WrongRecords()
        held = reported = looked_on = 0
        for record, length in records:
            waiting.append(record)
            held += length
            if held >= WHOLE or len(waiting) >= _BATCH_RECORDS:
                self._write_batch(waiting, writer, wrong)
                looked_on += held if wrong.count else 0
                if looked_on > _LOOK_ON_BYTES:
                    wrong.refuse()
                amount = min(held, size - reported)
                self._report(amount)
                reported += amount
                waiting, held = [], 0
        self._write_batch(waiting, writer, wrong)
        wrong.refuse()
        self._report(size - reported)

    def _write_batch(self, records: list[Record], writer: PartWriter, wrong: WrongRecords) -> None:
        """Behind a wrong record the others are only looked at."""
        texts = [self._records.plain_text(record.value) for record in records]
        if wrong.count:
            records = [record for record, text in zip(records, texts, strict=True) if text is None]
            texts = [None] * len(records)
        plain = iter(self._tokenizer.encode_batch([text for text in texts if text is not None]))
        for record, text in zip(records, texts, strict=True):
            if text is not None:
                ids = next(plain)
                if not text:
                    continue
                writer.write([*ids, self._tokenizer.end_of_text])
            else:
                try:
                    if record.wrong:
                        raise RecordError(record.wrong)
                    ids, counted = self._records.encode(record.value)
                except RecordError as error:
                    wrong.add(record.place, error)
                    continue
                writer.write(ids, counted)
            writer.close_document(share_of(record.content))

    # Tokens

    def _ready_tokens(self, part: TokensPart, writer: PartWriter) -> None:
        for ids, begins, ends in documents_of(part, self._tokenizer):
            writer.write(ids)
            if ends and ids[-1] != self._tokenizer.end_of_text:
                writer.write([self._tokenizer.end_of_text])
            writer.close_document(part.share, begins=begins)
        self._report(part.size)


def _decoded(data: bytes, path: Path, writer: PartWriter) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        writer.notes[f"{path} is not all UTF-8: U+FFFD stands for the rest"] = None
        return data.decode(errors="replace")
