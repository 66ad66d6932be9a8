"""The memory's limit as a contender: limit.c, compiled at start, on Python threads (ctypes releases the GIL)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from benchmarks.host_optimizer.buffers import Buffers
from benchmarks.host_optimizer.contender import Run, UnavailableError
from workbench.layout import StateFormat

SOURCE = Path(__file__).with_name("limit.c")
FORMATS: dict[str, tuple[int, StateFormat]] = {
    "limit_exact": (0, "exact"),
    "limit_half": (1, "half"),
    "limit_compact": (2, "compact"),
    "limit_fp32": (3, "exact"),
}
"""limit.c's number of a format, and how its moments are kept."""


class Work(ctypes.Structure):
    """`limit_work` of limit.c."""

    _fields_ = (
        *(
            (name, ctypes.c_size_t)
            for name in (
                "gradient",
                "high",
                "low",
                "exp_avg",
                "exp_avg_sq",
                "exp_avg_scale",
                "exp_avg_sq_scale",
            )
        ),
        *((name, ctypes.c_int64) for name in ("count", "format", "passes", "cursor")),
    )


@cache
def library() -> ctypes.CDLL:
    """limit.c, compiled; `UnavailableError` where there is no compiler that can."""
    compiler = os.environ.get("CC") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "limit.so")
        command = [*compiler.split(), "-O3", "-shared", "-fPIC", "-o", str(target), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise UnavailableError(f"no C compiler: {compiler} is not installed (CC names another)") from None
        except subprocess.CalledProcessError as error:
            raise UnavailableError(f"{compiler} cannot compile limit.c: {error.stderr.strip()}") from None
        loaded = ctypes.CDLL(str(target))
    loaded.limit_share.argtypes = [ctypes.POINTER(Work)]
    loaded.limit_share.restype = None
    return loaded


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """The threads beside the calling one; they live until the process ends."""
    return ThreadPoolExecutor(threads, thread_name_prefix="limit")


def make(name: str, buffers: Buffers, threads: int) -> Run:
    """The contender of this name."""
    share = library().limit_share
    number, state_format = FORMATS[name]
    if name == "limit_fp32":
        tensors = {"gradient": buffers.gradient_fp32, "high": buffers.master}
    else:
        high, low = buffers.split_master
        tensors = {"gradient": buffers.gradient_bf16, "high": high, "low": low}
    tensors.update(buffers.moments(state_format))
    addresses = {kind: tensor.data_ptr() for kind, tensor in tensors.items()}

    def run(calls: int) -> None:
        work = Work(**addresses, count=buffers.parameters, format=number, passes=calls, cursor=0)
        others = [pool(threads - 1).submit(share, work) for _ in range(threads - 1)]
        share(work)
        for other in others:
            other.result()

    return run
