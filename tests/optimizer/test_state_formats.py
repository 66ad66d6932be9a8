"""The formats of the state: their bits do not depend on how the work is done, and their moments follow the truth."""

from __future__ import annotations

import itertools

import pytest
import torch
from adamw_pairs import update
from torch import Tensor

from workbench.layout import BLOCK, MOMENTS, StateFormat, moment_bytes
from workbench.optimizer.host import INSTRUCTION_SETS, AdamW, HostOptimizer, Piece, PieceTable, lib
from workbench.optimizer.reference import ReferenceParameter, join_float32, split_float32

FORMATS: list[StateFormat] = ["exact", "half", "compact"]
SHORT: list[StateFormat] = ["half", "compact"]
KINDS = ["split", "plain", "emit bfloat16", "emit float16"]
GRADIENTS = [torch.float32, torch.bfloat16, torch.float16]
SETTINGS = AdamW(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
AVAILABLE = [name for name, number in INSTRUCTION_SETS.items() if lib.wb_has_instruction_set(number)]


def moments(count: int, state_format: StateFormat) -> dict[str, Tensor]:
    """A fresh state's tensors."""
    return {t.kind: torch.zeros(t.count(count), dtype=getattr(torch, t.dtype)) for t in MOMENTS[state_format]}


def piece_of(values: Tensor, state_format: StateFormat, kind: str = "plain", **options: object) -> Piece:
    """A piece of fp32 `values`, before its first step."""
    state = moments(values.numel(), state_format)
    if kind == "split":
        high, low = split_float32(values)
        return Piece(**state, high=high, low=low, state_format=state_format, **options)  # type: ignore[arg-type]
    emit = None
    if kind.startswith("emit"):
        emit = torch.zeros(values.numel(), dtype=getattr(torch, kind.split()[1]))
    return Piece(**state, master=values.clone(), emit=emit, state_format=state_format, **options)  # type: ignore[arg-type]


def values_of(piece: Piece) -> Tensor:
    if piece.master is not None:
        return piece.master
    assert piece.high is not None and piece.low is not None
    return join_float32(piece.high, piece.low)


def exp_avg_of(piece: Piece) -> Tensor:
    if piece.exp_avg_scale is None:
        return piece.exp_avg.float()
    codes = piece.exp_avg.float()
    return codes * codes.abs() * piece.exp_avg_scale.repeat_interleave(BLOCK)[: piece.count]


def exp_avg_sq_of(piece: Piece) -> Tensor:
    if piece.exp_avg_sq_scale is None:
        return piece.exp_avg_sq.float()
    return piece.exp_avg_sq.float() ** 2 * piece.exp_avg_sq_scale.repeat_interleave(BLOCK)[: piece.count]


def tensors_of(piece: Piece) -> list[Tensor]:
    names = ("exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale", "master", "high", "low", "emit")
    return [tensor for name in names if (tensor := getattr(piece, name)) is not None]


def run(
    pieces: list[Piece],
    optimizer: HostOptimizer,
    dtype: torch.dtype = torch.float32,
    steps: int = 3,
    settings: AdamW = SETTINGS,
    gradient_scale: float = 1.0,
) -> list[Tensor]:
    """A few steps on seeded gradients; returns everything that they may change."""
    table = PieceTable(pieces)
    for step in range(1, steps + 1):
        for index, piece in enumerate(pieces):
            generator = torch.Generator().manual_seed(1000 * index + step)
            table.set_gradient(index, torch.randn(piece.count, generator=generator).to(dtype))
            table.set_step(index, step)
        optimizer.update(table, settings, gradient_scale)
    return [tensor for piece in pieces for tensor in tensors_of(piece)]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


def random_values(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("dtype", GRADIENTS, ids=str)
@pytest.mark.parametrize("state_format", FORMATS)
def test_instruction_sets_and_threads_do_not_show(
    state_format: StateFormat, dtype: torch.dtype, coupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/native compares every call at every length; this compares the extension that is installed."""
    beta1 = 0.4 if coupled else 0.9  # exact starts its average from the nearer end
    settings = AdamW(lr=1e-2, betas=(beta1, 0.99), weight_decay=0.1, coupled_decay=coupled)
    results = []
    for instruction_set, threads in [*((name, 2) for name in AVAILABLE), ("scalar", 1), ("scalar", 5)]:
        monkeypatch.setenv("WORKBENCH_ISA", instruction_set)
        with HostOptimizer(threads) as optimizer:
            assert optimizer.instruction_set == instruction_set
            pieces = [
                piece_of(random_values(count), state_format, kind, decay=count != 300)
                for count, kind in itertools.product((1, 7, 256, 300, 140_001), KINDS)
            ]
            results.append(run(pieces, optimizer, dtype, settings=settings, gradient_scale=0.5))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("state_format", FORMATS)
def test_where_a_parameter_is_cut_does_not_show(state_format: StateFormat) -> None:
    values, gradient = random_values(200_000), random_values(200_000, seed=1)
    results = []
    for cuts in ([0, 200_000], [0, 65_536, 200_000], [0, 131_072, 196_608, 200_000]):
        pieces = [
            piece_of(values[begin:end], state_format, offset=begin, random_stream=7)
            for begin, end in itertools.pairwise(cuts)
        ]
        for step in (1, 2):
            parts = [gradient[p.offset : p.offset + p.count].clone() for p in pieces]
            update(pieces, parts, SETTINGS, steps=step, threads=2)
        results.append(
            [torch.cat([values_of(p) for p in pieces]), torch.cat([exp_avg_of(p) for p in pieces])]
        )
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("state_format", SHORT)
def test_parameters_and_steps_round_by_dice_of_their_own(state_format: StateFormat) -> None:
    values, gradient = torch.zeros(1000), random_values(1000)
    pieces = [piece_of(values, state_format, random_stream=stream) for stream in (1, 1, 2)]
    update(pieces, [gradient] * 3, SETTINGS)
    same, twin, other = (p.exp_avg_sq.view(torch.uint8) for p in pieces)
    assert torch.equal(same, twin)
    assert not torch.equal(same, other)


# 8-bit codes stand for shares of their block's largest: what follows holds for the mean over a block.
MEAN_ERROR = {"exact": 1e-4, "half": 0.003, "compact": 0.02}


@pytest.mark.parametrize("kind", ["split", "plain"])
@pytest.mark.parametrize("beta2", [0.95, 0.999])
@pytest.mark.parametrize("state_format", FORMATS)
def test_a_thousand_steps_stay_with_float64(state_format: StateFormat, kind: str, beta2: float) -> None:
    settings = AdamW(lr=1e-3, betas=(0.9, beta2), weight_decay=0.01)
    start = random_values(1025)
    piece = piece_of(start, state_format, kind)
    truth = ReferenceParameter.fresh(start.double())
    generator = torch.Generator().manual_seed(4)
    table = PieceTable([piece])
    with HostOptimizer(threads=1) as optimizer:
        for step in range(1, 1001):
            gradient = torch.randn(1025, generator=generator) + 0.5
            table.set_gradient(0, gradient)
            table.set_step(0, step)
            optimizer.update(table, settings)
            truth.update(gradient, settings)
    ratio = exp_avg_sq_of(piece).double() / truth.exp_avg_sq
    assert float(ratio.mean()) == pytest.approx(1, abs=MEAN_ERROR[state_format])
    # The difference as a share of the way that was walked.
    walked = (truth.parameter - start.double()).norm()
    apart = (values_of(piece).double() - truth.parameter).norm()
    assert float(apart / walked) < {"exact": 1e-4, "half": 0.01, "compact": 0.05}[state_format]


@pytest.mark.parametrize("state_format", FORMATS)
def test_exp_avg_sq_follows_gradients_that_fall(state_format: StateFormat) -> None:
    """The case that rounding to the nearest gets wrong: it stands still, and the steps stay too small for ever."""
    settings = AdamW(lr=1e-4, betas=(0.9, 0.999))
    piece = piece_of(torch.zeros(4096), state_format)
    truth = ReferenceParameter.fresh(torch.zeros(4096, dtype=torch.float64))
    generator = torch.Generator().manual_seed(4)
    table = PieceTable([piece])
    nearest = torch.zeros(4096, dtype=torch.bfloat16)
    with HostOptimizer(threads=2) as optimizer:
        for step in range(1, 4501):
            gradient = torch.randn(4096, generator=generator) * (1.0 if step <= 500 else 0.05)
            table.set_gradient(0, gradient)
            table.set_step(0, step)
            optimizer.update(table, settings)
            truth.update(gradient, settings)
            nearest = (nearest.float() * 0.999 + gradient**2 * 0.001).bfloat16()
    share = exp_avg_sq_of(piece).double().mean() / truth.exp_avg_sq.mean()
    assert float(share) == pytest.approx(1, abs={"exact": 1e-4, "half": 0.02, "compact": 0.1}[state_format])
    assert float(nearest.double().mean() / truth.exp_avg_sq.mean()) > 1.5, "the case has lost its point"


@pytest.mark.parametrize("state_format", FORMATS)
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-12, 1.0, 1e12])
def test_gradients_of_any_size_move_parameters_by_the_learning_rate(
    state_format: StateFormat, scale: float
) -> None:
    settings = AdamW(lr=1e-2, betas=(0.9, 0.999), eps=0.0 if scale >= 1e-12 else 1e-8)
    piece = piece_of(torch.zeros(700), state_format)
    gradient = (torch.rand(700, generator=torch.Generator().manual_seed(1)) + 0.5) * scale
    update([piece], [gradient], settings)
    expected = -0.01 * gradient.double() / (gradient.double() + settings.eps)
    torch.testing.assert_close(values_of(piece).double(), expected, rtol=1e-4, atol=1e-12)


def test_a_freak_gradient_does_not_freeze_its_block_for_ever() -> None:
    piece, settings = piece_of(torch.zeros(256), "compact"), AdamW(lr=1e-2, betas=(0.5, 0.5))
    for step in range(1, 401):
        gradient, before = torch.ones(256), values_of(piece).clone()
        if step == 3:
            gradient[5] = 1e25
        update([piece], [gradient], settings, steps=step)
        assert all(bool(t.float().isfinite().all()) for t in tensors_of(piece))
    assert float((before - values_of(piece)).min()) > 0.005


@pytest.mark.parametrize("state_format", FORMATS)
def test_without_gradient_or_decay_nothing_moves(state_format: StateFormat) -> None:
    start = random_values(1000)
    piece = piece_of(start, state_format)
    for step in range(1, 20):
        update([piece], [torch.zeros(1000)], AdamW(lr=1e-2), steps=step)
    assert torch.equal(values_of(piece), start)
    assert not exp_avg_of(piece).any() and not exp_avg_sq_of(piece).any()


def test_compact_gives_no_element_a_root_of_zero_beside_others() -> None:
    piece = piece_of(torch.zeros(256), "compact")
    gradient = torch.full((256,), 1e-6)
    gradient[7] = 1.0
    update([piece], [gradient], AdamW(lr=1e-2))
    assert int(piece.exp_avg_sq.min()) == 1 and int(piece.exp_avg_sq.max()) == 255
    assert int(piece.exp_avg[7]) == 127


@pytest.mark.parametrize("state_format", FORMATS)
def test_bytes_are_counted_as_they_are_laid_out(state_format: StateFormat) -> None:
    for count in (1, 256, 257, 10_000):
        laid_out = sum(t.nbytes for t in moments(count, state_format).values())
        assert moment_bytes(state_format, count) == laid_out


def test_a_piece_names_what_its_format_lacks() -> None:
    state = {**moments(300, "compact"), "master": torch.zeros(300), "state_format": "compact"}
    wrong: list[tuple[dict[str, object], str]] = [
        ({**state, "exp_avg_sq_scale": None}, "a compact piece needs exp_avg_sq_scale"),
        ({**state, "state_format": "half"}, "a half piece has no exp_avg_scale"),
        ({**state, "exp_avg_scale": torch.zeros(1)}, "exp_avg_scale must have 2 elements, not 1"),
        (
            {**state, "exp_avg_sq": torch.zeros(300, dtype=torch.int8)},
            "exp_avg_sq must be torch.uint8, not torch.int8",
        ),
        ({**state, "offset": 256}, "offset must be a multiple of 65,536, not 256"),
        ({**state, "emit": torch.zeros(300)}, "emit must be torch.bfloat16 or torch.float16"),
        (
            {**moments(300, "half"), "master": torch.zeros(300)},
            "exp_avg must be torch.float32, not torch.bfloat16",
        ),
    ]
    for fields, message in wrong:
        with pytest.raises(ValueError, match=message):
            Piece(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrowing_rounds_as_torch_does(dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (1 << 20,), generator=torch.Generator().manual_seed(9)).int()
    edges = torch.tensor(
        [0.0, -0.0, 65503.9, 65519.99, 65520.0, 1e9, float("inf"), float("nan"), 6e-8, 2.9e-8]
    )
    halves = torch.arange(-32768, 32768).to(torch.int16).view(torch.float16).float()
    between = (halves[:-1] + halves[1:]) / 2
    source = torch.cat([bits.view(torch.float32), edges, -edges, halves, between])
    narrow = torch.empty(source.numel(), dtype=dtype)
    with HostOptimizer(threads=2) as optimizer:
        optimizer.narrow(narrow, source)
    expected = source.to(dtype)
    number = ~expected.isnan()
    assert torch.equal(narrow.isnan(), expected.isnan())
    assert torch.equal(narrow[number].view(torch.int16), expected[number].view(torch.int16))
