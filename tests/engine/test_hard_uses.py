"""What people do between and within steps: evaluate, ask for input gradients, fail, go on. Plain torch is the truth."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hard_models import ROWS, WIDTH, Block, DropoutInBlocks, Stack, loss_of_hard, plain_batch
from plain_torch import SETTINGS, assert_went_the_same_way, engine_weights, total_norm
from small_models import CHUNK_BYTES, SeparateMemory, clone, torch_adamw
from torch import Tensor, nn

from workbench.engine import OffloadEngine

WAYS: dict[str, dict[str, Any]] = {
    "state-host": {"weights": "device", "state": "host"},
    "weights-host": {"weights": "host", "state": "host"},
    "weights-host-clipped": {"weights": "host", "state": "host", "gradient_clipping": 0.1},
    "weights-disk": {"weights": "disk", "state": "disk"},
    "delayed": {"weights": "host", "state": "host", "overlap": "delayed", "delay_warmup": 1},
}
IN_ORDER = [way for way in WAYS if way != "delayed"]


def open_engine(model: nn.Module, way: str, folder: Path, **options: Any) -> OffloadEngine:
    given = {"device": SeparateMemory(1, longest_s=0.001), **WAYS[way], **options}
    if given["state"] == "disk":
        given["disk_path"] = folder
    return OffloadEngine(
        model,
        optimizer=SETTINGS,
        chunk_bytes=CHUNK_BYTES,
        threads=2,
        precision="fp32",
        **given,
    )


def open_torch(model: nn.Module) -> torch.optim.AdamW:
    return torch_adamw(
        model, SETTINGS.lr, SETTINGS.weight_decay, betas=SETTINGS.betas, eps=SETTINGS.eps, foreach=False
    )


def torch_step(model: nn.Module, optimizer: torch.optim.AdamW, clipping: float = 0.0) -> float:
    norm = total_norm([p for p in model.parameters() if p.requires_grad])
    if clipping:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
    optimizer.step()
    optimizer.zero_grad()
    return norm


def assert_weights_are(
    engine: OffloadEngine, model: nn.Module, reference: nn.Module, start: nn.Module
) -> None:
    theirs = {name: parameter.detach() for name, parameter in reference.named_parameters()}
    assert_went_the_same_way(engine_weights(engine, model), theirs, start)


def stack(seed: int = 0, **options: Any) -> Stack:
    torch.manual_seed(seed)
    return Stack(**options).train()


@pytest.mark.parametrize("way", WAYS)
def test_evaluation_between_steps_and_micro_batches_changes_no_bit_of_training(
    way: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    start = DropoutInBlocks().train()

    def train(evaluates: bool, folder: Path) -> tuple[list[float], dict[str, Tensor]]:
        model, losses = clone(start), []
        folder.mkdir()
        with open_engine(model, way, folder, gradient_accumulation=2) as engine:
            for step in range(4):
                for micro in range(2):
                    torch.manual_seed(10 * step + micro)
                    loss = loss_of_hard(model, plain_batch(2 * step + micro))
                    losses.append(loss.item())
                    engine.backward(loss)
                    if evaluates:
                        with torch.no_grad():
                            loss_of_hard(model.eval(), plain_batch(99))
                        model.train()
                engine.step()
                if evaluates:
                    with torch.no_grad():
                        model.eval()
                        first = loss_of_hard(model, plain_batch(99)).item()
                        assert loss_of_hard(model, plain_batch(99)).item() == first
                        model.train()
                    with torch.inference_mode():
                        loss_of_hard(model, plain_batch(98))
            return losses, engine_weights(engine, model)

    plain, evaluated = train(False, tmp_path / "plain"), train(True, tmp_path / "evaluated")
    assert plain[0] == evaluated[0]
    assert all(torch.equal(plain[1][name], evaluated[1][name]) for name in plain[1])


@pytest.mark.parametrize("way", IN_ORDER)
def test_evaluation_sees_the_weights_after_the_last_step(way: str, tmp_path: Path) -> None:
    model, reference = stack(), stack()
    optimizer = open_torch(reference)
    with open_engine(model, way, tmp_path) as engine:
        for step in range(3):
            loss_of_hard(reference, plain_batch(step)).backward()
            torch_step(reference, optimizer, WAYS[way].get("gradient_clipping", 0.0))
            engine.backward(loss_of_hard(model, plain_batch(step)))
            engine.step()  # not waited for
            with torch.no_grad():
                ours, theirs = (loss_of_hard(m, plain_batch(50)) for m in (model, reference))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", IN_ORDER)
def test_evaluation_after_the_last_backward_of_a_step_sees_whole_weights(way: str, tmp_path: Path) -> None:
    """Blocks are updated as backward goes: whoever reads them before `step` must not get some old and some new."""
    model, reference = stack(blocks=6), stack(blocks=6)
    optimizer = open_torch(reference)
    seen: list[Tensor] = []
    with open_engine(model, way, tmp_path, device=SeparateMemory(3, longest_s=0.01)) as engine:
        for step in range(4):
            with torch.no_grad():
                old = loss_of_hard(reference, plain_batch(50))
            loss_of_hard(reference, plain_batch(step)).backward()
            torch_step(reference, optimizer, WAYS[way].get("gradient_clipping", 0.0))
            engine.backward(loss_of_hard(model, plain_batch(step)))
            with torch.no_grad():
                new = loss_of_hard(reference, plain_batch(50))
                seen.append(loss_of_hard(model, plain_batch(50)))
            engine.step()
            assert min(abs(seen[-1] - old), abs(seen[-1] - new)) <= 1e-5 * new, (old, seen[-1], new)


class RunningStatistics(Stack):
    """Blocks that update a buffer in forward, twice where they are recomputed, as under any checkpointing."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block(inner=50)
            self.normal = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.normal(torch.tanh(self.inner(x)))
            return out

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RunningStatistics.Part() for _ in range(3))


def two_forwards_in_one_backward(network: nn.Module, step: int) -> Iterator[Tensor]:
    """As contrastive losses have it: every block is called twice before its first gradient comes."""
    one, two = (loss_of_hard(network, plain_batch(2 * step + i)) for i in range(2))
    yield one + two + (one - two).square()


def forwards_thrown_away(network: nn.Module, step: int) -> Iterator[Tensor]:
    for micro in range(2):
        kept = loss_of_hard(network, plain_batch(2 * step + micro))
        loss_of_hard(network, plain_batch(77))
        yield kept
        loss_of_hard(network, plain_batch(78))


def training_switched_on_and_off(network: nn.Module, step: int) -> Iterator[Tensor]:
    for micro, training in enumerate((True, False)):
        torch.manual_seed(step)
        yield loss_of_hard(network.train(training), plain_batch(2 * step + micro))


def blocks_called_by_themselves(network: Any, step: int) -> Iterator[Tensor]:
    """With gradients or without, outside of any forward of the model, as probes and analyses do."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert torch.isfinite(network.blocks[2](x)).all()
    yield loss_of_hard(network, plain_batch(step))


def one_forward(network: nn.Module, step: int) -> Iterator[Tensor]:
    yield loss_of_hard(network, plain_batch(step))


USES: list[tuple[Callable[[nn.Module, int], Iterator[Tensor]], type[nn.Module], int]] = [
    # The micro-batches' losses in a step, the model, and how many micro-batches there are.
    (two_forwards_in_one_backward, Stack, 1),
    (forwards_thrown_away, Stack, 2),
    (training_switched_on_and_off, DropoutInBlocks, 2),
    (blocks_called_by_themselves, Stack, 1),
    (one_forward, RunningStatistics, 1),
]


@pytest.mark.parametrize(("losses", "kind", "micro_batches"), USES, ids=[u.__name__ for u, _, _ in USES])
@pytest.mark.parametrize("way", IN_ORDER)
def test_such_a_use_trains_what_torch_trains(
    losses: Callable[[nn.Module, int], Iterator[Tensor]],
    kind: type[nn.Module],
    micro_batches: int,
    way: str,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    start = kind().train()
    model, reference = clone(start), clone(start)
    optimizer = open_torch(reference)
    with open_engine(model, way, tmp_path, gradient_accumulation=micro_batches) as engine:
        for step in range(3):
            for loss in losses(reference, step):
                (loss / micro_batches).backward()
            torch_step(reference, optimizer, WAYS[way].get("gradient_clipping", 0.0))
            for loss in losses(model, step):
                engine.backward(loss)
            engine.step()
        assert_weights_are(engine, model, reference, start)
        with torch.no_grad():
            assert torch.isfinite(loss_of_hard(model.eval(), plain_batch(9)))


@pytest.mark.parametrize("way", IN_ORDER)
def test_the_gradient_of_an_input_is_torchs(way: str, tmp_path: Path) -> None:
    model, reference = stack(), stack()
    with open_engine(model, way, tmp_path) as engine:
        ours, theirs = (plain_batch(0)[0].requires_grad_() for _ in range(2))
        loss_of_hard(reference, (theirs, None)).backward()
        engine.backward(loss_of_hard(model, (ours, None)))
        engine.step()
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


class Failing(Stack):
    """Raises in a block's forward, in its recompute, or in its backward, where it is told to."""

    class Part(Block):
        fails = ""
        runs = 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.fails == "forward" or (self.fails == "recompute" and self.runs % 2 == 0):
                raise KeyError("the block breaks")
            out = super().forward(x)
            if self.fails == "backward" and out.requires_grad:
                out.register_hook(self._break)
            return out

        @staticmethod
        def _break(gradient: Tensor) -> None:
            raise KeyError("the block breaks")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Failing.Part() for _ in range(4))


@pytest.mark.parametrize("way", WAYS)
def test_after_an_exception_in_a_blocks_forward_training_goes_on_as_if_it_had_not_been_called(
    way: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    start = Failing().train()
    outcomes = []
    for breaks in (False, True):
        model, folder = clone(start), tmp_path / str(breaks)
        folder.mkdir()
        with open_engine(model, way, folder, gradient_accumulation=2) as engine:
            for step in range(4):
                for micro in range(2):
                    if breaks:
                        model.blocks[2].fails = "forward"
                        with pytest.raises(KeyError, match="the block breaks"):
                            loss_of_hard(model, plain_batch(77))
                        model.blocks[2].fails = ""
                    engine.backward(loss_of_hard(model, plain_batch(2 * step + micro)))
                engine.step()
            outcomes.append(engine_weights(engine, model))
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])


@pytest.mark.parametrize("fails", ["recompute", "backward"])
@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_a_blocks_backward_reaches_the_caller_and_stops_the_engine_in_words(
    way: str, fails: str, tmp_path: Path
) -> None:
    """Gradients that came half-way cannot be told apart from whole ones. The fixture sees that no thread is left."""
    torch.manual_seed(0)
    model = Failing().train()
    with open_engine(model, way, tmp_path, gradient_accumulation=2) as engine:
        for step in range(2):
            engine.backward(loss_of_hard(model, plain_batch(step)))
        engine.step()
        engine.wait()
        model.blocks[1].fails = fails
        model.blocks[1].runs = 0
        loss = loss_of_hard(model, plain_batch(3))
        with pytest.raises(KeyError, match="the block breaks"):
            engine.backward(loss)
        model.blocks[1].fails = ""
        with pytest.raises(RuntimeError, match="stopped after an error"):
            engine.backward(torch.zeros((), requires_grad=True))
        with pytest.raises(RuntimeError, match="stopped after an error"):
            engine.step()
        if WAYS[way]["weights"] != "device":
            # The weights do not come any more: this must not look like a forward.
            with pytest.raises((RuntimeError, KeyError)):
                loss_of_hard(model, plain_batch(4))


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_engines_model_is_torchs_again_and_nothing_holds_it(way: str, tmp_path: Path) -> None:
    model = stack()
    engine = open_engine(model, way, tmp_path)
    for step in range(2):
        engine.backward(loss_of_hard(model, plain_batch(step)))
        engine.step()
    newest = engine_weights(engine, model)
    engine.close()
    if WAYS[way]["weights"] != "disk":
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.detach(), newest[name]), name
        expected = stack()
        with torch.no_grad():
            for name, parameter in expected.named_parameters():
                parameter.copy_(newest[name])
        for network in (model, expected):
            loss_of_hard(network, plain_batch(5)).backward()
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert ours.grad is not None and theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None
