"""A preset is found by path or by name: the project's before the user's before the shipped ones. One's own are saved,
copied and deleted; those that come with workbench stay as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workbench import presets
from workbench.config import load_config
from workbench.errors import ConfigurationError
from workbench.presets import (
    delete_preset,
    duplicate_preset,
    edited_preset,
    find_preset,
    free_name,
    is_shipped,
    list_presets,
    overwrite_preset,
    recent_presets,
    remember_preset,
    save_preset,
    shipped_folder,
    user_folder,
)

MINE = 'description = "mine"\n[model]\narchitecture = "gpt2"   # yes\n'


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is not there yet; the project, which is the working folder, has no presets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path / "user"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what shipped with workbench: a broken promise must not cost the real files."""
    folder = tmp_path / "shipped"
    shutil.copytree(shipped_folder(), folder)
    monkeypatch.setattr(presets, "shipped_folder", lambda: folder)
    return folder


def write(path: Path, text: str = MINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_path_means_that_file_and_a_name_the_projects_before_the_users_before_the_shipped(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "elsewhere" / "any.name")
    assert find_preset(str(path)) == path
    for name in ("quickstart", "quickstart.toml"):
        assert find_preset(name) == shipped_folder() / "quickstart.toml"
    mine = write(Path("user/quickstart.toml").absolute())
    assert find_preset("quickstart") == mine
    project = write(Path("presets/quickstart.toml"))
    assert find_preset("quickstart") == project


def test_a_folder_hides_no_preset_and_is_refused_as_one(tmp_path: Path) -> None:
    for name in ("quickstart", "things"):
        (tmp_path / name).mkdir()
    assert find_preset("quickstart") == shipped_folder() / "quickstart.toml"
    with pytest.raises(ConfigurationError, match="things: is a folder"):
        find_preset("things")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("quickstrat", 'did you mean "quickstart"'),
        ("QuickStart", 'did you mean "quickstart"'),
        ("zzzzzzzz", "the presets are quickstart, .*gpt2-10b, .*; or name a TOML file"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_else_with_all(name: str, answer: str) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no such preset; {answer}"):
        find_preset(name)


def test_a_path_that_leads_nowhere_is_no_file_and_is_answered_with_the_nearest_one() -> None:
    write(Path("things/first-try.toml"))
    Path("pyproject.toml").touch()
    for name, answer in {
        "nope.toml": "; `workbench presets` lists",
        "things/firsttry.toml": "; did you mean things/first-try.toml?",
        "./things/zzzz.toml": "; `workbench presets` lists",
        "elsewhere/quick-start.toml": ', nor a folder elsewhere; did you mean "quickstart"',
        "quickstrat.toml": '; did you mean "quickstart"',
    }.items():
        with pytest.raises(ConfigurationError) as caught:
            find_preset(name)
        assert str(caught.value).startswith(f"{name}: there is no such file{answer}")


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


# One's own


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_preset_is_found_by_its_name_and_nothing_else_is_left(user: Path) -> None:
    assert save_preset("mine", MINE) == find_preset("mine") == user / "mine.toml"
    assert (user / "mine.toml").read_text() == MINE
    assert files(user) == ["mine.toml"]


def test_a_preset_that_is_there_is_replaced_only_where_that_is_wanted(user: Path) -> None:
    save_preset("mine", MINE)
    with pytest.raises(ConfigurationError, match=r"mine\.toml: already exists"):
        save_preset("mine", "other")
    assert (user / "mine.toml").read_text() == MINE
    save_preset("mine.toml", "other", replace=True)
    assert (user / "mine.toml").read_text() == "other"


@pytest.mark.parametrize("name", ["", " ", "a/b", "../up", ".hidden", "-dash", "a\nb", "ü", "x" * 200, "a\0"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str, user: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a preset's name"):
        save_preset(name, MINE)
    assert not user.exists()


def test_a_copy_gets_a_free_name_and_keeps_every_byte(user: Path, shipped: Path) -> None:
    source = shipped / "quickstart.toml"
    assert duplicate_preset(source) == user / "quickstart-2.toml"
    assert duplicate_preset(source) == user / "quickstart-3.toml"
    assert (user / "quickstart-3.toml").read_text() == source.read_text()
    assert duplicate_preset(source, "own").name == "own.toml"
    assert free_name("quickstart") == "quickstart-4"
    write(user / "broken.toml", "[model\n")
    assert duplicate_preset(user / "broken.toml").read_text() == "[model\n"


def test_what_comes_with_workbench_or_is_no_preset_is_neither_deleted_nor_overwritten(
    tmp_path: Path, shipped: Path
) -> None:
    path = shipped / "quickstart.toml"
    before = path.read_bytes()
    assert is_shipped(path)
    with pytest.raises(ConfigurationError, match="only presets of the project or of your own"):
        delete_preset(path)
    with pytest.raises(ConfigurationError, match="shipped with workbench"):
        overwrite_preset(path, MINE)
    assert path.read_bytes() == before
    other = write(tmp_path / "other.toml")
    with pytest.raises(ConfigurationError, match="only presets"):
        delete_preset(other)
    assert other.exists()


@pytest.mark.parametrize("folder", ["user", "presets"])
def test_ones_own_and_the_projects_are_deleted(folder: str, tmp_path: Path, shipped: Path) -> None:
    path = write(tmp_path / folder / "mine.toml")
    delete_preset(path)
    assert "mine" not in {preset.name for preset in list_presets()}


def test_the_presets_used_last_come_first_and_a_cache_that_cannot_be_used_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recent_presets() == []
    for name in ("a", "b", "a"):
        remember_preset(tmp_path / name)
    assert recent_presets() == [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "cache" / "recent-presets.json").write_text("{")
    assert recent_presets() == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    remember_preset(tmp_path / "a")
    assert recent_presets() == []


def test_an_edit_changes_its_value_and_nothing_else() -> None:
    text = (shipped_folder() / "quickstart.toml").read_text()
    changed = edited_preset(text, {"train.steps": 5, "schedule.warmup_steps": None, "log.tracker": []})
    lines, before = changed.splitlines(), text.splitlines()
    assert "steps = 5" in lines and "steps = 750" in before
    assert {line for line in before if line not in lines} == {
        "steps = 750", next(line for line in before if line.startswith("warmup_steps")),
    }  # fmt: skip
    assert load_config(save_preset("changed", changed)).schedule.warmup_steps == 0
