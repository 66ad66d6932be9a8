"""`workbench import`: what it prints, what it writes, and that what it writes trains."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from deepspeed_files import BLOG, INFINITY, TUTORIAL

from workbench.cli import main
from workbench.config import load_config, parse_config


@pytest.fixture
def blog(tmp_path: Path) -> Path:
    path = tmp_path / "ds_config.json"
    path.write_text(BLOG)
    return path


def test_what_is_printed_is_a_preset_with_the_verdicts_as_comments(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(blog), "--architecture", "gpt2"]) == 0
    printed = capsys.readouterr().out
    run = parse_config(printed, "printed")
    assert (run.train.micro_batch_size, run.train.gradient_accumulation) == (4, 1)
    assert (run.train.precision, run.train.gradient_clipping) == ("fp16", 1.0)
    assert (run.optimizer.type, run.optimizer.learning_rate, run.optimizer.betas) == (
        "adamw",
        5e-5,
        (0.9, 0.999),
    )
    assert (run.offload.weights, run.offload.state, run.offload.overlap) == ("device", "host", "exact")
    assert run.optimizer.weight_decay == 0
    assert run.schedule.type == "constant"
    assert "unknown  " not in printed
    for key in ("train_batch_size", "zero_optimization.allgather_bucket_size", "fp16.enabled"):
        assert f" {key} = " in printed


def test_the_tutorials_fragment_is_mended_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fragment.json"
    path.write_text(TUTORIAL)
    assert main(["import", str(path), "--architecture", "gpt2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {repair["what"].split(" ")[0] for repair in report["repairs"]} == {"put", "added", "moved"}
    assert {each["key"]: each["verdict"] for each in report["keys"]} == {
        "zero_optimization.stage": "mapped",
        "zero_optimization.offload_optimizer.device": "mapped",
        "zero_optimization.contiguous_gradients": "meaningless here",
        "zero_optimization.overlap_comm": "mapped",
    }
    assert parse_config(report["preset"], "preset").offload.state == "host"


def test_json_is_strict_and_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.json"
    path.write_text('{"steps_per_print": Infinity, "train_batch_size": 2, "x": [1e999], "y": NaN}')
    assert main(["import", str(path), "--architecture", "gpt2", "--json"]) == 0
    report = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )
    assert {"file", "repairs", "keys", "assumed", "refused", "preset", "out"} == report.keys()


def test_without_a_model_the_preset_says_where_to_name_one(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = blog.with_name("mine.toml")
    assert main(["import", str(blog), "--out", str(out)]) == 0
    assert "names no model" in capsys.readouterr().err
    assert main(["config", "check", str(out)]) == 2
    assert "no model is named" in capsys.readouterr().err
    out.write_text(out.read_text().replace("# architecture", "architecture"))
    assert main(["config", "check", str(out), "--set", "data.source=stdlib"]) == 0


def test_without_data_the_import_says_so_and_no_run_starts(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = blog.with_name("sft.yaml")
    recipe.write_text("model_name_or_path: model\nfinetuning_type: full\ndataset: alpaca\n")
    model = blog.with_name("model")
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    for file in (blog, recipe):
        out = file.with_suffix(".toml")
        named = ["--set", f"model.pretrained={model}", "--set", "data.sequence_length=64"]
        assert main(["import", str(file), "--out", str(out), *named]) == 0
        shown = capsys.readouterr()
        assert "\n  data.source: no data is named" in shown.out
        assert f"write data.source in {out}, or import again with --set data.source=NAME" in shown.err
        for line in (["config", "check"], ["run", "--runs", str(out.with_name("runs"))]):
            assert main([*line, str(out)]) == 2
            assert 'data.source = "": no text to train on is named; name a file' in capsys.readouterr().err
        assert main(["import", str(file), "--out", str(out), *named, "--set", "data.source=stdlib"]) == 0
        shown = capsys.readouterr()
        assert "is named" not in shown.out + shown.err
        assert main(["config", "check", str(out)]) == 0
        capsys.readouterr()


def test_the_next_command_that_is_printed_works(blog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = blog.with_name("my preset.toml")
    model = out.with_name("model")
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "gpt2", "n_positions": 256}')
    for changes in (
        [],
        ["--set", "model.architecture=gpt2"],
        ["--architecture", "gpt2", "--set", "model.config.n_positions=128"],
        ["--pretrained", str(model)],
    ):
        assert main(["import", str(blog), "--out", str(out), *changes]) == 0
        verb, plan, *words = shlex.split(capsys.readouterr().err.splitlines()[-1].rpartition(": ")[2])
        assert (verb, plan, words[0]) == ("workbench", "plan", str(out))
        assert main(["config", "check", *words, "--set", "data.source=stdlib"]) == 0


def test_what_is_set_goes_before_what_the_file_says_and_is_in_the_preset(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("model.pretrained=my/model", "train.precision=fp32", "data.sequence_length=64")
    words = [word for change in changes for word in ("--set", change)]
    assert main(["import", str(blog), *words]) == 0
    run = parse_config(capsys.readouterr().out, "printed")
    assert (run.model.pretrained, run.train.precision, run.data.sequence_length) == ("my/model", "fp32", 64)
    assert run.offload.state == "host"
    assert main(["import", str(blog), "--set", "train.stepps=3"]) == 2
    assert 'did you mean "steps"?' in capsys.readouterr().err


def test_a_pretrained_model_brings_its_tokenizer_unless_one_is_named(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for named, tokenizer in (
        (["--pretrained", "my/model"], "my/model"),
        (["--set", "model.pretrained=my/model"], "my/model"),
        (["--pretrained", "my/model", "--set", "data.tokenizer=other"], "other"),
        (["--architecture", "gpt2"], "bytes"),
    ):
        assert main(["import", str(blog), *named]) == 0
        assert parse_config(capsys.readouterr().out, "printed").data.tokenizer == tokenizer


def test_what_is_set_is_not_told_as_assumed(blog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beta = "optimizer.params.betas"
    for changes, told in (([], True), (["--set", "optimizer.betas=[0.9, 0.95]"], False)):
        assert main(["import", str(blog), "--architecture", "gpt2", "--json", *changes]) == 0
        assert (beta in {each["key"] for each in json.loads(capsys.readouterr().out)["assumed"]}) is told


def test_importing_again_replaces_what_nobody_has_edited(
    blog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = blog.with_name("mine.toml")
    line = ["import", str(blog), "--out", str(out)]
    assert main(line) == 0
    assert main([*line, "--architecture", "gpt2"]) == 0
    assert load_config(out).model.architecture == "gpt2"
    edited = out.read_text().replace('"host"', '"device"')
    for text in (edited, out.read_text() + "# mine\n", "# mine\n" + out.read_text()):
        out.write_text(text)
        assert main(line) == 2
        assert "not an unedited import" in capsys.readouterr().err
        assert out.read_text() == text


def test_a_file_that_is_there_is_kept_unless_asked(blog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = blog.with_name("mine.toml")
    out.write_text("mine")
    line = ["import", str(blog), "--architecture", "gpt2", "--out", str(out)]
    assert main(line) == 2
    assert "not an unedited import" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([*line, "--force"]) == 0
    assert load_config(out).model.architecture == "gpt2"
    assert sorted(path.name for path in blog.parent.iterdir()) == ["ds_config.json", "mine.toml"]


def test_nothing_is_written_where_a_key_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "ds.json", tmp_path / "mine.toml"
    path.write_text('{\n"optimizer": {"type": "Lamb"},\n"amp": {"enabled": true}}')
    assert main(["import", str(path), "--out", str(out)]) == 2
    shown = capsys.readouterr()
    assert f'{path}:2: optimizer.type = "Lamb": another update rule' in shown.err
    assert f"{path}:3: amp = " in shown.err
    assert "2 refused" in shown.out
    assert not out.exists()
    assert (shown.out + shown.err).count("another update rule") == (shown.out + shown.err).count("Apex") == 1


def test_what_is_wrong_with_file_target_and_settings_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "ds.json", tmp_path / "mine.toml"
    path.write_text('{"optimizer": {"type": "Lamb"}}')
    out.write_text("mine")
    assert main(["import", str(path), "--out", str(out), "--set", "train.stepps=3"]) == 2
    printed = capsys.readouterr().err
    assert all(words in printed for words in ("Lamb", "train.stepps", "not an unedited import"))
    path.write_text("nothing")
    assert main(["import", str(path), "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert all(words in printed for words in ("JSON", "not an unedited import"))


def test_unknown_keys_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 1,\n"mine": {"a": 1, "b": 2},\n"wall_clock_breakdwn": true}')
    assert main(["import", str(path)]) == 0
    shown = capsys.readouterr()
    printed = " ".join(shown.out.replace("#", " ").split())
    assert "3 keys: 0 used, 1 mapped, 0 meaningless here, 2 unknown, 0 refused" in printed
    assert 'did you mean "wall_clock_breakdown"?' in printed
    assert "2 keys are unknown here, and left out (lines 2, 3)" in shown.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        (b"", "is empty"),
        (b"\x80\x04\x95", "is not UTF-8 text"),
        (b'{"a":\0 1}', "zero byte"),
        (b" " * (1 << 18), "too large"),
        (b"{", ""),
        (BLOG.encode("utf-16"), ""),
    ],
)
def test_a_file_that_is_no_configuration_gets_one_message(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_bytes(content)
    code = main(["import", str(path)])
    printed = capsys.readouterr().err
    assert code == (2 if words else 0)
    assert words in printed
    assert "bug" not in printed
    assert main(["import", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_every_setting_has_its_origin_above_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(INFINITY)
    out = tmp_path / "mine.toml"
    assert main(["import", str(path), "--architecture", "gpt2", "--out", str(out)]) == 0
    lines = out.read_text().split("\n")
    settings = [at for at, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(settings) > 15
    assert all(lines[at - 1].startswith("#") for at in settings if at)
    assert "# scheduler.params.total_num_steps, line 13: the steps of the run" in lines


@pytest.mark.slow
@pytest.mark.parametrize("text", [BLOG, TUTORIAL], ids=["blog", "tutorial"])
def test_both_published_configurations_import_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "ds.json").write_text(text)
    (tmp_path / "text.txt").write_text("".join(f"line {at} of a text\n" for at in range(400)))
    preset = tmp_path / "mine.toml"
    assert main(["import", str(tmp_path / "ds.json"), "--architecture", "gpt2", "--out", str(preset)]) == 0
    small = [
        "model.config={n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=257}",
        *(f'data.source="{tmp_path}/text.txt"', "data.sequence_length=16", "data.validation_fraction=0.1"),
        *("train.steps=2", "train.device=cpu", "evaluate.every=0", "evaluate.tokens=64", "sample.tokens=0"),
    ]
    options = [word for change in small for word in ("--set", change)]
    assert main(["run", str(preset), "--runs", str(tmp_path / "runs"), *options]) == 0
    assert list(tmp_path.glob("runs/latest/checkpoints/step-00000002/*.safetensors"))
