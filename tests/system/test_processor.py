"""The processor's bf16 is read off its flags, whole words of them; threads on it do not keep others from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workbench.system.processor import (
    has_bfloat16,  # the real one, which tests are not shown elsewhere
    name_this_thread,
    spin_briefly,
)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx512f avx512_bf16 avx512vl", True),
        ("fpu amx_tile amx_bf16", True),
        ("fpu avx2 avx512f avx512_vnni", False),
        ("fpu avx512_bf16x", False),
        ("", False),
    ],
)
def test_the_flags_tell_it(tmp_path: Path, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(
        f"processor : 0\nmodel name : a CPU\nflags : {flags}\n\nprocessor : 1\n"
    )
    assert has_bfloat16(tmp_path / "cpuinfo") == expected
    assert not has_bfloat16(tmp_path / "none")


@pytest.mark.parametrize(
    "chosen", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "0"}], ids=str
)
def test_threads_spin_briefly_unless_the_user_has_chosen(chosen: dict[str, str]) -> None:
    environment = {"PATH": "/bin", **chosen}
    spin_briefly(environment)
    assert environment == {"PATH": "/bin", **(chosen or {"GOMP_SPINCOUNT": "1000"})}


def test_a_command_has_chosen_before_torch_is_imported() -> None:
    """By what libgomp itself says that it has read."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    program = "import sys; from workbench.cli import main; main(['config', 'check', 'nothing']); import torch"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
    )
    if "GOMP_SPINCOUNT" not in told.stderr:
        pytest.skip("torch's OpenMP is not libgomp")
    assert "GOMP_SPINCOUNT = '1000'" in told.stderr


def test_a_thread_has_the_name_that_htop_shows() -> None:
    found: list[str] = []

    def work() -> None:
        name_this_thread("lane-download")
        found.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["lane-download"]
    assert Path("/proc/self/comm").read_text().strip() != "lane-download"
