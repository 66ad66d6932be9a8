"""Texts of others are read within bounds, and shown without acting on the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.runs.log import LogTee
from workbench.system.foreign import ForeignTextError, parse_json, parse_toml
from workbench.system.terminal import LONGEST_LINE, EscapedStream, error_text, escaped


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n" * 200_000, "characters"),
        (f"x = 0x{'f' * 3000}", "more than 200 characters"),
        (f"x = {'9' * 30}", "64 bits"),
        (f"x = [{{y = {'9' * 30}}}]", "64 bits"),
        (f'"{"a" * 300}" = 1', "more than 200 characters"),
        ("a." * 2000 + "b = 1", "parts"),
        ('"a".' * 2000 + "b = 1", "parts"),
        ("x = " + "[" * 5000, "nested"),
    ],
)
def test_toml_far_from_any_configuration_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ForeignTextError, match=said):
        parse_toml(text)


def test_long_strings_and_comments_are_no_names() -> None:
    text = f'# {"a." * 500}\nx = \'{"b" * 5000}\'\ny = """\n{"c." * 500}\n"""\n[a.b]\nz = 1.5'
    assert parse_toml(text)["a"]["b"]["z"] == 1.5


def test_json_out_of_bounds_is_a_value_error() -> None:
    for text in ("[" * 100_000, "9" * 5000, "[1,"):
        with pytest.raises(ValueError):
            parse_json(text)
    with pytest.raises(ForeignTextError, match="bytes"):
        parse_json("[1]", longest=2)


def test_what_would_act_on_a_terminal_is_spelt_out() -> None:
    assert escaped("a\x1b[2J\x07\r\u202eb\x9b") == "a\\u001b[2J\\u0007\\u000d\\u202eb\\u009b"
    assert escaped("half \ud83d of a pair, \udce9") == "half \\ud83d of a pair, \\udce9"
    assert escaped("tab\t, end\n, \x1b[31mred\x1b[0m, é😀\r\n") == "tab\t, end\n, \x1b[31mred\x1b[0m, é😀\r\n"
    assert len(error_text("x" * 9000)) == LONGEST_LINE
    stream = io.StringIO()
    print("\x1b]0;title\x07", file=EscapedStream(stream))  # type: ignore[call-overload]
    assert stream.getvalue() == "\\u001b]0;title\\u0007\n"


def test_a_command_prints_no_escape_sequence_of_a_name(tmp_path: Path) -> None:
    name = "\x1b[2J\x1b]0;x\x07.toml"
    (tmp_path / name).write_text('[data]\nsource = "\\u001b[2Jnowhere"\n')
    command = [sys.executable, "-m", "workbench", "run", name]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert "\x1b" not in found.stdout + found.stderr
    assert "\\u001b[2J" in found.stderr


def test_the_log_of_a_run_has_no_escape_sequences(tmp_path: Path) -> None:
    with LogTee(tmp_path / "train.log"):
        print("loss \x1b[2J\x07of the data")
    assert (tmp_path / "train.log").read_text() == "loss \\u001b[2J\\u0007of the data\n"
