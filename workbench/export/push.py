"""Send an exported model to the Hugging Face hub, where that is asked for: nothing is sent otherwise.

Invariant: a repository that is made here is private; what could not be sent is still in its folder.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError, WorkbenchError


def check_push(name: str) -> None:
    """Refuse, before anything is exported, what the hub would refuse.

    Raises:
        ConfigurationError: `name` is not USER/NAME, nobody is logged in, or the hub's libraries are offline.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        hub.utils.validate_repo_id(name)
    except hub.errors.HFValidationError as error:
        raise ConfigurationError(f"--push {name}: is not a hub id: {error}") from error
    if name.count("/") != 1:
        raise ConfigurationError(f"--push {name}: expected USER/NAME, such as me/{name}")
    if hub.constants.is_offline_mode():
        raise ConfigurationError(f"--push {name}: HF_HUB_OFFLINE is set; unset it, or leave --push out")
    if hub.get_token() is None:
        raise ConfigurationError(f"--push {name}: nobody is logged in; run hf auth login, or set HF_TOKEN")


def push(folder: Path, name: str, message: str) -> str:
    """Upload the files of `folder` as one commit to the repository `name`, made private where there is none; return
    its address.

    Raises:
        WorkbenchError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        address = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # the network raises errors of every type
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise WorkbenchError(
            f"--push {name}: {reason}; the model is in {folder}, and `hf upload {name} {folder}` sends it"
        ) from error
    return str(address)
