"""Number formats, loss scaling and clipping: fp16, bf16, amp, data_types, gradient_clipping."""

from __future__ import annotations

from workbench.imports.findings import AUTO, Auto, Findings

_LOSS_SCALE = {
    "loss_scale": "fixed",
    "initial_scale_power": "initial_power",
    "loss_scale_window": "window",
    "hysteresis": "hysteresis",
    "min_loss_scale": "minimum",
}
_DEFAULTS = {"fixed": 0.0, "initial_power": 16, "window": 1000, "hysteresis": 2, "minimum": 1.0}

_FP16 = ("enabled", *_LOSS_SCALE, "consecutive_hysteresis", "auto_cast", "fp16_master_weights_and_grads")
_BF16 = (
    "enabled",
    "check_grad_overflow",
    "immediate_grad_update",
    "bf16_master_weights_and_grads",
    "bf16_optimizer_states",
)
KEYS = (
    *(f"fp16.{key}" for key in _FP16),
    *(f"{section}.{key}" for section in ("bf16", "bfloat16") for key in _BF16),
    "data_types.grad_accum_dtype",
    "data_types.param_dtype",
    "gradient_clipping",
)
SECTIONS = ("fp16", "bf16", "bfloat16", "data_types")

_FORMATS = {
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
}


def read_precision(found: Findings) -> None:
    """Judge the sections of number formats; set train.precision, [loss_scale] and train.gradient_clipping."""
    has_fp16, has_bf16 = found.has_section("fp16"), found.has_section("bf16")
    bf16 = "bf16"
    if found.has_section("bfloat16"):
        if has_bf16:
            for key in _BF16:
                found.judge(
                    f"bfloat16.{key}", "meaningless here", 'the section "bf16" goes before its older name'
                )
        else:
            bf16, has_bf16 = "bfloat16", True
    in_fp16 = found.switch("fp16.enabled") if has_fp16 else None
    in_bf16 = found.switch(f"{bf16}.enabled") if has_bf16 else None
    _set_format(found, in_fp16, in_bf16, bf16)
    if has_fp16:
        _read_fp16(found, off=not in_fp16 and not found.is_refused("fp16.enabled"))
    if has_bf16:
        _read_bf16(found, bf16, off=not in_bf16 and not found.is_refused(f"{bf16}.enabled"))
    if found.has_section("data_types"):
        _read_data_types(found)
    _read_clipping(found)


def _set_format(found: Findings, in_fp16: bool | Auto | None, in_bf16: bool | Auto | None, bf16: str) -> None:
    enabled = {"fp16.enabled": ("fp16", in_fp16), f"{bf16}.enabled": ("bf16", in_bf16)}
    on = [key for key, (_, value) in enabled.items() if value is True]
    autos = [key for key, (_, value) in enabled.items() if value is AUTO]
    if len(on) == 2:
        found.refuse(on[1], "fp16 and bf16 cannot both be on; turn one of them off")
        found.judge(on[0], "meaningless here", f"{on[1]} is on too, and refused")
    elif on:
        name = enabled[on[0]][0]
        found.put(
            "train.precision",
            name,
            on[0],
            f"weights and arithmetic in {name}, master weights in fp32",
            "used",
        )
        for key in autos:
            found.judge(key, "mapped", f'"auto" becomes false, for {on[0]} is true')
    elif autos:
        name = "auto" if len(autos) == 2 or in_fp16 is not AUTO else "fp16"
        reason = {
            "auto": "which is bf16 on a GPU that computes in it, else fp32",
            "fp16": "as it is the only 16-bit format that the file speaks of",
        }[name]
        for key in autos:
            found.auto("train.precision", key, reason, name)
    else:
        off = [key for key, (_, value) in enabled.items() if value is False]
        for key in off:
            found.put("train.precision", "fp32", key, "neither fp16 nor bf16 is on, so all is fp32")
        if not off:
            found.fill(
                "train.precision", "fp16, bf16", "DeepSpeed's default is neither, so all is fp32", "fp32"
            )
    for key, (name, value) in enabled.items():
        if on and value is False:
            found.judge(key, "used", f"{name} is not used")


def _read_fp16(found: Findings, off: bool) -> None:
    if off:
        for key in _FP16[1:]:
            found.judge(f"fp16.{key}", "meaningless here", "fp16 is off")
        return
    if not any(found.get(f"fp16.{key}") for key in _LOSS_SCALE):
        found.assume(
            "fp16.loss_scale", "the scale is searched while training; DeepSpeed's defaults are Workbench's"
        )
    for key, field in _LOSS_SCALE.items():
        name = f"fp16.{key}"
        value = found.number(name)
        if value is AUTO:
            found.auto(f"loss_scale.{field}", name, "DeepSpeed's default", _DEFAULTS[field])
        elif value is not None and not isinstance(value, Auto):
            _put_loss_scale(found, name, field, value)
    _check_minimum(found)
    if found.switch("fp16.consecutive_hysteresis") is True and not _one_overflow_is_enough(found):
        found.refuse(
            "fp16.consecutive_hysteresis",
            "the hysteresis is filled up when the scale rises and not by every good step; write false, or hysteresis 1",
        )
    else:
        found.judge("fp16.consecutive_hysteresis", "used", "the hysteresis is filled up when the scale rises")
    found.judge("fp16.auto_cast", "meaningless here", "tokens are whole numbers and are not cast")
    if found.switch("fp16.fp16_master_weights_and_grads") is True:
        found.refuse(
            "fp16.fp16_master_weights_and_grads", "master weights are always lossless fp32 here; write false"
        )
    else:
        found.judge("fp16.fp16_master_weights_and_grads", "used", "master weights are fp32")


def _put_loss_scale(found: Findings, key: str, field: str, value: float) -> None:
    words = {
        "fixed": "a scale that never moves; three overflows in a row end the run"
        if value
        else "0: the scale is searched while training",
        "initial_power": "power of two that the search starts from",
        "window": "steps without an overflow before the scale doubles",
        "hysteresis": "the overflow, counted from 1, at which the scale is halved first",
        "minimum": "the scale never falls below it, where three overflows in a row end the run (in DeepSpeed one)",
    }
    whole = field in ("initial_power", "window", "hysteresis")
    if whole and value != int(value):
        found.refuse(key, "must be a whole number")
        return
    found.put(f"loss_scale.{field}", int(value) if whole else float(value), key, words[field], "used")


def _check_minimum(found: Findings) -> None:
    """Refuse a search that would begin below the scale that it must not fall below."""
    if found.is_refused("fp16.initial_scale_power") or found.is_refused("fp16.min_loss_scale"):
        return
    power, minimum = (
        found.settings[name].value if name in found.settings else _DEFAULTS[field]
        for field in ("initial_power", "minimum")
        for name in [f"loss_scale.{field}"]
    )
    if minimum > 2.0**power:
        found.refuse(
            "fp16.min_loss_scale", f"the search begins below it, at 2 to the power of {power}; write less"
        )


def _one_overflow_is_enough(found: Findings) -> bool:
    setting = found.settings.get("loss_scale.hysteresis")
    return setting is not None and setting.value == 1


def _read_bf16(found: Findings, section: str, off: bool) -> None:
    if off:
        for key in _BF16[1:]:
            found.judge(f"{section}.{key}", "meaningless here", "bf16 is off")
        return
    checked = found.switch(f"{section}.check_grad_overflow")
    if checked is False:
        found.judge(
            f"{section}.check_grad_overflow",
            "mapped",
            "gradients are always checked: a step that is not finite is left out, and three in a row end the run",
        )
    else:
        found.judge(
            f"{section}.check_grad_overflow", "used", "a step with a gradient that is not finite is left out"
        )
    if checked is None and not found.is_refused(f"{section}.check_grad_overflow"):
        found.assume(
            f"{section}.check_grad_overflow",
            "true, DeepSpeed's default since 2026-06-26 (before that false): a step that is not finite is left out",
        )
    found.judge(
        f"{section}.immediate_grad_update", "meaningless here", "gradients join their unit as they are final"
    )
    for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        name = f"{section}.{key}"
        if found.switch(name) is True:
            found.refuse(
                name,
                "master weights are always lossless fp32 here; write false, and "
                'offload.state_format = "half" keeps the moments in bf16',
            )
        else:
            found.judge(name, "used", "master weights, gradients in sum and state are kept exact")


def _read_data_types(found: Findings) -> None:
    for key in ("grad_accum_dtype", "param_dtype"):
        name = f"data_types.{key}"
        written = found.word(name)
        if written is None:
            continue
        if written == "auto":
            found.judge(name, "mapped", '"auto" becomes none, DeepSpeed\'s default')
            continue
        taken = _FORMATS.get(written.lower().removeprefix("torch."))
        if taken is None:
            found.refuse(name, 'must be "fp32", "fp16" or "bf16"')
        elif key == "param_dtype":
            _judge_param_dtype(found, name, taken)
        elif taken == "fp32":
            found.judge(name, "used", "gradients are added up in fp32")
        else:
            found.judge(name, "mapped", f"gradients are added up in fp32, which is finer than {taken}")


def _judge_param_dtype(found: Findings, key: str, taken: str) -> None:
    setting = found.settings.get("train.precision")
    if setting is None or setting.value == taken:
        found.judge(key, "used", f"weights are {taken}")
    else:
        found.refuse(key, f"weights have one format, and the sections fp16 and bf16 say {setting.value}")


def _read_clipping(found: Findings) -> None:
    key, field = "gradient_clipping", "train.gradient_clipping"
    value = found.number(key)
    if value is AUTO:
        found.auto(field, key)
    elif value is not None and not isinstance(value, Auto):
        reason = "largest norm of the whole gradient" if value else "0: clipping is off"
        found.put(field, float(value), key, reason, "used")
    elif not found.is_refused(key):
        found.fill(field, key, "DeepSpeed's default since 2026-06-23; before that it was 0, off", 1.0)
