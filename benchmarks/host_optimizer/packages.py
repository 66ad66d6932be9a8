"""Packages that only this benchmark needs: imported where they are installed, else fetched into a folder of the cache.

Never into the project's environment. A folder appears in the cache when its installation is complete, never before.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.host_optimizer.contender import UnavailableError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """What pip is asked for. Requirements that Workbench itself has (torch, numpy, psutil, ...) are left out."""

    version: str
    beside: tuple[str, ...] = ()
    needs_torch_to_build: bool = False


PINNED = {
    "deepspeed": Package(
        "0.19.8",
        ("py-cpuinfo==9.0.0", "hjson==3.1.0", "einops==0.8.2", "msgpack==1.2.4", "ninja==1.13.0"),
        needs_torch_to_build=True,
    ),
    "torchao": Package("0.18.0"),
    "bitsandbytes": Package("0.50.2"),
}
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps")
ON_THE_CPU = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
"""DeepSpeed otherwise looks for CUDA; its kernels are compiled when they are first used, not by pip."""


def load(name: str, cache: Path, say: Say) -> str:
    """Make a package importable and its kernels ready; return a line that says its version and how that went.

    Raises `UnavailableError` where it cannot be had.
    """
    for variable, value in ON_THE_CPU.items():
        os.environ.setdefault(variable, value)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    if importlib.util.find_spec(name) is None:
        folder = installed_folder(name, cache, say)
        sys.path.append(str(folder))  # last, so that nothing of the project's environment is replaced
        os.environ["PATH"] += os.pathsep + str(folder / "bin")  # ninja
        importlib.invalidate_caches()
    try:
        importlib.import_module(name)
    except Exception as error:  # whatever a foreign package raises, the others are still measured
        raise UnavailableError(f"{name} cannot be imported: {_one_line(error)}") from error
    version = importlib.metadata.version(name)
    note = f"{name} {version}"
    return f"{note}, {compile_deepspeed(version, cache, say)}" if name == "deepspeed" else note


def installed_folder(name: str, cache: Path, say: Say) -> Path:
    """The folder that holds the package, filled by pip the first time."""
    package = PINNED[name]
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "packages" / f"{name}-{package.version}-{python}"
    if folder.exists():
        return folder
    say(f"installing {name} {package.version} into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary, "complete")
        command = [*PIP, "--target", str(target), f"{name}=={package.version}", *package.beside]
        if package.needs_torch_to_build:
            command.append("--no-build-isolation")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (
                done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            ).splitlines()
            raise UnavailableError(f"pip cannot install {name} {package.version}: {reason[-1].strip()}")
        target.rename(folder)
    return folder


def compile_deepspeed(version: str, cache: Path, say: Say) -> str:
    """Compile DeepSpeed's CPU Adam, or load what an earlier run compiled; say how long the compilation took."""
    folder = cache / "extensions" / f"deepspeed-{version}-torch-{torch.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    record = folder / "compiled_in_s"
    if not record.exists():
        say("compiling DeepSpeed's CPU Adam, which takes minutes, once")
    begin = time.perf_counter()
    try:
        from deepspeed.ops.op_builder import CPUAdamBuilder

        CPUAdamBuilder().load()
    except Exception as error:  # a missing compiler, header or ninja: each shows itself differently
        raise UnavailableError(f"DeepSpeed's CPU Adam does not compile: {_one_line(error)}") from error
    if not record.exists():
        record.write_text(f"{time.perf_counter() - begin:.0f}")
    return f"CPU Adam compiled in {record.read_text()} s"


def _one_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
