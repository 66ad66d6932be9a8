"""What comes out of a run: a model that transformers loads, or a verdict on divergence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trainers import Trainers, events, exit_code

from workbench.engine.devices.device import CpuDevice, has_bfloat16, open_device
from workbench.runs import RunDirectory, read_run_metrics, read_status


@pytest.fixture(scope="module", params=["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def finished(trainers: Trainers, request: pytest.FixtureRequest) -> RunDirectory:
    if request.param == "bf16" and not has_bfloat16(open_device("cpu")):
        pytest.skip("this CPU has no bf16 arithmetic")
    process, run = trainers.train(
        f"result-{request.param}", f"train.precision={request.param}", "train.steps=10"
    )
    assert exit_code(process) == 0
    return run


@pytest.fixture
def loaded(finished: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Any:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [folder] = finished.checkpoints.iterdir()
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def test_the_checkpoint_loads_with_its_tokenizer_and_has_the_logits_of_the_engine(
    finished: RunDirectory, loaded: Any
) -> None:
    from transformers import AutoTokenizer

    from workbench.config import load_config
    from workbench.engine import OffloadEngine
    from workbench.model.build import UnitInitializer, build_on_meta, model_config
    from workbench.runs.checkpoints import find_checkpoints
    from workbench.training.checkpoints.load import load_state

    config = load_config(finished.config)
    [folder] = finished.checkpoints.iterdir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("def alpha(beta): ä")["input_ids"]])
    assert ids.tolist() == [list("def alpha(beta): ä".encode())]

    model: Any = build_on_meta(model_config("gpt2", dict(config.model.config)))
    precision: Any = config.train.precision
    with OffloadEngine(
        model, device="cpu", threads=1, precision=precision, materialize=UnitInitializer(model, 99)
    ) as engine:
        load_state(next(find_checkpoints(finished.checkpoints, pytest.fail)), engine)
        model.eval()
        with torch.no_grad():
            expected = model(input_ids=ids).logits
            assert torch.equal(loaded(input_ids=ids).logits, expected)
    assert loaded.dtype == expected.dtype
    assert (
        loaded.config.eos_token_id == loaded.generation_config.eos_token_id == tokenizer.eos_token_id == 256
    )


def test_the_loaded_model_has_the_validation_loss_that_was_recorded(
    trainers: Trainers, finished: RunDirectory, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.config import load_config
    from workbench.data.prepare import prepare
    from workbench.engine.loss.chunked_loss import ChunkedLoss
    from workbench.training.batches import validation_batches
    from workbench.training.evaluation import validation_loss

    monkeypatch.setenv("WORKBENCH_CACHE", trainers.environment["WORKBENCH_CACHE"])
    config = load_config(finished.config)
    loss = validation_loss(
        loaded,
        validation_batches(config, prepare(config.data)),
        device=CpuDevice(),
        interrupted=lambda: False,
        loss=ChunkedLoss(loaded),
    )
    assert loss == pytest.approx(events(finished, "evaluation")[-1].fields["loss"], rel=1e-6)


@pytest.mark.slow
def test_a_run_that_diverges_ends_with_4_names_a_parameter_and_keeps_its_last_checkpoint(
    trainers: Trainers,
) -> None:
    # Decay of 10 at a learning rate of 10 multiplies every weight by -99, step by step.
    changes = ("optimizer.learning_rate=10", "optimizer.weight_decay=10", "schedule.type=constant")
    path = trainers.preset("diverges")
    sets = [
        word for change in (*changes, "checkpoint.every=5", "train.steps=100") for word in ("--set", change)
    ]
    ended = trainers.call("run", path, *sets)
    assert ended.returncode == 4, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert (
        last.startswith("workbench: training diverged: step ")
        and "transformer." in last
        and "not finite" in last
    )
    assert "Traceback" not in ended.stderr
    run = trainers.run_of("diverges")
    assert run is not None
    status = read_status(run)
    assert (status.phase, status.exit_code) == ("diverged", 4)
    assert f"workbench: {status.message}" == last
    assert (run.checkpoints / "step-00000005" / "DONE").exists()
    assert "skipped" in ended.stdout
    assert read_run_metrics(run).column("skipped")[-1] == 1


@pytest.mark.slow
def test_a_validation_loss_that_is_no_number_is_a_divergence_and_is_not_saved(trainers: Trainers) -> None:
    # The gradient of the first step is finite; what its update makes of the weights is not.
    changes = ("optimizer.learning_rate=10", "optimizer.weight_decay=10", "schedule.type=constant")
    path = trainers.preset("diverges-late")
    sets = [word for change in (*changes, "train.steps=12") for word in ("--set", change)]
    ended = trainers.call("run", path, *sets)
    run = trainers.run_of("diverges-late")
    assert run is not None
    assert ended.returncode == 4, ended.stdout
    assert read_status(run).phase == "diverged"
    assert not list(run.checkpoints.iterdir())
