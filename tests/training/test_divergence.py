"""A run whose numbers are no longer finite says what came before, what it can go on from, and what may help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import build_engine, train

from workbench.config import parse_config
from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import NonFiniteGradientsError
from workbench.errors import EXIT_DIVERGED
from workbench.runs.checkpoints import Progress
from workbench.training.checkpoints.save import save_checkpoint
from workbench.training.failures import RecentSteps, diverged

MODEL = '[model]\narchitecture = "gpt2"\n'


def message(
    root: Path, *overrides: str, precision: str = "float32", recent: RecentSteps | None = None
) -> str:
    error = diverged("why", recent or RecentSteps(), parse_config(MODEL, "p", overrides), root, precision)
    assert error.exit_code == EXIT_DIVERGED
    assert "\n" not in str(error)
    return str(error)


def save(root: Path, step: int, poison: float | None = None, precision: str = "bf16") -> None:
    model, engine = build_engine(precision=precision)
    with engine:
        if poison is not None:
            state = dict(engine.state())
            kind = "master" if precision == "fp32" else "high"
            tensor: Any = next(t for name, t in reversed(state.items()) if name.endswith(kind))
            tensor[3] = poison
        save_checkpoint(
            root, step, engine=engine, model=model, tokenizer=ByteTokenizer(), progress=Progress(), keep=9
        )


def test_the_last_steps_are_told_with_losses_and_norms(tmp_path: Path) -> None:
    recent = RecentSteps()
    for step in range(1, 11):
        recent.add(step, 10.0 * step, 1.5 if step < 10 else math.nan)
    told = message(tmp_path, recent=recent)
    assert (
        "why. Before it, steps 5 to 10 had losses 50, 60, 70, 80, 90, 100 and gradient norms 1.5, 1.5" in told
    )
    assert "1.5, nan. No good checkpoint was saved." in told


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_whose_weights_are_not_finite_is_set_aside_and_the_one_before_is_named(
    tmp_path: Path, precision: str, poison: float
) -> None:
    save(tmp_path, 3, precision=precision)
    save(tmp_path, 6, poison, precision=precision)
    told = message(tmp_path)
    assert (
        "The last good checkpoint is that of step 3: --resume goes on from it (diverged-step-00000006" in told
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diverged-step-00000006", "step-00000003"]
    assert "of step 3: --resume goes on from it. What" in message(tmp_path)


def test_what_may_help_is_what_the_configuration_has_not_tried(tmp_path: Path) -> None:
    careful = message(
        tmp_path, "schedule.warmup_steps=10", "train.gradient_clipping=1", "optimizer.learning_rate=0.01"
    )
    assert careful.endswith("What may help: a lower optimizer.learning_rate (it is 0.01)")
    bold = message(
        tmp_path,
        *("train.gradient_clipping=0", "loss_scale.fixed=8", "offload.overlap=delayed"),
        *("optimizer.learning_rate=1", "optimizer.weight_decay=10"),
        precision="float16",
    )
    for said in (
        "warmup_steps is 0",
        "gradient_clipping = 1.0",
        '"bf16"',
        "fixed = 0",
        "weight_decay",
        "lag",
    ):
        assert said in bold


def test_gradients_that_are_not_finite_name_the_first_unit_and_parameter_and_where_backward_met_them() -> (
    None
):
    model, engine = build_engine(gradient_clipping=1.0)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.nan

    with engine:
        # What leaves block 1 backwards is spoilt: its own gradients are good, those before it are not.
        model.transformer.h[1].register_full_backward_hook(
            lambda module, before, after: tuple(None if g is None else spoil(g) for g in before)
        )
        with pytest.raises(NonFiniteGradientsError) as caught:
            train(model, engine, 3)
    error = caught.value
    assert error.step == 3 and error.where is not None
    assert (error.where.parameter, error.where.unit) == (
        "transformer.wte.weight",
        engine.layout.units[0].name,
    )
    assert error.where.met_in == "transformer.h.0" and error.where.units == 2
    assert "2 of 4 units have such gradients, and backward met them first in transformer.h.0" in str(error)
    assert "in 3 steps in a row" in str(error)
