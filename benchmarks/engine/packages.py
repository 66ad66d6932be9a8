"""`accelerate`, which Hugging Face's Trainer needs: imported where it is installed, else fetched into a folder.

Never into the project's environment. The folder appears when its installation is complete, never before.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.engine.processes import tell

VERSION = "1.15.0"
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps")


class MissingPackageError(Exception):
    """The Trainer cannot run here; the text says why."""


def load_accelerate(packages: Path | None) -> str:
    """Make accelerate importable, before transformers is imported; returns its name and version.

    What it needs in turn (torch, numpy, psutil, ...) Workbench has already.

    Raises:
        MissingPackageError: it is not installed and no folder was given, or pip could not fetch it.
    """
    if importlib.util.find_spec("accelerate") is None:
        if packages is None:
            raise MissingPackageError("accelerate is not installed; --packages DIR fetches it into a folder")
        # Last, so that nothing of the project's environment is replaced.
        sys.path.append(str(_folder_with_accelerate(packages)))
        importlib.invalidate_caches()
    return f"accelerate {importlib.metadata.version('accelerate')}"


def _folder_with_accelerate(packages: Path) -> Path:
    folder = packages.resolve() / f"accelerate-{VERSION}"
    if folder.exists():
        return folder
    tell(f"installing accelerate {VERSION} into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary, "complete")
        command = [*PIP, "--target", str(target), f"accelerate=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            raise MissingPackageError(f"pip cannot install accelerate {VERSION}: {said[-1].strip()}")
        target.rename(folder)
    return folder
