"""What a configuration names and is not there is told at once, with its line; what may be elsewhere is not doubted."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.cli import main
from workbench.config import parse_config
from workbench.config.references import REFERENCES, causal_models, not_checked
from workbench.errors import ConfigurationError

HUB = '[model]\npretrained = "Qwen/Qwen3-0.6B"\n[data]\ntokenizer = "gpt2"\nsource = "hub:owner/name"\n'


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "my.toml", overrides, look_for=REFERENCES)
    return str(caught.value).splitlines()


def test_all_that_is_not_there_is_told_at_once_each_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    text = f"""[model]
architecture = "gtp2"
[data]
source = ["stdlib", "{tmp_path}/text"]
tokenizer = "./nowhere"
[train]
stepz = 3
[offload]
state = "disk"
disk_path = "{tmp_path}/disk"
"""
    assert complaints(text) == [
        'my.toml:2: model.architecture = "gtp2": transformers has no causal language model of this name; '
        'did you mean "gpt2"?',
        f'my.toml:4: data.source[1] = "{tmp_path}/text": there is no such file or folder; '
        f'did you mean "{tmp_path}/texts"?',
        'my.toml:5: data.tokenizer = "./nowhere": there is no such folder; name a folder, a hub id, "bytes" or '
        '"bpe:32000"',
        'my.toml:7: train.stepz = 3: there is no such key in [train]; did you mean "steps"?',
        f'my.toml:10: offload.disk_path = "{tmp_path}/disk": there is no such folder; make it, on a fast local disk',
    ]


def test_sizes_that_do_not_suit_tokens_and_sequences_are_reported_together() -> None:
    text = """[model]
architecture = "gpt2"
[model.config]
vocab_size = 256
n_positions = 128
"""
    assert complaints(text, "data.sequence_length=129") == [
        "my.toml:4: model.config.vocab_size = 256: the tokenizer has 257 tokens; give the model at least as "
        "many, or choose another data.tokenizer",
        "--set: data.sequence_length = 129: the model has 128 positions; lower it to 128, or give model.config "
        "more positions",
    ]


def test_an_id_of_the_hub_is_no_missing_folder_and_said_not_to_be_looked_at() -> None:
    config = parse_config(HUB, "my.toml", look_for=REFERENCES)
    said = "; ".join(not_checked(config))
    assert all(f'"{name}"' in said for name in ("Qwen/Qwen3-0.6B", "gpt2", "hub:owner/name"))


@pytest.mark.parametrize("name", ["./tok", "/nowhere/model", "~/no-such-model", "a/b/c", "no such model"])
def test_what_can_be_no_id_of_the_hub_must_be_there(name: str) -> None:
    (line,) = complaints(HUB, f"model.pretrained={name}")
    assert line.startswith("--set: model.pretrained = ")


def test_config_check_says_what_is_odd_and_what_it_did_not_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[model]\narchitecture = "gpt2"\n')
    assert main(["config", "check", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}: ok\n"
    assert "not checked: " in printed.err


def test_the_architectures_are_those_of_transformers_own_table() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert causal_models() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("bpe-2000", "bpe:2000"),
        ("bpe2000", "bpe:2000"),
        ("BPE:2_000", "bpe:2000"),
        ("bpe 32k", "bpe:32000"),
        ("bbpe-2,000", "bpe:2000"),
        ("bpe", "bpe:32000"),
        ("bpe-3", "bpe:32000"),
        ("byte", "bytes"),
        ("Bytes", "bytes"),
        ("byts", "bytes"),
    ],
)
def test_what_is_nearly_a_tokenizer_made_here_is_not_looked_for_on_the_hub(written: str, meant: str) -> None:
    [complaint] = complaints('[model]\narchitecture = "gpt2"\n', f"data.tokenizer={written}")
    assert complaint.endswith(f'nor a folder; did you mean "{meant}"?')


@pytest.mark.parametrize(
    "name",
    ["gpt2", "t5-small", "bert-base-uncased", "byt5-small", "distilgpt2", "google/byt5-small", "me/bpe-2000"],
)
def test_what_may_be_a_tokenizer_of_the_hub_is_left_to_it(name: str) -> None:
    parse_config(HUB, "my.toml", [f"data.tokenizer={name}"], look_for=REFERENCES)


def test_a_folder_may_be_called_as_one_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bpe-2000").mkdir()
    monkeypatch.chdir(tmp_path)
    parse_config(HUB, "my.toml", ["data.tokenizer=bpe-2000"], look_for=REFERENCES)
