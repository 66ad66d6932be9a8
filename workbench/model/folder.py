"""Write a model as the Hugging Face folder that `from_pretrained` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

LARGEST_FILE = "5GB"


def save_model(model: nn.Module, folder: Path) -> None:
    """Write safetensors with their index, `config.json` and the generation configuration into `folder`.

    The weights must be at rest: call `OffloadEngine.wait` first. Raises OSError where the disk does not take them.
    """
    from safetensors import SafetensorError

    saved: Any = model
    try:
        saved.save_pretrained(folder, max_shard_size=LARGEST_FILE)
    except SafetensorError as error:
        # safetensors reports a full disk as text; the run's answer to it is the one to any other OSError.
        raise OSError(f"{folder}: {error}") from error
