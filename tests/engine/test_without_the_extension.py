"""Without the native extension the engine says so and trains with torch's fused AdamW."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import batches, clone, gpt2, loss_of, torch_adamw

from workbench.engine import AdamW, OffloadEngine
from workbench.optimizer import MissingExtensionWarning

HIDE = "import sys; sys.modules['workbench._native'] = None"


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workbench._native", None)


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("coupled", [False, True])
def test_it_trains_what_torch_trains(coupled: bool) -> None:
    reference = gpt2()
    model = clone(reference)
    groups = [
        {"params": g["params"], "weight_decay": g["weight_decay"]}
        for g in torch_adamw(reference, 1e-3, 0.1).param_groups
    ]
    make = torch.optim.Adam if coupled else torch.optim.AdamW
    optimizer = make(groups, lr=1e-3, fused=True)
    settings = AdamW(lr=1e-3, weight_decay=0.1, coupled_decay=coupled)
    with pytest.warns(MissingExtensionWarning, match="workbench._native is missing.*torch's fused AdamW"):
        engine = OffloadEngine(model, optimizer=settings, device="cpu")
    with engine:
        for ids in batches(10):
            loss = loss_of(reference, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mine = loss_of(model, ids)
            assert torch.equal(mine, loss)
            engine.backward(mine)
            engine.step()
        engine.wait()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("hidden")
@pytest.mark.filterwarnings("ignore::workbench.optimizer.MissingExtensionWarning")
def test_a_split_master_and_accumulation_train_too() -> None:
    curves = []
    for precision, accumulation in (("fp32", 1), ("bf16", 1), ("bf16", 2)):
        model = gpt2()
        losses = []
        options = {"precision": precision, "gradient_accumulation": accumulation, "gradient_clipping": 1.0}
        with OffloadEngine(model, optimizer=AdamW(lr=1e-2), device="cpu", **options) as engine:  # type: ignore[arg-type]
            for ids in batches(30):
                for part in ids.chunk(accumulation):
                    loss = loss_of(model, part)
                    engine.backward(loss)
                losses.append(loss.item())
                engine.step()
        curves.append(sum(losses[-5:]) / 5)
    assert curves[1] == pytest.approx(curves[0], rel=0.1)
    assert curves[2] == pytest.approx(curves[0], rel=0.2)


@pytest.mark.usefixtures("hidden")
def test_the_smaller_formats_are_refused() -> None:
    with pytest.raises(ValueError, match=r"state_format = 'half': the native extension .* is missing"):
        OffloadEngine(gpt2(), device="cpu", state_format="half")


@pytest.mark.slow
def test_a_run_says_so_at_its_start(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 200)
    preset = tmp_path / "tiny.toml"
    preset.write_text(
        '[model]\narchitecture = "gpt2"\n'
        "[model.config]\nn_layer = 1\nn_embd = 16\nn_head = 2\nn_positions = 16\nvocab_size = 257\n"
        f'[data]\nsource = "{text}"\nsequence_length = 16\nvalidation_fraction = 0.1\n'
        '[train]\ndevice = "cpu"\nsteps = 2\nmicro_batch_size = 2\n[sample]\ntokens = 4\n[evaluate]\ntokens = 64\n'
    )
    environment = {**os.environ, "WORKBENCH_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    program = f"{HIDE}; from workbench.cli import main; sys.exit(main(sys.argv[1:]))"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, "run", str(preset), "--runs", str(tmp_path / "runs"), *words],
            capture_output=True,
            text=True,
            env=environment,
        )

    plain = run()
    assert plain.returncode == 0, plain.stderr
    assert plain.stderr.count("warning: the native extension workbench._native is missing") == 1
    assert "step 00002/2" in plain.stdout
    short = run("--set", "offload.state_format=compact")
    assert short.returncode == 2
    assert 'offload.state_format = "compact": the native extension' in short.stderr
    assert "Traceback" not in short.stderr
