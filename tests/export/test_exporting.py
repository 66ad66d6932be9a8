"""What is exported is the run's model: in its own bits, rounded once, or with its adapter merged as peft merges it."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.cli import main
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.export import check, weights
from workbench.export.export import ExportOptions, export, parse_size
from workbench.export.weights import checkpoint_tensors, convert
from workbench.runs import RunDirectory
from workbench.training.own_model import train

IDS = torch.arange(3, 15).view(1, 12)


def tensors(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    with torch.no_grad():
        return load(folder, dtype=dtype).eval()(IDS).logits


def merged_by_peft(base: Path, checkpoint: Path) -> Any:
    import peft
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    adapted = peft.PeftModel.from_pretrained(load(base, dtype=torch.float32), str(checkpoint))
    return adapted.merge_and_unload().eval()


class Hub:
    """The functions of HfApi that are called; it refuses where `refusal` is not empty."""

    refusal = ""
    had: ClassVar[list[Any]] = []

    def create_repo(self, name: str, **options: Any) -> str:
        if self.refusal:
            raise OSError(self.refusal)
        self.had.append((name, options))
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.had.append((repo_id, sorted(path.name for path in folder_path.iterdir()), commit_message))


def test_a_model_is_sent_to_the_hub_where_that_is_asked_for_and_is_private(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(Hub, "had", [])
    assert main(["export", str(whole.path), str(tmp_path / "kept"), "--no-check"]) == 0 and Hub.had == [], (
        "not where nobody asks"
    )
    assert main(["export", str(whole.path), str(tmp_path / "sent"), "--no-check", "--push", "me/model"]) == 0
    made, sent = Hub.had
    assert made == ("me/model", {"private": True, "exist_ok": True})
    assert sent == (
        "me/model",
        sorted(path.name for path in (tmp_path / "sent").iterdir()),
        f"Step 4 of {whole.name}",
    )
    assert "sent to https://hub/me/model" in capsys.readouterr().err
    monkeypatch.setattr(Hub, "refusal", "no answer")
    assert main(["export", str(whole.path), str(tmp_path / "stays"), "--no-check", "--push", "me/model"]) == 1
    said = capsys.readouterr().err
    assert f"--push me/model: no answer; the model is in {tmp_path / 'stays'}, and `hf upload" in said
    assert (tmp_path / "stays" / "config.json").exists()


@pytest.mark.parametrize(
    ("name", "token", "offline", "said"),
    [
        ("model", "t", False, "expected USER/NAME, such as me/model"),
        ("me/mo del", "t", False, "is not a hub id"),
        ("me/model", None, False, "nobody is logged in; run hf auth login"),
        ("me/model", "t", True, "HF_HUB_OFFLINE is set"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_written(
    name: str,
    token: str | None,
    offline: bool,
    said: str,
    whole: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    assert main(["export", str(whole.path), str(tmp_path / "model"), "--push", name]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def saved_steps(run: RunDirectory) -> list[Any]:
    from workbench.runs.checkpoints import find_checkpoints

    return list(find_checkpoints(run.checkpoints, pytest.fail))


def newest(run: RunDirectory) -> Path:
    return run.checkpoints / "step-00000004"


def refused(run: RunDirectory, target: Path, *options: str) -> int:
    return main(["export", str(run.path), str(target), *options])


def test_a_copy_is_the_checkpoint_s_model_bit_for_bit_and_found_so(
    whole: RunDirectory, tmp_path: Path
) -> None:
    exported = export(whole, tmp_path / "out", options=ExportOptions(check=True))
    assert exported.checked == "loaded: its logits are the run's"
    assert exported.step == 4 and export(whole, tmp_path / "two", step=2).step == 2
    names = {path.name for path in newest(whole).iterdir() if path.is_file()} - {"DONE"}
    assert {path.name for path in exported.path.iterdir()} == names, "without the state"
    for path in exported.path.iterdir():
        assert path.read_bytes() == (newest(whole) / path.name).read_bytes()
    assert exported.bytes == sum(path.stat().st_size for path in exported.path.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "two"]


def test_nothing_that_is_there_is_touched(whole: RunDirectory, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    assert export(whole, target).path == target, "an empty folder may be filled"
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    (tmp_path / "file").write_text("mine")
    for taken in (target, tmp_path / "file"):
        with pytest.raises(ConfigurationError, match="exists"):
            export(whole, taken, step=2)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_a_write_that_fails_leaves_nothing(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(WorkbenchError, match="could not be written: No space left on device"):
        export(whole, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_another_dtype_is_the_weights_rounded_once(whole: RunDirectory, tmp_path: Path, dtype: str) -> None:
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    exported = export(whole, tmp_path / "out", options=ExportOptions(dtype=dtype, check=True))
    expected = tensors(newest(whole))
    found = tensors(exported.path)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == wanted and torch.equal(tensor, expected[name].to(wanted)), name
    described = json.loads((exported.path / "config.json").read_text())
    assert described["dtype"] == str(wanted).removeprefix("torch.")
    assert exported.checked == "loaded: its logits are the run's"


def test_files_are_no_larger_than_asked_and_hold_the_same(whole: RunDirectory, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(whole, target, options=ExportOptions(largest_file_bytes=30_000, check=True))
    index = json.loads((target / "model.safetensors.index.json").read_text())
    expected = tensors(newest(whole))
    assert len(set(index["weight_map"].values())) > 2 and index["weight_map"].keys() == expected.keys()
    for path in target.glob("*.safetensors"):
        held = load_file(path)
        assert sum(t.nbytes for t in held.values()) <= 30_000 or len(held) == 1
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(target).items())


def test_a_merged_adapter_is_what_peft_merges(adapter: RunDirectory, base: Path, tmp_path: Path) -> None:
    reference = merged_by_peft(base, newest(adapter))
    exported = export(adapter, tmp_path / "fp32", options=ExportOptions(merge=True, check=True))
    with torch.no_grad():
        assert torch.allclose(logits(exported.path), reference(IDS).logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(exported.path), logits(base), atol=1e-3), "the adapter does something"
    names = {path.name for path in exported.path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any("adapter" in name for name in names)
    narrow = export(adapter, tmp_path / "bf16", options=ExportOptions(dtype="bf16", merge=True, check=True))
    expected = reference.state_dict()
    for name, tensor in tensors(narrow.path).items():
        assert torch.equal(tensor, expected[name].to(torch.bfloat16)), name
    assert "bfloat16" in narrow.checked


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_an_adapter_on_any_family_s_random_weights_is_merged_into_those_of_its_seed(
    train: Callable[..., RunDirectory], tmp_path: Path, family: str
) -> None:
    sizes = {
        "gpt2": {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": 257},
        "mixtral": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_hidden_layers": 2,
            "vocab_size": 257,
            "num_local_experts": 3,
        },
    }[family]
    settings = "\n".join(f"{key} = {value}" for key, value in sizes.items())
    run = train(f'architecture = "{family}"\n[model.config]\n{settings}\n[adapter]\nrank = 2\n')
    config = weights.run_config(run)
    [saved] = [s for s in saved_steps(run) if s.step == 4]
    with torch.no_grad():
        expected = weights.open_adapted(config, saved, print).whole()(IDS).logits
    exported = export(run, tmp_path / "out", options=ExportOptions(merge=True, check=True))
    assert torch.allclose(logits(exported.path), expected, atol=1e-5, rtol=1e-5)
    described = json.loads((exported.path / "config.json").read_text())
    assert described["eos_token_id"] == 256
    assert export(run, tmp_path / "alone", options=ExportOptions(check=True)).checked.startswith(
        "not checked: its base"
    )


def test_an_adapter_is_exported_alone_and_loads_with_its_base(
    adapter: RunDirectory, base: Path, tmp_path: Path
) -> None:
    exported = export(adapter, tmp_path / "out", options=ExportOptions(check=True))
    assert exported.checked.startswith("loaded: its logits are the run's")
    described = json.loads((exported.path / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(base)
    with torch.no_grad():
        expected = merged_by_peft(base, newest(adapter))(IDS).logits
    assert torch.allclose(logits(exported.path), expected, atol=1e-5, rtol=1e-5)
    narrow = export(adapter, tmp_path / "bf16", options=ExportOptions(dtype="bf16", check=True))
    assert {t.dtype for t in tensors(narrow.path).values()} == {torch.bfloat16}


def test_a_base_that_is_gone_is_one_message(adapter: RunDirectory, base: Path, tmp_path: Path) -> None:
    hidden = base.with_name("hidden")
    base.rename(hidden)
    try:
        with pytest.raises(ConfigurationError, match=r"model\.pretrained"):
            export(adapter, tmp_path / "out", options=ExportOptions(merge=True))
    finally:
        hidden.rename(base)
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_with_a_flipped_bit_is_skipped_with_a_warning(
    broken: RunDirectory, tmp_path: Path
) -> None:
    log: list[str] = []
    exported = export(
        broken, tmp_path / "out", options=ExportOptions(dtype="bf16", check=True), log=log.append
    )
    assert exported.step == 2
    damaged = f"warning: checkpoint step-00000004 is skipped: {newest(broken)}/model.safetensors is damaged"
    assert any(damaged in sentence for sentence in log)
    assert export(broken, tmp_path / "copy", options=ExportOptions(check=True)).step == 2, (
        "looked at, a copy is too"
    )
    with pytest.raises(
        WorkbenchError, match=r"no checkpoint of step 4 that is undamaged.*step-00000004 is skipped"
    ):
        export(broken, tmp_path / "four", step=4, options=ExportOptions(dtype="bf16"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "out", "runs"]


def test_what_is_not_the_run_s_model_is_refused_and_nothing_is_left_of_it(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded = weights.rounded

    def wrong(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return (
            rounded(name, tensor, dtype).neg()
            if name.endswith("wpe.weight")
            else rounded(name, tensor, dtype)
        )

    monkeypatch.setattr(weights, "rounded", wrong)
    with pytest.raises(WorkbenchError, match="are not the run's"):
        export(whole, tmp_path / "out", options=ExportOptions(dtype="bf16", check=True))
    assert not list(tmp_path.iterdir())


def test_without_memory_for_it_the_look_is_left_out_with_a_sentence(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "free_host_bytes", lambda: 1000)
    exported = export(whole, tmp_path / "out", options=ExportOptions(check=True))
    assert exported.checked.startswith("not checked: loading it takes")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--merge"], "trained no adapter; leave --merge out"),
        (["--dtype", "int8"], "--dtype int8: expected one of bf16, fp16, fp32"),
        (["--max-shard-size", "many"], "--max-shard-size many: expected a size such as 5GB"),
        (["--max-shard-size", "10KB"], "at least 1MB"),
        (["--step", "3"], "no checkpoint of step 3; there are those of step 4, 2"),
        (["--best", "--step", "2"], "leave one out"),
    ],
)
def test_what_cannot_be_is_one_message(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert refused(whole, tmp_path / "out", *options) == 2
    out, err = capsys.readouterr()
    assert words in err and "Traceback" not in err and not out
    assert not list(tmp_path.iterdir())


def test_no_room_is_said_before_anything_is_written(
    whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(WorkbenchError, match="has no room"):
        export(whole, tmp_path / "out", options=ExportOptions(dtype="bf16"))
    assert not list(tmp_path.iterdir())


def test_the_command_prints_path_step_and_the_result_of_the_check(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(whole, tmp_path / "out", "--best", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["path"] == str(tmp_path / "out") and printed["step"] in (2, 4)
    assert printed["checked"] == "loaded: its logits are the run's"


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("1.5 MiB", 3 << 19), ("2000000", 2_000_000), ("7mb", 7_000_000)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


# Rounding


def converted(folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """`tensors`, through files."""
    source, target = folder / "saved", folder / "out"
    for place in (source, target):
        place.mkdir()
    save_file(tensors, source / "model.safetensors")
    for place in (source, target):
        (place / "config.json").write_text("{}")
    manifest = SimpleNamespace(model_files=["config.json", "model.safetensors"])
    saved: Any = SimpleNamespace(path=source, manifest=manifest)
    convert(saved, checkpoint_tensors(saved), target, dtype=dtype)
    return load_file(target / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_every_tensor_is_rounded_as_torch_rounds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: torch.dtype, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "matrix": (torch.randn(37, 29, generator=generator) * 100).to(source),
        "empty": torch.empty(0, 4, dtype=source),
        "scalar": torch.tensor(3.0, dtype=source),
        "not finite": torch.tensor([float("inf"), float("nan"), -1.0], dtype=source),
        "whole numbers": torch.arange(50),
    }
    monkeypatch.setattr(weights, "MAPPED_BYTES", 100)
    found = converted(tmp_path, tensors, dtype)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        wanted = tensor.to(dtype) if tensor.is_floating_point() else tensor
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [70_000.0, -70_000.0])
def test_a_value_that_fp16_does_not_hold_is_named_and_bf16_offered(tmp_path: Path, value: float) -> None:
    tensors = {"fine": torch.full((9,), 65_504.0), "large": torch.tensor([1.0, value, float("nan")])}
    words = "large holds 70,000, and fp16 ends at 65,504; --dtype bf16 holds it"
    with pytest.raises(WorkbenchError, match=re.escape(words)):
        converted(tmp_path, tensors, torch.float16)


@pytest.mark.parametrize("line", [["sample", "python"], ["export", "python", "out"]])
def test_a_run_with_a_model_of_the_caller_s_own_says_how_to_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    run = train(
        model,
        [torch.ones(2, 4)],
        {"train": {"steps": 2, "device": "cpu"}},
        loss=lambda model, batch: model(batch).square().mean(),
        runs=tmp_path / "runs",
    )
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main([*line, "--runs", str(tmp_path / "runs")]) == 2
    folder = run.checkpoints / "step-00000002"
    assert (
        f"run {run.name} was made from Python with a model of its own, which only its program can build; its "
        f"checkpoint is {folder}: load its safetensors with safetensors.torch.load_file and model.load_state_dict"
    ) in capsys.readouterr().err
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert not (tmp_path / "out").exists()
