"""Three shipped presets, shrunken, train as `golden/*.json` says: a refactor gives the identical losses.

The files were written on one machine; processors sum in other orders. A token's loss ends a chain of about 16 matrix
products and sums of depth K <= 128, whose rounding errors grow as sqrt(K) (Higham and Mary, 2019, theorem 2.4):
16 * sqrt(128) units of 2**-24 of its size. A loss is the mean of at least 128 of these, whose errors are as good as
independent, so that it may differ by 16 units; each step, which starts from weights that differ likewise, may add as
much. (Instruction sets from SSE4.2 to AVX-512 were seen to differ by one unit.) Learning rates are a few operations in
float64. Where training is changed on purpose, write the files anew:

    python tests/training/test_golden_losses.py
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from workbench.runs import find_run, read_events, read_run_metrics

GOLDEN = Path(__file__).with_name("golden")
STEPS = 6
ROUNDING = 16 * 2.0**-24
"""Relative, a step; see above."""

SHRUNKEN = [
    "train.device=cpu",
    "train.precision=fp32",
    f"train.steps={STEPS}",
    "train.micro_batch_size=2",
    "data.tokenizer=bytes",
    "data.sequence_length=64",
    "data.validation_fraction=0.1",
    "optimizer.learning_rate=2e-3",
    "schedule.warmup_steps=2",
    "evaluate.every=3",
    "evaluate.tokens=512",
    "sample.tokens=0",
    "checkpoint.every=0",
]
BLOCKS = [
    "model.pretrained=",
    "model.config.vocab_size=257",
    "model.config.hidden_size=64",
    "model.config.intermediate_size=128",
    "model.config.num_hidden_layers=2",
    "model.config.num_attention_heads=4",
    "model.config.num_key_value_heads=2",
    "model.config.max_position_embeddings=64",
]
PRESETS = {
    "quickstart": ["model.config.n_layer=2", "model.config.n_embd=64", "model.config.n_positions=64"],
    "llama3-8b": [*BLOCKS, "offload.weights=host", "train.gradient_accumulation=2"],
    "qwen3-0.6b": [*BLOCKS, "model.config.head_dim=16"],
}


def trained(preset: str, folder: Path) -> dict[str, Any]:
    """Train `preset`, shrunken, in `folder`; what its run directory says of the steps."""
    from workbench.training.command import run

    text = folder / "text.txt"
    text.write_text("".join(f"{i} squared is {i * i}, cubed {i**3}.\n" for i in range(1500)))
    overrides = [*SHRUNKEN, *PRESETS[preset], f"data.source={text}"]
    assert run(preset=preset, overrides=overrides, runs=folder / "runs") == 0
    directory = find_run(folder / "runs", None)
    metrics = read_run_metrics(directory)
    evaluations = [event for event in read_events(directory).events if event.kind == "evaluation"]
    return {
        **{name: list(metrics.column(name)) for name in ("loss", "learning_rate", "tokens_total")},
        "validation_loss": [event.fields["loss"] for event in evaluations],
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_a_shipped_preset_has_the_losses_that_it_had(preset: str, tmp_path: Path) -> None:
    golden = json.loads((GOLDEN / f"{preset}.json").read_text())
    now = trained(preset, tmp_path)
    assert now["tokens_total"] == golden["tokens_total"]
    assert now["learning_rate"] == pytest.approx(golden["learning_rate"], rel=16 * 2.0**-52)
    for name, every in (("loss", 1), ("validation_loss", 3)):
        assert len(now[name]) == len(golden[name]) == STEPS // every
        for place, (loss, expected) in enumerate(zip(now[name], golden[name], strict=True)):
            steps = every * (place + 1)
            assert math.isclose(loss, expected, rel_tol=steps * ROUNDING), f"{name} of step {steps}"


if __name__ == "__main__":
    os.environ["WORKBENCH_CACHE"] = tempfile.mkdtemp()
    import torch

    torch.set_num_threads(1)
    GOLDEN.mkdir(exist_ok=True)
    for name in PRESETS:
        with tempfile.TemporaryDirectory() as place:
            (GOLDEN / f"{name}.json").write_text(json.dumps(trained(name, Path(place)), indent=1) + "\n")
