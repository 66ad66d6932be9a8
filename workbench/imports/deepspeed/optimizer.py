"""The optimizer and its learning rate: Adam and AdamW become [optimizer], the warm-up schedulers [schedule].

"Adam" means AdamW in DeepSpeed unless `adam_w_mode` is false. Every other rule is refused.

DeepSpeed's formulas, as shares of the highest rate, with i the scheduler's own count, W = max(2, warmup_num_steps),
T = total_num_steps and r the share that the warm-up starts from:

- i < W: r + (1 - r) log(i + 1) / log(W), or with warmup_type "linear" r + (1 - r) i / W
- later: 1 (WarmupLR), (T - i) / (T - W) but not below 0 (WarmupDecayLR), or the half cosine of (i - W + 1) / (T - W)
  down to cos_min_ratio (WarmupCosineLR)

With i as the step, Workbench's schedules give the same: exactly for the logarithm and the cosine; a linear warm-up is
one step ahead, 1 / W of the highest rate; WarmupDecayLR's decay is lower by 1 / (T + 1 - W) of the rate itself.
DeepSpeed moves its scheduler after each step and starts it at the lowest rate: its step n has the count n - 1.
"""

from __future__ import annotations

import math

from workbench.imports.deepspeed.keys import DECIDING, PARAMS
from workbench.imports.findings import AUTO, DOCUMENTED, Auto, Findings

TRAINERS_RATE, TRAINERS_BETAS = 5e-5, (0.9, 0.999)
"""The Hugging Face Trainer's, which fills in what a file leaves open or calls "auto"; its weight decay is 0."""
_TRAINERS = "the Hugging Face Trainer's default"
_OLD_RATE = 1e-3
_SCHEDULER = "scheduler.params"
_RATE = "optimizer.learning_rate"
_DEFAULT_WARMUP = 1000
_SHAPES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_WORDS = {"constant": "stays after the warm-up", "linear": "falls to 0", "cosine": "falls as a cosine"}
_NOT_TAKEN = {
    "WarmupLR": ("total_num_steps", "warmup_min_ratio", "cos_min_ratio"),
    "WarmupDecayLR": ("warmup_min_ratio", "cos_min_ratio"),
    "WarmupCosineLR": ("warmup_min_lr", "warmup_max_lr"),
}


def read_optimizer(found: Findings) -> None:
    """Judge the section `optimizer` and set [optimizer]."""
    there = found.has_section("optimizer")
    rule = found.word("optimizer.type") if there else None
    has_params = there and found.has_section(PARAMS) and bool(found.inside(PARAMS))
    if rule is not None:
        _read_type(found, rule)
    elif not found.is_refused("optimizer.type"):
        found.assume("optimizer", "the file names none, so it is AdamW")
        if has_params:
            found.refuse(
                found.inside(PARAMS)[0],
                'belongs to no optimizer; add "type": "AdamW" to the section optimizer',
            )
    if found.is_refused(PARAMS):
        return
    # Of a rule that is refused too: what takes its place is AdamW, and has these.
    found.number_field(
        _RATE,
        f"{PARAMS}.lr",
        "the learning rate at its highest",
        default=TRAINERS_RATE,
        default_reason=_TRAINERS,
        auto=TRAINERS_RATE,
    )
    _read_betas(found)
    found.number_field(
        "optimizer.eps",
        f"{PARAMS}.eps",
        "added to the denominator",
        default=1e-8,
        default_reason=_TRAINERS,
        auto=1e-8,
    )
    found.number_field(
        "optimizer.weight_decay",
        f"{PARAMS}.weight_decay",
        "parameters of one dimension (biases, norms) are not decayed here, and DeepSpeed decays all it is given",
        default=0.0,
        default_reason=_TRAINERS,
        auto=0.0,
        judgement="mapped",
    )


def _read_type(found: Findings, rule: str) -> None:
    key, mode = "optimizer.type", f"{PARAMS}.adam_w_mode"
    decoupled = found.switch(mode)
    name = rule.lower()
    if name == "adamw" or rule == "auto":
        found.put(key, "adamw", key, "decay apart from the gradient", "used")
        found.judge(mode, "meaningless here", "the type AdamW decides")
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
        found.fill(field, key, _TRAINERS, TRAINERS_BETAS)
        return
    value = member.value
    if value == "auto":
        found.auto(field, key, _TRAINERS, TRAINERS_BETAS)
    elif (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value)
    ):
        found.put(field, (float(value[0]), float(value[1])), key, "decay rates of the two means", "used")
    else:
        found.refuse(member, "must be an array of two numbers, for example [0.9, 0.999]")


def read_scheduler(found: Findings) -> None:
    """Judge the section `scheduler` and set [schedule]; after the optimizer, whose learning rate it may replace."""
    there = found.has_section("scheduler")
    name = found.word("scheduler.type") if there else None
    if there:
        found.has_section(_SCHEDULER)  # refuses anything else in its place
    if name is None and not found.is_refused("scheduler") and not found.is_refused("scheduler.type"):
        key = "scheduler.type" if there else "scheduler"
        found.fill("schedule.type", key, "the file names none, so the learning rate stays", "constant")
        for member in found.inside(_SCHEDULER):
            found.judge(member, "meaningless here", "there is no scheduler for it")
        return
    shape = _SHAPES.get(name or "")
    if shape is None or name is None:
        if name is not None:
            found.refuse("scheduler.type", f"not a schedule that is built; these are: {', '.join(_SHAPES)}")
        _check_params(found)
        return
    found.put("schedule.type", shape, "scheduler.type", f"the learning rate {_WORDS[shape]}")
    for member in found.inside(_SCHEDULER):
        if member.path[-1] in _NOT_TAKEN[name]:
            found.refuse(member, f"{name} does not take it; leave it out")
    _read_warmup(found)
    if shape == "cosine":
        _read_ratios(found)
    else:
        _read_rates(found, name)
    if shape == "linear":
        found.fill("schedule.min_ratio", "scheduler.type", f"{name} ends at 0", 0.0)
    if shape != "constant":
        _read_length(found, name)


def _check_params(found: Findings) -> None:
    """Check the keys of a schedule that is refused: the one in its place would have them too."""
    _read_warmup(found)
    _read_rates(found, "WarmupLR")
    _read_ratios(found)
    found.whole(f"{_SCHEDULER}.total_num_steps")
    for key in DECIDING:
        if key.startswith(_SCHEDULER):
            found.judge(key, "meaningless here", "the scheduler is refused")


def _read_warmup(found: Findings) -> None:
    steps = _read_warmup_steps(found)
    key, field = f"{_SCHEDULER}.warmup_type", "schedule.warmup_type"
    written = found.word(key)
    if written == "linear":
        ahead = _share(1, steps)
        found.put(
            field,
            "linear",
            key,
            f"the warm-up is one step ahead of DeepSpeed's formula, {ahead} of the highest rate",
        )
    elif written is not None:
        unknown = "" if written in ("log", "auto") else "DeepSpeed takes log for what it does not know; "
        found.put(field, "log", key, unknown + _why_behind(steps))
    elif not found.is_refused(key):
        found.fill(field, key, f"DeepSpeed's default; {_why_behind(steps)}", "log")
    key = f"{_SCHEDULER}.last_batch_iteration"
    start = found.whole(key)
    if start in (-1, AUTO):
        found.judge(key, "used", "the schedule starts at its beginning")
    elif start is not None:
        found.refuse(key, "a schedule starts at its beginning; leave it out")


def _read_warmup_steps(found: Findings) -> int:
    key, field = f"{_SCHEDULER}.warmup_num_steps", "schedule.warmup_steps"
    steps = found.whole(key)
    if isinstance(steps, Auto):
        found.auto(field, key)
        return int(found.settings[field].value)
    if steps is None:
        if not found.is_refused(key):
            found.fill(field, key, "DeepSpeed's default", _DEFAULT_WARMUP)
        return _DEFAULT_WARMUP
    if steps < 0:
        found.refuse(key, "must be at least 0")
        return _DEFAULT_WARMUP
    if steps < 2:
        found.put(field, 2, key, f"DeepSpeed takes 2 for {steps}")
    else:
        found.put(field, steps, key, "steps of the warm-up", "used")
    return max(2, steps)


def _why_behind(steps: int) -> str:
    if steps < 2:
        return "there is no warm-up"
    return (
        "DeepSpeed's formula of the step; its own first two steps both have the lowest rate, and it stays one step "
        f"behind: {_share(math.log(2), math.log(steps))} of the highest rate at the second step, less at every later "
        "one"
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1e-9):.2g} %"


def _read_ratios(found: Findings) -> None:
    for key, field, default in (
        ("warmup_min_ratio", "schedule.warmup_ratio", 0.0),
        ("cos_min_ratio", "schedule.min_ratio", 1e-4),
    ):
        found.number_field(
            field, f"{_SCHEDULER}.{key}", "share of the highest rate", default=default, auto=default
        )


def _read_rates(found: Findings, name: str) -> None:
    """Read the lowest and the highest rate; the highest replaces the optimizer's."""
    low_key, high_key = f"{_SCHEDULER}.warmup_min_lr", f"{_SCHEDULER}.warmup_max_lr"
    high = found.number(high_key)
    if isinstance(high, Auto):
        found.auto(_RATE, high_key, "the optimizer's", _rate(found))
    elif high is not None:
        before = found.settings.get(_RATE)
        found.put(_RATE, float(high), high_key, "the scheduler's highest rate is the learning rate")
        if before is not None and before.value != float(high):
            found.judge("optimizer.params.lr", "meaningless here", f"the scheduler's {high_key} replaces it")
    elif not found.is_refused(high_key):
        if name == "WarmupDecayLR":
            found.fill(
                _RATE, high_key, "WarmupDecayLR's default, whatever the optimizer's rate is", _OLD_RATE
            )
            found.judge(
                f"{PARAMS}.lr", "meaningless here", "WarmupDecayLR without warmup_max_lr replaces it by 0.001"
            )
        else:
            found.assume(high_key, f"the optimizer's learning rate: {_rate(found):g}")
    low = found.number(low_key)
    ratio = "schedule.warmup_ratio"
    if isinstance(low, Auto):
        found.auto(ratio, low_key, "DeepSpeed's default", 0.0)
    elif low is None:
        if not found.is_refused(low_key):
            found.fill(ratio, low_key, "DeepSpeed's default", 0.0)
    elif found.is_refused("optimizer.params.lr") and _RATE not in found.settings:
        found.judge(low_key, "meaningless here", "not worked out: the learning rate is refused")
    elif low > _rate(found):
        found.refuse(low_key, f"must not be above the highest rate, {_rate(found):g}")
    else:
        found.put(ratio, low / _rate(found), low_key, f"as a share of the highest rate, {_rate(found):g}")


def _rate(found: Findings) -> float:
    setting = found.settings.get(_RATE)
    return float(DOCUMENTED[_RATE].default if setting is None else setting.value)


def _read_length(found: Findings, name: str) -> None:
    key, field = f"{_SCHEDULER}.total_num_steps", "schedule.total_steps"
    steps = found.whole(key)
    if isinstance(steps, Auto):
        found.auto(field, key, "the last step of the run, whatever train.steps says", 0)
    elif steps is None:
        if not found.is_refused(key):
            found.refuse("scheduler.type", f'{name} needs "total_num_steps" in its params')
    else:
        found.put("train.steps", steps, key, "the steps of the run")
        if found.is_refused(key):
            return
        if name == "WarmupCosineLR":
            found.put(field, steps, key, "the steps of the run, at whose end the rate has its last value")
            return
        warmup = found.settings.get("schedule.warmup_steps")
        away = _share(1, max(1, steps + 1 - (warmup.value if warmup else 0)))
        reason = (
            f"the rate would be 0 at the step after the last; within {away} of DeepSpeed's formula all along"
        )
        found.put(field, steps + 1, key, reason)
