"""Whether the processor computes in bf16 is read off its flags, whole words of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.system.processor import has_bfloat16  # the real one, which tests are not shown elsewhere


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
