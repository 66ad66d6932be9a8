"""A run on several ranks is a run: the same data, losses and checkpoints, which know nothing of the number of ranks."""

from __future__ import annotations

import os
import random
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_processes import RankProcesses
from stored_files import assert_same_tensors

from workbench.cli import main
from workbench.engine.stored_tensor import SharedTensor
from workbench.runs import RunDirectory, read_events, read_run_metrics, read_status
from workbench.runs.checkpoints import DamagedFileError
from workbench.training.checkpoints.state_files import read_parts, whole, write_parts

SETTINGS = (
    "train.device=cpu",
    "train.precision=fp32",
    "train.steps=6",
    "train.micro_batch_size=2",
    "train.activation_checkpointing=false",
    "offload.weights=device",
    "offload.state=host",
    "offload.threads=1",
    "schedule.warmup_steps=0",
    "schedule.total_steps=20",
    "evaluate.every=2",
    "evaluate.tokens=320",
    "sample.tokens=3",
    "checkpoint.every=3",
    "checkpoint.keep=9",
    "checkpoint.keep_best=true",
)
PRESET = """[model]
architecture = "gpt2"
[model.config]
n_layer = 2
n_embd = 32
n_head = 2
n_positions = 32
vocab_size = 257
resid_pdrop = 0.0
embd_pdrop = 0.0
attn_pdrop = 0.0
[data]
source = "{text}"
sequence_length = 32
validation_fraction = 0.05
"""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RankProcesses]]:
    made = {size: RankProcesses(size, tmp_path_factory.mktemp("ranks")) for size in (2, 3)}
    yield made
    for processes in made.values():
        processes.kill()


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    generator = random.Random(1)
    words = ["def", "return", "yield", "(", ")", ":", "\n", "alpha", "beta", "gamma"]
    (tmp_path / "text.txt").write_text(" ".join(generator.choice(words) for _ in range(8000)))
    path = tmp_path / "tiny.toml"
    path.write_text(PRESET.format(text=tmp_path / "text.txt"))
    return path


def command(rank: int, size: int, words: list[str]) -> int:
    """`workbench` with `words`, as torchrun starts it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    return main(words)


def train(ranks: RankProcesses | None, words: list[str], *changes: str) -> None:
    words = ["run", *words, *(word for change in changes for word in ("--set", change))]
    codes = [main(words)] if ranks is None else ranks.run(command, words)
    assert set(codes) == {0}


def new_run(folder: Path) -> RunDirectory:
    [run] = RunDirectory.list(folder)
    return run


def checkpoint(run: RunDirectory, step: int) -> Path:
    return run.checkpoints / f"step-{step:08d}"


DELAYED = (*SETTINGS, "offload.overlap=delayed", "offload.delay_warmup=1")
ON_DISK = (
    *SETTINGS,
    "train.activation_checkpointing=true",
    "offload.weights=disk",
    "offload.state=disk",
    f"offload.disk_path={tempfile.gettempdir()}",
)
"""With an evaluation of five micro-batches and a sample, in which all ranks run all blocks."""
ways = pytest.mark.parametrize(
    "settings", [SETTINGS, DELAYED, ON_DISK], ids=["exact", "delayed", "weights on disk"]
)


@ways
def test_two_ranks_make_the_run_of_one_that_accumulates_twice(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    train(None, [str(preset), "--runs", str(tmp_path / "1")], *settings, "train.gradient_accumulation=2")
    train(pools[2], [str(preset), "--runs", str(tmp_path / "2")], *settings)
    one, two = new_run(tmp_path / "1"), new_run(tmp_path / "2")
    for step in (3, 6):
        assert_same_tensors(checkpoint(one, step), checkpoint(two, step))
    alone, shared = read_run_metrics(one), read_run_metrics(two)
    for name in ("step", "learning_rate", "grad_norm", "tokens", "tokens_total"):
        assert list(alone.column(name)) == list(shared.column(name)), name
    assert list(shared.column("loss")) == pytest.approx(list(alone.column("loss")), rel=1e-6)
    assert shared.column("validation_loss")[1] == pytest.approx(alone.column("validation_loss")[1], rel=1e-6)
    assert read_status(two).phase == "finished"
    assert [e.kind for e in read_events(one).events] == [e.kind for e in read_events(two).events]
    [sample], [same] = list(one.samples.iterdir()), list(two.samples.iterdir())
    assert sample.read_text() == same.read_text()


def test_the_other_rank_has_records_and_a_log_of_its_own(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path
) -> None:
    train(pools[2], [str(preset), "--runs", str(tmp_path / "2")], *SETTINGS)
    run = new_run(tmp_path / "2")
    second = RunDirectory(run.path / "ranks" / "1")
    assert list(read_run_metrics(second).column("loss")) == list(read_run_metrics(run).column("loss"))
    assert "step 00006/6" in second.log.read_text() and "step 00006/6" in run.log.read_text()
    assert not list(second.path.glob("checkpoints*")) and not list(second.samples.iterdir())
    assert len(list(run.samples.iterdir())) == 1


def test_an_epoch_has_fewer_steps_on_more_ranks(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path
) -> None:
    epochs = (*(setting for setting in SETTINGS if "steps" not in setting), "train.epochs=0.05")
    train(pools[3], [str(preset), "--runs", str(tmp_path / "3")], *epochs)
    train(None, [str(preset), "--runs", str(tmp_path / "1")], *epochs, "train.gradient_accumulation=3")
    three, one = (read_status(new_run(tmp_path / name)) for name in ("3", "1"))
    assert three.phase == one.phase == "finished"
    assert three.total_steps == one.total_steps > 1


@ways
def test_a_run_goes_on_with_another_number_of_ranks(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Two ranks, then three, then one: the state is that of one rank that takes as many micro-batches each time."""
    train(pools[2], [str(preset), "--runs", str(tmp_path / "2")], *settings)
    train(None, [str(preset), "--runs", str(tmp_path / "1")], *settings, "train.gradient_accumulation=2")
    moves, stays = new_run(tmp_path / "2"), new_run(tmp_path / "1")
    train(pools[3], ["--resume", str(moves.path)], "train.steps=8")
    train(None, ["--resume", str(stays.path)], "train.steps=8", "train.gradient_accumulation=3")
    assert_same_tensors(checkpoint(stays, 8), checkpoint(moves, 8))
    train(None, ["--resume", str(moves.path)], "train.steps=10")
    train(None, ["--resume", str(stays.path)], "train.steps=10", "train.gradient_accumulation=1")
    assert_same_tensors(checkpoint(stays, 10), checkpoint(moves, 10))


@pytest.mark.parametrize(
    "change",
    ["offload.state=device", "offload.state_format=compact", "offload.state=disk", "offload.overlap=delayed"],
)
def test_ranks_resume_what_they_have_saved(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path, change: str
) -> None:
    """Also under other settings than before: a checkpoint of one format is taken up in another."""
    train(pools[2], [str(preset), "--runs", str(tmp_path / "2")], *SETTINGS, "train.steps=3")
    run = new_run(tmp_path / "2")
    twice = (*SETTINGS, "train.steps=3", "train.gradient_accumulation=2")
    train(None, [str(preset), "--runs", str(tmp_path / "1")], *twice)
    one = new_run(tmp_path / "1")
    for ranks, each in ((pools[2], run), (None, one)):
        train(ranks, ["--resume", str(each.path)], "train.steps=5", change, f"offload.disk_path={tmp_path}")
    assert_same_tensors(checkpoint(one, 5), checkpoint(run, 5))


def test_a_rank_reads_its_own_part_of_a_file_alone(tmp_path: Path) -> None:
    """Two parts of three each; what the other rank has is damaged, and only that one's checksum tells."""
    values = torch.arange(30, dtype=torch.float32)
    places = ([(0, 8, 0), (15, 5, 8)], [(8, 7, 0), (20, 10, 7)])
    shares = [
        SharedTensor(torch.cat([values[at : at + n] for at, n, _ in parts]), 30, parts) for parts in places
    ]
    written = [write_parts(tmp_path, [("0000-block/exp_avg", share)]) for share in shares]
    file = tmp_path / "0000-block.exp_avg"
    assert file.read_bytes() == values.numpy().tobytes()
    assert whole(rank[file.name] for rank in written) == (zlib.crc32(file.read_bytes()), 120)
    with file.open("r+b") as damaged:
        damaged.seek(4 * 22)
        damaged.write(b"other")
    mine = [torch.full((sum(n for _, n, _ in parts),), -1.0) for parts in places]
    read = [
        read_parts([(file, SharedTensor(own, 30, parts))]) for own, parts in zip(mine, places, strict=True)
    ]
    assert read[0] == written[0] and read[1] != written[1]
    assert torch.equal(mine[0], torch.cat([values[:8], values[15:20]]))
    with file.open("ab") as longer:
        longer.write(b"more")
    with pytest.raises(DamagedFileError, match="has 124 bytes instead of 120"):
        read_parts([(file, shares[0])])


def test_what_one_rank_finds_damaged_is_damaged_for_all(
    pools: dict[int, RankProcesses], preset: Path, tmp_path: Path
) -> None:
    train(pools[2], [str(preset), "--runs", str(tmp_path / "2")], *SETTINGS)
    run = new_run(tmp_path / "2")
    damaged = next((checkpoint(run, 6) / "state").glob("*.exp_avg"))
    with damaged.open("r+b") as file:
        file.seek(100)
        file.write(b"something else")
    train(pools[2], ["--resume", str(run.path)], "train.steps=8")
    assert (run.checkpoints / "damaged-step-00000006").is_dir() and checkpoint(run, 8).is_dir()
    resumed = [event.fields["checkpoint"] for event in read_events(run).events if event.kind == "resume"]
    assert resumed == ["step-00000004"]
