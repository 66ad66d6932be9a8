"""The optimizer: DeepSpeed's Adam and AdamW become Workbench's, with DeepSpeed's own defaults.

"Adam" means AdamW in DeepSpeed unless `adam_w_mode` is false. Every other rule is refused.
"""

from __future__ import annotations

from workbench.imports.deepspeed.keys import PARAMS
from workbench.imports.findings import Findings


def read_optimizer(found: Findings) -> None:
    """Judge the section `optimizer` and set [optimizer]."""
    there = found.has_section("optimizer")
    rule = found.word("optimizer.type") if there else None
    has_params = there and found.has_section(PARAMS) and bool(found.inside(PARAMS))
    if rule is not None:
        _read_type(found, rule)
    elif not found.is_refused("optimizer.type"):
        found.assume("optimizer", "the file names none, so it is Workbench's own AdamW with its own defaults")
        if has_params:
            found.refuse(
                found.inside(PARAMS)[0],
                'belongs to no optimizer; add "type": "AdamW" to the section optimizer',
            )
    # Of a rule that is refused too: what takes its place is AdamW, and has these.
    if (rule is not None or has_params) and not found.is_refused(PARAMS):
        found.number_field(
            "optimizer.learning_rate", f"{PARAMS}.lr", "the learning rate at its highest", default=1e-3
        )
        _read_betas(found)
        found.number_field("optimizer.eps", f"{PARAMS}.eps", "added to the denominator", default=1e-8)
        found.number_field(
            "optimizer.weight_decay",
            f"{PARAMS}.weight_decay",
            "parameters of one dimension (biases, norms) are not decayed here, and DeepSpeed decays all it is given",
            default=0.0,
            judgement="mapped",
        )


def _read_type(found: Findings, rule: str) -> None:
    key, mode = "optimizer.type", f"{PARAMS}.adam_w_mode"
    decoupled = found.switch(mode)
    name = rule.lower()
    if name == "adamw" or rule == "auto":
        found.put(key, "adamw", key, "decay apart from the gradient", "used")
        found.judge(mode, "meaningless here", "AdamW is AdamW whatever it says")
    elif name == "adam" and decoupled is False:
        found.put(key, "adam", key, "adam_w_mode is false, so decay goes through the gradient")
        found.judge(mode, "used", "decay goes through the gradient")
    elif name == "adam":
        found.put(key, "adamw", key, '"Adam" means AdamW in DeepSpeed unless adam_w_mode is false')
        found.judge(mode, "used", "decay apart from the gradient")
    else:
        found.refuse(key, "another update rule than Workbench's; AdamW and Adam are built")


def _read_betas(found: Findings) -> None:
    key, field = f"{PARAMS}.betas", "optimizer.betas"
    member = found.get(key)
    if member is None:
        found.fill(field, key, "DeepSpeed's default", (0.9, 0.999))
        return
    value = member.value
    if value == "auto":
        found.auto(field, key)
    elif (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value)
    ):
        found.put(field, (float(value[0]), float(value[1])), key, "decay rates of the two means", "used")
    else:
        found.refuse(member, "must be an array of two numbers, for example [0.9, 0.999]")
