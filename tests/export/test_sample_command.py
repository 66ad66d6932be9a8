"""`workbench sample`: text of a checkpoint's model on stdout, all else on stderr; any checkpoint, adapters too."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.cli import main
from workbench.export import generate
from workbench.runs import RunDirectory

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
Sample = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sample(capsys: pytest.CaptureFixture[str]) -> Sample:
    """(exit code, stdout, stderr) of `workbench sample` of a run on the CPU."""

    def sampled(run: RunDirectory, *options: str) -> tuple[int, str, str]:
        code = main(["sample", str(run.path), "--device", "cpu", "--tokens", "12", *options])
        return code, *capsys.readouterr()

    return sampled


def ids_by_hand(folder: Path, prompt: str, tokens: int) -> str:
    """The likeliest continuation, each token from a forward of the whole text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    with torch.no_grad():
        for _ in range(tokens):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1, : len(tokenizer)]
            ids.append(int(logits.argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
    return prompt + tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_the_likeliest_text_is_what_the_model_alone_gives(whole: RunDirectory, sample: Sample) -> None:
    code, out, err = sample(whole, "--temperature", "0", "--prompt", "one two")
    assert code == 0 and "the model of step 4" in err
    assert out == ids_by_hand(whole.checkpoints / "step-00000004", "one two", 12) + "\n"


def test_a_seed_gives_the_same_text_and_another_another(whole: RunDirectory, sample: Sample) -> None:
    texts = [
        sample(whole, "--temperature", "2", "--seed", seed, "--prompt", "on")[1] for seed in ("1", "1", "2")
    ]
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("on") for text in texts)


def test_an_adapter_speaks_on_its_base(adapter: RunDirectory, base: Path, sample: Sample) -> None:
    code, out, _ = sample(adapter, "--temperature", "0", "--prompt", "one two")
    assert code == 0
    assert out == ids_by_hand(adapter.checkpoints / "step-00000004", "one two", 12) + "\n"


def test_a_checkpoint_is_named_by_its_step_and_the_run_s_own_prompt_is_taken(
    whole: RunDirectory, sample: Sample
) -> None:
    code, out, err = sample(whole, "--step", "2", "--temperature", "0")
    assert code == 0 and out.startswith("one") and "the model of step 2" in err
    code, out, err = sample(whole, "--step", "3")
    assert code == 2 and not out and "there are those of step 4, 2" in err


def test_a_prompt_comes_from_stdin_and_an_empty_one_begins_at_the_end_of_a_text(
    whole: RunDirectory, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("three"))
    assert sample(whole, "--prompt", "-")[1].startswith("three")
    assert sample(whole, "--prompt", "")[0] == 0


def test_a_broken_checkpoint_gives_way_to_the_one_before_with_a_warning(
    broken: RunDirectory, sample: Sample
) -> None:
    code, out, err = sample(broken, "--prompt", "one")
    assert code == 0 and out.startswith("one")
    assert "warning: checkpoint step-00000004 is skipped" in err and "the model of step 2" in err
    shutil.rmtree(broken.checkpoints / "step-00000002")
    code, out, err = sample(broken, "--prompt", "one")
    assert code == 1 and not out and "no checkpoint that is undamaged" in err and "Traceback" not in err


def test_a_chat_goes_through_the_tokenizer_s_template_and_only_the_answer_is_printed(
    whole: RunDirectory, tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = sample(whole, "--chat", "--prompt", "one")
    assert code == 2 and not out and "no chat template" in err
    run = RunDirectory(tmp_path / whole.name)
    shutil.copytree(whole.path, run.path)
    path = run.checkpoints / "step-00000004" / "tokenizer_config.json"
    manifest = path.parent / "state" / "manifest.json"
    described = {**json.loads(path.read_text()), "chat_template": TEMPLATE}
    path.write_text(json.dumps(described))
    given: list[int] = []
    fitted = generate._fitted

    def noted(model: Any, ids: torch.Tensor, *rest: Any) -> Any:
        given[:] = ids[0].tolist()
        return fitted(model, ids, *rest)

    monkeypatch.setattr(generate, "_fitted", noted)
    sizes = json.loads(manifest.read_text())
    for table in ("model_files", "model_checksums"):
        assert sizes[table].pop("tokenizer_config.json")
    text = json.dumps(sizes).encode()
    manifest.write_bytes(text)
    done = run.checkpoints / "step-00000004" / "DONE"
    done.write_text(json.dumps({"step": 4, "manifest_crc32": zlib.crc32(text)}))
    code, out, _ = sample(run, "--chat", "--prompt", "one", "--step", "4")
    assert code == 0 and not out.startswith("one")
    assert bytes(given) == b"<user>one<assistant>"


def test_text_beyond_the_model_s_positions_is_told_and_cut(whole: RunDirectory, sample: Sample) -> None:
    code, _, err = sample(whole, "--prompt", "a" * 100)
    assert code == 0 and "has 100 tokens and the model 64 positions: its last 52 count" in err
    code, _, err = sample(whole, "--prompt", "a" * 60)
    assert code == 0 and "so that 4 tokens come instead of 12" in err


def test_ctrl_c_ends_it_with_130_and_a_whole_line(
    whole: RunDirectory, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        sys.stdout.write("one so f")
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "_generate", interrupted)
    code, out, err = sample(whole, "--prompt", "one ")
    assert code == 130 and out == "one so f\n" and "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--tokens", "0", "--tokens 0: expected at least 1"),
        ("--temperature", "-1", "--temperature -1.0: expected 0 or more"),
        ("--temperature", "nan", "--temperature nan: expected 0 or more"),
        ("--top-p", "0", "--top-p 0.0: expected above 0 and at most 1"),
        ("--top-k", "-1", "--top-k -1: expected 0 (all) or more"),
        ("--seed", "-1", "--seed -1: expected from 0"),
        ("--device", "cuda:77", "--device cuda:77"),
    ],
)
def test_a_number_out_of_range_is_one_message(
    whole: RunDirectory, sample: Sample, option: str, value: str, words: str
) -> None:
    code, out, err = sample(whole, f"{option}={value}")
    assert code == 2 and not out and words in err and "Traceback" not in err


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    whole: RunDirectory, adapter: RunDirectory, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "free_host_bytes", lambda: 1000)
    for run in (whole, adapter):
        code, out, err = sample(run, "--prompt", "one")
        assert code == 1 and not out and "GiB of host memory, and 0.0 GiB are free" in err
