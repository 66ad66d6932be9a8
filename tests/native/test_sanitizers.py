"""The native code without Python: driver.c through every call of the interface, as shipped, under sanitizers and
under valgrind."""

from __future__ import annotations

import platform
import shutil

import pytest
from native_builds import Build, Builds

# clang, and every sanitizer but one, are worth minutes, not every run's seconds.
COMPILERS = ["gcc", pytest.param("clang", marks=pytest.mark.slow)]
VALGRIND = "valgrind -q --error-exitcode=9 --leak-check=full"
ALL_BUT_LEAKS = "tails notfinite conversions large threads forks speculation"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("builds"))


@pytest.fixture
def valgrind() -> str:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    return VALGRIND


def finds_leaks(build: Build) -> bool:
    """Whether LeakSanitizer works here: it stops the process to look at it, which a container may forbid."""
    result = build.run("fault leak")
    if "LeakSanitizer has encountered a fatal error" in result.stderr:
        return False
    assert result.returncode != 0, result.stderr
    assert "detected memory leaks" in result.stderr
    return True


# ---- As shipped ----


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("variant", ["shipped", "scalar only"])
def test_the_c_files_compile_without_a_warning(builds: Builds, variant: str, compiler: str) -> None:
    assert builds.get(variant, compiler).messages == ""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_call_gives_the_same_bits_in_every_instruction_set_and_for_any_threads(
    builds: Builds, compiler: str
) -> None:
    builds.get("shipped", compiler).passes(f"{ALL_BUT_LEAKS} --stride 97")


def test_a_million_tiny_updates_and_a_thousand_pools_leave_no_memory_behind(builds: Builds) -> None:
    builds.get("shipped").passes("leaks --updates 1000000")


def test_a_build_without_vector_functions_has_scalar_alone_and_works(builds: Builds) -> None:
    build = builds.get("scalar only")
    assert build.run("sets").stdout == "scalar\n"
    build.passes("tails notfinite conversions threads --stride 97 --repeats 1")


@pytest.mark.parametrize(
    ("emulator", "cpu", "compiler", "sets"),
    [
        ("qemu-x86_64", "Nehalem", "gcc", ["scalar"]),
        pytest.param("qemu-x86_64", "Haswell", "gcc", ["scalar", "avx2"], marks=pytest.mark.slow),
        ("qemu-aarch64", "max", "aarch64-linux-gnu-gcc", ["scalar", "neon"]),
    ],
)
def test_other_processors_use_what_they_have(
    builds: Builds, emulator: str, cpu: str, compiler: str, sets: list[str]
) -> None:
    if platform.machine() != "x86_64" or not shutil.which(emulator):
        pytest.skip(f"needs {emulator} on x86_64")
    build = builds.get("shipped" if compiler == "gcc" else "static", compiler)
    assert build.messages == ""
    assert build.run("sets", under=f"{emulator} -cpu {cpu}").stdout.split() == sets
    build.passes("tails notfinite --stride 997 --repeats 1", under=f"{emulator} -cpu {cpu}")


@pytest.mark.parametrize("stride", [97, pytest.param(7, marks=pytest.mark.slow)])
def test_neon_gives_the_bits_of_scalar_on_the_smallest_aarch64_processor(builds: Builds, stride: int) -> None:
    if platform.machine() != "x86_64" or not shutil.which("qemu-aarch64"):
        pytest.skip("needs qemu-aarch64 on x86_64")
    words = f"{ALL_BUT_LEAKS} --sets neon --no-fork --stride {stride} --repeats 1"  # qemu-user loses threads in a fork
    builds.get("static", "aarch64-linux-gnu-gcc").passes(words, under="qemu-aarch64 -cpu cortex-a53")


# ---- Under sanitizers ----


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_byte_is_touched_outside_a_buffer(builds: Builds, compiler: str) -> None:
    build = builds.get("address", compiler)
    build.passes(f"{ALL_BUT_LEAKS} --stride 331 --repeats 1", ASAN_OPTIONS="detect_leaks=0")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_memory_is_lost(builds: Builds, compiler: str) -> None:
    build = builds.get("address", compiler)
    if not finds_leaks(build):
        pytest.skip("LeakSanitizer is not allowed to look at processes here")
    build.passes("notfinite large forks --stride 97 --repeats 1")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_behaviour_is_undefined(builds: Builds, compiler: str) -> None:
    builds.get("undefined", compiler).passes(f"{ALL_BUT_LEAKS} --stride 97 --repeats 1")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_two_threads_race(builds: Builds, compiler: str) -> None:
    builds.get("thread", compiler).passes("large threads --sets avx2 --stride 100 --repeats 1")


@pytest.mark.slow
def test_no_byte_is_used_before_it_is_written(builds: Builds, valgrind: str) -> None:
    build = builds.get("shipped")
    build.passes("tails notfinite --sets scalar,avx2 --stride 151", under=valgrind)


@pytest.mark.parametrize(
    ("variant", "fault", "words"),
    [
        ("address", "overrun", "heap-buffer-overflow"),
        pytest.param("undefined", "undefined", "misaligned address", marks=pytest.mark.slow),
        pytest.param("thread", "race", "data race", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_sanitizer_reports_a_fault_made_on_purpose(
    builds: Builds, variant: str, fault: str, words: str, compiler: str
) -> None:
    result = builds.get(variant, compiler).run(f"fault {fault}")
    assert result.returncode != 0
    assert words in result.stderr


@pytest.mark.parametrize("fault", ["overrun", "uninitialized", "leak"])
def test_valgrind_reports_a_fault_made_on_purpose(builds: Builds, valgrind: str, fault: str) -> None:
    assert builds.get("shipped").run(f"fault {fault}", under=valgrind).returncode == 9


# ---- Longer ----


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["shipped", "scalar only", "address", "undefined"])
def test_every_combination_passes_at_every_length(builds: Builds, variant: str) -> None:
    builds.get(variant).passes(f"{ALL_BUT_LEAKS} --stride 1")


@pytest.mark.slow
def test_no_two_threads_race_in_any_call(builds: Builds) -> None:
    # ThreadSanitizer does not follow a process with threads through a fork.
    builds.get("thread").passes(f"{ALL_BUT_LEAKS} --no-fork --stride 17")


@pytest.mark.slow
def test_no_byte_is_used_before_it_is_written_in_any_call(builds: Builds, valgrind: str) -> None:
    words = "tails notfinite conversions large threads --no-fork --stride 41 --repeats 1"
    builds.get("shipped").passes(f"{words} --sets scalar,avx2", under=valgrind)
