"""A preset is found by path or by name: the project's before the user's before the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import ConfigurationError
from workbench.presets import find_preset, list_presets, shipped_folder, user_folder

MINE = 'description = "mine"\n[model]\narchitecture = "gpt2"\n'


@pytest.fixture(autouse=True)
def in_an_empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without presets, and a user without any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path / "user"))
    return tmp_path


def write(path: Path, text: str = MINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["quickstart", "quickstart.toml"])
def test_a_shipped_preset_is_found_by_its_name_from_anywhere(name: str) -> None:
    assert find_preset(name) == shipped_folder() / "quickstart.toml"


def test_a_path_means_that_file(tmp_path: Path) -> None:
    path = write(tmp_path / "elsewhere" / "any.name")
    assert find_preset(str(path)) == path


def test_the_project_comes_before_the_user_and_the_user_before_the_shipped() -> None:
    user = write(Path("user/quickstart.toml").absolute())
    assert find_preset("quickstart") == user
    project = write(Path("presets/quickstart.toml"))
    assert find_preset("quickstart") == project


def test_a_folder_of_the_same_name_does_not_hide_a_preset(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    assert find_preset("quickstart") == shipped_folder() / "quickstart.toml"


def test_a_folder_alone_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "things").mkdir()
    with pytest.raises(ConfigurationError, match="things: is a folder"):
        find_preset("things")


@pytest.mark.parametrize("name", ["quickstrat", "QuickStart"])
def test_a_misspelt_name_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigurationError, match='there is no such preset; did you mean "quickstart"'):
        find_preset(name)


def test_a_path_that_leads_nowhere_is_no_file_and_is_answered_with_the_nearest_one() -> None:
    write(Path("things/first-try.toml"))
    for name, answer in {
        "things/firsttry.toml": "; did you mean things/first-try.toml?",
        "./things/zzzz.toml": "; `workbench presets` lists",
        "elsewhere/quick-start.toml": ', nor a folder elsewhere; did you mean "quickstart"',
        "quickstrat.toml": '; did you mean "quickstart"',
    }.items():
        with pytest.raises(ConfigurationError) as caught:
            find_preset(name)
        assert str(caught.value).startswith(f"{name}: there is no such file{answer}")


def test_a_name_like_no_other_is_answered_with_all_there_are() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the presets are quickstart, .*gpt2-10b, .*; or name a TOML file"
    ):
        find_preset("zzzzzzzz")


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 5000, "/dev/null/x"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        find_preset(name)


def test_the_list_says_what_each_name_finds() -> None:
    write(Path("presets/mine.toml"))
    write(Path("user/quickstart.toml"))
    listed = {preset.name: preset for preset in list_presets()}
    assert (listed["mine"].origin, listed["mine"].description) == ("project", "mine")
    assert (listed["quickstart"].origin, listed["quickstart"].description) == ("user", "mine")
    assert listed["gpt2-10b"].origin == "shipped"
    assert all(find_preset(name) == preset.path for name, preset in listed.items())


def test_the_first_to_try_comes_first_and_the_others_by_family_and_size() -> None:
    mine = ["a-try", "gpt2-124m-2", "mix-8x7b", "mix-8x22b", "run-2", "run-10", "run-10-2"]
    for name in mine:
        write(Path(f"presets/{name}.toml"))
    first, *others = (preset.name for preset in list_presets())
    assert first == "quickstart" and others[0] == "a-try"
    gpt2 = ["gpt2-124m", "gpt2-124m-2", "gpt2-1.5b", "gpt2-4b", "gpt2-10b", "gpt2-13b"]
    assert [name for name in others if name.startswith("gpt2")] == gpt2
    assert [name for name in others if name in mine] == mine


def test_a_broken_preset_is_listed_with_what_is_wrong() -> None:
    write(Path("presets/broken.toml"), "[model]\narchitecture = 3\n")
    (broken,) = [preset for preset in list_presets() if preset.name == "broken"]
    assert broken.description == ""
    assert broken.error is not None
    assert "presets/broken.toml:2: model.architecture = 3" in broken.error


def test_a_checkout_calls_its_own_presets_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shipped_folder().parent)
    assert {preset.origin for preset in list_presets()} == {"shipped"}


def test_the_users_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_folder() == tmp_path / "user"
    monkeypatch.delenv("WORKBENCH_PRESETS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    assert user_folder() == Path("/etc/xdg/workbench/presets")
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_folder() == Path("/home/someone/.config/workbench/presets")


def test_an_installed_workbench_finds_the_presets_inside_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site-packages" / "presets" / "stranger.toml")
    shipped = write(tmp_path / "site-packages" / "workbench" / "_presets" / "mine.toml")
    monkeypatch.setattr("workbench.presets.__file__", str(shipped.parent.parent / "presets.py"))
    assert find_preset("mine") == shipped
    with pytest.raises(ConfigurationError):
        find_preset("stranger")
