"""Which text is kept for validation."""

from pathlib import Path

import pytest

from workbench.data.sources import Document
from workbench.data.split import split
from workbench.errors import ConfigurationError


def documents(count: int, root: str = "/") -> list[Document]:
    return [Document(f"folder/{index}.txt", Path(root, str(index)), 100 + index) for index in range(count)]


def held(count: int, fraction: float) -> set[str]:
    return {piece.document.name for piece in split(documents(count), fraction).validation}


def test_the_sides_are_a_partition_of_about_the_fraction_in_order() -> None:
    all_of_them = documents(2000)
    parts = split(all_of_them, 0.1)
    sides = [[piece.document for piece in side] for side in (parts.training, parts.validation)]
    assert sorted(sides[0] + sides[1], key=all_of_them.index) == all_of_them
    assert not set(sides[0]) & set(sides[1])
    assert 150 < len(sides[1]) < 250
    for side in sides:
        assert side == sorted(side, key=all_of_them.index)
    for piece in parts.training + parts.validation:
        assert (piece.start, piece.stop) == (0, piece.document.size)


def test_the_side_is_decided_by_the_name_alone_and_forever() -> None:
    assert held(12, 0.3) == {f"folder/{index}.txt" for index in [2, 7, 9, 10, 11]}
    moved = split(documents(12, "/elsewhere"), 0.3)
    assert {piece.document.name for piece in moved.validation} == held(12, 0.3)


def test_more_files_or_a_greater_fraction_move_no_file_back() -> None:
    assert held(50, 0.2) <= held(100, 0.2) <= held(100, 0.4)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
def test_either_side_has_a_document(count: int, fraction: float) -> None:
    parts = split(documents(count), fraction)
    assert parts.training
    assert parts.validation


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(
        ConfigurationError, match=r"data\.validation_fraction = .*more than 0 and less than 1"
    ):
        split(documents(5), fraction)


@pytest.mark.parametrize("text", ["x" * 1000, "é" * 500, "a€" * 250, "🎉" * 250])
@pytest.mark.parametrize("fraction", [0.0001, 0.1, 0.333, 0.9])
def test_a_single_file_is_cut_near_its_end_between_two_characters(
    tmp_path: Path, text: str, fraction: float
) -> None:
    data = text.encode()
    path = tmp_path / "one.txt"
    path.write_bytes(data)
    parts = split([Document("one.txt", path, len(data))], fraction)
    ((training,), (validation,)) = parts.training, parts.validation
    assert (training.start, training.stop, validation.stop) == (0, validation.start, len(data))
    assert (data[: training.stop].decode() + data[validation.start :].decode()) == text
    assert abs((validation.stop - validation.start) - len(data) * fraction) <= 4


def test_a_file_too_short_to_be_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes("é".encode())
    with pytest.raises(ConfigurationError, match="too short"):
        split([Document("one.txt", path, 2)], 0.5)
