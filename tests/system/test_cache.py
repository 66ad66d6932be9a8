"""What is kept in the cache is whole or not there, and a cache that cannot be had is no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.system import folders as cache
from workbench.system.folders import cache_folder, read_cached, write_cached


def test_what_is_kept_is_read_back_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    assert read_cached("kind/name") is None
    assert write_cached("kind/name", "first") == tmp_path / "kind" / "name"
    write_cached("kind/name", "second")
    assert read_cached("kind/name") == "second"
    assert [path.name for path in (tmp_path / "kind").iterdir()] == ["name"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    write_cached("name", "first")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert write_cached("name", "second") is None
    assert read_cached("name") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


@pytest.mark.parametrize("place", ["a file", "a file/inside", "a link to nowhere/inside"])
def test_where_there_can_be_no_folder_nothing_is_kept_and_nothing_raised(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a link to nowhere").symlink_to("/dev/null/nowhere")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / place))
    assert write_cached("kind/name", "text") is None
    assert read_cached("kind/name") is None


@pytest.mark.parametrize("named", ["", "~nobody-of-this-name/cache"])
def test_without_a_home_there_is_no_cache(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("WORKBENCH_CACHE", named)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if not named:
        monkeypatch.setattr(Path, "expanduser", homeless)
    assert cache_folder() == cache.NOWHERE
    assert write_cached("name", "text") is None
    assert read_cached("name") is None
