"""`python -m workbench.profiles`: the process that measures models for others.

With `ship` it writes the model profiles of the shipped presets beside this file instead.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE, WorkbenchError
from workbench.system.child_process import Report, serve

FOLDER = Path(__file__).parent / "models"
_SMALLEST = {
    "architecture": "gpt2",
    "config": {"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 32, "vocab_size": 16},
}


def main(arguments: list[str]) -> int:
    if arguments in ([], ["warm"]):
        serve(answer, _warm_up if arguments else None)
    if arguments[:1] == ["ship"]:
        try:
            ship(lambda sentence: print(sentence, file=sys.stderr), arguments[1:])
        except WorkbenchError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return EXIT_DONE
    print("usage: python -m workbench.profiles [warm|ship [PRESET ...]]", file=sys.stderr)
    return EXIT_CONFIGURATION


def _warm_up() -> None:
    """Profile a tiny model: only then all is imported that others need."""
    with contextlib.suppress(Exception):  # the first real question reports what is wrong
        answer({"ask": "model_profile", "model": _SMALLEST}, lambda sentence: None)


def answer(question: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the model profile or the times that `question` asks for, as plain data."""
    from workbench.profiles.block_costs import take_model_profile
    from workbench.profiles.block_times import measure_times
    from workbench.profiles.model_profile import ModelProfile

    warnings.simplefilter("ignore")
    if question["ask"] == "model_profile":
        return take_model_profile(question["model"], report).model_dump(mode="json")
    sizes = ("sequences", "tokens", "dtype", "device", "fingerprint", "budget_s")
    return measure_times(
        question["model"],
        ModelProfile.model_validate(question["model_profile"]),
        **{name: question[name] for name in sizes},
        report=report,
    ).model_dump(mode="json")


def shipped_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the [model] table of every shipped preset."""
    from workbench.config import load_config
    from workbench.presets import shipped_folder
    from workbench.profiles.model_profile import model_table

    for path in sorted(shipped_folder().glob("*.toml")):
        yield path.stem, model_table(load_config(path))


def ship(report: Callable[[str], None], presets: Sequence[str] = (), folder: Path = FOLDER) -> list[Path]:
    """Write the model profiles of shipped presets to `folder`, which then holds no others; return their files.

    `presets`: names of presets to take again; without any, all are.

    Raises:
        WorkbenchError: a block could not be run on this machine, or there is no preset of a name.
    """
    from workbench.profiles.block_costs import take_model_profile
    from workbench.profiles.obtain import model_profile_text, shipped_name

    folder.mkdir(parents=True, exist_ok=True)
    tables = dict(shipped_tables())
    written = []
    for name in presets or tables:
        if name not in tables:
            raise WorkbenchError(f"there is no shipped preset {name}; there are {', '.join(tables)}")
        report(name)
        profile = take_model_profile(tables[name])
        problem = next((kind.problem for kind in profile.kinds if kind.problem), None)
        if problem is not None:
            raise WorkbenchError(f"the model profile of preset {name} cannot be shipped from here: {problem}")
        path = folder / shipped_name(tables[name])
        path.write_text(model_profile_text(profile), encoding="utf-8")
        written.append(path)
    for old in {path.name for path in folder.glob("*.json")} - set(map(shipped_name, tables.values())):
        (folder / old).unlink()
    return written


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
