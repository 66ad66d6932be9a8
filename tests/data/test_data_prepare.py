"""Token files: right, cached, whole and flat in memory."""

import gzip
import json
import os
import shutil
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.config import DataConfig
from workbench.data import assembly, parts
from workbench.data import prepare as module
from workbench.data.encoding import PartEncoder
from workbench.data.material import find_material
from workbench.data.parts import Part, TextPart
from workbench.data.prepare import Progress, TokenData, prepare
from workbench.data.tokenizers import load_tokenizer
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


def small(corpus: Path, progress: Progress | None = None, **changes: object) -> TokenData:
    options: dict[str, object] = {"source": str(corpus), "validation_fraction": 0.2, "sequence_length": 8}
    return prepare(
        DataConfig.model_construct(**{**DataConfig().model_dump(), **options, **changes}), progress=progress
    )


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


@pytest.fixture
def large_files(tmp_path: Path) -> Path:
    """Three documents, of which names alone would hold out the largest."""
    folder = tmp_path / "large"
    folder.mkdir()
    for name, words in (("a.txt", 90), ("b.txt", 3000), ("c.txt", 1500)):
        (folder / name).write_text("".join(f"{name[0]}{number} " for number in range(words)))
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_few_large_files_one_is_cut_so_that_the_fraction_is_held_out(
    cache: Path, large_files: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [path.read_bytes() for path in sorted(large_files.iterdir())]
    if packed:  # whose size is known only when it is read
        (large_files / "b.txt.gz").write_bytes(gzip.compress(texts[1]))
        (large_files / "b.txt").unlink()
    found = []
    for block, part in ((1 << 22, 1 << 18), (997, 1 << 12), (64, 1 << 12)):
        monkeypatch.setattr(assembly, "_BLOCK_TOKENS", block)
        monkeypatch.setattr(parts, "part_bytes", lambda total, part=part: part)
        monkeypatch.setattr(parts, "WHOLE", 1 << 10)
        shutil.rmtree(cache, ignore_errors=True)
        found.append(small(large_files, validation_fraction=0.05))
    data = found[0]
    train, (validation,) = read(data.train), read(data.validation)
    (cut,) = [index for index, text in enumerate(texts) if text not in train]
    assert train[cut] + validation == texts[cut]
    assert train[:cut] + train[cut + 1 :] == texts[:cut] + texts[cut + 1 :]
    assert abs(len(validation) - 0.05 * sum(map(len, texts))) < 3
    assert (data.documents, data.warnings) == (3, ())
    ends = np.cumsum([0, *(len(text) + 1 for text in train[:-1])]).tolist()
    assert (data.train_documents.tolist(), data.validation_documents.tolist()) == (ends, [0])
    assert {other.fingerprint for other in found} == {data.fingerprint}


def test_a_run_that_was_begun_with_whole_documents_goes_on_with_them(cache: Path, large_files: Path) -> None:
    material = find_material(DataConfig(source=str(large_files), validation_fraction=0.05))
    older, _ = module._tokens(
        module._Work(material.config, material, load_tokenizer("bytes"), None, whole=True)
    )
    assert len(read(older.validation)) + len(read(older.train)) == 3
    cut = small(large_files, validation_fraction=0.05, sequence_length=1024)
    assert cut.fingerprint != older.fingerprint
    for begun_with, expected in ((older.fingerprint, older), (cut.fingerprint, cut), ("other text", cut)):
        found = prepare(material.config, begun_with=begun_with)
        assert found.fingerprint == expected.fingerprint
        assert ["goes on so; a new run cuts" in told for told in found.warnings] == [True] * (
            expected is older
        )


def test_what_an_earlier_version_left_in_the_cache_is_used_where_nothing_would_be_cut(
    cache: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    material = find_material(DataConfig(source=str(corpus), validation_fraction=0.2, sequence_length=8))
    module._tokens(
        module._Work(material.config, material, load_tokenizer("bytes"), None, whole=True), begun=True
    )
    calls = made(monkeypatch)
    small(corpus)
    assert not calls


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
        "train.documents",
        "train.tokens",
        "validation.documents",
        "validation.tokens",
    ]
    header = json.loads((folder / "tokens.json").read_text())
    assert (header["dtype"], header["byte_order"], header["tokenizer"]) == ("uint16", "little", "bytes")
    assert header["version"] == 2
    starts = np.fromfile(folder / "train.documents", "<u8").tolist()
    ends = (first.train == 256).nonzero().flatten().tolist()
    assert starts == [0, *(end + 1 for end in ends)] == first.train_documents.tolist()
    assert first.train_counted is None
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


def test_the_tokens_and_the_fingerprint_of_bytes_are_these_forever(cache: Path, corpus: Path) -> None:
    """Runs that were begun with earlier versions go on with the same text."""
    data = small(corpus)
    assert data.fingerprint == "fab33c9a88a26a4092fd6a0b7f6d9aa7"
    assert (len(data.train), len(data.validation)) == (3756, 617)


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


def test_a_preparation_that_breaks_off_goes_on_from_the_parts_that_are_done(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "large.txt"
    text.write_text("".join(f"line {number}\n" for number in range(200_000)))
    expected = small(text, sequence_length=16)
    shutil.rmtree(cache)
    monkeypatch.setattr(module, "usable_cpus", lambda: 1)

    def interrupt(what: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(text, interrupt)
    (left,) = cache.iterdir()
    done = sorted(path.name for path in left.glob("*.json"))
    assert len(done) > 2
    encoded: list[Part] = []
    original = PartEncoder.encode
    monkeypatch.setattr(
        PartEncoder, "encode", lambda self, part, writer: (encoded.append(part), original(self, part, writer))
    )
    damaged = left / done[0].replace("json", "tokens")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    seen: list[int] = []
    data = small(text, lambda what, done, total: seen.append(done))
    assert torch.equal(data.train, expected.train)
    assert torch.equal(data.validation, expected.validation)
    assert data.fingerprint == expected.fingerprint
    assert 0 < sum(part.size for part in encoded) < text.stat().st_size * 0.6
    assert any(isinstance(part, TextPart) and part.spans[0].begin == 0 for part in encoded)  # the damaged one
    assert [path.name for path in cache.iterdir()] == [
        folder.name for folder in cache.iterdir() if folder.name[0] != "."
    ]


def test_a_preparation_that_did_nothing_yet_leaves_nothing(cache: Path, corpus: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(corpus, interrupt)
    for left in cache.iterdir():
        assert any(left.glob("*.json"))


def test_what_a_killed_process_left_is_swept_away_after_a_day(cache: Path, corpus: Path) -> None:
    small(corpus)
    (folder,) = cache.iterdir()
    for name in ("old", "young"):
        (cache / f".{folder.name}-{name}").mkdir()
    (cache / ".another-parts").mkdir()
    (cache / ".third-parts").mkdir()
    for name in (f"{folder.name}-old", "another-parts"):
        os.utime(cache / f".{name}", (0, 0))
    (folder / "tokens.json").unlink()
    small(corpus)
    assert {path.name for path in cache.iterdir()} == {folder.name, f".{folder.name}-young", ".third-parts"}


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
    small(corpus, lambda what, done, total: seen.append((done, total)))
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
