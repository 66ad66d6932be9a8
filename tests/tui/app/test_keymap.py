"""The user's own keys: each changes what it names, and each mistake costs its line and says what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from screen_host import until
from settled_pilot import settled
from whole_app import House

from workbench.tui.keymap import FILE_NAME, Keymap, bindings_of, bound_classes, places, read_keymap

PLACES = ({"runs.stop": "s", "runs.delete": "x", "runs.leave": "q,escape"}, {"log.search": "slash"})


def read(folder: Path, text: str) -> Keymap:
    path = folder / FILE_NAME
    path.write_text(text)
    found = read_keymap(path, PLACES)
    assert all(problem.startswith(f"{path}: ") for problem in found.problems)
    return Keymap(found.keys, tuple(problem.removeprefix(f"{path}: ") for problem in found.problems))


def test_keys_are_taken_by_the_names_of_actions(tmp_path: Path) -> None:
    found = read(
        tmp_path, '[keys]\n"runs.stop" = "S"\n"log.search" = "ctrl+f , f7,?"\n"runs.leave" = "plus"\n'
    )
    assert found == ({"runs.stop": "S", "log.search": "ctrl+f,f7,?", "runs.leave": "plus"}, ())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('"runs.stopp" = "S"', 'keys."runs.stopp": there is no such action; did you mean "runs.stop"?'),
        ('"hologram" = "S"', 'keys."hologram": there is no such action'),
        ('runs.stop = "S"', 'keys."runs": there is no such action; names with a point are'),
        ('"runs.stop" = 3', 'keys."runs.stop" = 3: expected a key such as "S", "f7" or "ctrl+t"'),
        ('"runs.stop" = " , "', "keys.\"runs.stop\" = ' , ': expected a key"),
        ('"runs.stop" = "escap"', 'keys."runs.stop" = "escap": there is no key "escap"; did you mean "escape"?'),
        ('"runs.stop" = "control+s"', 'keys."runs.stop" = "control+s": there is no key "control+s"'),
        ('"runs.stop" = "x"', 'keys."runs.stop" = "x": "x" is also the key of "runs.delete"'),
        ('"runs.stop" = "escape"', 'keys."runs.stop" = "escape": "escape" is also the key of "runs.leave"'),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_a_sentence_and_the_other_lines_stand(
    tmp_path: Path, line: str, sentence: str
) -> None:
    found = read(tmp_path, f'[keys]\n"log.search" = "f7"\n{line}\n')
    [problem] = found.problems
    assert problem.startswith(sentence)
    assert found.keys["log.search"] == "f7"


def test_two_actions_may_change_their_keys_with_each_other(tmp_path: Path) -> None:
    assert read(tmp_path, '[keys]\n"runs.stop" = "x"\n"runs.delete" = "s"\n').problems == ()
    assert read(tmp_path, '[keys]\n"runs.stop" = "slash"\n').problems == ()  # bound somewhere else


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[keys", "is not valid TOML: "),
        ("", 'needs a table [keys] with lines such as "runs.stop" = "S"'),
        ("keys = 3", "needs a table [keys]"),
    ],
)
def test_a_file_that_holds_no_keys_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    found = read(tmp_path, text)
    assert not found.keys and len(found.problems) == 1 and found.problems[0].startswith(sentence)


def test_no_file_is_no_mistake_and_one_that_cannot_be_read_is(tmp_path: Path) -> None:
    assert read_keymap(tmp_path / "none.toml", PLACES) == ({}, ())
    assert "cannot be read" in read_keymap(tmp_path, PLACES).problems[0]


def test_every_binding_of_ours_has_a_name_of_its_own_area_and_no_place_has_a_key_twice() -> None:
    from textual.binding import Binding

    for owner in bound_classes():
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding) and binding.id and "." in binding.id, (owner, binding)
            assert binding.description, (owner, binding)
        keys = [key for each in bindings_of(owner).values() for key in each.split(",")]
        assert len(keys) == len(set(keys)), (owner, sorted(keys))
    assert {"app.leave", "runs.stop", "presets.open", "form.start", "run.pause"} <= {
        name for place in places() for name in place
    }
    assert read_keymap(Path("none"), places()).problems == ()


async def test_the_application_takes_the_keys_and_tells_the_mistakes(house: House) -> None:
    house.keymap('[keys]\n"app.runs" = "f7"\n"app.quti" = "Q"\n')

    async with house.shown() as (app, pilot):
        await until(pilot, lambda: bool(app.reports))
        assert 'did you mean "app.quit"?' in app.reports[0][0] and app.reports[0][1] == "warning"
        await pilot.press("H")
        await settled(pilot)
        assert app.shown == "PresetsScreen"
        await pilot.press("escape", "f7")  # H is a letter to filter by now
        await until(pilot, lambda: app.shown == "RunsScreen")
