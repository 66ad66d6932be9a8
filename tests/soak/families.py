"""Every causal language model of transformers, in every placement: `workbench verify` holds, or refuses in words.

A row of `verify` is the engine beside plain torch. Each verification is a fork of this process, which imports torch
once.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from soak.kills import PLACES, ended, kill, start
from workbench.errors import EXIT_CONFIGURATION, EXIT_DONE

PATIENCE_S = 600.0
BATCH = 50

PRESET = """
[model]
architecture = "{family}"
[data]
source = "{text}"
sequence_length = 32
[train]
device = "cpu"
gradient_accumulation = 2
[offload]
weights = "{weights}"
state = "{state}"
overlap = "{overlap}"
disk_path = "{disk}"
chunk_mib = 1
"""
OVERLAPS = ("exact", "serial")


def cases() -> list[tuple[str, str, str, str]]:
    """Return family, weights, state and overlap of every case: BATCH families in all placements, then the next."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    families = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    random.Random(0).shuffle(families)
    return [
        (family, *PLACES[(number + turn) % len(PLACES)], OVERLAPS[(number // 2 + turn) % 2])
        for first in range(0, len(families), BATCH)
        for turn in range(len(PLACES))
        for number, family in enumerate(families[first : first + BATCH])
    ]


def try_families(seeds: Iterator[int], until: float, report: Callable[[str], None]) -> Counter[str]:
    """Verify cases until `until` (on the monotonic clock) or until there are no more."""
    import torch  # noqa: F401  # once, before the forks

    import workbench.verify.command  # noqa: F401

    counts: Counter[str] = Counter()
    every = cases()
    while time.monotonic() < until and (seed := next(seeds)) < len(every):
        family, weights, state, overlap = every[seed]
        with tempfile.TemporaryDirectory(prefix="soak-families-") as name:
            folder = Path(name)
            (folder / "text.txt").write_text("some text\n" * 500)
            (folder / "disk").mkdir()
            preset = folder / "family.toml"
            preset.write_text(
                PRESET.format(
                    family=family,
                    weights=weights,
                    state=state,
                    overlap=overlap,
                    text=folder / "text.txt",
                    disk=folder / "disk",
                )
            )
            child = start(["verify", str(preset)], folder, None)
            code = ended(child, time.monotonic() + PATIENCE_S)
            if code is None:
                kill(child)
            said = (folder / "output.txt").read_text(errors="replace").splitlines()
        counts["tried"] += 1
        if code == EXIT_DONE:
            counts["taken"] += 1
        elif code == EXIT_CONFIGURATION:
            counts["refused"] += 1
        else:
            counts["wrong"] += 1
            rows = [line for line in said if "FAILED" in line] or said[-2:]
            end = "did not end" if code is None else f"exit status {code}"
            report(
                f"families, seed {seed}: {family}, {weights}/{state}, {overlap}: {end}: {' | '.join(rows)}"
            )
    return counts
