"""Checkpoints: what was saved comes back bit for bit, what is damaged is named and never used."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_training
from tiny_training import (
    PLACEMENTS,
    build_engine,
    differing,
    flip,
    newest,
    placed,
    save,
    state_of,
    train,
    weights_of,
)

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
from workbench.training.checkpoints import save as saving
from workbench.training.checkpoints.load import load_state
from workbench.training.checkpoints.save import (
    Removal,
    best_before,
    name_best,
    remove_leftovers,
    set_aside_after,
)

Trained = tuple[Any, OffloadEngine]
USAGE = namedtuple("USAGE", "total used free")


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    model, engine = build_engine()
    with engine:
        train(model, engine, 3)
        yield model, engine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def whole(root: Path) -> tuple[list[int], list[str]]:
    """The steps of the checkpoints that are found, newest first, and the warnings about the others."""
    warnings: list[str] = []
    return [saved.step for saved in find_checkpoints(root, warnings.append)], warnings


# What was saved comes back


def test_what_was_saved_goes_on_bit_for_bit(trained: Trained, root: Path) -> None:
    progress = Progress(
        3, random={"numbers": [1.5, 2]}, best=BestStep(2, 1.5), settings={"train.precision": "fp32"}
    )
    save(root, 3, *trained, progress=progress)
    model, engine = build_engine(seed=99)
    with engine:
        saved = newest(root)
        assert load_state(saved, engine) == []
        assert saved.manifest.progress == progress
        assert engine.counters() == trained[1].counters()
        assert differing(state_of(engine), state_of(trained[1])) == []
        assert differing(dict(model.named_parameters()), dict(trained[0].named_parameters())) == []


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
        save(root, 3, model, engine)
        expected = train(model, engine, 3, seed=7)
    model, engine = build_engine(seed=99, **options)
    with engine:
        load_state(newest(root), engine)
        assert train(model, engine, 3, seed=7) == expected


WHOLE_PLACEMENTS = [name for name in PLACEMENTS if name != "partly-on-device"]


@pytest.mark.parametrize("second", WHOLE_PLACEMENTS)
@pytest.mark.parametrize("first", WHOLE_PLACEMENTS)
def test_a_checkpoint_of_one_placement_goes_on_in_any_other(
    tmp_path: Path, root: Path, first: str, second: str
) -> None:
    model, engine = build_engine(**placed(tmp_path, first, precision="bf16"))
    with engine:
        train(model, engine, 2)
        before = save(root, 2, model, engine)
        state, weights = state_of(engine), weights_of(engine)
    model, engine = build_engine(seed=99, **placed(tmp_path, second, precision="bf16"))
    with engine:
        load_state(newest(root), engine)
        assert differing(state_of(engine), state) == differing(weights_of(engine), weights) == []
        after = save(root, 3, model, engine)
    assert (after / "model.safetensors").read_bytes() == (before / "model.safetensors").read_bytes()


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
    model, engine = build_engine(**placed(tmp_path, placements[0], **options, chunk_bytes=1 << 17))
    with engine:
        train(model, engine, 2)
        save(root, 2, model, engine)
        chunks, state = len(list(engine.layout.chunks())), state_of(engine)
    _, engine = build_engine(seed=9, **placed(tmp_path, placements[1], **options, chunk_bytes=1 << 18))
    with engine:
        load_state(newest(root), engine)
        assert len(list(engine.layout.chunks())) < chunks
        assert differing(state_of(engine), state) == []


def test_the_saved_folder_has_the_weights_that_were_trained(trained: Trained, root: Path) -> None:
    from transformers import AutoModelForCausalLM

    loaded, report = AutoModelForCausalLM.from_pretrained(save(root, 3, *trained), output_loading_info=True)
    assert not any(report.values()), report
    assert differing(dict(loaded.named_parameters()), dict(trained[0].named_parameters())) == []


def test_the_bytes_of_a_checkpoint_are_those_that_the_plan_counts(trained: Trained, root: Path) -> None:
    save(root, 3, *trained)
    elements = sum(region.elements for unit in trained[1].layout.units for region in unit.regions)
    planned = elements * (4 + 4 + 8)
    assert planned * 0.95 < checkpoint_bytes(root) < planned + (64 << 10)  # descriptions and tokenizer


# Damage


@pytest.mark.parametrize("file", ["exp_avg", "exp_avg_sq", "master", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "missing"])
def test_damage_of_any_kind_to_any_state_file_is_found_and_named(
    trained: Trained, root: Path, file: str, damage: str
) -> None:
    path = save(root, 3, *trained)
    target = next(p for p in sorted((path / "state").iterdir()) if p.name.endswith(file))
    if damage == "flipped":
        flip(target)
    elif damage == "missing":
        target.unlink()
    else:
        data = target.read_bytes()
        target.write_bytes(data[:-4] if damage == "truncated" else data + b"1234")
    if file == "manifest.json":
        steps, [warning] = whole(root)
        assert steps == [] and target.name in warning
    else:
        with pytest.raises(DamagedFileError, match=target.name):
            load_state(newest(root), trained[1])


@pytest.mark.parametrize("file", ["DONE", "model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_checkpoint_without_one_of_its_files_is_skipped_for_the_one_before(
    trained: Trained, root: Path, file: str, damage: str
) -> None:
    save(root, 3, *trained)
    target = save(root, 6, *trained) / file
    if damage == "missing":
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-1])
    steps, [warning] = whole(root)
    assert steps == [3] and "step-00000006" in warning
    assert file in warning or damage == "truncated"


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"]
)
@pytest.mark.parametrize("place", [0, 9, -1], ids=["first byte", "header", "last byte"])
def test_a_flipped_bit_in_a_model_file_is_found_before_anything_is_read_from_the_checkpoint(
    trained: Trained, root: Path, file: str, place: int
) -> None:
    flip(save(root, 3, *trained) / file, place)
    with pytest.raises(DamagedFileError, match=f"{file} is damaged: its checksum"):
        load_state(newest(root), trained[1])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"step": 3}', "\0\0"])
def test_a_marker_of_nonsense_is_skipped(trained: Trained, root: Path, text: str) -> None:
    (save(root, 3, *trained) / "DONE").write_text(text)
    steps, warnings = whole(root)
    assert steps == [] and len(warnings) == 1


def test_a_manifest_that_lacks_a_file_or_names_another_length_is_damage(trained: Trained, root: Path) -> None:
    save(root, 3, *trained)
    for change in (None, {"elements": 1}):
        saved = newest(root)
        files = saved.manifest.files
        some = next(iter(files))
        if change is None:
            del files[some]
        else:
            files[some] = replace(files[some], **change)
        with pytest.raises(DamagedFileError, match=r"lists no|bytes instead of"):
            load_state(saved, trained[1])


# What is kept


def test_the_newest_every_mth_and_the_best_are_kept(trained: Trained, root: Path) -> None:
    for step in (1, 2, 3, 4):
        save(root, step, *trained, keep=1, keep_every=4, best=BestStep(min(step, 2), 3.5))
    assert names(root) == ["best.json", "step-00000002", "step-00000004"]
    assert read_best(root) == BestStep(2, 3.5)
    save(root, 5, *trained, keep=1, keep_every=4, best=BestStep(5, 3.25))
    assert read_best(root) == BestStep(5, 3.25)
    save(root, 7, *trained, keep=1, keep_every=4, best=BestStep(5, 3.25))
    assert names(root) == ["best.json", "step-00000004", "step-00000005", "step-00000007"]
    save(root, 9, *trained, keep=2)
    assert names(root) == ["best.json", "step-00000007", "step-00000009"]


@pytest.mark.parametrize(
    ("named", "saved", "expected"),
    [
        (BestStep(2, 1.0), None, BestStep(2, 1.0)),
        (BestStep(2, 1.0), BestStep(3, 0.5), BestStep(3, 0.5)),  # a kill came before the name was changed
        (BestStep(9, 0.1), BestStep(2, 1.0), BestStep(2, 1.0)),  # a later one is written anew
        (BestStep(1, 0.1), BestStep(3, 1.0), BestStep(3, 1.0)),  # that one is not there any more
        (BestStep(9, 0.1), None, None),
        (None, None, None),
    ],
)
def test_the_best_of_a_run_that_goes_on_is_the_best_that_is_there_and_not_later(
    root: Path, named: BestStep | None, saved: BestStep | None, expected: BestStep | None
) -> None:
    for step in (2, 3, 9):
        (root / f"step-{step:08}").mkdir(parents=True)
    if named is not None:
        name_best(root, named)
    assert best_before(root, 3, saved) == expected
    assert read_best(root) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "2", "validation_loss": 1}', '{"step": 2}'])
def test_a_best_file_of_nonsense_names_none(root: Path, text: str) -> None:
    root.mkdir()
    (root / "best.json").write_text(text)
    assert read_best(root) is None


def test_folders_of_other_names_are_left_alone(trained: Trained, root: Path) -> None:
    assert whole(root) == ([], []) and checkpoint_bytes(root) == 0
    for name in ("step-best", "mine", "step-"):
        (root / name).mkdir(parents=True)
    save(root, 1, *trained, keep=1)
    save(root, 2, *trained, keep=1)
    assert names(root) == ["mine", "step-", "step-00000002", "step-best"]
    assert whole(root) == ([2], [])


def test_a_caller_goes_on_while_checkpoints_are_removed_and_waits_when_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    remove = shutil.rmtree

    def held(path: Path, **options: Any) -> None:
        assert go_on.wait(60)
        remove(path, **options)

    monkeypatch.setattr(saving.shutil, "rmtree", held)
    with Removal() as removal:
        for step in (1, 2):
            (root / f"step-{step:08d}" / "state").mkdir(parents=True)
            removal.add(root / f"step-{step:08d}")
        assert names(root) == [".step-00000001.removed", ".step-00000002.removed"]
        go_on.set()
        removal.wait()
        assert names(root) == []


def test_a_checkpoint_that_the_file_system_keeps_stays_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    (root / "step-00000001" / "state").mkdir(parents=True)
    monkeypatch.setattr(Path, "rename", refuse)
    with Removal() as removal:
        removal.add(root / "step-00000001")
    assert (root / "step-00000001" / "state").is_dir()


# Saves that were cut off, and disks that refuse


def test_the_same_step_is_saved_again_in_place_of_the_old_one(trained: Trained, root: Path) -> None:
    (save(root, 3, *trained) / "state" / "manifest.json").write_text("damaged")
    save(root, 3, *trained)
    assert whole(root) == ([3], []) and names(root) == ["step-00000003"]


def test_a_kill_between_the_two_renames_leaves_the_old_one_standing(trained: Trained, root: Path) -> None:
    save(root, 3, *trained).rename(root / ".step-00000003.replaced")
    (root / ".step-00000003.partial").mkdir()
    (root / ".best.json.4711-ab12").write_text("{")
    remove_leftovers(root)
    assert whole(root) == ([3], []) and names(root) == ["step-00000003"]


def test_leftovers_of_a_save_that_was_cut_off_are_removed_by_the_next_one(
    trained: Trained, root: Path
) -> None:
    path = save(root, 3, *trained)
    shutil.copytree(path, root / ".step-00000003.replaced")
    shutil.copytree(path, root / ".step-00000004.partial")
    assert whole(root) == ([3], [])
    save(root, 5, *trained)
    assert names(root) == ["step-00000003", "step-00000005"]


def test_damaged_newer_ones_are_set_aside_and_do_not_count_as_kept(trained: Trained, root: Path) -> None:
    save(root, 3, *trained)
    for _ in range(2):
        flip(save(root, 6, *trained) / "state" / "manifest.json")
        set_aside_after(root, 3)
        assert names(root) == ["damaged-step-00000006", "step-00000003"]
    save(root, 4, *trained, keep=2)
    assert names(root) == ["damaged-step-00000006", "step-00000003", "step-00000004"]


@pytest.mark.parametrize("placement", ["device", "host", "disk"])
def test_a_save_without_room_for_weights_and_state_is_refused_and_leaves_nothing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    with build_engine(**placed(tmp_path, placement, precision="bf16"))[1] as engine:
        path = save(root, 1, engine.model, engine)
        weights = path / "model.safetensors"
        tensors = weights.stat().st_size - 8 - int.from_bytes(weights.read_bytes()[:8], "little")
        tensors += sum(p.stat().st_size for p in (path / "state").iterdir() if p.name != "manifest.json")
        needed = tensors + saving.MARGIN_BYTES
        monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: USAGE(1 << 40, 0, needed - 1))
        with pytest.raises(WorkbenchError, match=r"no room for the checkpoint .*step-00000002.* MiB free"):
            save(root, 2, engine.model, engine)
        assert whole(root) == ([1], []) and names(root) == ["step-00000001"]
        monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: USAGE(1 << 40, 0, needed))
        save(root, 2, engine.model, engine)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), DiskError("No space left on device")]
)
@pytest.mark.parametrize("moment", ["save_model", "_write_state", "sync", "_put_in_place"])
def test_a_disk_that_refuses_half_way_leaves_what_was_there_and_nothing_else(
    trained: Trained, root: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: Exception
) -> None:
    save(root, 3, *trained)

    def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(saving, moment, refuse)
        with pytest.raises(WorkbenchError, match=r"step 6 could not be written .*: No space left on device"):
            save(root, 6, *trained)
    assert whole(root) == ([3], []) and names(root) == ["step-00000003"]
