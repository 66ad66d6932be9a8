"""`python -m benchmarks.model_io`: load, save, resume and export a model of a billion parameters.

Seconds and GB/s, beside what the disk does in the same run (whole pages written and read past the cache, one thread),
and the most memory that each takes above what the run holds anyway. A run trains on while the checkpoint before is
removed, which has a row of its own. The files read are dropped from the page cache first. Memory is the resident size,
as Linux counts it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

BLOCKS_MIB = 16
DISK_MIB = 2048
UNITS = 40
TOKENIZER = 260


def main() -> int:
    """Print a table, or its rows as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_io", description=__doc__)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3, help="saves and looks at the disk, alternating")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="model-io-", dir=arguments.folder))
    try:
        rows = measure(folder, int(arguments.parameters), arguments.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        text = f"{row['what']:<34} {row['seconds']:7.2f} s  {row['gb_per_s']:6.2f} GB/s"
        if "of_disk" in row:
            text += f"  {100 * row['of_disk']:4.0f}% of the disk"
        if "above_bytes" in row:
            text += f"  {row['above_bytes'] / 2**20:7,.0f} MiB above ({row['limit_bytes'] / 2**20:,.0f} are one unit)"
        print(text)
    return 0


def measure(folder: Path, parameters: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each thing measured."""
    from workbench.config import parse_config, to_toml
    from workbench.data.tokenizers import ByteTokenizer
    from workbench.runs import RunDirectory, write_config
    from workbench.runs.checkpoints import Progress, find_checkpoints
    from workbench.training.checkpoints.load import load_state
    from workbench.training.checkpoints.save import Removal, save_checkpoint

    source = folder / "model"
    largest = make_model(source, parameters)
    files = sorted(source.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    # What libraries load at their first use is no part of a model's.
    make_model(folder / "small", 1_000_000)
    load(folder / "small").close()
    gc.collect()

    drop(files)
    read_rate = disk_read(files)
    drop(files)
    start_peak()
    began = time.perf_counter()
    engine = load(source)
    seconds = time.perf_counter() - began
    peak, now = high_water(), resident()
    rows = [
        row("disk: read", size / read_rate, size),
        row("load (bf16 files to bf16, exact)", seconds, size, of=read_rate, above=peak - now, limit=largest),
    ]
    model = engine.model
    config = parse_config(
        f'[model]\npretrained = "{source}"\n[train]\ndevice = "cpu"\nsteps = 2\nprecision = "bf16"', "case"
    )
    run = RunDirectory.create(folder / "runs", "case")
    write_config(run, to_toml(config))
    saves, writes, removals = [], [], []
    removal = Removal()
    for step in range(1, rounds + 1):
        writes.append(disk_write(folder / "raw"))
        start_peak()
        held, began = resident(), time.perf_counter()
        path = save_checkpoint(
            run.checkpoints,
            step,
            engine=engine,
            model=model,
            tokenizer=ByteTokenizer(),
            progress=Progress(),
            keep=1,
            removal=removal,
        )
        saves.append((time.perf_counter() - began, high_water() - held))
        began = time.perf_counter()
        removal.wait()
        if step > 1:
            removals.append(time.perf_counter() - began)
        saved = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    rate = statistics.median(writes)
    seconds = statistics.median(s for s, _ in saves)
    rows.append(row("disk: write", saved / rate, saved))
    above = max(a for _, a in saves)
    rows.append(row("save", seconds, saved, of=rate, above=above, limit=largest))
    if removals:
        rows.append(row("removal of the one before, beside", statistics.median(removals), saved))
    drop([file for file in path.rglob("*") if file.is_file()])
    start_peak()
    held, began = resident(), time.perf_counter()
    load_state(next(find_checkpoints(run.checkpoints, print)), engine)
    state = sum(file.stat().st_size for file in (path / "state").iterdir())
    rows.append(
        row(
            "resume (state only)",
            time.perf_counter() - began,
            state,
            of=read_rate,
            above=high_water() - held,
            limit=largest,
        )
    )
    del model
    engine.close()
    del engine
    gc.collect()
    bare = child_peak([sys.executable, "-c", "import torch, transformers.modeling_utils"])
    for dtype, extra in (("as it is", []), ("to fp16", ["--dtype", "fp16"])):
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "workbench",
            "export",
            str(run.path),
            str(folder / f"out-{len(rows)}"),
            *extra,
        ]
        taken = child_peak([*command, "--no-check"])
        seconds = time.perf_counter() - began
        rows.append(row(f"export {dtype}", seconds, size, above=max(0, taken - bare), limit=largest))
    return rows


def make_model(folder: Path, parameters: int) -> int:
    """Write a random Llama of about so many parameters in bf16, unit by unit; its largest unit in bytes."""
    from transformers.utils import logging

    from workbench.engine.blocks.discovery import find_units
    from workbench.model.build import UnitInitializer, build_on_meta, model_config
    from workbench.model.saving import save_model

    logging.set_verbosity_error()
    layers = 16 if parameters > 10**8 else 2
    width = max(64, int((parameters / (layers * 12)) ** 0.5) // 64 * 64)
    shape = model_config(
        "llama",
        {
            "vocab_size": max(TOKENIZER, width * 4),
            "hidden_size": width,
            "intermediate_size": width * 8 // 3,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 64,
            "tie_word_embeddings": True,
        },
    )
    model = build_on_meta(shape)
    initialize = UnitInitializer(model, 1)
    largest = 0

    def units() -> Iterator[dict[str, torch.Tensor]]:
        nonlocal largest
        for unit in find_units(model):
            initialize(unit)
            yield {name: parameter.detach().bfloat16() for name, parameter in unit.parameters.items()}
            largest = max(largest, sum(2 * p.numel() for p in unit.parameters.values()))
            for name, parameter in list(unit.parameters.items()):
                unit.replace(name, nn.Parameter(parameter.to("meta")))

    save_model(model, units(), folder, largest_file_bytes=parameters * 2 // UNITS * 4)
    return largest


def load(folder: Path) -> Any:
    """An engine that trains the model in `folder`: bf16, its state exact and on the host."""
    from workbench.engine import OffloadEngine
    from workbench.model.build import build_on_meta
    from workbench.model.loading import PretrainedUnits
    from workbench.model.pretrained import find_pretrained, pretrained_config

    files = find_pretrained(str(folder))
    model = build_on_meta(pretrained_config(files))
    return OffloadEngine(
        model, device="cpu", state="host", precision="bf16", materialize=PretrainedUnits(model, files, 1)
    )


def row(
    what: str, seconds: float, size: int, *, of: float | None = None, above: int | None = None, limit: int = 0
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "what": what,
        "seconds": seconds,
        "gb_per_s": size / 1e9 / seconds,
        "bytes": size,
    }
    if of is not None:
        found["of_disk"] = size / seconds / of
    if above is not None:
        found |= {"above_bytes": above, "limit_bytes": limit}
    return found


def disk_write(path: Path) -> float:
    """Bytes a second of a plain sequential direct write."""
    block = mmap.mmap(-1, BLOCKS_MIB << 20)
    block.write(os.urandom(BLOCKS_MIB << 20))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    began = time.perf_counter()
    for _ in range(DISK_MIB // BLOCKS_MIB):
        os.write(descriptor, block)
    os.fsync(descriptor)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    path.unlink()
    return (DISK_MIB << 20) / seconds


def disk_read(paths: list[Path]) -> float:
    """Bytes a second of a plain sequential direct read."""
    block = mmap.mmap(-1, BLOCKS_MIB << 20)
    total, began = 0, time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        while (count := os.readv(descriptor, [block])) > 0:
            total += count
        os.close(descriptor)
    return total / (time.perf_counter() - began)


def drop(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def start_peak() -> None:
    from workbench.training.measurements import forget_peak

    gc.collect()
    forget_peak()


def high_water() -> int:
    from workbench.training.measurements import peak_host_bytes

    return peak_host_bytes()


def resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def child_peak(command: list[str]) -> int:
    """The most memory that a process had."""
    watch = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    watch += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    said = subprocess.run([sys.executable, "-c", watch, *command], check=True, capture_output=True, text=True)
    return int(said.stdout.split()[-1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
