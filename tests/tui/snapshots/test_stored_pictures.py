"""The comparison itself: a difference fails, says where the new picture is, and is taken over only when asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from scenes import Picture, picture_of
from stored_pictures import UPDATE, StoredPictures
from textual.app import App, ComposeResult
from textual.widgets import Static


class Words(App[None]):
    CSS = "Static { width: 20; color: #ff0000; background: #000080; } .-bold { text-style: bold; }"

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def compose(self) -> ComposeResult:
        yield Static(self.words, markup=False)
        yield Static("loud <&>", classes="-bold", markup=False)


def shown(words: str, size: tuple[int, int] = (30, 4)) -> Picture:
    async def run() -> Picture:
        app = Words(words)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            return picture_of(app)

    return asyncio.run(run())


def test_a_picture_has_every_cell_its_character_and_its_colours() -> None:
    picture = shown("wide 漢字 and ▁▂▃")
    assert picture.lines[0] == "wide 漢字 and ▁▂▃" + " " * 13 + ""
    assert picture.lines[1].rstrip() == "loud <&>"
    first, rest = picture.rows[0]
    assert (first.cells, first.background, first.style) == (20, "#000080", "fill: #ff0000")
    assert (rest.column, rest.cells, rest.text.strip()) == (20, 10, "")
    assert picture.rows[1][0].style == "fill: #ff0000;font-weight: bold"
    assert {"#ff0000", "#000080"} <= picture.colours


def test_the_same_picture_is_the_same_text_and_another_is_not() -> None:
    assert shown("one").svg() == shown("one").svg()
    assert shown("one").svg() != shown("two").svg()
    assert shown("one").svg(exact=True) != shown("one").svg()


def test_a_difference_fails_and_tells_where_the_new_picture_is(tmp_path: Path) -> None:
    stored = StoredPictures(tmp_path / "stored", tmp_path / "found", update=False)
    stored.folder.mkdir()
    with pytest.raises(AssertionError, match="there is no such file yet"):
        stored.check("words", shown("one"))
    replace(stored, update=True).check("words", shown("one"))
    stored.check("words", shown("one"))
    with pytest.raises(AssertionError) as failure:
        stored.check("words", shown("two"))
    new = tmp_path / "found" / "words.svg"
    told = str(failure.value)
    assert f"{tmp_path / 'stored' / 'words.svg'}" in told and f"{new}" in told and f"{UPDATE}=1" in told
    assert "now row 0: two" in told and "row 1" not in told
    assert new.read_text() == shown("two").svg()
    assert (stored.folder / "words.svg").read_text() == shown("one").svg()
