"""Prepared tokens: right, cached, whole, and flat in memory."""

import gzip
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.config import DataConfig
from workbench.data import prepare as module
from workbench.data import token_files
from workbench.data.prepare import TokenData, prepare
from workbench.data.sources import reading
from workbench.data.tokenizing import Progress
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system.folders import cache_folder


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


@pytest.fixture
def large_files(tmp_path: Path) -> Path:
    """Three documents, of which names alone would hold out the largest."""
    folder = tmp_path / "large"
    folder.mkdir()
    for name, words in (("a.txt", 90), ("b.txt", 3000), ("c.txt", 1500)):
        (folder / name).write_text("".join(f"{name[0]}{number} " for number in range(words)))
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Gets an entry each time that tokens are made and not found in the cache."""
    calls: list[Path] = []
    original = module._make
    monkeypatch.setattr(
        module, "_make", lambda folder, *rest: (calls.append(folder), original(folder, *rest))[1]
    )
    return calls


def documents_of(tokens: torch.Tensor) -> list[bytes]:
    """The documents in a tensor of byte tokens."""
    return [
        bytes(part[part != 256].tolist()) for part in np.split(tokens.numpy(), np.flatnonzero(tokens == 256))
    ]


def small(corpus: Path, progress: Progress | None = None, **changes: object) -> TokenData:
    options = {"source": str(corpus), "validation_fraction": 0.2, "sequence_length": 8, **changes}
    return prepare(DataConfig.model_construct(**{**DataConfig().model_dump(), **options}), progress=progress)


def test_every_document_is_on_one_side_in_order_with_the_end_of_text_between(
    cache: Path, corpus: Path
) -> None:
    data = small(corpus)
    assert data.train.dtype == data.validation.dtype == torch.uint16
    train, validation = documents_of(data.train), documents_of(data.validation)
    texts = [path.read_bytes() for path in sorted(corpus.iterdir())]
    assert sorted(train + validation) == sorted(texts)
    assert train == [text for text in texts if text in train]
    assert validation == [text for text in texts if text in validation]
    assert (data.documents, data.tokenizer.vocabulary_size, data.warnings) == (20, 257, ())


@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz"])
def test_a_single_text_is_cut_at_its_end(cache: Path, tmp_path: Path, name: str) -> None:
    text = b"0123456789" * 100
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    data = small(tmp_path / name, validation_fraction=0.1)
    assert documents_of(data.train) == [text[:900]]
    assert documents_of(data.validation) == [text[900:]]
    assert data.train_documents is not None and data.train_documents.tolist() == [0]


def test_of_a_few_large_files_one_is_cut_so_that_the_fraction_is_held_out(
    cache: Path, large_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [path.read_bytes() for path in sorted(large_files.iterdir())]
    found = []
    for copied, documents, chunk in ((1 << 22, 1 << 18, 1 << 18), (997, 1, 4096), (64, 2, 1)):
        monkeypatch.setattr(token_files, "_COPY_TOKENS", copied)
        monkeypatch.setattr(token_files, "_COPY_DOCUMENTS", documents)
        monkeypatch.setattr(reading, "_CHUNK_BYTES", chunk)
        monkeypatch.setattr(reading, "_READ_BYTES", chunk + 1)
        shutil.rmtree(cache, ignore_errors=True)
        found.append(small(large_files, validation_fraction=0.05))
    data = found[0]
    train, (validation,) = documents_of(data.train), documents_of(data.validation)
    (cut,) = [index for index, text in enumerate(texts) if text not in train]
    assert train[cut] + validation == texts[cut]
    assert train[:cut] + train[cut + 1 :] == texts[:cut] + texts[cut + 1 :]
    assert abs(len(validation) - 0.05 * sum(map(len, texts))) < 3
    assert (data.documents, data.warnings) == (3, ())
    assert data.train_documents is not None and data.validation_documents is not None
    starts = np.cumsum([0, *(len(text) + 1 for text in train[:-1])]).tolist()
    assert (data.train_documents.tolist(), data.validation_documents.tolist()) == (starts, [0])
    assert {other.fingerprint for other in found} == {data.fingerprint}


def test_prepared_tokens_are_found_again_and_are_little_endian_with_a_header(
    cache: Path, corpus: Path, made: list[Path]
) -> None:
    first, second = small(corpus), small(corpus, sequence_length=16)
    assert len(made) == 1
    assert torch.equal(first.train, second.train) and torch.equal(first.validation, second.validation)
    assert first.fingerprint == second.fingerprint
    (folder,) = cache.iterdir()
    names = {f"{side}.{suffix}" for side in ("train", "validation") for suffix in ("tokens", "documents")}
    assert {path.name for path in folder.iterdir()} == {"tokens.json", *names}
    header = json.loads((folder / "tokens.json").read_text())
    assert (header["dtype"], header["byte_order"], header["tokenizer"]) == ("uint16", "little", "bytes")
    starts = np.fromfile(folder / "train.documents", "<u8").tolist()
    ends = (first.train == 256).nonzero().flatten().tolist()
    assert first.train_documents is not None and first.train_loss_mask is None
    assert starts == [0, *(end + 1 for end in ends)] == first.train_documents.tolist()
    data = (folder / "train.tokens").read_bytes()
    assert len(data) == 2 * header["train_tokens"] and data[:4] == b"d\0o\0"


def test_any_change_of_the_text_or_the_split_prepares_again(
    cache: Path, corpus: Path, made: list[Path]
) -> None:
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
    assert (len(made), len(set(prints))) == (5, 4)


def test_the_fingerprint_follows_the_tokens_not_the_place_or_the_time(
    cache: Path, corpus: Path, tmp_path: Path
) -> None:
    data = small(corpus)
    corpus.rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "03.txt")
    assert small(tmp_path / "moved").fingerprint == data.fingerprint == "fab33c9a88a26a4092fd6a0b7f6d9aa7"
    assert (len(data.train), len(data.validation)) == (3756, 617)


@pytest.mark.parametrize("damage", ["short", "header", "sizes", "documents", "missing", "file"])
def test_a_damaged_cache_is_made_again(cache: Path, corpus: Path, damage: str) -> None:
    expected = small(corpus).train.tolist()
    (folder,) = cache.iterdir()
    if damage == "short":
        os.truncate(folder / "train.tokens", 10)
    elif damage == "header":
        (folder / "tokens.json").write_text("{")
    elif damage == "sizes":
        header = json.loads((folder / "tokens.json").read_text())
        (folder / "tokens.json").write_text(
            json.dumps(header | {"train_tokens": header["train_tokens"] + 0.5})
        )
    elif damage == "documents":
        with (folder / "train.documents").open("r+b") as file:
            file.seek(16)
            file.write(b"\xff" * 8)
    elif damage == "missing":
        (folder / "validation.tokens").unlink()
    else:
        shutil.rmtree(folder)
        folder.write_text("a file of this name")
    data = small(corpus)
    assert (data.train.tolist(), data.warnings) == (expected, ())
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
    assert torch.equal(small(corpus).train, others[0].train)
    assert len(list(cache.iterdir())) == 1


def test_an_interrupted_preparation_leaves_nothing_and_is_done_again(cache: Path, corpus: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(corpus, interrupt)
    assert list(cache.iterdir()) == []
    small(corpus)
    (folder,) = cache.iterdir()
    assert folder.name[0] != "."


def test_what_a_killed_process_left_is_removed_after_a_day(cache: Path, corpus: Path) -> None:
    for name in ("old", "young", "written"):
        (cache / f".{name}").mkdir(parents=True)
        (cache / f".{name}" / "stream.tokens").touch()
    for name in ("old", "old/stream.tokens", "written"):
        os.utime(cache / f".{name}", (0, 0))
    small(corpus)
    assert {path.name for path in cache.iterdir() if path.name[0] == "."} == {".young", ".written"}


def test_a_cache_that_cannot_be_written_is_one_clear_error(
    cache: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_put_in_place", full)
    with pytest.raises(WorkbenchError, match=r"No space left on device; set WORKBENCH_CACHE"):
        small(corpus)
    assert list(cache.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WorkbenchError, match=r"file/cache/tokens: Not a directory; set WORKBENCH_CACHE"):
        small(corpus)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for name, folder in (
        ("", "/home/somebody/.cache/workbench"),
        ("XDG_CACHE_HOME", "/own/workbench"),
        ("WORKBENCH_CACHE", "/own"),
    ):
        monkeypatch.delenv("WORKBENCH_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if name:
            monkeypatch.setenv(name, "/own")
        assert cache_folder() == Path(folder)


@pytest.mark.parametrize(
    ("length", "fraction", "advice"),
    [
        (100_000, 0.2, "add text"),
        (600, 0.01, r"raise data\.validation_fraction \(to 0\.138\)"),
        (600, 0.99, r"lower data\.validation_fraction"),
    ],
)
def test_too_little_text_is_refused_with_what_is_needed(
    cache: Path, corpus: Path, length: int, fraction: float, advice: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"data\.sequence_length = {length} .*{advice}"):
        small(corpus, sequence_length=length, validation_fraction=fraction)


def test_one_sequence_on_either_side_is_enough(cache: Path, corpus: Path) -> None:
    data = small(corpus)
    needed = min(len(data.train), len(data.validation))
    small(corpus, sequence_length=needed)
    with pytest.raises(ConfigurationError, match="too little text"):
        small(corpus, sequence_length=needed + 1)


def test_memory_stays_flat_however_large_the_text_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: 2)
    path = tmp_path / "large.txt"
    path.write_bytes(b"0123456789abcde\n" * (2 << 20))  # 32 MiB
    tracemalloc.start()
    try:
        data = small(path, validation_fraction=0.1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
    assert len(data.train) + len(data.validation) == 32 << 20
    assert bytes(data.validation[-16:].tolist()) == b"0123456789abcde\n"
