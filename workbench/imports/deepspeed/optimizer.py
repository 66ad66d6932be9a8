"""The optimizer: DeepSpeed's Adam and AdamW become Workbench's, with DeepSpeed's own defaults.

"Adam" means AdamW in DeepSpeed unless `adam_w_mode` is false. Every other rule, and every option that changes what is
computed and that Workbench does not have, is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.imports.findings import AUTO, Auto, Findings

_PARAMS = "optimizer.params"
_PARAMS_PATH = ("optimizer", "params")
_NUMBERS = {"lr": "learning_rate", "eps": "eps", "weight_decay": "weight_decay"}
_DEFAULTS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


class _MustBe(NamedTuple):
    """A switch of which one value is Workbench's only way."""

    value: bool
    used: str
    refused: str


_SWITCHES = {
    "bias_correction": _MustBe(
        True, "the means are corrected for their start", "the bias correction is never left out"
    ),
    "amsgrad": _MustBe(
        False, "the plain rule", "the maximum of exp_avg_sq is not kept; DeepSpeed refuses it too"
    ),
    "fp32_optimizer_states": _MustBe(
        True,
        "the state is kept in fp32",
        'write true; offload.state_format = "half" then keeps the moments in bf16, rounded so that they do not stall',
    ),
}
_IMPLEMENTATION = (
    "torch_adam",
    "fused",
    "foreach",
    "capturable",
    "set_grad_none",
    "adamw_mode",
    "fp16_optimizer",
)
_OF_OTHER_RULES = ("freeze_step", "cuda_aware", "comm_backend_name", "max_coeff", "min_coeff", "momentum")
KEYS = (
    "optimizer.type",
    "optimizer.legacy_fusion",
    *(f"{_PARAMS}.{key}" for key in (*_NUMBERS, "betas", "adam_w_mode", "max_grad_norm", *_SWITCHES)),
    *(f"{_PARAMS}.{key}" for key in (*_IMPLEMENTATION, *_OF_OTHER_RULES)),
)
SECTIONS = ("optimizer", _PARAMS)


def read_optimizer(found: Findings) -> None:
    """Judge the section `optimizer` and set [optimizer]."""
    there = found.has_section("optimizer")
    rule = found.word("optimizer.type") if there else None
    if not there or (rule is None and not found.is_refused("optimizer.type")):
        found.assume("optimizer", "the file names none, so it is Workbench's own AdamW with its own defaults")
        if there and _has_params(found):
            first = next(member for path, member in found.members.items() if path[:-1] == _PARAMS_PATH)
            found.refuse(first, 'belongs to no optimizer; add "type": "AdamW" to the section optimizer')
    elif rule is not None:
        _read_type(found, rule)
    if not there:
        return
    found.judge("optimizer.legacy_fusion", "meaningless here", "another implementation of the same rule")
    # Of a rule that is refused too: what takes its place is AdamW, and has these to answer for.
    if _has_params(found):
        _read_switches(found)
    if rule is not None or _has_params(found):
        _read_numbers(found)


def _has_params(found: Findings) -> bool:
    member = found.get(_PARAMS) if found.has_section(_PARAMS) else None
    return member is not None and bool(member.value)


def _read_type(found: Findings, rule: str) -> None:
    """Set optimizer.type."""
    key = f"{_PARAMS}.adam_w_mode"
    decoupled = found.switch(key)
    name = rule.lower()
    if name == "adamw" or rule == "auto":
        found.put("optimizer.type", "adamw", "optimizer.type", "decay apart from the gradient", "used")
        found.judge(key, "meaningless here", "AdamW is AdamW whatever it says")
    elif name == "adam" and decoupled is False:
        found.put(
            "optimizer.type",
            "adam",
            "optimizer.type",
            "adam_w_mode is false, so decay goes through the gradient",
        )
        found.judge(key, "used", "decay goes through the gradient")
    elif name == "adam":
        found.put(
            "optimizer.type",
            "adamw",
            "optimizer.type",
            '"Adam" means AdamW in DeepSpeed unless adam_w_mode is false',
        )
        found.judge(key, "used", "decay apart from the gradient")
    else:
        found.refuse("optimizer.type", "another update rule than Workbench's; AdamW and Adam are built")


def _read_switches(found: Findings) -> None:
    for key, must_be in _SWITCHES.items():
        name = f"{_PARAMS}.{key}"
        value = found.switch(name)
        if value in (must_be.value, AUTO):
            found.judge(name, "used", must_be.used)
        elif value is not None:
            found.refuse(name, must_be.refused)
    for key in _IMPLEMENTATION:
        found.judge(f"{_PARAMS}.{key}", "meaningless here", "another implementation of the same rule")
    for key in _OF_OTHER_RULES:
        found.judge(f"{_PARAMS}.{key}", "meaningless here", "belongs to another rule than Adam")
    if found.get(f"{_PARAMS}.max_grad_norm") is not None:
        found.refuse(
            f"{_PARAMS}.max_grad_norm",
            'is not clipping in DeepSpeed and an error there; write "gradient_clipping" at the top of the file instead',
        )


def _read_numbers(found: Findings) -> None:
    for key, default in _DEFAULTS.items():
        name = f"{_PARAMS}.{key}"
        field = f"optimizer.{_NUMBERS.get(key, key)}"
        value = _betas(found, name) if key == "betas" else found.number(name)
        if value is AUTO:
            found.auto(field, name)
        elif value is not None:
            taken = tuple(map(float, value)) if isinstance(value, tuple) else float(value)
            found.put(
                field,
                taken,
                name,
                _words(key, taken),
                "mapped" if key == "weight_decay" and taken else "used",
            )
        elif not found.is_refused(name) and not found.is_refused(_PARAMS):
            found.fill(field, name, "DeepSpeed's default", default)


def _betas(found: Findings, key: str) -> tuple[float, float] | Auto | None:
    member = found.get(key)
    if member is None or member.value == "auto":
        return None if member is None else AUTO
    value = member.value
    sound = isinstance(value, list) and len(value) == 2
    if not sound or not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value):
        found.refuse(member, "must be an array of two numbers, for example [0.9, 0.999]")
        return None
    return value[0], value[1]


def _words(key: str, value: Any) -> str:
    if key == "weight_decay" and value:
        return "parameters of one dimension (biases, norms) are not decayed here, and DeepSpeed decays all it is given"
    return {
        "lr": "the learning rate at its highest",
        "betas": "decay rates of the two means",
        "eps": "added to the denominator",
        "weight_decay": "0: nothing decays",
    }[key]
