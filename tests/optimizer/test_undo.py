"""Updates ahead of their verdict: undone, redone and completed to the bits of an update that waited for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from workbench._native import lib

from workbench.layout import BLOCK, MOMENTS, RECORD_BYTES, RECORD_ELEMENTS, StateFormat, record_bytes
from workbench.optimizer.host import INSTRUCTION_SETS, AdamW, HostOptimizer, Piece, PieceTable
from workbench.optimizer.reference import split_float32

SETS = [name for name, number in INSTRUCTION_SETS.items() if lib.wb_has_instruction_set(number)]
FORMATS = tuple(MOMENTS)
KINDS = ("plain", "split", "split, bfloat16", "plain, bfloat16", "emitting, float16")
SETTINGS = AdamW(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
SCALE, OTHER_SCALE = 0.5, 0.3125
COUNT = 3 * RECORD_ELEMENTS + 77
"""Whole records, and one with a tail that no row fills."""

Values = tuple[Tensor, Tensor, Tensor, Tensor]
"""exp_avg, exp_avg_sq, parameter and gradient, float32."""


def records(count: int, state_format: StateFormat = "exact") -> Tensor:
    """Room for the records of a piece, with something in it, at a multiple of 64 bytes."""
    size = record_bytes(state_format, count)
    room = torch.full((size + 64,), 0x5A, dtype=torch.uint8)
    first = -room.data_ptr() % 64
    return room[first : first + size]


def moments(state_format: StateFormat, exp_avg: Tensor, exp_avg_sq: Tensor) -> dict[str, Tensor]:
    """Both in a format, to the nearest below; what is not finite stays that in a block's scale, if it comes first."""
    if state_format == "exact":
        return {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    if state_format == "half":
        halves = ((value.view(torch.int32) >> 16).to(torch.int16) for value in (exp_avg, exp_avg_sq))
        return {
            k: half.view(torch.bfloat16) for k, half in zip(("exp_avg", "exp_avg_sq"), halves, strict=True)
        }
    found = {}
    for kind, value, largest in (("exp_avg", exp_avg, 127), ("exp_avg_sq", exp_avg_sq, 255)):
        finite = torch.nan_to_num(value, 0.0, 0.0, 0.0)
        room = torch.zeros(-(-value.numel() // BLOCK), BLOCK)
        room.view(-1)[: value.numel()] = finite
        scale = room.abs().amax(1) / largest**2
        code = (room.abs() / scale.clamp_min(1e-45)[:, None]).sqrt().clamp(0, largest) * room.sign()
        code = code.view(-1)[: value.numel()]
        found[kind] = code.to(torch.int8) if largest == 127 else code.abs().clamp_min(1).to(torch.uint8)
        found[f"{kind}_scale"] = torch.where(value[::BLOCK].isfinite(), scale, value[::BLOCK])
    return found


def trained(seed: int = 0, count: int = COUNT, steps: int = 60) -> Values:
    """As in the middle of a training."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(count, generator=generator) * 1e-3

    def draw() -> Tensor:
        return torch.randn(count, generator=generator)

    exp_avg, exp_avg_sq = torch.zeros(count), torch.zeros(count)
    for _ in range(steps):
        gradient = draw() * scale
        exp_avg.lerp_(gradient, 0.1)
        exp_avg_sq.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
    return exp_avg, exp_avg_sq, draw() * 0.02, draw() * scale


def first_step() -> Values:
    return torch.zeros(COUNT), torch.zeros(COUNT), torch.randn(COUNT) * 0.02, torch.randn(COUNT)


def nothing() -> Values:
    return torch.zeros(COUNT), torch.zeros(COUNT), torch.zeros(COUNT), torch.zeros(COUNT)


def spikes() -> Values:
    """Some gradients of 10,000 times what the moments are used to."""
    exp_avg, exp_avg_sq, parameter, gradient = trained(1)
    return (
        exp_avg,
        exp_avg_sq,
        parameter,
        torch.where(torch.arange(COUNT) % 613 == 5, gradient * 1e4, gradient),
    )


def denormals() -> Values:
    exp_avg, exp_avg_sq, parameter, gradient = trained(2)
    return exp_avg * 1e-36, exp_avg_sq * 1e-33, parameter * 1e-37, gradient * 1e-37


def sparse() -> Values:
    """Rows of an embedding that come up now and then: moments that are nearly gone."""
    exp_avg, exp_avg_sq, parameter, gradient = trained(3)
    seldom = torch.arange(COUNT) // 500 % 3 == 1
    faded = torch.where(seldom, 1e-9, 1.0)
    return exp_avg * faded, exp_avg_sq * faded, parameter, gradient


def any_bits() -> Values:
    """Every kind of float32, infinities and NaN of all payloads included."""
    generator = torch.Generator().manual_seed(4)
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (4, COUNT), generator=generator, dtype=torch.int64)
    return tuple(words.to(torch.int32).view(torch.float32))  # type: ignore[return-value]


def some_bits() -> Values:
    """A few elements of any bits among trained ones, gradients included, so that records have room for them."""
    odd = torch.arange(COUNT) % 401 == 13
    return tuple(  # type: ignore[return-value]
        torch.where(odd, wild, tame) for wild, tame in zip(any_bits(), trained(5), strict=True)
    )


VALUES: dict[str, Callable[[], Values]] = {
    each.__name__: each
    for each in (trained, first_step, nothing, spikes, denormals, sparse, any_bits, some_bits)
}
NUMBERS = {
    "usual": SETTINGS,
    "no decay": AdamW(lr=1e-3, betas=(0.9, 0.999)),
    "beta2 of 0": AdamW(betas=(0.9, 0.0)),
    "slow": AdamW(lr=1e-2, betas=(0.99999, 0.9999999), weight_decay=0.9),
    "beta1 just above a half": AdamW(betas=(0.51, 0.6), weight_decay=0.01),
    "no eps": AdamW(eps=0.0),
}


class Trial:
    """A piece of `values` in memory, and its table."""

    def __init__(
        self, kind: str, values: Values, step: int = 100, state_format: StateFormat = "exact"
    ) -> None:
        exp_avg, exp_avg_sq, parameter, gradient = (value.clone() for value in values)
        count = exp_avg.numel()
        master: dict[str, Any] = {"master": parameter}
        if kind.startswith("split"):
            high, low = split_float32(parameter)
            master = {"high": high, "low": low}
        elif kind.startswith("emitting"):
            master["emit"] = torch.zeros(parameter.shape, dtype=torch.float16)
            with HostOptimizer(threads=1) as optimizer:
                optimizer.narrow(master["emit"], parameter)
        if "," in kind:
            gradient = gradient.to(getattr(torch, kind.split(", ")[1]))
        self.records = records(count, state_format)
        self.record_bytes = RECORD_BYTES[state_format]
        master |= moments(state_format, exp_avg, exp_avg_sq)
        piece = Piece(**master, state_format=state_format, random_stream=step, records=self.records)
        self.table = PieceTable([piece])
        self.table.set_gradient(0, gradient)
        self.table.set_step(0, step)

    @property
    def bits(self) -> list[Tensor]:
        return [tensor.clone().view(torch.uint8) for tensor in self.table.state]

    @property
    def escapes(self) -> int:
        heads = self.records.view(-1, self.record_bytes)[:, :8].contiguous().view(torch.int32)
        return int(heads[:, 1].sum())


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=SETS)
def optimizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HostOptimizer:
    monkeypatch.setenv("WORKBENCH_ISA", request.param)
    return HostOptimizer(threads=2)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("state_format", FORMATS)
def test_undone_redone_and_completed_it_has_the_bits_of_an_update_that_waited(
    optimizer: HostOptimizer, kind: str, values: str, numbers: str, state_format: StateFormat
) -> None:
    settings, start = NUMBERS[numbers], VALUES[values]()
    trials = [Trial(kind, start, state_format=state_format) for _ in range(5)]
    plain, scaled, undone, redone, completed = trials
    before = plain.bits
    optimizer.update(plain.table, settings, SCALE)
    optimizer.update(scaled.table, settings, OTHER_SCALE)

    left = optimizer.speculate(undone.table, settings, SCALE)
    ahead = undone.bits
    optimizer.undo(undone.table, settings, SCALE)
    assert same(undone.bits, before)
    assert optimizer.speculate(redone.table, settings, SCALE) == left
    optimizer.redo(redone.table, settings, SCALE, OTHER_SCALE)
    optimizer.speculate(completed.table, settings, SCALE)
    optimizer.complete(completed.table, settings, SCALE)
    if values not in ("any_bits", "some_bits"):  # of NaN, an update does not promise the bits
        assert same(redone.bits, scaled.bits)
        assert same(completed.bits, plain.bits)
        assert left or same(ahead, plain.bits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state_format", FORMATS)
def test_what_is_like_training_is_updated_ahead_and_what_cannot_be_undone_is_left(
    optimizer: HostOptimizer, kind: str, state_format: StateFormat
) -> None:
    def left_of(values: Values, settings: AdamW = SETTINGS) -> int:
        return optimizer.speculate(Trial(kind, values, state_format=state_format).table, settings, SCALE)

    assert left_of(trained()) == 0
    assert left_of(spikes()) == 0
    assert left_of(nothing()) == 0
    if state_format == "compact":  # keeps its codes, whatever they are
        assert left_of(first_step()) == left_of(sparse()) == 0
    else:
        assert left_of(first_step()) >= COUNT - 4 * 7  # room for seven elements a record
        assert 0 < left_of(sparse()) <= COUNT
    assert left_of(trained(), AdamW(betas=(0.5, 0.95))) == COUNT
    assert left_of(trained(), AdamW(weight_decay=0.1, coupled_decay=True)) == COUNT


def test_few_elements_of_a_training_need_more_than_their_residues(optimizer: HostOptimizer) -> None:
    """Of exp_avg, those below 2^-15 of what the gradient makes of them: about 2^-15 / sqrt(pi / 2) of all.

    The parameters are 0.02 wide, so that no more than 2 * 64 * 3e-4 / 0.02 / sqrt(2 pi) of 2^-8 of them are so near
    to 0 that a change of a learning rate is 64 times as large.
    """
    trial = Trial("split, bfloat16", trained(6, count=1 << 21))
    assert optimizer.speculate(trial.table, SETTINGS, 1.0) == 0
    assert 0 < trial.escapes < (2.0**-14 + 2 * 3e-4 / 64 / 0.02) * (1 << 21)


@pytest.mark.parametrize("state_format", FORMATS)
def test_every_length_is_undone(optimizer: HostOptimizer, state_format: StateFormat) -> None:
    whole = (BLOCK - 1, BLOCK, BLOCK + 1, RECORD_ELEMENTS - 1, RECORD_ELEMENTS, RECORD_ELEMENTS + 1)
    for count in (*range(1, 70), *whole):
        trial = Trial("split, bfloat16", trained(count, count), state_format=state_format)
        before = trial.bits
        assert optimizer.speculate(trial.table, SETTINGS, SCALE) == 0
        assert not same(trial.bits, before)
        optimizer.undo(trial.table, SETTINGS, SCALE)
        assert same(trial.bits, before)


def test_records_have_the_bytes_that_the_native_code_writes() -> None:
    for number, state_format in enumerate(FORMATS):
        assert lib.wb_record_bytes(number) == RECORD_BYTES[state_format]


def test_pieces_without_a_gradient_or_records_wait(optimizer: HostOptimizer) -> None:
    exp_avg, exp_avg_sq, parameter, gradient = trained(7)
    bare = Piece(exp_avg.clone(), exp_avg_sq.clone(), master=parameter.clone())
    still = Piece(exp_avg.clone(), exp_avg_sq.clone(), master=parameter.clone(), records=records(COUNT))
    table = PieceTable([bare, still])
    table.set_gradients([gradient, None])
    table.set_steps([5, 5])
    before = [tensor.clone() for tensor in table.state]
    assert optimizer.speculate(table, SETTINGS) == COUNT
    optimizer.undo(table, SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(before, table.state, strict=True))
    optimizer.redo(table, SETTINGS, 1.0, 0.5)
    assert not torch.equal(bare.exp_avg, exp_avg) and torch.equal(still.exp_avg, exp_avg)


def test_the_inverse_formula_misses_the_old_state_by_what_was_rounded() -> None:
    """In float64, on numbers of float32: the bounds from which the widths of the residues follow.

    Forward rounds exp_avg twice and exp_avg_sq twice, each by half a unit of the new value, or of a part of
    it; the parameter three times. The inverse divides by beta, and by the decay's factor.
    """
    beta1, beta2 = SETTINGS.betas
    exp_avg, exp_avg_sq, parameter, gradient = (value.double().numpy() for value in trained(8, 1 << 16))
    trial = Trial("plain", trained(8, 1 << 16))
    with HostOptimizer(threads=1) as optimizer:
        optimizer.update(trial.table, SETTINGS)
    new_avg, new_sq, new = (tensor.double().numpy() for tensor in trial.table.state)
    change = parameter_change(new_avg, new_sq, step=100)
    for old, inverse, most, reach in (
        (
            exp_avg,
            (new_avg - (1 - beta1) * gradient) / beta1,
            2 / beta1,
            np.abs(gradient - exp_avg) + np.abs(new_avg),
        ),
        (exp_avg_sq, (new_sq - (1 - beta2) * gradient**2) / beta2, 2 / beta2, new_sq),
        (
            parameter,
            (new - change) / (1 - SETTINGS.lr * SETTINGS.weight_decay),
            4.0,
            np.abs(parameter) + np.abs(change),
        ),
    ):
        unit = np.spacing(reach.astype(np.float32)).astype(np.float64)
        assert float(np.max(np.abs(old - inverse) / unit)) <= most


def parameter_change(exp_avg: Any, exp_avg_sq: Any, step: int) -> Any:
    beta1, beta2 = SETTINGS.betas
    root = np.sqrt(exp_avg_sq) / np.sqrt(1 - beta2**step) + SETTINGS.eps
    return -SETTINGS.lr / (1 - beta1**step) * exp_avg / root


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_a_thousand_million_elements_are_undone(seed: int) -> None:
    """A hundredth of them: trained, spiked, faded, of any bits; in all kinds of memory, by all numbers."""
    count = 400_000
    generator = torch.Generator().manual_seed(seed)
    values = list(trained(seed, count))
    for number in range(4):
        share = 10.0 ** -float(torch.randint(1, 6, (), generator=generator))
        odd = torch.rand(count, generator=generator) < share
        factor = 10.0 ** torch.randint(-12, 5, (count,), generator=generator).float()
        values[number] = torch.where(odd, values[number] * factor, values[number])
        wild = torch.rand(count, generator=generator) < share / 10
        words = torch.randint(-(1 << 31), (1 << 31) - 1, (count,), generator=generator).to(torch.int32)
        values[number] = torch.where(wild, words.view(torch.float32), values[number])
    updated = 0
    with HostOptimizer(threads=2) as optimizer:
        for state_format, kind, settings in itertools.product(FORMATS, KINDS, NUMBERS.values()):
            step = 1 + seed * 7
            trial = Trial(kind, tuple(values), step, state_format)  # type: ignore[arg-type]
            before = trial.bits
            left = optimizer.speculate(trial.table, settings, 0.7)
            optimizer.undo(trial.table, settings, 0.7)
            assert same(trial.bits, before)
            updated += count - left
    assert updated > 0
