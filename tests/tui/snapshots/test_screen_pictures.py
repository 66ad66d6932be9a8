"""Every screen looks as it is stored: at three sizes, without colours and in plain ASCII; and nothing sticks out."""

from __future__ import annotations

import re

import pytest
from scenes import SCENES, Scene, photograph_terminal
from stored_pictures import StoredPictures

from workbench.tui.glyphs import PLAIN

SIZES = ((60, 16), (80, 24), (120, 40))
LARGEST = (200, 60)
USUAL = (80, 24)
MAIN = [scene for scene in SCENES if scene.is_main]


def in_default_suite(scene: Scene) -> bool:
    """Tell whether the scene is the one for which a promise of all screens is tried in the default suite."""
    return scene.name == "run"


def main_scenes(*, all_by_default: bool = False) -> pytest.MarkDecorator:
    scenes = [
        pytest.param(scene, marks=() if all_by_default or in_default_suite(scene) else pytest.mark.slow)
        for scene in MAIN
    ]
    return pytest.mark.parametrize("scene", scenes, ids=lambda scene: scene.name)


@main_scenes(all_by_default=True)
def test_a_screen_looks_as_stored(scene: Scene, stored: StoredPictures) -> None:
    stored.check(f"{scene.name}-{USUAL[0]}x{USUAL[1]}", scene.picture(USUAL))


@main_scenes()
@pytest.mark.parametrize("size", [(60, 16), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_screen_looks_as_stored_at_other_sizes(
    scene: Scene, size: tuple[int, int], stored: StoredPictures
) -> None:
    stored.check(f"{scene.name}-{size[0]}x{size[1]}", scene.picture(size))


@pytest.mark.parametrize("scene", [each for each in SCENES if not each.is_main], ids=lambda scene: scene.name)
def test_what_else_a_screen_shows_looks_as_stored(scene: Scene, stored: StoredPictures) -> None:
    stored.check(f"{scene.name}-{USUAL[0]}x{USUAL[1]}", scene.picture(USUAL))


@main_scenes()
def test_without_colours_a_screen_is_grey_and_says_the_same(scene: Scene, stored: StoredPictures) -> None:
    picture = scene.picture(USUAL, no_color=True)
    coloured = [colour for colour in picture.colours if not re.fullmatch(r"#(..)\1\1", colour)]
    assert not coloured
    stored.check(f"{scene.name}-no-color", picture)


@main_scenes()
def test_in_ascii_mode_a_screen_has_no_other_character(scene: Scene, stored: StoredPictures) -> None:
    picture = scene.picture(USUAL, glyphs=PLAIN)
    stored.check(f"{scene.name}-ascii", picture)
    assert not [line for line in picture.lines if not line.isascii()]


@main_scenes()
def test_a_terminal_shows_what_the_pictures_do(scene: Scene) -> None:
    assert photograph_terminal(scene, USUAL).svg() == scene.picture(USUAL).svg()


@main_scenes()
def test_on_a_large_terminal_a_screen_is_drawn_and_nothing_sticks_out(scene: Scene) -> None:
    picture = scene.picture(LARGEST)  # which looks at every widget's place
    assert picture.lines[0].strip() and picture.lines[-1].strip()


def test_no_picture_is_stored_that_no_test_looks_at(stored: StoredPictures) -> None:
    sized = {f"{scene.name}-{width}x{height}" for scene in MAIN for width, height in SIZES}
    others = {f"{scene.name}-{USUAL[0]}x{USUAL[1]}" for scene in SCENES}
    modes = {f"{scene.name}-{mode}" for scene in MAIN for mode in ("no-color", "ascii")}
    assert stored.names == sized | others | modes
