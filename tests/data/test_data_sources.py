"""Which documents a source means, and what is said where it means none."""

import errno
import os
import sysconfig
from pathlib import Path

import pytest

from workbench.data.sources import find_documents
from workbench.errors import ConfigurationError


def names(source: str | list[str]) -> list[str]:
    return [document.name for document in find_documents(source)]


def test_the_standard_library_is_its_own_source_and_nothing_installed_beside_it() -> None:
    documents = find_documents("stdlib")
    found = [document.name for document in documents]
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= set(found)
    assert found == sorted(found)
    assert all(name.endswith(".py") for name in found)
    parts = {part for name in found for part in name.split("/")[:-1]}
    assert not parts & {"site-packages", "dist-packages", "__pycache__", "test", "tests", "lib2to3"}
    assert sum(document.size for document in documents) > 3_000_000
    for document in documents:
        document.path.read_bytes().decode("utf-8")


def test_a_python_without_its_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigurationError, match=r'data\.source = "stdlib".*no \.py files'):
        find_documents("stdlib")


def test_a_folder_is_walked_without_hidden_binary_and_empty_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/deep/c.md", "a/d", ".hidden", ".git/config", "a/.cache/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "late").write_bytes(b"x" * 9000 + b"\0")  # text as far as it is looked at
    (tmp_path / "empty.txt").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert names(str(tmp_path)) == ["a/d", "a/deep/c.md", "b.txt", "late"]


def test_files_and_folders_together_are_sorted_and_none_counts_twice(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_text("b")
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "folder" / "c.txt").symlink_to("b.txt")
    sources = [str(tmp_path / "folder"), str(tmp_path / "a.txt"), str(tmp_path / "folder" / "b.txt")]
    documents = find_documents(sources)
    assert [(document.name, document.size) for document in documents] == [("a.txt", 2), ("b.txt", 1)]


def test_a_named_file_may_be_hidden_and_the_home_folder_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".notes").write_text("text")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/.notes") == [".notes"]


def test_what_cannot_be_a_source_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "binary").write_bytes(b"a\0b")
    os.mkfifo(tmp_path / "fifo")
    for name, reason in {
        "corpus.tx": r"no such file or folder; did you mean .*corpus\.txt",
        "corpus.txt/below": "no such file or folder",
        "empty": "empty",
        "binary": "not a text file",
        "folder": "no text file in this folder",
        "fifo": "neither a file nor a folder",
        "x" * 300: "cannot be read: File name too long",
        "nul\0byte": "cannot be read",
    }.items():
        with pytest.raises(ConfigurationError, match=reason) as raised:
            find_documents(str(tmp_path / name))
        assert str(raised.value).startswith("data.source = ")
    with pytest.raises(ConfigurationError, match=r"data\.source is empty"):
        find_documents([])


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_that_may_not_be_read_is_named_never_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    (tmp_path / "open.txt").write_text("text")
    (tmp_path / "secret.txt").write_text("text")
    original = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        if self.name == "secret.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return original(self, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    source = tmp_path if inside else tmp_path / "secret.txt"
    with pytest.raises(ConfigurationError, match=r"secret\.txt cannot be read: Permission denied"):
        find_documents(str(source))
