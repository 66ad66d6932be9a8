"""Steps of the quickstart's model on a CPU under several ways in which OpenMP's threads wait, alone and beside others.

    python -m benchmarks.openmp_waiting [--turns 5] [--steps 40]

libgomp's threads spin where they wait for each other; where other processes want the same cores, the ones that spin
keep those that are waited for from running. Each setting is measured in turn with the others; of all steps of all
turns the fastest and the median are told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

SETTINGS = {
    "libgomp's default": {},
    "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT 1,000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT 10,000": {"GOMP_SPINCOUNT": "10000"},
}
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
WARM_UP = 3


def train(steps: int) -> list[float]:
    """Return the seconds of each step after a few."""
    import torch

    from workbench.config import load_config
    from workbench.engine import OffloadEngine
    from workbench.model.build import UnitInitializer, build_on_meta, model_config
    from workbench.presets import find_preset
    from workbench.training.prepare import engine_options

    config = load_config(
        find_preset("quickstart"),
        ["train.device=cpu", "offload.weights=device", "offload.state=host"],
    )
    model = build_on_meta(model_config(config.model.architecture, config.model.config))
    options = engine_options(config, device="cpu", gradient_accumulation=1)
    seconds = []
    with OffloadEngine(model, **options, materialize=UnitInitializer(model, 1)) as engine:
        ids = torch.randint(0, 256, (config.train.micro_batch_size, config.data.sequence_length))
        for _ in range(WARM_UP + steps):
            began = time.perf_counter()
            engine.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
            engine.step().result()
            seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps(train(arguments.steps)))
        return
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-m", "benchmarks.openmp_waiting", "--train", "--steps", str(arguments.steps)]
    others = (0, len(os.sched_getaffinity(0)))
    found: dict[tuple[str, int], list[float]] = {(name, n): [] for n in others for name in SETTINGS}
    for turn in range(arguments.turns):
        for (name, number), seconds in found.items():
            with busy(number):
                told = subprocess.run(
                    command,
                    env={**clean, **SETTINGS[name]},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
            seconds += json.loads(told.stdout.splitlines()[-1])
        print(f"after turn {turn + 1} of {arguments.turns}", *table(found, others), sep="\n", flush=True)


def table(found: dict[tuple[str, int], list[float]], others: tuple[int, ...]) -> Iterator[str]:
    yield f"| | {' | '.join(f'beside {n} busy processes' if n else 'alone' for n in others)} |"
    yield "|---|" + "---:|" * len(others)
    for name in SETTINGS:
        cells = (found[name, n] for n in others)
        texts = (f"{1e3 * min(s):.0f}, {1e3 * statistics.median(s):.0f} ms" for s in cells)
        yield f"| {name} | {' | '.join(texts)} |"


if __name__ == "__main__":
    main()
