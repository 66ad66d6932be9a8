"""Pictures kept as files, and the comparison of new ones with them.

Invariant: a stored picture changes only when somebody asks for it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from scenes import Picture

UPDATE = "WORKBENCH_UPDATE_SNAPSHOTS"
_MOST_ROWS = 3


@dataclass(frozen=True)
class StoredPictures:
    """The files in `folder`. What is there instead is written to `found`; with `update` it takes their place."""

    folder: Path
    found: Path
    update: bool

    def check(self, name: str, picture: Picture) -> None:
        """Compare `picture` with `<name>.svg`.

        Raises:
            AssertionError: it differs, or there is none; says where the new one is and how it is taken over.
        """
        path, text = self.folder / f"{name}.svg", picture.svg()
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == before:
            return
        if self.update:
            path.write_text(text, encoding="utf-8")
            return
        self.found.mkdir(parents=True, exist_ok=True)
        new = self.found / path.name
        new.write_text(text, encoding="utf-8")
        what = "\n".join(_differences(before, text, picture)) if before else "  there is no such file yet"
        raise AssertionError(
            f"{path} shows something else:\n{what}\n"
            f"The new picture is {new}. Look at both; {UPDATE}=1 in the environment of this test takes it over."
        )

    @property
    def names(self) -> set[str]:
        """What is stored."""
        return {path.stem for path in self.folder.glob("*.svg")}


def _differences(before: str, after: str, picture: Picture) -> list[str]:
    """The first rows that differ, as they are now."""
    head = len(after.splitlines()) - 1 - picture.height
    pairs = zip_longest(before.splitlines(), after.splitlines())
    rows = [number - head for number, (old, new) in enumerate(pairs) if old != new]
    seen = [row for row in rows if 0 <= row < picture.height]
    said = [f"  now row {row}: {picture.lines[row].rstrip()}" for row in seen[:_MOST_ROWS]]
    if len(seen) > _MOST_ROWS:
        said.append(f"  and {len(seen) - _MOST_ROWS} more rows")
    return said or ["  its size or its colours"]
