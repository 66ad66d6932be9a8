"""Updates by the installed extension alone, without torch or numpy: one line a case, the same on every processor.

`python native_check.py` prints a digest of all that an update writes, by state format, instruction set and threads.
Instruction sets and thread counts must agree; that is checked here. Another machine must print the same lines: that
checks a wheel which was built for another processor.
"""

from __future__ import annotations

import hashlib
import platform
import random
import struct
import sys

from workbench._native import ffi, lib

COUNT = 70_001
STEPS = 3
SETS = {"scalar": lib.WB_SCALAR, "avx2": lib.WB_AVX2, "avx512": lib.WB_AVX512, "neon": lib.WB_NEON}
FORMATS = {"exact": (lib.WB_EXACT, 4, 4), "half": (lib.WB_HALF, 2, 2), "compact": (lib.WB_COMPACT, 1, 1)}


def floats(draw: random.Random, scale: float) -> bytes:
    return struct.pack(f"<{COUNT}f", *(draw.gauss(0.0, scale) for _ in range(COUNT)))


def updated(state_format: str, instruction_set: int, threads: int, *, split: bool) -> str:
    """Return the digest of master, moments and working weights after `STEPS` updates."""
    draw = random.Random(7)
    number, first, second = FORMATS[state_format]
    sizes = {"exp_avg": COUNT * first, "exp_avg_sq": COUNT * second}
    if state_format == "compact":
        sizes |= dict.fromkeys(("exp_avg_scale", "exp_avg_sq_scale"), 4 * -(-COUNT // 256))
    sizes |= {"high": 2 * COUNT, "low": 2 * COUNT} if split else {"master": 4 * COUNT, "emit": 2 * COUNT}
    held = {name: aligned(size) for name, size in sizes.items()}
    master = floats(draw, 0.02)
    if split:
        upper = b"".join(master[at + 2 : at + 4] for at in range(0, len(master), 4))
        ffi.memmove(held["high"][1], upper, len(upper))
    else:
        ffi.memmove(held["master"][1], master, len(master))
    pool = lib.wb_pool_create(threads, instruction_set)
    assert pool != ffi.NULL
    settings = ffi.new("wb_adamw *", (1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5, 0))
    for step in range(1, STEPS + 1):
        gradient = aligned(4 * COUNT)
        ffi.memmove(gradient[1], floats(draw, 1e-3), 4 * COUNT)
        piece = ffi.new("wb_piece *")
        piece.count, piece.step, piece.random_stream, piece.decay = COUNT, step, 11, 1
        piece.gradient, piece.gradient_type = address(gradient), lib.WB_FLOAT32
        piece.state_format, piece.emit_type = number, lib.WB_FLOAT16
        for name, buffer in held.items():
            setattr(piece, name, address(buffer))
        assert lib.wb_update(pool, piece, 1, settings, ffi.NULL) == lib.WB_OK
    lib.wb_pool_stop(pool)
    lib.wb_pool_free(pool)
    digest = hashlib.sha256()
    for name, size in sizes.items():
        digest.update(bytes(ffi.buffer(held[name][1], size)))
    return digest.hexdigest()[:16]


def aligned(size: int) -> tuple[object, object]:
    """Return an owner and a pointer into it at a multiple of 64 bytes."""
    owner = ffi.new("char[]", size + 64)
    start = int(ffi.cast("uintptr_t", owner))
    return owner, owner + (-start) % 64


def address(buffer: tuple[object, object]) -> int:
    return int(ffi.cast("uintptr_t", buffer[1]))


def main() -> int:
    there = [name for name, number in SETS.items() if lib.wb_has_instruction_set(number)]
    print(f"{platform.machine()}: {', '.join(there)}", file=sys.stderr)
    if platform.machine() == "aarch64" and "neon" not in there:
        print("the extension lacks NEON, which every aarch64 processor has", file=sys.stderr)
        return 1
    for state_format in FORMATS:
        for split in (False, True):
            found = {
                (name, threads): updated(state_format, SETS[name], threads, split=split)
                for name in there
                for threads in (1, 2)
            }
            if len(set(found.values())) != 1:
                print(f"{state_format}: instruction sets or threads differ: {found}", file=sys.stderr)
                return 1
            print(f"{state_format} {'split' if split else 'fp16'} {next(iter(found.values()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
