"""The first records of every file looked at before anything is tokenised: what is wrong there is mostly wrong all over.

Invariant: no more is read than the first records of each, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypeGuard

from workbench.data.parts import ArrayPart, HubPart, LinesPart, ParquetPart, Part
from workbench.data.records import RecordEncoder, RecordError
from workbench.data.records.wrong_records import WrongRecords
from workbench.data.sources.reading import RecordPart, every_record

FIRST = 100
"""Records of each file."""


def check_first_records(parts: Iterable[Part], hub: Mapping[str, Any], encoder: RecordEncoder) -> None:
    """Raise ConfigurationError with the first wrong ones. `hub`: the datasets that parts name."""
    wrong = WrongRecords()
    for part in parts:
        if not _begins_a_file(part):
            continue
        for record, _ in islice(every_record(part, hub), FIRST):
            if record.wrong:
                wrong.add(record.place, record.wrong)
            elif encoder.plain_text(record.value) is None:
                try:
                    encoder.encode(record.value)
                except RecordError as error:
                    wrong.add(record.place, error)
    wrong.refuse()


def _begins_a_file(part: Part) -> TypeGuard[RecordPart]:
    if isinstance(part, (LinesPart, HubPart)):
        return part.begin == 0
    return isinstance(part, ArrayPart) or (isinstance(part, ParquetPart) and part.first_row == 0)
