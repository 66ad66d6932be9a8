"""Runs on several ranks of which one is killed, at a random moment or within a checkpoint, and that are resumed on all.

As in `kills.py` each history has to end with the bits of the same run without a kill. What torchrun does is done here,
in forks of this process: it gives ranks their environment, and ends the others some seconds after one has failed.
"""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.kills import PATIENCE_S, PRESET, STEPS, ended, finished, kill, left_over, outcome_of, start, tail

MOST_KILLS = 8
OTHERS_END_S = 5.0
"""What the other ranks get to end by themselves."""


@dataclass(frozen=True)
class Kill:
    """Rank `rank` is killed after a share of a whole run's time, or at a touch of a file, of a checkpoint's alone where
    `in_checkpoint`."""

    rank: int
    moment: float | int
    in_checkpoint: bool = False


@dataclass(frozen=True)
class RankHistory:
    """A configuration on so many ranks, and its kills."""

    ranks: int
    settings: dict[str, Any]
    kills: tuple[Kill, ...]


def history(seed: int) -> RankHistory:
    chance = random.Random(f"rank kills {seed}")
    ranks = chance.choice((2, 2, 3))
    weights, state = chance.choice(
        (("device", "device"), ("device", "host"), ("device", "host"), ("device", "disk"), ("disk", "disk"))
    )
    settings = {
        "weights": weights,
        "state": state,
        "state_format": "exact" if state == "device" else chance.choice(("exact", "half", "compact")),
        "overlap": chance.choice(
            ("serial", "exact") if weights == "disk" else ("serial", "exact", "delayed")
        ),
        # 16 bits come block by block from all ranks, where a CPU computes them in fp32; and whatever is on disk.
        "precision": chance.choice(("fp32", "bf16")),
        "accumulation": chance.choice((1, 2)),
        "clipping": chance.choice((0.0, 0.5)),
        "every": chance.choice((1, 2, 3)),
    }
    return RankHistory(
        ranks, settings, tuple(_kill(chance, ranks) for _ in range(chance.randrange(1, MOST_KILLS)))
    )


def _kill(chance: random.Random, ranks: int) -> Kill:
    rank, way = chance.randrange(ranks), chance.random()
    if way < 0.4:
        return Kill(rank, chance.uniform(0.1, 0.9))
    if way < 0.6:
        return Kill(rank, chance.randrange(1, 150))
    return Kill(rank, chance.randrange(1, 40), in_checkpoint=True)


def start_all(case: RankHistory, words: list[str], folder: Path, killed: Kill | None) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(case.ranks):
        here = killed is not None and killed.rank == rank
        at_touch = killed.moment if killed is not None and here and isinstance(killed.moment, int) else None
        within = "checkpoints" if killed is not None and killed.in_checkpoint else ""
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(case.ranks),
            "LOCAL_WORLD_SIZE": str(case.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        children.append(start(words, folder, at_touch, within, environment))
    return children


def end_all(children: list[int], victim: int | None, patience_s: float) -> list[int | None]:
    """Return the exit status of every rank, None of one that had to be ended. `victim` is killed after `patience_s`;
    where there is none, they have so long."""
    codes: dict[int, int | None] = {}
    until = time.monotonic() + patience_s
    while len(codes) < len(children):
        for rank, child in enumerate(children):
            if rank in codes:
                continue
            code = ended(child, time.monotonic())
            if code is not None:
                codes[rank] = code
                if code != 0 or rank == victim:
                    victim, until = None, min(until, time.monotonic() + OTHERS_END_S)
        if time.monotonic() >= until:
            for rank, child in enumerate(children):
                if rank not in codes and victim in (None, rank):
                    kill(child)
                    codes[rank] = None
            victim, until = None, time.monotonic() + OTHERS_END_S
        time.sleep(0.002)
    return [codes[rank] for rank in range(len(children))]


def train(
    case: RankHistory, folder: Path, text: Path, counts: Counter[str], whole_s: float = 1.0
) -> dict[str, bytes]:
    """Run `case`, a whole run of which takes `whole_s`, in `folder` until it has ended, with all its kills.

    Raises AssertionError where it does not get there, or leaves something behind.
    """
    disk, runs = folder / "disk", folder / "runs"
    disk.mkdir(parents=True)
    preset = folder / "tiny.toml"
    preset.write_text(PRESET.format(text=text, disk=disk, steps=STEPS, **case.settings))
    words = ["run", str(preset), "--runs", str(runs), "--resume", "auto"]
    for killed in (*case.kills, None):
        children = start_all(case, words, folder, killed)
        timed = killed is not None and isinstance(killed.moment, float)
        patience = killed.moment * whole_s if killed is not None and timed else PATIENCE_S
        codes = end_all(children, killed.rank if killed is not None and timed else None, patience)
        if killed is None:
            assert codes == [0] * case.ranks, f"exit statuses {codes}: {tail(folder)}"
        elif codes != [0] * case.ranks:
            counts["kills"] += 1
            counts["in a checkpoint"] += killed.in_checkpoint
            counts["others ended by themselves"] += all(
                code is not None for rank, code in enumerate(codes) if rank != killed.rank
            )
        if codes == [0] * case.ranks or finished(runs):
            break
    found = outcome_of(runs)
    assert not list(disk.iterdir()), f"on the disk tier is left {[path.name for path in disk.iterdir()]}"
    assert not left_over(runs), f"left over: {left_over(runs)}"
    return found


def try_rank_kills(seeds: Iterator[int], until: float, report: Callable[[str], None]) -> Counter[str]:
    """Run histories until `until`. Returns kills tried, and histories that ended equal ("taken") and otherwise."""
    import torch.distributed  # noqa: F401  # once, before the forks

    import workbench.training.command  # noqa: F401

    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="soak-rank-kills-") as name:
        root = Path(name)
        text = root / "text.txt"
        text.write_text("".join(random.Random(0).choices("abcdefgh ,.\n", k=20_000)))
        while time.monotonic() < until:
            seed = next(seeds)
            case = history(seed)
            try:
                began = time.monotonic()
                whole = train(
                    RankHistory(case.ranks, case.settings, ()), root / f"{seed}-whole", text, counts
                )
                took_s = time.monotonic() - began
                killed = train(case, root / f"{seed}-killed", text, counts, took_s)
                other = sorted(
                    name for name in whole.keys() | killed.keys() if whole.get(name) != killed.get(name)
                )
                assert not other, f"other bits: {', '.join(other[:4])}"
                counts["taken"] += 1
            except AssertionError as error:
                counts["wrong"] += 1
                report(f"rank-kills, seed {seed}: {case.ranks} ranks, {case.settings}, {case.kills}: {error}")
            counts["tried"] += len(case.kills)
            for folder in root.glob(f"{seed}-*"):
                shutil.rmtree(folder)
    report(
        f"rank-kills: {counts['kills']} ended a run, {counts['in a checkpoint']} of them within a checkpoint; after "
        f"{counts['others ended by themselves']} the other ranks ended by themselves"
    )
    return counts
