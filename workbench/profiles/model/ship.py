"""Writes the model profiles of the shipped presets beside the planner: `python -m workbench.profiles.model ship`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import workbench.plan
from workbench.config import load_config
from workbench.errors import WorkbenchError
from workbench.plan.model_profile import model_table
from workbench.presets import shipped_folder
from workbench.profiles.model.obtain import model_profile_text, shipped_name
from workbench.profiles.model.take import take_model_profile

SHARE_OF_FREE = 1.1
"""More than all: the room that a block is said to take is an upper bound. Of 19 GiB for one of Llama 3 70B, 9 were
taken."""
FOLDER = Path(workbench.plan.__file__).parent / "model_profiles"


def shipped_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the [model] table of every shipped preset."""
    for path in sorted(shipped_folder().glob("*.toml")):
        yield path.stem, model_table(load_config(path))


def ship(tell: Callable[[str], None], presets: Sequence[str] = (), folder: Path = FOLDER) -> list[Path]:
    """Take the model profile of shipped presets and write it to `folder`, which then holds those of shipped
    presets only.

    `presets`: names whose model profiles are taken anew; without any, all are. Nothing else should run meanwhile:
    a block may take most of the memory that is free.

    Raises:
        WorkbenchError: a block could not be run on this machine, or there is no preset of a name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = dict(shipped_tables())
    for name in presets:
        if name not in tables:
            raise WorkbenchError(f"there is no shipped preset {name}; there are {', '.join(tables)}")
    written = []
    for name in presets or tables:
        model_profile = take_model_profile(
            tables[name],
            lambda sentence, name=name: tell(f"{name}: {sentence}"),  # type: ignore[misc]
            share_of_free=SHARE_OF_FREE,
        )
        problem = next((kind.problem for kind in model_profile.kinds if kind.problem), None)
        if problem is not None:
            raise WorkbenchError(f"the model profile of preset {name} cannot be shipped from here: {problem}")
        path = folder / shipped_name(tables[name])
        path.write_text(model_profile_text(model_profile), encoding="utf-8")
        written.append(path)
    for old in {path.name for path in folder.glob("*.json")} - set(map(shipped_name, tables.values())):
        (folder / old).unlink()
    return written
