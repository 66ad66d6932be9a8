"""What Workbench requires of other packages, by its own metadata, and whether a version is enough (PEP 440, PEP 508).

Only what requirements of this kind use: version clauses and markers on `python_version` and `extra`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_CLAUSE = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*(\S+)\s*$")
_PYTHON_MARKER = re.compile(r"""\s*python_version\s*(==|!=|<=|>=|<|>)\s*["']([\d.]+)["']\s*$""")
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?"
    r"(?P<post>-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?"
    r"(?P<dev>[-_.]?dev[-_.]?\d*)?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?$",
    re.IGNORECASE,
)
_STAGES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
Order = tuple[int, tuple[int, ...], tuple[int, int], float, float]


@dataclass(frozen=True)
class Requirement:
    """A package by name, and what its version must be: clauses like (">=", "2.11")."""

    name: str
    clauses: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.name + ",".join(map("".join, self.clauses))


def own_requirements(python: tuple[int, int]) -> list[Requirement]:
    """What the installed Workbench requires on this `python`, extras left out.

    Raises:
        importlib.metadata.PackageNotFoundError: Workbench is not installed, only imported.
    """
    return parse_requirements(metadata.requires("workbench") or [], python)


def parse_requirements(lines: list[str], python: tuple[int, int]) -> list[Requirement]:
    """The requirements among `lines` that hold for this `python` without any extra.

    A marker that is not understood is taken to hold. ValueError for a line that is no requirement.
    """
    found = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            raise ValueError(f"{line!r} is no requirement")
        name, specifier, marker = match.groups()
        if not _holds(marker or "", python):
            continue
        clauses = []
        for part in filter(str.strip, specifier.split(",")):
            clause = _CLAUSE.match(part)
            if clause is None:
                raise ValueError(f"{line!r}: {part!r} is no version clause")
            clauses.append((clause[1], clause[2]))
        found.append(Requirement(name, tuple(clauses)))
    return found


def satisfies(version: str, requirement: Requirement) -> bool:
    """Whether `version` is enough; its local part (+cu130) does not count. ValueError where it is no version."""
    return all(_fits(version, compared, wanted) for compared, wanted in requirement.clauses)


def without_stage(version: str) -> str:
    """The release that `version` belongs to: 2.11.0a0+git123 is of 2.11.0."""
    return str(_parsed(version)["release"])


def _holds(marker: str, python: tuple[int, int]) -> bool:
    if re.search(r"\bextra\b", marker):
        return False
    match = _PYTHON_MARKER.match(marker)
    if match is None:
        return True
    return _COMPARED[match[1]](order(f"{python[0]}.{python[1]}"), order(match[2]))


def _fits(version: str, compared: str, wanted: str) -> bool:
    if compared == "===":
        return version == wanted
    if compared == "~=":
        series = without_stage(wanted).rpartition(".")[0]
        return _fits(version, ">=", wanted) and _fits(version, "==", f"{series}.*")
    if wanted.endswith(".*"):
        prefix = order(wanted[:-2])
        start = [int(part) for part in without_stage(wanted[:-2]).split(".")]
        parts = [int(part) for part in without_stage(version).split(".")]
        padded = (parts + [0] * len(start))[: len(start)]
        return (order(version)[0] == prefix[0] and padded == start) == (compared == "==")
    return _COMPARED[compared](order(version), order(wanted))


def order(version: str) -> Order:
    """What versions are compared by, without the local part: dev < a < b < rc < release < post.

    ValueError where `version` is none of PEP 440.
    """
    match = _parsed(version)
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre, post, dev = match["pre"], match["post"], match["dev"]
    stage = (-1, 0) if dev and not post else (3, 0)
    if pre:
        stage = (_STAGES[pre.lower()], int(match["pre_number"] or 0))
    return (
        int(match["epoch"] or 0),
        tuple(release),
        stage,
        _last_number(post) if post else -1,
        _last_number(dev) if dev else math.inf,
    )


def _parsed(version: str) -> re.Match[str]:
    match = _VERSION.match(version.strip())
    if match is None:
        raise ValueError(f"{version!r} is no version")
    return match


def _last_number(text: str) -> int:
    digits = re.search(r"\d+$", text)
    return int(digits[0]) if digits else 0
