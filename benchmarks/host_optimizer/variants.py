"""What is measured: the contenders' names, in the order of the tables, and the memory that each must move. No torch.

Bytes are the least that the variant's formats allow for each parameter and step: every array that a step needs
is read once, every array that it changes is written once. A variant that passes over its arrays several times is
counted the same, so that GB/s compares what was achieved and not what was spent.
"""

from __future__ import annotations

from dataclasses import dataclass

SCALES_BYTES = 16 / 256
"""Two float32 scales for every 256 elements, read and written."""


@dataclass(frozen=True)
class Variant:
    """One contender."""

    name: str
    bytes_per_parameter: float
    meaning: str
    limit: str | None = None  # the variant that moves the same memory and computes nothing
    package: str | None = None  # measured only where the user asked for this package
    largest: int | None = None  # above this many parameters only where it is named: it takes too long
    largest_quick: int | None = None  # likewise with --quick
    in_quick: bool = True
    is_check: bool = False  # looks at gradients and updates nothing: compared with checks only


ONE_MILLION = 1_000_000
TEN_MILLION = 10_000_000

VARIANTS: tuple[Variant, ...] = (
    Variant("torch_naive", 28, "torch.optim.AdamW(foreach=False), fp32", largest_quick=ONE_MILLION),
    Variant("torch_foreach", 28, "torch.optim.AdamW(foreach=True), fp32", largest_quick=ONE_MILLION),
    Variant("torch_fused", 28, "torch.optim.AdamW(fused=True), fp32"),
    Variant("torch_naive_casts", 40, "torch_naive, bf16 gradient up, bf16 weight down", in_quick=False),
    Variant("torch_foreach_casts", 40, "torch_foreach and the two casts", in_quick=False),
    Variant("torch_fused_casts", 40, "torch_fused and the two casts"),
    Variant("deepspeed_casts", 40, "DeepSpeedCPUAdam, fp32, and the two casts", package="deepspeed"),
    Variant("deepspeed_bf16", 22, "DeepSpeedCPUAdam, bf16 weights, fp32 moments", package="deepspeed"),
    Variant(
        "torchao_8bit",
        16 + SCALES_BYTES,
        "torchao.optim.AdamW8bit, fp32 weights",
        package="torchao",
        largest=TEN_MILLION,
        largest_quick=ONE_MILLION,
    ),
    Variant(
        "bitsandbytes_8bit",
        16 + SCALES_BYTES,
        "bitsandbytes.optim.AdamW8bit, fp32 weights",
        package="bitsandbytes",
        largest=TEN_MILLION,
        largest_quick=ONE_MILLION,
    ),
    Variant("exact", 26, "ours: split master, fp32 moments, bf16 in and out", limit="limit_exact"),
    Variant("exact_ahead", 30, "exact, with records by which it can be undone", in_quick=False),
    Variant("exact_redo", 60, "that, undone and done again with another scale", in_quick=False),
    Variant("half", 18, "ours: split master, bf16 moments, bf16 in and out", limit="limit_half"),
    Variant("half_ahead", 21, "half, with records by which it can be undone", in_quick=False),
    Variant("half_redo", 42, "that, undone and done again with another scale", in_quick=False),
    Variant(
        "compact",
        14 + SCALES_BYTES,
        "ours: split master, 8-bit moments, bf16 in and out",
        limit="limit_compact",
    ),
    Variant(
        "compact_ahead",
        17 + 2 * SCALES_BYTES,
        "compact, with records by which it can be undone",
        in_quick=False,
    ),
    Variant(
        "compact_redo",
        34 + 4 * SCALES_BYTES,
        "that, undone and done again with another scale",
        in_quick=False,
    ),
    Variant("fp32", 28, "ours: everything fp32, as torch_fused", limit="limit_fp32"),
    Variant(
        "host_adamw",
        28,
        "ours as torch.optim.Optimizer: HostAdamW, fp32",
        limit="limit_fp32",
        largest_quick=TEN_MILLION,
    ),
    Variant("limit_exact", 26, "the same reads and writes as exact, no arithmetic"),
    Variant("limit_half", 18, "the same reads and writes as half"),
    Variant("limit_compact", 14 + SCALES_BYTES, "the same reads and writes as compact"),
    Variant("limit_fp32", 28, "the same reads and writes as fp32"),
    Variant("sum_of_squares", 2, "ours: sum of squares of bf16 gradients, with finite check", is_check=True),
    Variant("torch_norm", 2, "torch.linalg.vector_norm of bf16 gradients, as float32", is_check=True),
    Variant("torch_norm_bf16", 2, "the same as bfloat16: two to three digits", is_check=True),
    Variant(
        "torch_isfinite", 2, "torch.isfinite(...).all() of bf16 gradients", in_quick=False, is_check=True
    ),
)

SMALL_VARIANTS: tuple[Variant, ...] = (
    Variant("torch_fused", 28, "torch.optim.AdamW(fused=True).step()"),
    Variant("torch_fused_call", 28, "the function under it, torch._fused_adamw_, called directly"),
    Variant("fp32", 28, "ours: HostOptimizer.update of a PieceTable"),
    Variant("host_adamw", 28, "ours as torch.optim.Optimizer: HostAdamW.step()"),
)

STEP_REFERENCES = (
    "torch_fused",
    "torch_fused_casts",
    "deepspeed_casts",
    "deepspeed_bf16",
    "torchao_8bit",
    "bitsandbytes_8bit",
)
CHECK_REFERENCES = ("torch_norm", "torch_norm_bf16")
SMALL_REFERENCES = ("torch_fused", "torch_fused_call")
"""What the tables compare everything else with, where it was measured."""

NAMES = tuple(variant.name for variant in VARIANTS)
PACKAGES = ("deepspeed", "torchao", "bitsandbytes")


def chosen(
    named: tuple[str, ...] | None, packages: frozenset[str], quick: bool, parameters: int
) -> tuple[Variant, ...]:
    """The variants to measure at a size. Those that the user named are measured whatever they take."""
    if named is not None:
        return tuple(variant for variant in VARIANTS if variant.name in named)
    return tuple(
        variant
        for variant in VARIANTS
        if (variant.package is None or variant.package in packages)
        and (not quick or (variant.in_quick and _allows(variant.largest_quick, parameters)))
        and _allows(variant.largest, parameters)
    )


def _allows(largest: int | None, parameters: int) -> bool:
    return largest is None or parameters <= largest
