"""The documents that are held out for validation."""

import numpy as np
import pytest

from workbench.data.split import choose_sides, document_share, is_near


def shares_of(count: int) -> list[float]:
    return [document_share(f"folder/{index}.txt") for index in range(count)]


def held(count: int, fraction: float) -> set[int]:
    """Of documents that are all of the same length and stay whole."""
    shares = np.array(shares_of(count))
    sides = choose_sides(shares, np.full(count, 100), np.zeros(count, bool), fraction)
    assert sides.cut == -1
    return set(np.flatnonzero(sides.held).tolist())


def reference(
    shares: list[float], tokens: list[int], free: list[bool], fraction: float
) -> tuple[list[int], list[int]]:
    """The tokens of each document for training and for validation, in plain Python."""
    by_name = [share < fraction for share in shares]
    if True not in by_name:
        by_name[shares.index(min(shares))] = True
    if False not in by_name:
        by_name[shares.index(max(shares))] = False
    total = sum(tokens)
    most = min(max(2 * fraction, fraction + 0.02), (1 + fraction) / 2) * total
    aside = sum(count for count, chosen in zip(tokens, by_name, strict=True) if chosen)
    validation = [count * chosen for count, chosen in zip(tokens, by_name, strict=True)]
    if not fraction / 2 * total <= aside <= most:
        validation = [0 if free[i] else validation[i] for i in range(len(tokens))]
        for i in sorted(range(len(tokens)), key=lambda i: (shares[i], i)):
            if free[i] and sum(validation) < fraction / 2 * total:
                validation[i] = tokens[i]
                if sum(validation) > most:
                    validation[i] = max(1, round(fraction * total) - sum(validation) + tokens[i])
    return [count - out for count, out in zip(tokens, validation, strict=True)], validation


def test_the_sides_are_those_of_the_reference_and_near_the_fraction_where_texts_can_be_cut() -> None:
    generator = np.random.default_rng(1)
    cuts = whole = 0
    for _ in range(500):
        count = int(generator.integers(2, 30))
        shares = generator.random(count)
        tokens = (10 ** generator.uniform(1.5, 6, count)).astype(int)
        free = generator.random(count) < generator.choice([0.0, 0.5, 1.0])
        fraction = float(generator.choice([0.001, 0.01, 0.05, 0.1, 0.3, 0.5]))
        sides = choose_sides(shares, tokens, free, fraction)
        validation = np.where(sides.held, tokens, 0)
        if sides.cut >= 0:
            assert free[sides.cut] and not sides.held[sides.cut] and 0 < sides.tail < tokens[sides.cut]
            validation[sides.cut] = sides.tail
        expected = reference(shares.tolist(), tokens.tolist(), free.tolist(), fraction)
        assert ((tokens - validation).tolist(), validation.tolist()) == expected
        assert 0 < validation.sum() < tokens.sum() or not free.any()
        if free.all():
            assert is_near(validation.sum() / tokens.sum(), fraction)
        cuts += sides.cut >= 0
        whole += sides.cut < 0
    assert cuts > 50 and whole > 50


def test_the_side_is_decided_by_the_name_alone_and_forever() -> None:
    assert held(12, 0.3) == {2, 7, 9, 10, 11}
    assert 150 < len(held(2000, 0.1)) < 250


def test_more_files_or_a_greater_fraction_move_no_file_back() -> None:
    assert held(50, 0.2) <= held(100, 0.2) <= held(100, 0.4)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("fraction", [1e-9, 0.5])
def test_either_side_has_a_document(count: int, fraction: float) -> None:
    assert 0 < len(held(count, fraction)) < count
