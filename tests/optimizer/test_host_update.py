"""The host optimizer's update against its truth: torch's own AdamW, and the reference in float64."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
import torch
import torch_parity
from adamw_pairs import DECAYING, update
from torch import Tensor
from workbench._native import lib

from workbench.optimizer import load_extension
from workbench.optimizer.host import INSTRUCTION_SETS, AdamW, HostOptimizer, Piece, PieceTable
from workbench.optimizer.reference import ReferenceParameter, join_float32, split_float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("decay", [True, False])
def test_the_reference_has_torchs_bits_also_where_gradients_are_missing(
    dtype: torch.dtype, decay: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(10, 7, generator=generator, dtype=dtype)
    theirs = start.clone().requires_grad_()
    settings = AdamW(lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
    optimizer = torch.optim.AdamW(
        [theirs],
        lr=1e-2,
        betas=(0.8, 0.99),
        eps=1e-6,
        weight_decay=0.1 if decay else 0.0,
        foreach=False,
    )
    ours = ReferenceParameter.fresh(start, decay=decay)
    for step in range(10):
        gradient = None if step % 3 == 1 else torch.randn(10, 7, generator=generator, dtype=dtype)
        theirs.grad = gradient
        optimizer.step()
        ours.update(gradient, settings)
    assert ours.step == 7
    assert torch.equal(ours.parameter, theirs.detach())
    assert torch.equal(ours.exp_avg, optimizer.state[theirs]["exp_avg"])
    assert torch.equal(ours.exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"])


@functools.cache
def parity(capability: str) -> dict[str, dict[str, float]]:
    """torch_parity's report from a process in which torch uses that capability's kernels.

    torch takes the name on trust, and dies of an instruction that the processor lacks: the processor is asked first.
    """
    if capability != "default" and not lib.wb_has_instruction_set(INSTRUCTION_SETS[capability]):
        pytest.skip(f"this processor has no {capability}")
    run = subprocess.run(
        [sys.executable, torch_parity.__file__],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(run.stdout)
    if report["capability"].lower() != capability:
        pytest.skip(f"torch has no {capability} kernels for this processor")
    worst: dict[str, dict[str, float]] = report["worst"]
    return worst


@pytest.mark.parametrize("capability", ["avx512", pytest.param("avx2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [*torch_parity.SETTINGS, *torch_parity.COUPLED])
def test_moments_have_torchs_bits_and_the_parameter_is_within_the_truth(
    capability: str, settings: str
) -> None:
    worst = parity(capability)[settings]
    # With beta1 = 0 torch itself gives a zero one sign in its vectors and another in the tail behind them.
    if settings != "zero betas":
        assert worst["exp_avg_bits"] == 0
    assert worst["exp_avg"] == 0
    assert worst["exp_avg_sq_bits"] == 0
    assert worst["parameter"] <= 1


@pytest.mark.parametrize("settings", torch_parity.SETTINGS)
def test_where_torch_has_no_fma_the_moments_differ_by_the_rounding_that_fma_leaves_out(settings: str) -> None:
    worst = parity("default")[settings]
    assert worst["exp_avg"] <= 1
    assert worst["exp_avg_sq"] <= 1


def rounded_adamw(
    parameter: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamW, step: int
) -> Tensor:
    """The parameter after torch's operations, with a correctly rounded square root (MKL's is not)."""
    beta1, beta2 = settings.betas
    parameter = parameter * (1 - settings.lr * settings.weight_decay)
    root = exp_avg_sq.double().sqrt().float()
    denominator = root / (1 - beta2**step) ** 0.5 + settings.eps
    step_size = settings.lr / (1 - beta1**step)
    return parameter.addcdiv(exp_avg, denominator, value=-step_size)


def zeros(count: int) -> Piece:
    return Piece(*(torch.zeros(count) for _ in range(3)))


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0])
def test_the_parameter_has_the_bits_of_the_same_operations_correctly_rounded(scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    before, exp_avg, gradient = (torch.randn(200_003, generator=generator) for _ in range(3))
    before *= scale
    piece = Piece(exp_avg, torch.rand(200_003, generator=generator), before.clone())
    update([piece], [gradient], steps=7, threads=2)
    assert piece.master is not None
    expected = rounded_adamw(before, piece.exp_avg, piece.exp_avg_sq, DECAYING, step=7)
    assert torch_parity.different(piece.master, expected) == 0


def run_steps(layout: str) -> list[Tensor]:
    """Three steps of one piece; returns everything that an update may change."""
    generator = torch.Generator().manual_seed(11)
    master = torch.randn(1000, generator=generator)
    moments = torch.zeros(1000), torch.zeros(1000)
    if layout == "split":
        high, low = split_float32(master)
        piece = Piece(*moments, high=high, low=low)
    else:
        emit = torch.zeros(1000, dtype=torch.bfloat16) if layout == "emit" else None
        piece = Piece(*moments, master=master, emit=emit)
    for step in range(3):
        update([piece], [torch.randn(1000, generator=generator) * 10.0 ** (step - 1)], steps=step + 1)
    return [*moments, *(t for t in (piece.master, piece.high, piece.low, piece.emit) if t is not None)]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


def test_a_split_master_takes_the_same_steps_as_a_plain_one_and_an_emitting_one() -> None:
    plain, split, emitting = (run_steps(layout) for layout in ("master", "split", "emit"))
    assert same_bits(plain, [*split[:2], join_float32(split[2], split[3])])
    assert same_bits([*plain, split[2]], emitting)


def test_float64_agrees_with_weight_decay_scale_and_step_counts_of_each_piece() -> None:
    generator = torch.Generator().manual_seed(5)
    settings = AdamW(lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1)
    start = [torch.randn(300, generator=generator) for _ in range(4)]
    pieces = [
        Piece(torch.zeros(300), torch.zeros(300), master=values.clone(), decay=index != 1)
        for index, values in enumerate(start)
    ]
    truth = [
        ReferenceParameter.fresh(values.double(), decay=index != 1) for index, values in enumerate(start)
    ]
    table = PieceTable(pieces)
    with HostOptimizer(threads=1) as optimizer:
        for step in range(1, 51):
            for index, reference in enumerate(truth):
                # Piece 2 gets a gradient in every third step only, and counts only those; its neighbours differ
                # from it in decay, in steps, or in both.
                gradient = torch.randn(300, generator=generator) if index != 2 or step % 3 == 0 else None
                reference.update(gradient, settings, gradient_scale=0.125)
                table.set_gradient(index, gradient)
                table.set_step(index, reference.step)
            optimizer.update(table, settings, gradient_scale=0.125)
    assert [reference.step for reference in truth] == [50, 50, 16, 50]
    for piece, reference in zip(pieces, truth, strict=True):
        assert piece.master is not None
        torch.testing.assert_close(piece.master.double(), reference.parameter, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(piece.exp_avg.double(), reference.exp_avg, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(piece.exp_avg_sq.double(), reference.exp_avg_sq, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("step", [1, 1000, 10_000_000])
def test_one_step_is_within_a_few_roundings_of_float64_at_any_step_count(step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    settings = AdamW(lr=1e-3, betas=(0.9, 0.999))
    exp_avg, exp_avg_sq, gradient = (torch.rand(1000, generator=generator) + 0.5 for _ in range(3))
    truth = ReferenceParameter(
        torch.zeros(1000, dtype=torch.float64), exp_avg.double(), exp_avg_sq.double(), step=step - 1
    )
    piece = Piece(exp_avg, exp_avg_sq, master=torch.zeros(1000))
    update([piece], [gradient], settings, steps=step)
    truth.update(gradient, settings)
    assert piece.master is not None
    error = (piece.master.double() - truth.parameter).abs() / truth.parameter.abs()
    assert float(error.max()) < 10 * 2.0**-24


def test_the_scale_multiplies_the_gradient_in_float32_and_one_changes_nothing() -> None:
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    scaled, plain = zeros(1000), zeros(1000)
    update([scaled], [gradient], scale=0.3)
    update([plain], [gradient * 0.3])
    assert same_bits([scaled.exp_avg, scaled.exp_avg_sq], [plain.exp_avg, plain.exp_avg_sq])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_gradient_is_widened_exactly(dtype: torch.dtype) -> None:
    patterns = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    gradient = patterns[patterns.float().isfinite()]
    narrow, wide = zeros(gradient.numel()), zeros(gradient.numel())
    update([narrow, wide], [gradient, gradient.float()], AdamW(betas=(0.0, 0.999)))
    assert same_bits([narrow.exp_avg, narrow.exp_avg_sq], [wide.exp_avg, wide.exp_avg_sq])
    assert torch.equal(narrow.exp_avg, gradient.float())


def test_a_piece_without_a_gradient_is_left_untouched() -> None:
    pieces = [Piece(*(torch.ones(40_000) for _ in range(3))) for _ in range(3)]
    update(pieces, [torch.ones(40_000), None, torch.ones(40_000)], threads=2)
    for index, piece in enumerate(pieces):
        assert piece.master is not None
        assert bool((piece.master != 1).all()) == (index != 1)
        assert bool((piece.exp_avg_sq == 1).all())  # 1 is its fixed point at a gradient of 1
    assert torch.equal(pieces[1].exp_avg, torch.ones(40_000))


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_survive_where_the_calling_thread_flushes_them(threads: int) -> None:
    tiny, piece = torch.full((100_000,), 1e-40), zeros(100_000)
    torch.set_flush_denormal(True)
    try:
        update([piece], [tiny], AdamW(), threads=threads)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(piece.exp_avg, torch.zeros(100_000).lerp_(tiny, 1 - 0.9))
    assert float(piece.exp_avg.max()) > 0


def test_the_forced_instruction_set_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_ISA", "avx3")
    with pytest.raises(
        ValueError, match="WORKBENCH_ISA must be one of avx512, avx2, neon, scalar, not 'avx3'"
    ):
        HostOptimizer()
    monkeypatch.setattr("workbench.optimizer.host.INSTRUCTION_SETS", {"avx2": 99, "scalar": 0})
    monkeypatch.setenv("WORKBENCH_ISA", "avx2")
    with pytest.raises(ValueError, match="WORKBENCH_ISA is 'avx2', but this CPU offers only scalar"):
        HostOptimizer()


def test_without_the_extension_the_error_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workbench._native", None)
    with pytest.raises(ImportError, match=r"pip install --editable \."):
        load_extension()
