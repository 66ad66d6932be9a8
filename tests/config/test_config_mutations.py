"""Whatever is done to a preset, reading it ends in a configuration or in a message: never in a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mutations import Mutation, change_characters, cut, mutilated, random_bytes, shuffle_lines, soon

from workbench.config import fields, load_config, parse_config, to_toml
from workbench.config.references import REFERENCES
from workbench.errors import ConfigurationError
from workbench.presets import shipped_folder

PRESETS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(shipped_folder().glob("*.toml"))}

VALUES = (
    *"0 -1 1 3.5 1e400 -inf nan true false [] {} [[]] 1979-05-27 07:32:00 1979-05-27T07:32:00Z 0xff 1_000".split(),  # noqa: SIM905
    *('""', '"x"', "'''\n'''", "[1, 2]", '["a"]', "{a = 1}", "{a.b.c = [{}]}", "[0.5, 0.5]", "auto", "é"),
    *("", "=", "[", '"', '"\\uD800"', "\0", "99" * 200, "9" * 5000, "{" * 2000),
)


def replace_a_value(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    settings = [at for at, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    if not settings:
        return text
    at = chance.choice(settings)
    lines[at] = lines[at].partition("=")[0] + "= " + chance.choice(VALUES)
    return "\n".join(lines)


def rename_something(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = lines[at].replace(
        chance.choice("aeiost_["), chance.choice(["", "x", ".", '"', " ", "[", "]"]), 1
    )
    return "\n".join(lines)


def drop_or_repeat_lines(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    return "\n".join(lines[:at] + lines[at + 1 :] if chance.random() < 0.5 else lines + lines[at:])


def add_a_table(text: str, chance: random.Random) -> str:
    name = chance.choice(
        ["[train]", "[[train]]", "[adapter]", "[a.b.c]", "[model.config.x]", '[""]', "[description]"]
    )
    return f"{text}\n{name}\n{chance.choice(['x', 'rank', '', '1'])} = {chance.choice(VALUES)}\n"


MUTATIONS: tuple[Mutation, ...] = (
    *(replace_a_value, rename_something, drop_or_repeat_lines, change_characters),
    *(shuffle_lines, cut, add_a_table),
)


@pytest.mark.parametrize("seed", range(150))
def test_a_mutilated_preset_is_read_or_refused_with_a_message(seed: int) -> None:
    text = mutilated(list(PRESETS.values()), MUTATIONS, seed)
    with soon():
        try:
            config = parse_config(text, "mutilated.toml", look_for=REFERENCES)
        except ConfigurationError as error:
            assert all(line.startswith("mutilated.toml:") for line in str(error).split("\n"))
        else:
            assert parse_config(to_toml(config), "resolved") == config


@pytest.mark.parametrize("seed", range(50))
def test_a_nonsensical_override_is_taken_or_refused_with_a_message(seed: int) -> None:
    chance = random.Random(seed)
    others = ("train", "adapter", "model.config.x", "a.b.c.d", "", "..", "train.")
    names = [*(field.name for field in fields()), *others]
    overrides = [f"{chance.choice(names)}={chance.choice(VALUES)}" for _ in range(chance.randrange(1, 6))]
    try:
        config = parse_config(PRESETS["quickstart"], "quickstart.toml", overrides)
    except ConfigurationError as error:
        assert str(error)
    else:
        assert parse_config(to_toml(config), "resolved") == config


@pytest.mark.parametrize("seed", range(10))
def test_a_file_of_random_bytes_is_refused_with_a_message(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "noise.toml"
    path.write_bytes(random_bytes(seed))
    with pytest.raises(ConfigurationError, match=r"noise\.toml:"):
        load_config(path)
