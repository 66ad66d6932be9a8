"""Checkpoints as they look from outside: model files, state files, a manifest and the marker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from workbench.runs import RunDirectory
from workbench.runs.checkpoints import Manifest, Progress, StateFile, checksum
from workbench.system.files import crc32


def store_checkpoint(
    run: RunDirectory,
    step: int,
    model: Mapping[str, bytes],
    state: Mapping[str, tuple[str, int, bytes]] | None = None,
) -> Path:
    """Store model files, and state files given as (dtype, elements, content), as the checkpoint of `step`."""
    folder = run.checkpoints / f"step-{step:08}"
    (folder / "state").mkdir(parents=True)
    for name, content in model.items():
        (folder / name).write_bytes(content)
    files = {}
    for name, (dtype, elements, content) in (state or {}).items():
        file = name.replace("/", ".")
        (folder / "state" / file).write_bytes(content)
        files[name] = StateFile(file, dtype, elements, crc32(content))
    manifest = Manifest(
        step,
        files,
        layout=[],
        weights_dtype="float32",
        model_files={name: len(content) for name, content in model.items()},
        model_checksums={name: checksum(folder / name) for name in model},
        engine={},
        progress=Progress(step),
    )
    text = manifest.to_json()
    (folder / "state" / "manifest.json").write_bytes(text)
    (folder / "DONE").write_text(json.dumps({"step": step, "manifest_crc32": crc32(text)}))
    return folder
