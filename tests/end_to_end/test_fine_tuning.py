"""A folder that transformers saved is fine-tuned on chats, stopped, resumed elsewhere and exported: what comes out is,
to the bit, what an engine that trained it without a pause has, and speaks through the commands."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_folders import FAMILIES, SPECIAL, save_pretrained, write_chats
from torch import Tensor
from trainers import Trainers, at_step, events, exit_code, losses, wait_for

from workbench.cli import main
from workbench.config import load_config
from workbench.data.prepare import prepare
from workbench.engine import OffloadEngine
from workbench.engine.devices.device import CpuDevice
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.profiles.block_times import answer
from workbench.profiles.obtain import obtain_model_profile
from workbench.runs import RunDirectory, read_run_metrics
from workbench.runs.checkpoints import find_checkpoints
from workbench.training.batches import training_sampler
from workbench.training.checkpoints.load import load_state
from workbench.training.evaluation import batch_loss
from workbench.training.prepare import engine_options, learning_rate_schedule
from workbench.training.trainer import seed_everything

pytestmark = pytest.mark.slow

CPU = CpuDevice()
FURTHER = 3
"""Steps after the resume."""
PRESET = """
[model]
pretrained = "{model}"
[data]
source = "{chats}"
tokenizer = "{model}"
sequence_length = 64
validation_fraction = 0.1
[train]
device = "cpu"
precision = "{precision}"
steps = 100000
micro_batch_size = 2
gradient_accumulation = 2
[optimizer]
learning_rate = 1e-3
[schedule]
type = "constant"
warmup_steps = 4
[offload]
threads = 1
[evaluate]
every = 0
tokens = 256
[sample]
tokens = 0
[checkpoint]
every = 0
"""


@dataclass(frozen=True)
class Tuned:
    """A run that was stopped and resumed under another placement, and what was exported of it as it stands."""

    model: Path
    run: RunDirectory
    exported: Path
    told: dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _as_the_trainers(trainers: Trainers) -> Iterator[None]:
    """Their cache and their runs; one thread, so that sums are added in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WORKBENCH_CACHE", "WORKBENCH_RUNS", "HF_HUB_OFFLINE"):
            patch.setenv(name, trainers.environment[name])
        yield
    torch.set_num_threads(before)


def workbench(*words: object) -> str:
    """Return what a command prints that trains nothing and can do its work here."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(word) for word in words]) == 0
    return out.getvalue()


def fine_tune(trainers: Trainers, family: str, precision: str) -> Tuned:
    """All that a person does, the training in processes of its own."""
    name = f"{family}-{precision}"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = save_pretrained(trainers.folder / "models" / name, family, dtype)
    chats = write_chats(trainers.folder / "chats.jsonl")
    # The trainers find it in the cache: a process that imports all of torch is spared.
    obtain_model_profile({"pretrained": str(model)}, str, ask=answer)
    text = PRESET.format(model=model, chats=chats, precision=precision)
    process, run = trainers.train(name, text=text)
    wait_for(lambda: at_step(run, 3)() or process.poll() is not None, "a few steps")
    process.send_signal(signal.SIGTERM)
    assert exit_code(process) == 143, run.log.read_text()
    stopped = int(read_run_metrics(run).last()["step"])

    disk = trainers.folder / f"disk-{name}"
    disk.mkdir()
    elsewhere = (
        "offload.weights=host",
        "offload.state=disk",
        f"offload.disk_path={disk}",
        "offload.overlap=serial",
    )
    changes = (*elsewhere, f"train.steps={stopped + FURTHER}")
    resumed = trainers.call("run", "--resume", run.path, *(f"--set={change}" for change in changes))
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming from step-{stopped:08}" in resumed.stdout
    assert list(losses(run)) == list(range(1, stopped + FURTHER + 1))
    assert not list(disk.iterdir()), "the disk tier clears up after itself"

    exported = trainers.folder / "exported" / name
    told = json.loads(workbench("export", run.name, exported, "--json"))
    return Tuned(model, run, exported, told)


def trained_without_a_pause(tuned: Tuned) -> OffloadEngine:
    """The same model, loaded by transformers, after the same steps in this process: weights in place, all in order."""
    from transformers import AutoModelForCausalLM

    config = load_config(tuned.run.config)
    data = prepare(config.data)
    sampler, schedule = training_sampler(config, data), learning_rate_schedule(config)
    model: Any = AutoModelForCausalLM.from_pretrained(tuned.model, dtype="auto").train()
    seed_everything(config.train.seed)
    engine = OffloadEngine(model, **engine_options(config, device="cpu", weights="device", state="host"))
    loss = ChunkedLoss(model)
    for step in range(config.train.steps):
        engine.learning_rate = schedule.at(step)
        for _ in range(config.train.gradient_accumulation):
            batch = sampler.next()
            engine.backward(batch_loss(loss, batch, CPU), tokens=batch.loss_tokens)
        engine.step()
    engine.wait()
    return engine


def resumed_here(tuned: Tuned) -> OffloadEngine:
    """The run's own weights: those of its last checkpoint, in an engine as the run's first."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tuned.model, dtype="auto")
    config = load_config(tuned.run.config)
    engine = OffloadEngine(model, **engine_options(config, device="cpu", weights="device", state="host"))
    load_state(next(find_checkpoints(tuned.run.checkpoints, pytest.fail)), engine)
    return engine


def check_weights_and_logits(engine: OffloadEngine, tuned: Tuned) -> None:
    """Hold the engine to what from_pretrained makes of the exported folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(tuned.exported, dtype="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(tuned.exported)
    messages = [{"role": "user", "content": "What comes after seven?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert (
        tokenizer.decode(ids["input_ids"][0])
        == f"{SPECIAL[1]}\nWhat comes after seven?{SPECIAL[3]}\n{SPECIAL[2]}\n"
    )
    with engine:
        weights: dict[str, Tensor] = {name: w for unit in engine.weights() for name, w in unit.items()}
        found = dict(loaded.named_parameters())
        assert found.keys() == weights.keys()
        for name, parameter in found.items():
            assert parameter.dtype == engine.dtype and torch.equal(parameter, weights[name]), name
        model: Any = engine.model.eval()
        with torch.no_grad():
            expected = model(input_ids=ids["input_ids"], use_cache=False).logits.float()
            logits = loaded.float()(input_ids=ids["input_ids"], use_cache=False).logits
    # A CPU without bf16 arithmetic computes 16-bit weights in fp32; one that has it rounds as it goes.
    near = 1e-5 if engine.dtype == torch.float32 else 3e-2
    assert torch.allclose(logits, expected, rtol=near, atol=near * float(expected.abs().max()))


@pytest.fixture(scope="module")
def llama(trainers: Trainers) -> Tuned:
    return fine_tune(trainers, "llama", "fp32")


def test_sample_and_metrics_speak_of_it(llama: Tuned) -> None:
    question = ("--chat", "--prompt", "How many are two?", "--device", "cpu", "--tokens", 8)
    spoken = workbench("sample", llama.run.name, *question)
    assert spoken.strip() and "How many" not in spoken
    header, *rows = workbench("metrics", llama.run.name).splitlines()
    assert len(rows) == len(losses(llama.run))
    last = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    assert float(last["loss"]) == read_run_metrics(llama.run).last()["loss"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fine_tuned_model_that_moved_on_its_way_is_the_one_that_never_stopped_and_two_are_compared(
    trainers: Trainers, llama: Tuned, family: str, precision: str
) -> None:
    tuned = llama if (family, precision) == ("llama", "fp32") else fine_tune(trainers, family, precision)
    assert tuned.told["checked"] == "loaded: its logits are the run's"
    check_weights_and_logits(trained_without_a_pause(tuned), tuned)
    check_weights_and_logits(resumed_here(tuned), tuned)
    curve = list(read_run_metrics(tuned.run).column("loss"))
    assert curve[-1] < curve[0]
    [event] = events(tuned.run, "resume")
    assert event.fields["changed"]["offload.state"] == ["host", "disk"]
    if tuned is not llama:
        told = json.loads(workbench("compare", llama.run.name, tuned.run.name, "--json"))
        assert [each["name"] for each in told["runs"]] == [llama.run.name, tuned.run.name]
        assert "model.pretrained" in {each["field"] for each in told["differences"]}
