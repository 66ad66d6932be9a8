"""A module and batches of one's own as a whole run: records, checkpoints, callbacks, a stop, and going on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from workbench.errors import ConfigurationError
from workbench.runs import find_run, read_events, read_run_metrics, read_status, send_control
from workbench.runs.checkpoints import read_best
from workbench.training import trainer
from workbench.training.own_model import train

CONFIG: dict[str, dict[str, Any]] = {
    "train": {
        "steps": 6,
        "gradient_accumulation": 2,
        "device": "cpu",
        "precision": "fp32",
        "gradient_clipping": 0.0,
    },
    "optimizer": {"learning_rate": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"type": "constant"},
    "checkpoint": {"every": 3, "keep": 9, "keep_best": True},
    "evaluate": {"every": 3},
}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x + self.shift


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = (model(batch) - batch.flip(1)).square().mean()
    return loss


def batches(count: int = 5) -> list[Tensor]:
    return list(torch.randn(count, 4, 8, generator=torch.Generator().manual_seed(1)))


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"loss": loss_of, "runs": folder, **changes}


def weights(run: Any, step: int) -> dict[str, Tensor]:
    return load_file(run.checkpoints / f"step-{step:08}" / "model.safetensors")


def test_it_trains_as_torch_does_and_leaves_a_whole_run(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []
    held = iter([3.0, 2.0])
    run = train(
        Regression(),
        batches(),
        CONFIG,
        **options(tmp_path, callbacks=[lambda *s: seen.append(s)]),
        evaluate=lambda model: next(held),
    )
    reference = Regression().double()
    groups = [
        {"params": [p for p in reference.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in reference.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    order = [batches()[number % 5].double() for number in range(12)]
    for first, second in zip(order[::2], order[1::2], strict=True):
        ((loss_of(reference, first) + loss_of(reference, second)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in reference.state_dict().items():
        torch.testing.assert_close(weights(run, 6)[name].double(), weight, rtol=0, atol=1e-4)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert list(read_run_metrics(run).column("loss")) == [loss for _, loss in seen]
    assert (read_status(run).phase, read_status(run).validation_loss) == ("finished", 2.0)
    best = read_best(run.checkpoints)
    assert best is not None and (best.step, best.validation_loss) == (6, 2.0)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "CONTROL_EVERY_S", 0.0)  # commands are looked for after each step
    straight = train(Regression(), batches(), CONFIG, **options(tmp_path))

    def stop(step: int, loss: float) -> None:
        if step == 2:
            send_control(find_run(tmp_path, "stops"), "stop")

    stopped = train(Regression(), batches(), CONFIG, **options(tmp_path, name="stops", callbacks=[stop]))
    at = read_status(stopped).step
    assert read_status(stopped).phase == "stopped" and 2 <= at < 6
    resumed = train(Regression(), batches(), CONFIG, **options(tmp_path, resume=stopped.name))
    assert resumed == stopped and read_status(resumed).phase == "finished"
    assert [e.fields["from_step"] for e in read_events(resumed).events if e.kind == "resume"] == [at + 1]
    one, other = weights(straight, 6), weights(resumed, 6)
    assert all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


def test_a_stop_that_comes_when_all_is_done_ends_a_finished_run(tmp_path: Path) -> None:
    def stop(step: int, loss: float) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGINT)

    run = train(Regression(), batches(), CONFIG, **options(tmp_path, name="late", callbacks=[stop]))
    assert (read_status(run).phase, read_status(run).exit_code) == ("finished", 0)


def test_mistakes_are_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="this process trains by itself"):
        train(Regression(), batches(), {"parallel": {"gpus": 2}}, **options(tmp_path))
    with pytest.raises(ConfigurationError, match=r"config: train.steps: is too small"):
        train(Regression(), batches(), {"train": {"steps": 0}}, **options(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="they ended after 5 and give none when they are read again"):
        train(Regression(), iter(batches()), CONFIG, **options(tmp_path))
    assert read_status(find_run(tmp_path, "latest")).phase == "failed"
