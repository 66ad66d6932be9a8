"""`large`: one full step of the 10.3-billion GPT-2 with weights and state on disk; or of as many blocks as fit.

This is the parent: it checks the disk, owns the folder, and prints what the case in its own process found.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.machine import GIB, describe
from benchmarks.engine.processes import run_case, tell
from benchmarks.engine.shapes import Shape
from workbench.layout import BLOCK, moment_bytes

LAYERS = 50
TOKENS = 64
STATE_FORMAT = "compact"
ROOM = 1.02
"""Files are padded to pages, and embeddings and vectors keep exact state; both are below this."""
DOES_NOT_FIT = 3


def shape_with(layers: int) -> Shape:
    """The GPT-2 of presets/gpt2-10b.toml with another number of blocks."""
    return Shape("gpt2-10b", layers, 4096, 32)


def disk_bytes(shape: Shape) -> int:
    """About what weights and state take on disk: a split bf16 master (the working weights are in it) and moments."""
    blocks = shape.n_layer * shape.block_parameters
    exact = shape.outer_parameters
    split = 4 * (blocks + exact)
    moments = moment_bytes("compact", blocks // BLOCK * BLOCK) + moment_bytes("exact", exact)
    return int(ROOM * (split + moments))


def most_layers(free_bytes: int) -> int:
    """The deepest shape that the free disk takes; 0 where none does."""
    one = shape_with(1)
    per_block = disk_bytes(shape_with(2)) - disk_bytes(one)
    return max(0, (free_bytes - disk_bytes(one)) // per_block + 1)


def run_large(layers: int, disk: Path, tokens: int, arguments: Sequence[str]) -> int:
    """Run the step and print what it took; the exit code."""
    head = describe("benchmarks.engine", arguments)
    shape = shape_with(layers)
    disk.mkdir(parents=True, exist_ok=True)
    needed, free = disk_bytes(shape), shutil.disk_usage(disk).free
    facts = (
        f"GPT-2 with {layers} blocks of width {shape.n_embd}, {shape.parameters:,} parameters; bf16 storage, "
        f"{STATE_FORMAT}, weights and state on disk, micro-batch 1, {tokens} tokens, clipping off",
        f"disk: about {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free in {disk}",
    )
    for fact in facts:
        tell(fact)
    if needed > free:
        tell(f"it does not fit; --layers {most_layers(free)} does" if most_layers(free) else "nothing fits")
        return DOES_NOT_FIT
    outcome = run_case(
        "benchmarks.engine",
        {"verb": "large", "layers": layers, "tokens": tokens, "state_format": STATE_FORMAT},
        folder_in=disk,
    )
    if outcome.result is None:
        tell(f"failed: {outcome.failure}")
        return 1
    print("\n".join([*(f"- {line}" for line in (*head, *facts)), "", *_lines(outcome.result)]))
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{name:<12} {part['seconds']:>9.1f} s   {_gb(part['read_bytes'])} read   {_gb(part['written_bytes'])} written"
        for name, part in found["parts"].items()
    ]
    lanes = ", ".join(
        f"{lane} {busy:.1f} ({found['exposed_seconds'].get(lane, 0.0):.1f} exposed)"
        for lane, busy in found["lane_seconds"].items()
        if busy
    )
    return [
        *lines,
        f"lanes, seconds: {lanes}",
        f"loss {found['loss']:.4f}, grad_norm {found['grad_norm']:.4f}",
        f"peak resident size {found['peak_bytes'] / GIB:.2f} GiB "
        f"({found['peak_bytes'] / found['parameters']:.2f} bytes a parameter)",
        *(
            f"{tier}: " + ", ".join(f"{name} {held / GIB:.2f} GiB" for name, held in entries.items())
            for tier, entries in found["memory_breakdown"].items()
            if entries
        ),
    ]


def _gb(count: int | None) -> str:
    return "      n/a" if count is None else f"{count / 1e9:>6.1f} GB"
