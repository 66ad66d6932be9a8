"""How often the training loop waits for a GPU: on the virtual CUDA device, through whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.training.command import run
from workbench.virtual_cuda import VirtualCuda

STEPS = 6
WAITS_A_STEP = 2
"""The norm of its gradients, and its loss, a step later."""
PRESET = """
[model]
architecture = "gpt2"
config = {{n_layer = 2, n_embd = 16, n_head = 2, n_positions = 32, vocab_size = 257}}
[data]
source = "{text}"
sequence_length = 16
separate_documents = {separate}
[train]
device = "cuda"
precision = "fp32"
micro_batch_size = 2
[offload]
weights = "device"
state = "device"
[evaluate]
every = 0
[sample]
tokens = 0
[checkpoint]
every = 0
"""


@pytest.fixture(params=["false", "true"], ids=["plain", "documents apart"])
def preset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    documents = tmp_path / "short.jsonl"
    documents.write_text("\n".join(json.dumps({"text": f"This is number {n}."}) for n in range(400)))
    path = tmp_path / "tiny.toml"
    path.write_text(PRESET.format(text=documents, separate=request.param))
    return path


def waits(preset: Path, **settings: int) -> int:
    """Return how often a run of `preset` waits for the device."""
    sets = {"train.steps": STEPS, "evaluate.tokens": 64, **settings}
    with VirtualCuda(device_bytes=1 << 30) as cuda:
        overrides = [f"{name}={value}" for name, value in sets.items()]
        assert run(preset=str(preset), overrides=overrides, runs=preset.parent / "runs") == 0
        return cuda.queues.host_waits


def test_a_step_waits_a_few_times_however_many_micro_batches_it_has(preset: Path) -> None:
    known = waits(preset)
    assert waits(preset, **{"train.gradient_accumulation": 4}) == known
    assert waits(preset, **{"train.steps": 2 * STEPS}) - known <= STEPS * WAITS_A_STEP


def test_an_evaluation_waits_once_however_many_batches_it_has(preset: Path) -> None:
    assert waits(preset, **{"evaluate.tokens": 512}) == waits(preset)
