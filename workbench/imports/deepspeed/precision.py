"""Number formats, loss scaling and clipping: fp16, bf16, data_types, gradient_clipping."""

from __future__ import annotations

from typing import NamedTuple

from workbench.imports.deepspeed.keys import BF16_STATE, is_known
from workbench.imports.findings import AUTO, Auto, Findings


class _LossScale(NamedTuple):
    """A field of [loss_scale] with DeepSpeed's default."""

    field: str
    default: float
    reason: str


_LOSS_SCALE = {
    "loss_scale": _LossScale("fixed", 0.0, "a scale that never moves; 0: it is searched while training"),
    "initial_scale_power": _LossScale("initial_power", 16, "power of two that the search starts from"),
    "loss_scale_window": _LossScale("window", 1000, "steps without an overflow before the scale doubles"),
    "hysteresis": _LossScale(
        "hysteresis", 2, "the overflow, counted from 1, at which the scale is halved first"
    ),
    "min_loss_scale": _LossScale(
        "minimum",
        1.0,
        "the scale never falls below it, where three overflows in a row end the run (in DeepSpeed one)",
    ),
}
_FORMATS = {
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
}


def read_precision(found: Findings) -> None:
    """Judge the sections of number formats; set train.precision, [loss_scale] and train.gradient_clipping."""
    has_fp16, has_bf16 = found.has_section("fp16"), found.has_section("bf16")
    bf16 = "bf16"
    if found.has_section("bfloat16"):
        if has_bf16:
            for member in found.inside("bfloat16"):
                found.judge(
                    member,
                    "meaningless here",
                    'the section "bf16" takes precedence over its older name "bfloat16"',
                )
        else:
            bf16, has_bf16 = "bfloat16", True
    in_fp16 = found.switch("fp16.enabled") if has_fp16 else None
    in_bf16 = found.switch(f"{bf16}.enabled") if has_bf16 else None
    _set_format(found, {"fp16.enabled": ("fp16", in_fp16), f"{bf16}.enabled": ("bf16", in_bf16)})
    for section, there, value in (("fp16", has_fp16, in_fp16), (bf16, has_bf16, in_bf16)):
        if not there:
            continue
        if not value and not found.is_refused(f"{section}.enabled"):
            for member in found.inside(section):
                if member.path[-1] != "enabled" and is_known(member.path):
                    found.judge(member, "meaningless here", f"{section} is off")
        elif section == "fp16":
            _read_fp16(found)
        else:
            _read_overflow_check(found, f"{section}.check_grad_overflow")
            _read_state_format(found, section)
    if found.has_section("data_types"):
        _read_data_types(found)
    found.number_field(
        "train.gradient_clipping",
        "gradient_clipping",
        "largest norm of the whole gradient; 0: clipping is off",
        default=1.0,
        default_reason="DeepSpeed's default since 2026-06-23; before that it was 0, off",
    )


def _set_format(found: Findings, enabled: dict[str, tuple[str, bool | Auto | None]]) -> None:
    on = [key for key, (_, value) in enabled.items() if value is True]
    autos = [key for key, (_, value) in enabled.items() if value is AUTO]
    off = [key for key, (_, value) in enabled.items() if value is False]
    if len(on) == 2:
        found.refuse(on[1], "fp16 and bf16 cannot both be on; turn one of them off")
        found.judge(on[0], "meaningless here", f"{on[1]} is on too, and refused")
    elif on:
        name = enabled[on[0]][0]
        reason = f"weights and arithmetic in {name}, master weights in fp32"
        found.put("train.precision", name, on[0], reason, "used")
        for key in autos:
            found.judge(key, "mapped", f'"auto" becomes false, for {on[0]} is true')
        for key in off:
            found.judge(key, "used", f"{enabled[key][0]} is not used")
    elif autos == ["fp16.enabled"]:
        found.auto("train.precision", autos[0], "as it is the only 16-bit format in the file", "fp16")
    elif autos:
        for key in autos:
            found.auto(
                "train.precision",
                key,
                "which is bf16 on a GPU that computes in it, fp16 on an older one",
                "auto",
            )
    elif off:
        for key in off:
            found.put("train.precision", "fp32", key, "neither fp16 nor bf16 is on, so all is fp32")
    else:
        found.fill("train.precision", "fp16, bf16", "DeepSpeed's default is neither, so all is fp32", "fp32")


def _read_fp16(found: Findings) -> None:
    if not any(found.get(f"fp16.{key}") for key in _LOSS_SCALE):
        found.assume(
            "fp16.loss_scale", "the scale is searched while training; DeepSpeed's defaults are Workbench's"
        )
    for key, (field, default, reason) in _LOSS_SCALE.items():
        found.number_field(f"loss_scale.{field}", f"fp16.{key}", reason, auto=default)
    taken = {
        field: found.settings[name].value if (name := f"loss_scale.{field}") in found.settings else default
        for field, default, _ in _LOSS_SCALE.values()
    }
    wrong = found.is_refused("fp16.initial_scale_power") or found.is_refused("fp16.min_loss_scale")
    if not wrong and taken["minimum"] > 2.0 ** taken["initial_power"]:
        power = taken["initial_power"]
        found.refuse(
            "fp16.min_loss_scale", f"the search begins below it, at 2 to the power of {power}; write less"
        )
    consecutive = "fp16.consecutive_hysteresis"
    if found.switch(consecutive) is True and taken["hysteresis"] != 1:
        found.refuse(
            consecutive,
            "the hysteresis is filled up when the scale rises and not by every good step; write false, or hysteresis 1",
        )
    else:
        found.judge(consecutive, "used", "the hysteresis is filled up when the scale rises")


def _read_overflow_check(found: Findings, key: str) -> None:
    checked = found.switch(key)
    skipped = "a step with a gradient that is not finite is skipped"
    if checked is False:
        found.judge(key, "mapped", f"gradients are always checked: {skipped}, and three in a row end the run")
    elif checked is not None:
        found.judge(key, "used", skipped)
    elif not found.is_refused(key):
        found.assume(key, f"true, DeepSpeed's default since 2026-06-26 (before that false): {skipped}")


def _read_state_format(found: Findings, section: str) -> None:
    for name in BF16_STATE.split():
        key = f"{section}.{name}"
        wanted = found.switch(key)
        if wanted is True:
            reason = "moments in bf16, rounded so that they do not stall; master weights stay lossless"
            found.put("offload.state_format", "half", key, reason)
        elif wanted is not None:
            found.judge(key, "used", "master weights, gradients in sum and state are kept exact")


def _read_data_types(found: Findings) -> None:
    for key in ("data_types.grad_accum_dtype", "data_types.param_dtype"):
        written = found.word(key)
        if written is None:
            continue
        taken = _FORMATS.get(written.lower().removeprefix("torch."))
        precision = found.settings.get("train.precision")
        if written == "auto":
            found.judge(key, "mapped", '"auto" becomes none, DeepSpeed\'s default')
        elif taken is None:
            found.refuse(key, 'must be "fp32", "fp16" or "bf16"')
        elif key.endswith("param_dtype"):
            if precision is None or precision.value == taken:
                found.judge(key, "used", f"weights are {taken}")
            else:
                found.refuse(
                    key, f"weights have one format, and the sections fp16 and bf16 say {precision.value}"
                )
        elif taken == "fp32":
            found.judge(key, "used", "gradients are added up in fp32")
        else:
            found.judge(key, "mapped", f"gradients are added up in fp32, which is finer than {taken}")
