"""Whatever can be wrong about model, data or machine is found before a run begins, in one clear message."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.config import load_config, parse_config, to_toml
from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import precision as engine_precision
from workbench.engine.disk_files import DiskError
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.presets import find_preset
from workbench.system.free_space import Mount
from workbench.training import fitting
from workbench.training.prepare import Prepared, TextProgress, learning_rate_schedule, prepare_run


def prepare(
    text_file: Path,
    *changes: str,
    model: dict[str, Any] | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Prepared:
    settings = {
        "n_layer": 1,
        "n_embd": 16,
        "n_head": 2,
        "n_positions": 32,
        "vocab_size": 257,
        **(model or {}),
    }
    lines = [
        '[model]\narchitecture = "gpt2"\n[model.config]',
        *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        f'[data]\nsource = "{text_file}"\nsequence_length = 32\nvalidation_fraction = 0.1',
        '[train]\ndevice = "cpu"\nsteps = 5\nmicro_batch_size = 1\n[schedule]\nwarmup_steps = 0',
    ]
    config = parse_config("\n".join(lines), "preset.toml", changes)
    return prepare_run(config, text_file.parent, tell)


def told(text_file: Path, *changes: str) -> list[str]:
    said: list[str] = []
    prepare(text_file, *changes, tell=said.append)
    return said


def refusal(text_file: Path, *changes: str, model: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as error:
        prepare(text_file, *changes, model=model)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_unknown_architecture_or_setting_is_refused_with_the_nearest_one(text_file: Path) -> None:
    assert refusal(text_file, "model.architecture=gtp2").endswith('did you mean "gpt2"?')
    assert "gpt2, llama" in refusal(text_file, "model.architecture=0123456789")
    said = refusal(text_file, model={"n_layers": 3})
    assert said.startswith("model.config.n_layers: ") and 'did you mean "n_layer"?' in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_embd": 17}, "n_head|num_heads|divisible"),
        ({"n_head": 0}, "model.config"),
        ({"n_layer": "many"}, "n_layer"),
        ({"n_layer": 0}, "n_layer = 0: expected at least 1"),
        ({"n_embd": -16}, "model.config"),
        ({"vocab_size": -5}, "model.config"),
        ({"activation_function": "none"}, "model.config"),
        ({"resid_pdrop": 2.0}, "model.config"),
        ({"n_positions": -1}, "model.config"),
    ],
    ids=str,
)
def test_settings_that_no_model_can_be_built_from_are_refused(
    text_file: Path, settings: dict[str, Any], said: str
) -> None:
    assert re.search(said, refusal(text_file, model=settings))


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_with_both_numbers(text_file: Path) -> None:
    for size in (256, 1, 0):
        message = refusal(text_file, model={"vocab_size": size})
        assert f"vocab_size = {size}: the tokenizer has 257 tokens" in message


def test_tokens_without_an_output_are_refused_only_where_they_occur(text_file: Path, tmp_path: Path) -> None:
    backend = ByteTokenizer().backend
    backend.add_tokens(["<never>", "qqq"])
    folder = str(tmp_path / "tokenizer")
    backend.save_pretrained(folder)
    warnings = told(text_file, f"data.tokenizer={folder}")
    assert any("the tokenizer has 259 tokens and the model 257 outputs" in line for line in warnings)
    message = refusal(text_file, f"data.tokenizer={folder}", "sample.prompt=qqq")
    assert "vocab_size = 257: the tokenizer has 259 tokens" in message and "such as 320" in message
    text_file.write_text(text_file.read_text() + "<never>")
    assert "and id 257 occurs" in refusal(text_file, f"data.tokenizer={folder}")


def test_outputs_that_nobody_asked_for_are_told_with_the_number_to_name(text_file: Path) -> None:
    said = told(text_file, "model.config={n_layer = 1, n_embd = 16, n_head = 2, n_positions = 32}")
    (warning,) = [line for line in said if "outputs" in line]
    assert warning.startswith("warning: the model has 50,257 outputs")
    assert "tokenizer 257 tokens; name model.config.vocab_size = 320" in warning


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_on_a_cpu_without_their_arithmetic_are_computed_in_fp32(
    text_file: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    for module in (engine_precision, fitting):
        monkeypatch.setattr(module, "has_bfloat16", lambda device: False)
    rows = prepare(text_file, f"train.precision={precision}").plan.memory.tiers[0].needs
    assert "weight slots" in rows and rows["master weights"] > 0
    message = refusal(text_file, f"train.precision={precision}", "train.activation_checkpointing=false")
    assert message.startswith(f'train.precision = "{precision}": cpu has no such arithmetic')
    assert "train.activation_checkpointing = true" in message


def test_auto_becomes_a_placement_that_is_told_and_kept(text_file: Path) -> None:
    said: list[str] = []
    prepared = prepare(text_file, "offload.weights=auto", "offload.state=auto", tell=said.append)
    offload = prepared.config.offload
    assert (offload.weights, offload.state) == ("device", "host")  # one memory: nothing to gain further away
    assert (
        'placement: offload.weights = "device", offload.state = "host", offload.device_fraction = 0' in said
    )
    again = parse_config(to_toml(prepared.config), "config.toml")
    assert again == prepared.config


def test_auto_goes_to_disk_when_memory_is_short_and_never_without_a_folder(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast").mkdir()
    wish = ("offload.chunk_mib=1", "offload.weights=auto", "offload.state=auto")
    folder = f"offload.disk_path={tmp_path / 'fast'}"
    model = {"n_layer": 12, "n_embd": 256}
    in_memory = prepare(text_file, *wish, folder, model=model).plan.memory.tiers[0].needed_bytes
    monkeypatch.setattr(fitting, "free_host_bytes", lambda: in_memory - (1 << 20))
    chosen = prepare(text_file, *wish, folder, model=model).config.offload
    assert chosen.state == "disk"
    with pytest.raises(DoesNotFitError) as error:
        prepare(text_file, *wish, model=model)
    assert error.value.exit_code == 3
    assert 'The nearest is offload.weights = "device", offload.state = "host"' in str(error.value)
    assert "lacks 1.00 MiB of host" in str(error.value) and "host: does not fit" in str(error.value)


def test_a_placement_that_is_fixed_is_refused_with_one_that_would_fit(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast").mkdir()
    model = {"n_layer": 12, "n_embd": 256}
    small = "offload.chunk_mib=1"
    in_memory = prepare(text_file, small, model=model).plan.memory.tiers[0].needed_bytes
    monkeypatch.setattr(fitting, "free_host_bytes", lambda: in_memory - 1)
    with pytest.raises(DoesNotFitError) as error:
        prepare(text_file, small, f"offload.disk_path={tmp_path / 'fast'}", model=model)
    assert "It would fit with one of: " in str(error.value)
    assert 'offload.state = "disk"' in str(error.value)


def test_the_ten_billion_preset_is_refused_with_every_row_of_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fitting, "free_host_bytes", lambda: 16 << 30)
    monkeypatch.setattr("workbench.plan.machine.free_disk_bytes", lambda path: 64 << 30)
    config = load_config(find_preset("gpt2-10b"), ["train.device=cpu"])
    with pytest.raises(DoesNotFitError) as refusal:
        prepare_run(config, tmp_path, pytest.fail)
    table = str(refusal.value)
    assert refusal.value.exit_code == 3
    assert "10,279,239,680 parameters" in table
    rows = [line.strip().rsplit("  ", 1)[0].strip() for line in table.splitlines() if line.startswith("  ")]
    assert rows == [
        *("weights", "exp_avg and exp_avg_sq", "gradients", "activations", "workspaces", "runtime"),
        *("needed", "free", "missing"),
        *("2 + 1 checkpoints", "needed", "free", "missing"),
    ]
    assert "host: does not fit" in table and "disk: does not fit" in table
    assert "Lower the model's size" in table
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keep", "fewer"), [(2, ", or lower checkpoint.keep (it is 2)."), (1, " with --runs.")]
)
def test_a_disk_too_small_for_checkpoints_asks_for_another_or_for_fewer(
    text_file: Path, monkeypatch: pytest.MonkeyPatch, keep: int, fewer: str
) -> None:
    monkeypatch.setattr("workbench.plan.machine.free_disk_bytes", lambda path: 1 << 10)
    with pytest.raises(DoesNotFitError) as refusal:
        prepare(text_file, f"checkpoint.keep={keep}")
    advice = str(refusal.value).splitlines()[-1]
    assert advice.startswith(
        "Make room on the disk of the run's folder, name a folder on another with --runs"
    )
    assert advice.endswith(fewer)


def test_a_disk_folder_that_is_not_there_or_no_folder_is_refused(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, said in (("nowhere", "there is no such folder"), ("file", "is not a folder")):
        for state in ("disk", "auto"):
            message = refusal(text_file, f"offload.state={state}", f"offload.disk_path={tmp_path / name}")
            assert message.startswith(f'offload.disk_path = "{tmp_path / name}"') and said in message


def test_a_disk_folder_that_cannot_be_written_is_refused(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise DiskError(f"{folder} cannot hold the disk tier: Read-only file system")

    monkeypatch.setattr(fitting, "DiskTier", refuse)
    message = refusal(text_file, "offload.state=disk", f"offload.disk_path={tmp_path}")
    assert "Read-only file system" in message


def test_a_disk_folder_in_memory_or_across_a_network_is_doubted(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ("offload.state=disk", f"offload.disk_path={tmp_path}")
    for kind, doubted in (
        ("ext4", ""),
        ("tmpfs", "in host memory"),
        ("nfs4", "a network file system"),
    ):
        monkeypatch.setattr(fitting, "mount_of", lambda folder: Mount("x", str(tmp_path), kind))  # noqa: B023
        warnings = [line for line in told(text_file, *wanted) if line.startswith("warning: ")]
        assert len(warnings) == bool(doubted) and doubted in "".join(warnings), kind


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        (["offload.activations=host"], 'offload.activations = "host" has no effect'),
        (["offload.weights=host"], 'offload.weights = "host" has no effect'),
        (["offload.device_fraction=0.5"], "offload.device_fraction = 0.5 has no effect"),
        (["schedule.warmup_steps=6"], "schedule.warmup_steps = 6: the run ends at step 5"),
    ],
)
def test_an_option_that_does_nothing_is_told(text_file: Path, changes: list[str], idle: str) -> None:
    said = told(text_file, *changes)
    assert [line for line in said if idle in line and line.startswith("warning: ")]
    assert not [line for line in told(text_file) if "no effect" in line]


def test_the_ends_of_text_are_the_tokenizers_unless_the_preset_says_otherwise(text_file: Path) -> None:
    assert prepare(text_file).model.config.eos_token_id == 256
    assert prepare(text_file, model={"eos_token_id": 7}).model.config.eos_token_id == 7


def test_a_line_every_five_seconds_says_how_much_how_fast_and_how_long_yet() -> None:
    told: list[str] = []
    now = 0.0
    progress = TextProgress(told.append, clock=lambda: now)
    for second in range(14):
        now = float(second)
        progress("tokenizing", 40_000_000 + second * 5_000_000, 400_000_000)
    assert told == [
        "tokenizing: 16%, 65 of 400 MB, 5.0 MB/s, 1m07s left",
        "tokenizing: 22%, 90 of 400 MB, 5.0 MB/s, 1m02s left",
    ]


def test_a_stop_is_heard_while_the_text_is_prepared() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TextProgress(lambda line: None, stop)("tokenizing", 1, 2)


UNTIL_TORCH_IS_IMPORTED = """
import os, pathlib, platform, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("PYTORCH_ALLOC_CONF"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
platform.release = lambda: sys.argv[1]
from workbench.training.command import run

run(preset="quickstart", runs=pathlib.Path(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("release", "settings", "expected"),
    [
        ("6.8.0-generic", {}, "expandable_segments:True"),
        ("6.8.0-generic", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ("6.8.0-generic", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "None"),
        ("5.15.90.1-microsoft-standard-WSL2", {}, "None"),
    ],
    ids=["unset", "set", "set under the old name", "WSL2"],
)
def test_a_trainer_asks_torch_for_segments_that_grow_before_it_is_imported(
    tmp_path: Path, release: str, settings: dict[str, str], expected: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    arguments = [sys.executable, "-c", UNTIL_TORCH_IS_IMPORTED, release, str(tmp_path)]
    done = subprocess.run(
        arguments, env=environment | settings, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("steps", [1, 20, 205])
def test_a_warm_up_as_a_share_of_the_run_rounds_up(steps: int) -> None:
    text = (
        '[model]\narchitecture = "gpt2"\n[optimizer]\nlearning_rate = 0.5\n[schedule]\nwarmup_fraction = 0.1'
    )
    schedule = learning_rate_schedule(parse_config(text, "preset.toml", (f"train.steps={steps}",)))
    theirs = math.ceil(steps * 0.1)
    assert schedule.warmup_steps == theirs and schedule.at(theirs - 1) == 0.5
