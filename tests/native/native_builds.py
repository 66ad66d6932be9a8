"""Builds of the native code with its driver in C, one for each way of checking it, compiled where first asked for.

Invariant: but for optimization and instrumentation, the flags are those that native/build_native.py ships with.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NATIVE = REPOSITORY / "native"
SOURCES = [*NATIVE.glob("*.c"), *NATIVE.glob("kernels/*.c"), *Path(__file__).parent.glob("*.c")]
WARNINGS = ["-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wundef", "-Wvla"]
FOR_SANITIZERS = ["-O1", "-g1", "-fno-omit-frame-pointer"]
VARIANTS = {
    "shipped": ["-g1", *WARNINGS],
    "static": ["-static", *WARNINGS],
    "scalar only": ["-O1", "-DWB_BUILD_X86=0", "-DWB_BUILD_NEON=0", *WARNINGS],
    "address": [*FOR_SANITIZERS, "-fsanitize=address"],
    "undefined": [*FOR_SANITIZERS, "-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": [*FOR_SANITIZERS, "-fsanitize=thread"],
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def shipped_flags() -> list[str]:
    """FLAGS of build_native.py, which cannot be imported without describing a cffi build."""
    for node in ast.parse((NATIVE / "build_native.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLAGS":
            return list(ast.literal_eval(node.value))
    raise AssertionError("build_native.py names no FLAGS")


def run(
    command: list[str | Path], timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **ENVIRONMENT, **environment},
    )


@dataclass
class Build:
    driver: Path
    messages: str
    """What the compiler said."""
    before: list[str] = field(default_factory=list)
    """Words before the driver's name that it needs to start."""

    def run(self, words: str, under: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return run([*under.split(), *self.before, self.driver, *words.split()], **environment)

    def passes(self, words: str, under: str = "", **environment: str) -> None:
        result = self.run(words, under, **environment)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.startswith("passed: "), result.stdout
        # qemu names the features that it does not emulate.
        assert [line for line in result.stderr.splitlines() if not line.startswith("qemu")] == []


def compiled(folder: Path, compiler: str, extra: list[str]) -> Build:
    """Every C file compiled on its own, as many at a time as there are processors."""
    folder.mkdir()
    flags = [*shipped_flags(), *extra, f"-I{NATIVE}"]

    def compile_one(source: Path) -> subprocess.CompletedProcess[str]:
        return run([compiler, *flags, "-c", source, "-o", folder / f"{source.stem}.o"])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_one, SOURCES))
    messages = "".join(result.stderr for result in results)
    assert all(result.returncode == 0 for result in results), messages
    driver = folder / "driver"
    linked = run([compiler, *flags, *folder.glob("*.o"), "-o", driver, "-lm"])
    assert linked.returncode == 0, linked.stderr
    return Build(driver, messages + linked.stderr)


def words_to_start_with(folder: Path, compiler: str, extra: list[str]) -> list[str]:
    """Skips where an empty program with these flags does not compile or run here."""
    source, program = folder / "empty.c", folder / "empty"
    source.write_text("int main(void) { return 0; }\n")
    result = run([compiler, *extra, source, "-o", program])
    if result.returncode != 0:
        pytest.skip(f"{compiler} has no {extra[-1]}: {result.stderr.strip().splitlines()[-1]}")
    if "-static" in extra:
        return []  # for another processor, perhaps
    # ThreadSanitizer cannot place its shadow where the kernel randomizes addresses widely.
    for before in ([], ["setarch", "-R"]):
        if before and not shutil.which(before[0]):
            continue
        started = run([*before, program])
        if started.returncode == 0:
            return before
    pytest.skip(f"a program with {extra[-1]} does not start here: {started.stderr.strip()[:200]}")


@dataclass
class Builds:
    folder: Path
    made: dict[tuple[str, str], Build] = field(default_factory=dict)

    def get(self, variant: str, compiler: str = "gcc") -> Build:
        if not shutil.which(compiler):
            pytest.skip(f"{compiler} is not installed")
        key = (compiler, variant)
        if key not in self.made:
            before = words_to_start_with(self.folder, compiler, VARIANTS[variant])
            build = compiled(self.folder / "-".join(key), compiler, VARIANTS[variant])
            self.made[key] = Build(build.driver, build.messages, before)
        return self.made[key]
