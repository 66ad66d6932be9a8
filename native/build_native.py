"""Builds `workbench._native`: plain C11 with base compiler flags, no torch or CUDA headers.

setuptools runs this file from the repository's root (`cffi_modules` in setup.py). The functions for wider
instruction sets carry their own target attribute and are chosen at run time, so that one build serves every
processor of a platform; through the limited API, it also serves every Python.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

NATIVE = Path("native")
SOURCES = [*NATIVE.glob("*.c"), *NATIVE.glob("kernels/*.c")]
HEADERS = [*NATIVE.glob("*.h"), *NATIVE.glob("kernels/*.h")]
FLAGS = [
    "-std=c11",
    "-O3",
    "-g0",
    "-pthread",
    "-fvisibility=hidden",
    # fma is used exactly where the source says so: results must not depend on the compiler's choice.
    "-ffp-contract=off",
    # Without these two, square roots and selections keep loops from becoming vector code; no result changes.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
]

ffibuilder = FFI()
ffibuilder.cdef((NATIVE / "interface.h").read_text())
ffibuilder.set_source(
    "workbench._native",
    '#include "native.h"',
    sources=sorted(map(str, SOURCES)),
    depends=sorted(map(str, HEADERS)),
    include_dirs=[str(NATIVE)],
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
    libraries=["m"],
    py_limited_api=True,
)
