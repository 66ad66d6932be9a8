"""Writes the censuses of the shipped presets beside the planner: `python -m workbench.census ship`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import workbench.plan
from workbench.census.obtain import census_text, shipped_name
from workbench.census.take import take_census
from workbench.config import load_config
from workbench.errors import WorkbenchError
from workbench.presets import shipped_folder

FOLDER = Path(workbench.plan.__file__).parent / "censuses"


def shipped_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the [model] table of every shipped preset."""
    for path in sorted(shipped_folder().glob("*.toml")):
        yield path.stem, load_config(path).model.model_dump()


def ship(tell: Callable[[str], None], folder: Path = FOLDER) -> list[Path]:
    """Take the census of every shipped preset and write it to `folder`, which then holds no other.

    Raises:
        WorkbenchError: a block could not be run on this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in shipped_tables():
        census = take_census(table, lambda sentence, name=name: tell(f"{name}: {sentence}"))  # type: ignore[misc]
        problem = next((kind.problem for kind in census.kinds if kind.problem), None)
        if problem is not None:
            raise WorkbenchError(f"the census of preset {name} cannot be shipped from here: {problem}")
        path = folder / shipped_name(table)
        path.write_text(census_text(census), encoding="utf-8")
        written.append(path)
    for old in set(folder.glob("*.json")) - set(written):
        old.unlink()
    return written
