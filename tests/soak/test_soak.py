"""A little of the soak in every run of the tests, and the soak's own eyes."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.mutated_files import outcome, try_reader
from soak.readers import READERS
from workbench.data import chats


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "TEMPLATE_S", 1.0)
    READERS[name].read(READERS[name].make(tmp_path))  # what a first reading imports is not its file's fault
    assert try_reader(name, 0, 25).total() == 25


def test_a_right_file_is_taken(tmp_path: Path) -> None:
    for name, reader in READERS.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        assert (name, outcome(reader.read, reader.make(folder))) == (name, "taken")


def test_what_is_no_refusal_is_seen(tmp_path: Path) -> None:
    def raises(path: Path) -> None:
        raise KeyError(path)

    def takes_memory(path: Path) -> None:
        bytearray(600 << 20)

    def loops(path: Path) -> None:
        while True:
            pass

    assert outcome(raises, tmp_path).startswith("KeyError")
    assert outcome(takes_memory, tmp_path) == "took more than 500 MiB"
    assert outcome(loops, tmp_path) == "took longer than 2 s"
