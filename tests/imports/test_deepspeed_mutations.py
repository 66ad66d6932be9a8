"""Whatever is done to a DeepSpeed file, importing it ends in a preset or in a message, soon: never in a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mutations import Mutation, change_characters, cut, mutilated, random_bytes, shuffle_lines, soon
from published_configurations import BLOG, INFINITY, TUTORIAL

from workbench.cli import main
from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.imports import import_file, import_text

FILES = (BLOG, TUTORIAL, INFINITY)
VALUES = (
    *(
        "0",
        "-1",
        "1",
        "0.5",
        "1e400",
        "-Infinity",
        "NaN",
        "true",
        "False",
        "null",
        '""',
        '"auto"',
        '"x"',
        "'x'",
    ),
    *(
        "[]",
        "{}",
        "[[1]]",
        "[0.9, 0.99]",
        '{"enabled": true}',
        '"\\ud800"',
        '"\\x"',
        '"é\u2028"',
        "cpu",
        "“cpu”",
    ),
    *("9" * 5000, "{" * 60, "[" * 5000, "-", "1_0", "1e", '"', "/*", '"a" "b"', "2e8", "1" * 400),
)


def replace_a_value(text: str, chance: random.Random) -> str:
    colons = [at for at, letter in enumerate(text) if letter == ":"]
    if not colons:
        return text
    start = chance.choice(colons) + 1
    end = next((at for at in range(start, len(text)) if text[at] in ",}\n"), len(text))
    return f"{text[:start]} {chance.choice(VALUES)}{text[end:]}"


def drop_a_mark(text: str, chance: random.Random) -> str:
    marks = [at for at, letter in enumerate(text) if letter in '{}[]",:'] or [0]
    at = chance.choice(marks)
    return text[:at] + text[at + 1 :] or "{"


def add_something(text: str, chance: random.Random) -> str:
    places = [at for at, letter in enumerate(text) if letter in "{,"] or [0]
    at = chance.choice(places) + 1
    added = chance.choice(
        (",", "}", "{", "]", "// c\n", "/*", '"x": 1,', '"lr": 2,', " = ", '"stage": 3,', "\n#\n")
    )
    return text[:at] + added + text[at:]


def shuffle_settings(text: str, chance: random.Random) -> str:
    return shuffle_lines(text.replace(", ", ",\n"), chance)


def repeat(text: str, chance: random.Random) -> str:
    return text * chance.choice((2, 3, 40))


MUTATIONS: tuple[Mutation, ...] = (
    change_characters,
    cut,
    replace_a_value,
    replace_a_value,
    drop_a_mark,
    add_something,
    shuffle_settings,
    repeat,
)


def broken(seed: int) -> str:
    """A published file with some mistakes."""
    return mutilated(FILES, MUTATIONS, seed)


def import_or_refuse(seed: int) -> None:
    with soon():
        try:
            made = import_text(broken(seed), "mutilated.json", architecture="gpt2")
        except ConfigurationError as error:
            assert all(line.startswith("mutilated.json:") for line in str(error).split("\n"))
            return
    assert bool(made.preset) != bool(made.refused)
    assert all(line.split(":")[0].endswith("mutilated.json") for line in made.refused)
    if made.preset:
        parse_config(made.preset, "made.toml")


@pytest.mark.parametrize("tens", range(15))
def test_a_mutilated_file_is_imported_or_refused_with_a_message(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        import_or_refuse(seed)


@pytest.mark.slow
def test_import_ends_a_thousand_mutilated_files_with_0_or_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mutilated.json"
    codes = []
    for seed in range(1000):
        path.write_text(broken(seed), encoding="utf-8", errors="surrogatepass", newline="")
        with soon():
            codes.append(
                main(["import", str(path), "--architecture", "gpt2", *(["--json"] if seed % 2 else [])])
            )
        assert "Traceback" not in capsys.readouterr().err
    assert set(codes) == {0, 2}
    assert 50 < codes.count(0) < 950, "mutilations that all end the same test nothing"


@pytest.mark.parametrize("seed", range(10))
def test_a_file_of_random_bytes_is_refused_with_a_message(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "noise.json"
    path.write_bytes(random_bytes(seed))
    with pytest.raises(ConfigurationError, match=r"noise\.json:"):
        import_file(path)
