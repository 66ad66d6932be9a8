"""Sources that are more than text: JSON lines, arrays, archives, parquet, hub datasets and ready tokens."""

import bz2
import gzip
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import chat_tokenizers as templates
import numpy as np
import pytest
import torch
from chat_tokenizers import chat_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workbench.config import DataConfig
from workbench.data import bpe_training, tokenizers, tokenizing
from workbench.data import prepare as module
from workbench.data.prepare import TokenData, prepare
from workbench.data.records import RecordEncoder
from workbench.data.sources import reading, tables
from workbench.data.tokenizers import load_tokenizer
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("WORKBENCH_CACHE", str(folder))
    monkeypatch.setattr(hub, "why_unreachable", lambda: "")
    return folder / "tokens"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    chat_tokenizer(templates.CHATML).backend.save_pretrained(str(folder))
    return str(folder)


def data(source: Any, tokenizer: str = "bytes", **options: Any) -> TokenData:
    defaults = {"validation_fraction": 0.2, "sequence_length": 2}
    sources = [str(one) for one in source] if isinstance(source, list) else str(source)
    return prepare(
        DataConfig.model_validate({"source": sources, "tokenizer": tokenizer, **defaults, **options})
    )


def documents(found: TokenData, side: str) -> list[list[int]]:
    """The documents of a side, as ids."""
    ids = getattr(found, side).tolist()
    starts = getattr(found, f"{side}_documents").tolist()
    assert starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < len(ids)
    return [ids[start:stop] for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True)]


def texts(found: TokenData) -> list[str]:
    """Every document as text, training first, without ends of text."""
    end = found.tokenizer.end_of_text
    both = [*documents(found, "train"), *documents(found, "validation")]
    return [found.tokenizer.decode([i for i in ids if i != end]) for ids in both]


def rows(count: int) -> list[dict[str, str]]:
    return [{"text": f"record {index}: " + "äö" * (index % 7), "more": "of this"} for index in range(count)]


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def word_tokenizer(folder: Path, words: list[str]) -> str:
    """Save a tokenizer whose id 0 ends a text and whose other ids are these words; return its folder."""
    vocabulary = {word: index for index, word in enumerate(["<end>", *words])}
    rust = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<end>").save_pretrained(str(folder))
    return str(folder)


# What is read


def test_each_json_line_is_a_document_that_ends_with_the_end_of_text(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", rows(50))
    found = data(path)
    assert sorted(texts(found)) == sorted(row["text"] for row in rows(50))
    assert all(ids[-1] == 256 for side in ("train", "validation") for ids in documents(found, side))
    assert found.documents == 50
    assert 3 < len(documents(found, "validation")) < 20
    assert found.train_loss_mask is None


@pytest.mark.parametrize(
    "form",
    ["lines", "crlf", "blank lines", "mark", "no last end", "array", "pretty array", "gz", "bz2", "xz"],
)
def test_the_same_records_in_any_form_give_the_same_documents(tmp_path: Path, form: str) -> None:
    records = rows(40)
    lines = [json.dumps(record).encode() for record in records]
    plain = b"\n".join(lines) + b"\n"
    name, content = {
        "lines": ("a.ndjson", plain),
        "crlf": ("a.json", plain.replace(b"\n", b"\r\n")),
        "blank lines": ("a.jsonl", b"\n\n" + plain.replace(b"\n", b"\n \n")),
        "mark": ("a.jsonl", b"\xef\xbb\xbf" + plain),
        "no last end": ("a.jsonl", plain.rstrip()),
        "array": ("a.json", json.dumps(records).encode()),
        "pretty array": ("a.json", b"\xef\xbb\xbf\n" + json.dumps(records, indent=2).encode() + b"\n"),
        "gz": ("a.jsonl.gz", gzip.compress(plain)),
        "bz2": ("a.json.bz2", bz2.compress(json.dumps(records).encode())),
        "xz": ("a.jsonl.xz", lzma.compress(plain)),
    }[form]
    (tmp_path / name).write_bytes(content)
    assert sorted(texts(data(tmp_path / name))) == sorted(row["text"] for row in records)
    assert sorted(texts(data(tmp_path, sequence_length=4))) == sorted(row["text"] for row in records)


def test_chats_and_prompts_have_a_loss_mask_and_texts_beside_them_are_all_in_the_loss(
    tmp_path: Path, tokenizer: str
) -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good bye"}]
    records = [
        {"messages": chat},
        {"prompt": "who asks", "completion": " nobody"},
        {"text": "a text"},
        {"text": ""},
    ]
    path = write_lines(tmp_path / "a.jsonl", records * 4)
    (tmp_path / "b.txt").write_text("a file of text")
    found = data([path, tmp_path / "b.txt"], tokenizer)
    encoder = RecordEncoder(load_tokenizer(tokenizer), text_field="text", loss_on="answers")
    wanted = {tuple(ids): marks for ids, marks in map(encoder.encode, records)}
    for side in ("train", "validation"):
        mask = getattr(found, f"{side}_loss_mask")
        assert mask.dtype == torch.uint8 and len(mask) == len(getattr(found, side))
        at = 0
        for ids in documents(found, side):
            here = mask[at : at + len(ids)].bool().tolist()
            assert here == (wanted.get(tuple(ids)) or [True] * len(ids))
            at += len(ids)
    everything = data([path, tmp_path / "b.txt"], tokenizer, loss_on="everything")
    assert everything.train_loss_mask is None
    assert everything.fingerprint != found.fingerprint


def test_marked_data_need_not_fill_a_sequence(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", [{"prompt": "1+1=", "completion": "2"}, {"prompt": "a", "completion": "b"}]
    )
    assert len(documents(data(path, sequence_length=1024), "validation")) == 1
    with pytest.raises(ConfigurationError, match="too little text"):
        data(path, sequence_length=1024, loss_on="everything")


def test_a_parquet_table_gives_the_records_of_its_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows(60)), tmp_path / "a.parquet", row_group_size=17)
    found = data(tmp_path / "a.parquet")
    assert sorted(texts(found)) == sorted(row["text"] for row in rows(60))
    chats = [
        {"messages": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": "x"}]}
        for n in range(9)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "chats.parquet")
    with pytest.raises(
        ConfigurationError, match=r"chats\.parquet: row 1: a chat needs a tokenizer with a chat template"
    ):
        data(tmp_path / "chats.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigurationError, match=r"a\.parquet cannot be read as parquet"):
        data(tmp_path / "a.parquet")


def test_a_dataset_of_the_hub_gives_the_records_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_lines(folder / "train.jsonl", rows(60))
    write_lines(folder / "test.jsonl", [{"text": "held out"}] * 9)
    original = datasets.load_dataset, datasets.load_dataset_builder
    asked: list[tuple[Any, ...]] = []

    def here(name: str, subset: str | None = None, **options: Any) -> Any:
        asked.append((name, subset, options))
        return original[0](str(folder), subset, cache_dir=str(tmp_path / "hf"), **options)

    monkeypatch.setattr(datasets, "load_dataset", here)
    monkeypatch.setattr(
        datasets,
        "load_dataset_builder",
        lambda name, subset: original[1](str(folder), subset, cache_dir=str(tmp_path / "hf")),
    )
    found = data("hub:owner/name")
    assert sorted(texts(found)) == sorted(row["text"] for row in rows(60))
    assert asked == [("owner/name", None, {"split": "train"})]
    assert sorted(texts(data("hub:owner/name", split="test"))) == ["held out"] * 9
    with pytest.raises(
        ConfigurationError, match=r'hub:owner/name": data\.subset = "", data\.split = "dev": .*dev'
    ):
        data("hub:owner/name", split="dev")
    with pytest.raises(ConfigurationError, match=r"hub:owner/name: row 1: a record with"):
        data("hub:owner/name", text_field="body")


def test_a_dataset_in_pickles_or_programs_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.tar").write_bytes(bytes(1024))
    with pytest.raises(ConfigurationError, match="kind 'webdataset', which may hold programs or pickles"):
        tables.open_hub(str(tmp_path), "", "train")


def test_a_dataset_that_cannot_be_had_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("Couldn't reach the Hugging Face Hub for dataset 'owner/name'")

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(
        WorkbenchError, match=r'"hub:owner/name": it is not in the cache .*hub cannot be reached'
    ):
        data("hub:owner/name")


@pytest.mark.parametrize(("library", "name"), [("pyarrow", "a.parquet"), ("datasets", "hub:owner/name")])
def test_a_table_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, name: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, library, None)
    source = name if name.startswith("hub:") else tmp_path / name
    with pytest.raises(ConfigurationError, match=r"extra \[data\]: pip install 'workbench\[data\]'"):
        data(source)


def test_ready_tokens_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_TOKENS", 10)
    ids = np.array([*range(100, 137), 256, *range(50), 256, *range(9)], np.uint16)
    np.save(tmp_path / "a.npy", ids)
    found = data(tmp_path / "a.npy", validation_fraction=0.1)
    assert documents(found, "train") == [[*range(100, 137), 256], [*range(50), 256]]
    assert documents(found, "validation") == [[*range(9), 256]]
    np.save(tmp_path / "a.npy", np.arange(200, dtype=np.uint32) % 256)
    found = data(tmp_path / "a.npy", validation_fraction=0.1)
    assert found.train.tolist() == [*range(180), 256]
    assert found.validation.tolist() == [*(n % 256 for n in range(180, 200)), 256]
    ids[70] = 257
    np.save(tmp_path / "a.npy", ids)
    with pytest.raises(
        ConfigurationError, match=r"token 70 is 257, and the vocabulary of .*\"bytes\" has 257"
    ):
        data(tmp_path / "a.npy")


def test_a_prepared_folder_is_a_source_of_its_own(tmp_path: Path, cache: Path, tokenizer: str) -> None:
    expected = data(write_lines(tmp_path / "a.jsonl", rows(50)), tokenizer)
    (folder,) = cache.iterdir()
    folder.rename(tmp_path / "prepared")
    found = data(tmp_path / "prepared", tokenizer, validation_fraction=0.01)
    assert found.fingerprint == expected.fingerprint
    assert torch.equal(found.train, expected.train)
    with pytest.raises(
        ConfigurationError, match=r"is not the tokenizer that the tokens of .* were made with"
    ):
        data(tmp_path / "prepared")
    with pytest.raises(ConfigurationError, match="must be the only source"):
        data([tmp_path / "prepared", tmp_path / "a.jsonl"], tokenizer)
    (tmp_path / "prepared" / "train.documents").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"do not match its tokens\.json"):
        data(tmp_path / "prepared", tokenizer)


def test_a_vocabulary_above_65536_is_held_in_32_bits(tmp_path: Path) -> None:
    spec = word_tokenizer(tmp_path / "large", [f"word{n}" for n in range(66_000)])
    path = write_lines(tmp_path / "a.jsonl", [{"text": f"word{65_990 + index} word1"} for index in range(9)])
    found = data(path, spec)
    assert found.train.dtype == torch.uint32
    assert int(found.train.to(torch.int64).max()) > 1 << 16
    assert sorted(texts(found)) == [f"word{65_990 + index} word1" for index in range(9)]


def test_all_kinds_stand_beside_each_other(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", rows(10))
    (tmp_path / "b.txt").write_text("a text")
    np.save(tmp_path / "c.npy", np.array([65, 66, 256, 67, 68, 256, 69], np.uint16))
    np.save(tmp_path / "weights.npy", np.zeros((3, 3)))
    (tmp_path / "package.json").write_text('{\n "name": "a package", "text": 3\n}')
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(json.dumps(rows(20)[10:]).encode()))
    (tmp_path / "e.tar.gz").write_bytes(gzip.compress(bytes(600)))
    found = texts(data(tmp_path))
    expected = [row["text"] for row in rows(20)] + [
        "a text",
        '{\n "name": "a package", "text": 3\n}',
        "AB",
        "CD",
        "E",
    ]
    assert sorted(found) == sorted(expected)


# Which side


def test_a_records_side_follows_from_what_it_says_alone(tmp_path: Path) -> None:
    records = rows(100)

    def held(some: list[dict[str, str]]) -> set[str]:
        found = data(write_lines(tmp_path / "a.jsonl", some))
        end = found.tokenizer.end_of_text
        return {
            found.tokenizer.decode([i for i in ids if i != end]) for ids in documents(found, "validation")
        }

    first = held(records[:60])
    assert held(list(reversed(records[:60]))) == first
    assert held(records) & {row["text"] for row in records[:60]} == first


def test_a_single_record_is_cut_unless_it_is_a_chat(tmp_path: Path) -> None:
    found = data(write_lines(tmp_path / "a.jsonl", [{"text": "0123456789"}]))
    assert found.tokenizer.decode(found.train.tolist()) + found.tokenizer.decode(
        found.validation.tolist()
    ) == ("0123456789<|endoftext|>")
    write_lines(tmp_path / "a.jsonl", [{"prompt": "a", "completion": "b"}])
    with pytest.raises(ConfigurationError, match="one record only"):
        data(tmp_path / "a.jsonl")


def test_prompts_are_never_cut_but_a_text_beside_them_is(tmp_path: Path) -> None:
    prompts = [{"prompt": f"{index}", "completion": f"{index} and more " * 30} for index in range(2)]
    write_lines(tmp_path / "a.jsonl", prompts)
    alone = data(tmp_path, validation_fraction=0.05)
    assert (len(documents(alone, "train")), len(documents(alone, "validation"))) == (1, 1)
    assert "prompts, chats and ready tokens are not cut" in alone.warnings[0]
    words = "".join(f"word{index} " for index in range(1000))
    (tmp_path / "b.txt").write_text(words)
    (tmp_path / "c.txt").write_text(words.upper())
    mixed = data(tmp_path, validation_fraction=0.05)
    assert mixed.warnings == ()
    total = len(mixed.train) + len(mixed.validation)
    assert abs(len(mixed.validation) - 0.05 * total) < 3
    assert mixed.train_loss_mask is not None
    assert len(mixed.train_loss_mask) == len(mixed.train)
    found = texts(mixed)
    assert len(found) == 5
    assert {p["prompt"] + p["completion"] for p in prompts} < set(found)
    assert {words, words.upper()} < {a + b for a in found for b in ("", *found)}


# What is wrong


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "not JSON: "),
        ("plain words", "not JSON: "),
        ('"a string"', "expected a JSON object with fields, not a string"),
        ('{"prompt": "a"}', r'a record with "prompt" has .*"completion" is missing'),
        ('{"body": "a"}', r'a record with "body" has .*data\.text_field = "body"'),
        ('{"text": 3}', '"text" is a number: expected a string'),
        ('{"text": "\xe4"}', "byte 11 of the line is not UTF-8"),
        ("[" * 100_000, "not JSON"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "a chat needs a tokenizer with a chat template"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(
    tmp_path: Path, line: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [json.dumps(row) for row in rows(30)]
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join([*before, "", line, *before]).encode("latin-1"))
    for first in (100, 0):
        monkeypatch.setattr(tokenizing, "FIRST_RECORDS", first)
        with pytest.raises(ConfigurationError, match=rf"data\.source: .*a\.jsonl:32: {reason}"):
            data(path)


@pytest.mark.parametrize("spec", ["bytes", "bpe:300"])
def test_wrong_records_at_the_beginning_of_any_file_are_told_together_before_anything_is_made(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("nothing is to be made yet")

    monkeypatch.setattr(tokenizing.ChunkEncoder, "__call__", refuse)
    monkeypatch.setattr(bpe_training, "_train", refuse)
    good = json.dumps(rows(1)[0])
    (tmp_path / "a.jsonl").write_text("\n".join([good] * 90 + ["{", '{"text": 3}', good]))
    (tmp_path / "b.json").write_text(
        json.dumps([*rows(2), 7, {"body": "a"}, {"body": "b"}, *[{"text": []}] * 9])
    )
    write_lines(tmp_path / "c.jsonl", rows(200))
    with pytest.raises(ConfigurationError) as error:
        data(tmp_path, spec)
    body = 'a record with "body" has none of the known shapes; the nearest are "text" (set'
    assert str(error.value).splitlines() == [
        "data.source has wrong records:",
        f"  {tmp_path}/a.jsonl:91: not JSON: Expecting property name enclosed in double quotes at character 2",
        f'  {tmp_path}/a.jsonl:92: "text" is a number: expected a string',
        f"  {tmp_path}/b.json: record 3: expected a JSON object with fields, not a number",
        f'  {tmp_path}/b.json: record 4: {body} data.text_field = "body"); "prompt" with "completion"; "messages"',
        f"  {tmp_path}/b.json: record 5: the same",
        "  and 9 more so far",
    ]


def test_wrong_records_met_later_are_told_with_those_that_follow(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = rows(5000)
    for index in range(3000, 3008):
        records[index] = {"text": index}
    with pytest.raises(ConfigurationError) as error:
        data(write_lines(tmp_path / "a.jsonl", records))
    lines = str(error.value).splitlines()
    assert lines[1] == f'  {tmp_path}/a.jsonl:3001: "text" is a number: expected a string'
    assert lines[5:] == [f"  {tmp_path}/a.jsonl:3005: the same", "  and 3 more so far"]


def test_a_wrong_record_of_an_array_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, reason in {
        json.dumps([*rows(3), {"body": 1}]): 'record 4: a record with "body"',
        json.dumps([*rows(3), "text"]): "record 4: expected a JSON object with fields, not a string",
        json.dumps(rows(3))[:-1] + " {}]": "record 4: not JSON: expected a comma",
        json.dumps(rows(3))[:-1]: "record 4: not JSON: expected a comma or the end of the array",
        json.dumps(rows(3))[:-5]: "record 3: not JSON",
    }.items():
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=rf"a\.json: {reason}"):
            data(path)


def test_files_that_are_not_what_they_are_called_are_refused_with_the_reason(tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros(5))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    for name, content, reason in (
        ("a.json", b'{\n"a": 1}', "holds no records: expected a JSON object on each line"),
        ("a.parquet", b"a,b\n1,2\n", "is not a parquet file"),
        ("a.npy", b"words", "is not a NumPy array"),
        ("floats.npy", None, r"the shape \[5\] and the type float64: expected token ids"),
        ("objects.npy", None, "is not a NumPy array"),
        ("a.txt.gz", b"not compressed", r"is not a complete \.gz file"),
        ("b.txt.gz", gzip.compress(bytes(100)), "not a text file"),
        ("a.jsonl", b"\n \n", "has no text: its records and files are empty"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=reason):
            data(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.xz"])
def test_a_truncated_archive_is_named(tmp_path: Path, name: str) -> None:
    content = "".join(json.dumps({"text": f"{index * 7919}"}) + "\n" for index in range(6000)).encode()
    packed = gzip.compress(content) if name.endswith("gz") else lzma.compress(content)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigurationError, match=rf"{name} cannot be read: "):
        data(tmp_path / name)


def test_text_that_is_not_utf_8_is_said_once_and_again_from_the_cache(tmp_path: Path, tokenizer: str) -> None:
    for index in range(4):
        (tmp_path / f"{index}.txt").write_bytes(
            b"good words and " + (b"\xff\xfe bad" if index == 2 else b"more")
        )
    for _ in range(2):
        found = data(tmp_path, tokenizer)
        assert [w for w in found.warnings if "UTF-8" in w] == [
            f"{tmp_path}/2.txt is not all UTF-8: U+FFFD stands for the rest"
        ]
    assert data(tmp_path).warnings == ()


def test_a_line_that_never_ends_is_refused_before_memory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST", 1000)
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "x" * 2000}])
    with pytest.raises(ConfigurationError, match=r"a\.jsonl:2: the line has more than"):
        data(tmp_path / "a.jsonl")


# How it is done


def test_any_number_of_threads_and_any_size_of_chunks_give_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    write_lines(tmp_path / "a.jsonl", [*rows(300), {"prompt": "a", "completion": "b"}, *rows(400)[300:]])
    (tmp_path / "b.txt").write_text("".join(f"{'äö€🎉' * (n % 5)} line {n} and so on\n" for n in range(3000)))
    np.save(tmp_path / "c.npy", np.arange(5000, dtype=np.uint16) % 300)
    monkeypatch.setattr(reading, "_TOKENS", 700)
    for text_bytes in (1 << 20, 4001):
        found = set()
        monkeypatch.setattr(tokenizers, "BLOCK", text_bytes)
        for threads, chunk, read in ((1, 1 << 18, 1 << 20), (2, 5000, 1009), (7, 100, 64)):
            monkeypatch.setattr(module, "usable_cpus", lambda threads=threads: threads)
            monkeypatch.setattr(reading, "_CHUNK_BYTES", chunk)
            monkeypatch.setattr(reading, "_READ_BYTES", read)
            monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / f"cache-{text_bytes}-{threads}"))
            result = data([tmp_path / "a.jsonl", tmp_path / "b.txt", tmp_path / "c.npy"], tokenizer)
            assert result.train_documents is not None and result.validation_documents is not None
            starts = (*result.train_documents.tolist(), *result.validation_documents.tolist())
            found.add((result.fingerprint, result.documents, starts))
        assert len(found) == 1


def test_blocks_without_a_token_neither_end_nor_begin_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = word_tokenizer(tmp_path / "words", ["one", "two", "three"])
    (tmp_path / "texts").mkdir()
    for name, text in (("a", "one"), ("b", f"{' ' * 250}two{' ' * 250}"), ("c", "three")):
        (tmp_path / "texts" / f"{name}.txt").write_text(" ".join([text] * 9))
    monkeypatch.setattr(tokenizers, "BLOCK", 100)
    for chunk in (1, 1 << 18):
        monkeypatch.setattr(reading, "_CHUNK_BYTES", chunk)
        monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / f"cache-{chunk}"))
        found = data(tmp_path / "texts", spec)
        ids = [*found.train.tolist(), *found.validation.tolist()]
        assert [ids.count(word) for word in (1, 2, 3)] == [9, 9, 9]
        assert found.documents == 3


def test_progress_of_every_kind_reaches_its_whole(tmp_path: Path, tokenizer: str) -> None:
    write_lines(tmp_path / "a.jsonl", rows(200))
    (tmp_path / "b.json").write_text(json.dumps(rows(90)))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"text " * 1000))
    np.save(tmp_path / "d.npy", np.ones(500, np.uint16))
    seen: list[tuple[str, int, int]] = []
    config = DataConfig(source=str(tmp_path), tokenizer=tokenizer, sequence_length=2)
    prepare(config, progress=lambda *call: seen.append(call))
    assert {what for what, _, _ in seen} == {"tokenizing"}
    assert seen[-1][1:] == (sum(path.stat().st_size for path in tmp_path.iterdir()),) * 2
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_an_array_is_read_a_record_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_READ_BYTES", 7)
    records = [{"a": "ä" * n, "b": [1, {"c": "]},"}]} for n in range(30)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(records, ensure_ascii=False, indent=1))
    with path.open("rb") as file:
        found = reading.array_items(file)
        assert next(found)[1] == records[0]
        assert file.tell() < 200
        assert [value for _, value in found] == records[1:]
