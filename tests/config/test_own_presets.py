"""One's own presets are saved, copied and deleted whole; those that come with workbench stay as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
)

MINE = '# mine\n[model]\narchitecture = "gpt2"   # yes\n'


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what comes with workbench: a broken promise must not cost the real files."""
    folder = tmp_path / "shipped"
    shutil.copytree(shipped_folder(), folder)
    monkeypatch.setattr("workbench.presets.shipped_folder", lambda: folder)
    return folder


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is not there yet; the project has no presets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path / "user"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_preset_is_found_by_its_name_and_nothing_else_is_left(user: Path) -> None:
    assert save_preset("mine", MINE) == find_preset("mine") == user / "mine.toml"
    assert (user / "mine.toml").read_text() == MINE
    assert files(user) == ["mine.toml"]


def test_a_preset_that_is_there_is_replaced_only_where_that_is_wanted(user: Path) -> None:
    save_preset("mine", MINE)
    with pytest.raises(ConfigurationError, match=r"mine\.toml: is there already"):
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


def test_a_broken_preset_is_copied_too(user: Path) -> None:
    user.mkdir()
    (user / "broken.toml").write_text("[model\n")
    assert duplicate_preset(user / "broken.toml").read_text() == "[model\n"


def test_what_comes_with_workbench_is_neither_deleted_nor_overwritten(shipped: Path) -> None:
    path = shipped / "quickstart.toml"
    before = path.read_bytes()
    assert is_shipped(path)
    with pytest.raises(ConfigurationError, match="only presets of the project or of your own"):
        delete_preset(path)
    with pytest.raises(ConfigurationError, match="comes with workbench"):
        overwrite_preset(path, MINE)
    assert path.read_bytes() == before


def test_a_file_that_is_no_preset_of_ones_own_is_not_deleted(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(MINE)
    with pytest.raises(ConfigurationError, match="only presets"):
        delete_preset(other)
    assert other.exists()


@pytest.mark.parametrize("folder", ["user", "presets"])
def test_ones_own_and_the_projects_are_deleted(folder: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "mine.toml"
    path.parent.mkdir()
    path.write_text(MINE)
    delete_preset(path)
    assert "mine" not in {preset.name for preset in list_presets()}


def test_the_presets_used_last_come_first_and_once(tmp_path: Path) -> None:
    assert recent_presets() == []
    for name in ("a", "b", "a"):
        remember_preset(tmp_path / name)
    assert recent_presets() == [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "cache" / "recent-presets.json").write_text("{")
    assert recent_presets() == []


def test_a_cache_that_cannot_be_written_forgets_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    remember_preset(tmp_path / "a")
    assert recent_presets() == []


def test_an_edit_changes_its_value_and_nothing_else() -> None:
    text = (shipped_folder() / "quickstart.toml").read_text()
    changed = edited_preset(text, {"train.steps": 5, "schedule.warmup_steps": None, "log.tensorboard": False})
    lines, before = changed.splitlines(), text.splitlines()
    assert "steps = 5" in lines and "steps = 750" in before
    assert {line for line in before if line not in lines} == {
        "steps = 750", next(line for line in before if line.startswith("warmup_steps")),
    }  # fmt: skip
    assert load_config(save_preset("changed", changed)).schedule.warmup_steps == 0
