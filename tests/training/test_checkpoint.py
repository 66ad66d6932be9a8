"""Checkpoints: what was saved comes back bit for bit, what is damaged is told and never used."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_training
import torch
from tiny_training import PLACEMENTS, build_engine, placed, train

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import OffloadEngine
from workbench.engine.disk_files import DiskError
from workbench.errors import WorkbenchError
from workbench.runs.checkpoints import (
    BestStep,
    DamagedFileError,
    Progress,
    checkpoint_bytes,
    find_checkpoints,
    read_best,
)
from workbench.training.checkpoints import save as checkpoint
from workbench.training.checkpoints.load import load_state
from workbench.training.checkpoints.save import (
    best_before,
    name_best,
    remove_leftovers,
    save_checkpoint,
    set_aside_after,
)

PROGRESS = Progress(
    3, random={"numbers": [1.5, 2]}, best=BestStep(2, 1.5), settings={"train.precision": "fp32"}
)


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Any, OffloadEngine]]:
    model, engine = build_engine()
    with engine:
        train(model, engine, 3)
        yield model, engine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def save(root: Path, step: int, trained: tuple[Any, OffloadEngine], keep: int = 2) -> Path:
    model, engine = trained
    return save_checkpoint(
        root, step, engine=engine, model=model, tokenizer=ByteTokenizer(), progress=PROGRESS, keep=keep
    )


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def whole(root: Path) -> tuple[list[int], list[str]]:
    """The steps of the checkpoints that are found, newest first, and what was said of the others."""
    warnings: list[str] = []
    return [saved.step for saved in find_checkpoints(root, warnings.append)], warnings


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_what_was_saved_goes_on_bit_for_bit(trained: tuple[Any, OffloadEngine], root: Path) -> None:
    save(root, 3, trained)
    model, engine = build_engine(seed=99)
    with engine:
        [saved] = find_checkpoints(root, pytest.fail)
        load_state(saved, engine)
        assert saved.manifest.progress == PROGRESS
        assert engine.counters() == trained[1].counters()
        for (name, mine), (_, theirs) in zip(engine.state(), trained[1].state(), strict=True):
            assert torch.equal(mine, theirs), name
        for (name, mine), theirs in zip(model.named_parameters(), trained[0].parameters(), strict=True):
            assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [*({"state": s} for s in ("host", "device")), *({"state_format": f} for f in ("half", "compact"))],
    ids=str,
)
def test_a_resumed_engine_gives_the_losses_of_one_that_never_stopped(
    root: Path, options: dict[str, str], precision: str
) -> None:
    options = {**options, "precision": precision}
    model, engine = build_engine(**options)
    with engine:
        train(model, engine, 3)
        save(root, 3, (model, engine))
        expected = train(model, engine, 3, seed=7)
    model, engine = build_engine(seed=99, **options)
    with engine:
        load_state(next(find_checkpoints(root, pytest.fail)), engine)
        assert train(model, engine, 3, seed=7) == expected


def copy_of(state: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    return {n: t.clone() if isinstance(t, torch.Tensor) else t.read(0, t.numel()) for n, t in state}


WHOLE_PLACEMENTS = [name for name in PLACEMENTS if name != "partly-on-device"]


@pytest.mark.parametrize("second", WHOLE_PLACEMENTS)
@pytest.mark.parametrize("first", WHOLE_PLACEMENTS)
def test_a_checkpoint_of_one_placement_goes_on_in_any_other(
    tmp_path: Path, root: Path, first: str, second: str
) -> None:
    precision = "bf16"
    model, engine = build_engine(**placed(tmp_path, first, precision=precision))
    with engine:
        train(model, engine, 2)
        save(root, 2, (model, engine))
        state = copy_of(engine.state())
        weights = {name: t.clone() for unit in engine.weights() for name, t in unit.items()}
    model, engine = build_engine(seed=99, **placed(tmp_path, second, precision=precision))
    with engine:
        load_state(next(find_checkpoints(root, pytest.fail)), engine)
        found = copy_of(engine.state())
        assert list(found) == list(state)
        assert [name for name in state if not torch.equal(found[name], state[name])] == []
        found = {name: t.clone() for unit in engine.weights() for name, t in unit.items()}
        assert [name for name in weights if not torch.equal(found[name], weights[name])] == []
        save(root, 3, (model, engine))
    assert (root / "step-00000003" / "model.safetensors").read_bytes() == (
        root / "step-00000002" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
@pytest.mark.parametrize("placements", [("host", "disk"), ("disk", "host"), ("disk", "disk")], ids=str)
def test_a_checkpoint_goes_on_in_chunks_of_another_size(
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    placements: tuple[str, str],
    state_format: str,
) -> None:
    monkeypatch.setitem(tiny_training.SETTINGS, "n_embd", 96)
    options = {"precision": "bf16", "state_format": state_format}
    chunks = {}
    states = {}
    for number, chunk_bytes in enumerate((1 << 17, 1 << 18)):
        model, engine = build_engine(
            seed=number, **placed(tmp_path, placements[number], **options, chunk_bytes=chunk_bytes)
        )
        with engine:
            if number == 0:
                train(model, engine, 2)
                save(root, 2, (model, engine))
            else:
                load_state(next(find_checkpoints(root, pytest.fail)), engine)
            chunks[number] = len(list(engine.layout.chunks()))
            states[number] = copy_of(engine.state())
    assert chunks[0] > chunks[1]
    assert list(states[0]) == list(states[1])
    assert [name for name in states[0] if not torch.equal(states[0][name], states[1][name])] == []


@pytest.mark.parametrize("placement", WHOLE_PLACEMENTS)
def test_the_saved_folder_has_the_weights_that_were_trained_wherever_they_live(
    tmp_path: Path, root: Path, placement: str
) -> None:
    from transformers import AutoModelForCausalLM

    model, engine = build_engine(**placed(tmp_path, placement))
    with engine:
        train(model, engine, 2)
        path = save(root, 2, (model, engine))
        model.eval()
        ids = torch.arange(32).reshape(2, 16)
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits
    loaded, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        assert torch.equal(loaded.eval()(input_ids=ids, use_cache=False).logits, expected)


def test_the_bytes_of_a_checkpoint_are_those_that_the_plan_counts(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    save(root, 3, trained)
    elements = sum(region.elements for unit in trained[1].layout.units for region in unit.regions)
    planned = elements * (4 + 4 + 8)
    assert planned * 0.95 < checkpoint_bytes(root) < planned + (64 << 10)  # descriptions and tokenizer


@pytest.mark.parametrize("file", ["exp_avg", "exp_avg_sq", "master", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "missing"])
def test_damage_of_any_kind_to_any_state_file_is_found_and_named(
    trained: tuple[Any, OffloadEngine], root: Path, file: str, damage: str
) -> None:
    target = next(p for p in sorted((save(root, 3, trained) / "state").iterdir()) if p.name.endswith(file))
    if damage == "flipped":
        flip(target)
    elif damage == "missing":
        target.unlink()
    else:
        data = target.read_bytes()
        target.write_bytes(data[:-4] if damage == "truncated" else data + b"1234")
    _, engine = trained
    found = whole(root)
    if file == "manifest.json":
        assert found[0] == []
        assert target.name in found[1][0]
    else:
        [saved] = find_checkpoints(root, pytest.fail)
        with pytest.raises(DamagedFileError, match=target.name):
            load_state(saved, engine)


@pytest.mark.parametrize("file", ["DONE", "model.safetensors", "config.json", "tokenizer.json"])
def test_a_checkpoint_without_one_of_its_files_is_passed_over_for_the_one_before(
    trained: tuple[Any, OffloadEngine], root: Path, file: str
) -> None:
    save(root, 3, trained)
    (save(root, 6, trained) / file).unlink()
    steps, warnings = whole(root)
    assert steps == [3]
    assert len(warnings) == 1 and "step-00000006" in warnings[0] and file in warnings[0]


def test_a_truncated_model_file_is_passed_over(trained: tuple[Any, OffloadEngine], root: Path) -> None:
    weights = save(root, 3, trained) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    steps, [warning] = whole(root)
    assert steps == [] and "model.safetensors" in warning


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"]
)
@pytest.mark.parametrize("place", [0, 9, -1], ids=["first byte", "header", "last byte"])
def test_a_flipped_bit_in_a_model_file_is_found_before_anything_is_read_from_the_checkpoint(
    trained: tuple[Any, OffloadEngine], root: Path, file: str, place: int
) -> None:
    target = save(root, 3, trained) / file
    data = bytearray(target.read_bytes())
    data[place] ^= 1
    target.write_bytes(data)
    [saved] = find_checkpoints(root, pytest.fail)
    with pytest.raises(DamagedFileError, match=f"{file} is damaged: its checksum"):
        load_state(saved, trained[1])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"step": 3}', "\0\0"])
def test_a_marker_of_nonsense_is_passed_over(
    trained: tuple[Any, OffloadEngine], root: Path, text: str
) -> None:
    (save(root, 3, trained) / "DONE").write_text(text)
    steps, warnings = whole(root)
    assert steps == [] and len(warnings) == 1


def test_a_manifest_that_lacks_a_file_or_tells_another_length_is_damage(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    save(root, 3, trained)
    for change in (None, {"elements": 1}):
        [saved] = find_checkpoints(root, pytest.fail)
        files = saved.manifest.files
        some = next(iter(files))
        if change is None:
            del files[some]
        else:
            files[some] = replace(files[some], **change)
        with pytest.raises(DamagedFileError, match=r"lists no|bytes instead of"):
            load_state(saved, trained[1])


def test_every_mth_and_the_best_are_kept_beside_the_newest(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    model, engine = trained

    def save_with(step: int, best: BestStep | None) -> None:
        save_checkpoint(
            root,
            step,
            engine=engine,
            model=model,
            tokenizer=ByteTokenizer(),
            progress=Progress(),
            keep=1,
            keep_every=4,
            best=best,
        )

    for step in (1, 2, 3, 4):
        save_with(step, BestStep(min(step, 2), 3.5))
    assert names(root) == ["best.json", "step-00000002", "step-00000004"]
    assert read_best(root) == BestStep(2, 3.5)
    save_with(5, BestStep(5, 3.25))
    assert read_best(root) == BestStep(5, 3.25)
    save_with(7, BestStep(5, 3.25))
    assert names(root) == ["best.json", "step-00000004", "step-00000005", "step-00000007"]
    save(root, 9, trained, keep=1)
    assert names(root) == ["best.json", "step-00000009"]


@pytest.mark.parametrize(
    ("named", "told", "expected"),
    [
        (BestStep(2, 1.0), None, BestStep(2, 1.0)),
        (BestStep(2, 1.0), BestStep(3, 0.5), BestStep(3, 0.5)),  # a kill came before the name was changed
        (BestStep(9, 0.1), BestStep(2, 1.0), BestStep(2, 1.0)),  # a later one is written anew
        (BestStep(1, 0.1), BestStep(3, 1.0), BestStep(3, 1.0)),  # that one is gone
        (BestStep(9, 0.1), None, None),
        (None, None, None),
    ],
)
def test_the_best_of_a_run_that_goes_on_is_the_best_that_is_there_and_not_later(
    root: Path, named: BestStep | None, told: BestStep | None, expected: BestStep | None
) -> None:
    for step in (2, 3, 9):
        (root / f"step-{step:08}").mkdir(parents=True)
    if named is not None:
        name_best(root, named)
    assert best_before(root, 3, told) == expected
    assert read_best(root) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "2", "validation_loss": 1}', '{"step": 2}'])
def test_a_best_file_of_nonsense_names_none(root: Path, text: str) -> None:
    root.mkdir()
    (root / "best.json").write_text(text)
    assert read_best(root) is None


def test_only_the_newest_are_kept(trained: tuple[Any, OffloadEngine], root: Path) -> None:
    for step in (1, 2, 3, 10):
        save(root, step, trained, keep=2)
    assert names(root) == ["step-00000003", "step-00000010"]
    save(root, 11, trained, keep=1)
    assert names(root) == ["step-00000011"]


def test_the_same_step_is_saved_again_in_place_of_the_old_one(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    (save(root, 3, trained) / "state" / "manifest.json").write_text("damaged")
    save(root, 3, trained)
    assert whole(root) == ([3], [])
    assert names(root) == ["step-00000003"]


def test_a_kill_between_the_two_renames_leaves_the_old_one_standing(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    path = save(root, 3, trained)
    path.rename(root / ".step-00000003.replaced")
    (root / ".step-00000003.partial").mkdir()
    (root / ".best.json.4711-ab12").write_text("{")
    remove_leftovers(root)
    assert names(root) == ["step-00000003"]
    assert whole(root) == ([3], [])


def test_leftovers_of_a_save_that_was_cut_off_go_with_the_next_one(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    path = save(root, 3, trained)
    shutil.copytree(path, root / ".step-00000003.replaced")
    shutil.copytree(path, root / ".step-00000004.partial")
    assert whole(root) == ([3], [])
    save(root, 5, trained)
    assert names(root) == ["step-00000003", "step-00000005"]


def test_damaged_newer_ones_are_set_aside_and_do_not_count_as_kept(
    trained: tuple[Any, OffloadEngine], root: Path
) -> None:
    save(root, 3, trained)
    flip(save(root, 6, trained) / "state" / "manifest.json")
    set_aside_after(root, 3)
    assert names(root) == ["damaged-step-00000006", "step-00000003"]
    save(root, 4, trained)
    assert names(root) == ["damaged-step-00000006", "step-00000003", "step-00000004"]
    flip(save(root, 6, trained) / "state" / "manifest.json")
    set_aside_after(root, 4)
    assert "damaged-step-00000006" in names(root)


def test_without_room_nothing_is_written_and_the_message_says_how_much_is_needed(
    trained: tuple[Any, OffloadEngine], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(root, 3, trained)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 1 << 20))
    with pytest.raises(WorkbenchError, match=r"no room for the checkpoint .*step-00000006.* 1 MiB free"):
        save(root, 6, trained)
    assert whole(root) == ([3], [])
    assert names(root) == ["step-00000003"]


@pytest.mark.parametrize("placement", ["device", "host", "disk"])
def test_the_room_asked_for_is_what_weights_and_state_will_take(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    usage = namedtuple("usage", "total used free")
    with build_engine(**placed(tmp_path, placement, precision="bf16"))[1] as engine:
        trained = (engine.model, engine)
        files = [*(save(root, 1, trained) / "state").iterdir(), root / "step-00000001" / "model.safetensors"]
        tensors = sum(path.stat().st_size for path in files if path.name != "manifest.json")
        tensors -= 8 + int.from_bytes(files[-1].read_bytes()[:8], "little")
        needed = tensors + checkpoint.MARGIN_BYTES
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(1 << 40, 0, needed - 1))
        with pytest.raises(WorkbenchError, match="no room for the checkpoint"):
            save(root, 2, trained)
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(1 << 40, 0, needed))
        save(root, 2, trained)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), DiskError("No space left on device")]
)
@pytest.mark.parametrize("moment", ["save_model", "_write_state", "sync", "_put_in_place"])
def test_a_disk_that_refuses_half_way_leaves_what_was_there_and_nothing_else(
    trained: tuple[Any, OffloadEngine],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    error: Exception,
) -> None:
    save(root, 3, trained)

    def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, moment, refuse)
        with pytest.raises(WorkbenchError, match=r"step 6 could not be written .*: No space left on device"):
            save(root, 6, trained)
    assert names(root) == ["step-00000003"]
    assert whole(root) == ([3], [])


def test_folders_of_other_names_are_left_alone(trained: tuple[Any, OffloadEngine], root: Path) -> None:
    for name in ("step-best", "mine", "step-"):
        (root / name).mkdir(parents=True)
    save(root, 1, trained, keep=1)
    save(root, 2, trained, keep=1)
    assert names(root) == ["mine", "step-", "step-00000002", "step-best"]
    assert whole(root) == ([2], [])


def test_a_folder_that_is_not_there_has_no_checkpoints(root: Path) -> None:
    assert whole(root) == ([], [])
    remove_leftovers(root)
    set_aside_after(root, 0)
    assert checkpoint_bytes(root) == 0
