"""The findings as people read them and as programs do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from workbench.doctor.findings import Finding, Status

COLOURS: dict[Status, str] = {"ok": "32", "warning": "33", "failure": "31"}
"""Of the select graphic rendition of ECMA-48: green, yellow, red."""
NAMES: dict[Status, tuple[str, str]] = {
    "ok": ("ok", "ok"),
    "warning": ("warning", "warnings"),
    "failure": ("failure", "failures"),
}
STATUS_WIDTH = max(map(len, COLOURS))


def lines(findings: Sequence[Finding], *, colour: bool) -> Iterator[str]:
    """One line a finding, its remedy on an indented line below, and at last how many there are of each status."""
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        status = f"{finding.status:<{STATUS_WIDTH}}"
        yield f"{_painted(status, finding.status, colour)}  {finding.check:<{width}}  {finding.finding}"
        if finding.remedy:
            yield f"{'':<{STATUS_WIDTH + width + 4}}-> {finding.remedy}"
    counted = Counter(finding.status for finding in findings)
    yield ""
    yield ", ".join(f"{counted[status]} {NAMES[status][counted[status] != 1]}" for status in COLOURS)


def as_json(findings: Sequence[Finding]) -> str:
    """A list of objects with check, status, finding and remedy (empty where the status is ok)."""
    return json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False)


def _painted(text: str, status: Status, colour: bool) -> str:
    return f"\x1b[{COLOURS[status]}m{text}\x1b[0m" if colour else text
