"""Token files: right, cached, whole and flat in memory."""

import json
import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest
import torch

from workbench.cache import cache_folder
from workbench.data import prepare as module
from workbench.data.prepare import TokenData, prepare
from workbench.errors import ConfigurationError, WorkbenchError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for index in range(20):
        (folder / f"{index:02d}.txt").write_text(f"document {index}: äöü\r\n" * (index + 1), newline="")
    return folder


def read(tokens: torch.Tensor) -> list[bytes]:
    """The documents in a tensor of tokens."""
    documents = [bytearray()]
    for token in tokens.tolist():
        if token == 256:
            documents.append(bytearray())
        else:
            documents[-1].append(token)
    return [bytes(document) for document in documents]


def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry each time that tokens are made rather than found."""
    calls: list[int] = []
    original = module._make

    def count(*arguments: object) -> object:
        calls.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_make", count)
    return calls


def small(corpus: Path, **changes: object) -> TokenData:
    return prepare(
        **{
            "source": str(corpus),
            "tokenizer": "bytes",
            "validation_fraction": 0.2,
            "sequence_length": 8,
            **changes,
        }
    )  # type: ignore[arg-type]


def test_every_document_is_on_one_side_in_order_with_the_end_of_text_between(
    cache: Path, corpus: Path
) -> None:
    data = small(corpus)
    assert data.train.dtype == data.validation.dtype == torch.uint16
    train, validation = read(data.train), read(data.validation)
    texts = [path.read_bytes() for path in sorted(corpus.iterdir())]
    assert sorted(train + validation) == sorted(texts)
    assert train == [text for text in texts if text in train]
    assert validation == [text for text in texts if text in validation]
    assert data.documents == 20
    assert data.tokenizer.vocabulary_size == 257
    assert data.warnings == ()


def test_a_single_file_is_cut_at_its_end(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("0123456789" * 100)
    data = small(path, validation_fraction=0.1)
    assert read(data.train) == [path.read_bytes()[:900]]
    assert read(data.validation) == [path.read_bytes()[900:]]


def test_prepared_tokens_are_found_again_and_are_little_endian_with_a_header(
    cache: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = made(monkeypatch)
    first = small(corpus)
    second = small(corpus, sequence_length=16)
    assert len(calls) == 1
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.validation, second.validation)
    assert first.fingerprint == second.fingerprint
    (folder,) = cache.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "tokens.json",
        "train.tokens",
        "validation.tokens",
    ]
    header = json.loads((folder / "tokens.json").read_text())
    assert (header["dtype"], header["byte_order"], header["tokenizer"]) == ("uint16", "little", "bytes")
    data = (folder / "train.tokens").read_bytes()
    assert len(data) == 2 * header["train_tokens"]
    assert data[:4] == b"d\0o\0"


def test_any_change_of_the_text_or_the_split_prepares_anew(
    cache: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = made(monkeypatch)
    prints = [small(corpus).fingerprint, small(corpus, validation_fraction=0.5).fingerprint]
    path = corpus / "03.txt"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"document", b"dokument"))  # the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    prints.append(small(corpus).fingerprint)
    path.rename(corpus / "03b.txt")
    small(corpus)
    (corpus / "99.txt").write_text("one more")
    prints.append(small(corpus).fingerprint)
    assert len(calls) == 5
    assert len(set(prints)) == 4


def test_the_fingerprint_follows_the_tokens_not_the_place_or_the_time(
    cache: Path, corpus: Path, tmp_path: Path
) -> None:
    first = small(corpus).fingerprint
    corpus.rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "03.txt")
    assert small(tmp_path / "moved").fingerprint == first


@pytest.mark.parametrize("damage", ["short", "header", "missing", "file"])
def test_a_damaged_cache_is_made_anew(cache: Path, corpus: Path, damage: str) -> None:
    expected = small(corpus).train.tolist()
    (folder,) = cache.iterdir()
    if damage == "short":
        os.truncate(folder / "train.tokens", 10)
    elif damage == "header":
        (folder / "tokens.json").write_text("{")
    elif damage == "missing":
        (folder / "validation.tokens").unlink()
    else:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        folder.write_text("a file of this name")
    data = small(corpus)
    assert data.train.tolist() == expected
    assert data.warnings == ()
    assert list(cache.iterdir()) == [folder]


def test_two_processes_that_prepare_the_same_both_get_it(
    cache: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = module._put_in_place
    others: list[TokenData] = []

    def late(*arguments: object) -> None:
        monkeypatch.setattr(module, "_put_in_place", original)
        others.append(small(corpus))
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_put_in_place", late)
    data = small(corpus)
    assert torch.equal(data.train, others[0].train)
    assert len(list(cache.iterdir())) == 1


def test_a_preparation_that_breaks_off_leaves_nothing(cache: Path, corpus: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(corpus, progress=interrupt)
    assert list(cache.iterdir()) == []


def test_what_a_killed_process_left_is_swept_away_after_a_day(cache: Path, corpus: Path) -> None:
    small(corpus)
    (folder,) = cache.iterdir()
    for name in ("old", "young"):
        (cache / f".{folder.name}-{name}").mkdir()
    os.utime(cache / f".{folder.name}-old", (0, 0))
    (folder / "tokens.json").unlink()
    small(corpus)
    assert {path.name for path in cache.iterdir()} == {folder.name, f".{folder.name}-young"}


def test_without_a_writable_cache_the_tokens_are_made_elsewhere_with_a_warning_and_no_litter(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    data = small(corpus)
    (warning,) = data.warnings
    assert "WORKBENCH_CACHE" in warning
    assert str(tmp_path / "file" / "cache") in warning
    assert list((tmp_path / "temporary").iterdir()) == []
    assert len(read(data.train)) + len(read(data.validation)) == 20


def test_no_room_anywhere_is_one_clear_error(
    cache: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_put_in_place", full)
    with pytest.raises(WorkbenchError, match=r"No space left on device; set WORKBENCH_CACHE"):
        small(corpus)
    assert list(cache.iterdir()) == []


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("WORKBENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/workbench")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/workbench")
    monkeypatch.setenv("WORKBENCH_CACHE", "/own")
    assert cache_folder() == Path("/own")


def test_too_little_text_is_refused_with_what_is_needed_and_had(cache: Path, corpus: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"data\.sequence_length = 100000 .*for training and \d+ for validation; add text",
    ):
        small(corpus, sequence_length=100_000)
    with pytest.raises(ConfigurationError, match=r"raise data\.validation_fraction"):
        small(corpus, sequence_length=600, validation_fraction=0.01)
    with pytest.raises(ConfigurationError, match=r"lower data\.validation_fraction"):
        small(corpus, sequence_length=600, validation_fraction=0.99)
    assert not cache.exists()
    data = small(corpus)
    needed = min(len(data.train), len(data.validation))
    small(corpus, sequence_length=needed)
    with pytest.raises(ConfigurationError, match="too little text"):
        small(corpus, sequence_length=needed + 1)


def test_progress_reaches_the_whole(cache: Path, corpus: Path) -> None:
    seen: list[tuple[int, int]] = []
    small(corpus, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_memory_stays_flat_however_large_the_text_is(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes(b"0123456789abcde\n" * (2 << 20))  # 32 MiB
    tracemalloc.start()
    try:
        data = small(path, validation_fraction=0.1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    assert len(data.train) + len(data.validation) == 32 << 20
    assert bytes(data.validation[-16:].tolist()) == b"0123456789abcde\n"
