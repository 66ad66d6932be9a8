"""ZeRO and offloading become a placement: in which tier weights and state live.

On one GPU the stages differ in nothing but what may be offloaded: stages 1 and 2 the optimizer's state, stage 3 the
weights too. What DeepSpeed ignores at a stage is ignored here. A placement that Workbench does not have becomes the
nearest one, which computes the same, and that is said.
"""

from __future__ import annotations

from typing import Literal

from workbench.imports.findings import AUTO, Auto, Findings

Tier = Literal["device", "host", "disk"]

ZERO = "zero_optimization"
_OPTIMIZER = f"{ZERO}.offload_optimizer"
_PARAM = f"{ZERO}.offload_param"
_TIERS: dict[str, Tier] = {"none": "device", "cpu": "host", "nvme": "disk"}
_WEIGHTS: dict[Tier, str] = {
    "device": "weights stay on the device",
    "host": "weights live on the host",
    "disk": "weights live on disk",
}
_STATE: dict[Tier, str] = {
    "device": "the optimizer's state stays on the device",
    "host": "the optimizer's state lives on the host",
    "disk": "the optimizer's state lives on disk",
}
_DEPRECATED = {
    "cpu_offload": _OPTIMIZER,
    "cpu_offload_param": _PARAM,
    "cpu_offload_params": _PARAM,
}
_CHECKPOINTING = "activation_checkpointing"
KEYS = (
    f"{ZERO}.stage",
    f"{ZERO}.overlap_comm",
    *(f"{ZERO}.{key}" for key in _DEPRECATED),
    *(f"{_OPTIMIZER}.{key}" for key in ("device", "nvme_path", "ratio", "pin_memory")),
    *(f"{_PARAM}.{key}" for key in ("device", "nvme_path", "pin_memory")),
    f"{_CHECKPOINTING}.cpu_checkpointing",
)
SECTIONS = (ZERO, _OPTIMIZER, _PARAM, _CHECKPOINTING)


def read_placement(found: Findings) -> None:
    """Judge ZeRO and activation checkpointing; set [offload]."""
    stage = _read_stage(found)
    state = _read_tier(found, _OPTIMIZER, stage >= 1, "stage 0 offloads nothing")
    weights = _read_tier(found, _PARAM, stage >= 3, "only stage 3 offloads weights")
    _place(found, weights, state)
    _read_paths(found, weights, state)
    _read_ratio(found, stage)
    if found.switch(f"{ZERO}.overlap_comm") is not None:
        reason = "the update overlaps with backward and forward, to the same bits as without"
        found.put("offload.overlap", "exact", f"{ZERO}.overlap_comm", reason)
    for section, tier in ((_OPTIMIZER, state), (_PARAM, weights)):
        _read_pinning(found, section, tier)
    _read_checkpointing(found)


def _read_stage(found: Findings) -> int:
    """The stage, 0 where there is none; 3, which reads every key, where it is refused."""
    member = found.get(ZERO)
    if member is None:
        found.assume(ZERO, "the file has none, so nothing is offloaded: weights and state stay on the device")
        return 0
    if isinstance(member.value, bool):
        found.judge(member, "mapped", f"an old form of stage {int(member.value)}")
        return int(member.value)
    if not found.has_section(ZERO):
        return 3
    key = f"{ZERO}.stage"
    stage = found.whole(key)
    if stage is None or isinstance(stage, Auto):
        if found.is_refused(key):
            return 3
        found.judge(key, "mapped", '"auto" becomes 0, DeepSpeed\'s default')
        if stage is None:
            found.assume(key, "DeepSpeed's default is 0, which offloads nothing")
        return 0
    if not 0 <= stage <= 3:
        found.refuse(key, "must be 0, 1, 2 or 3")
        return 3
    what = (
        "no partition",
        "the state, which",
        "state and gradients, which",
        "weights, state and gradients, which",
    )
    found.judge(
        key,
        "mapped",
        f"{what[stage]} is whole on one GPU" if stage < 1 else f"{what[stage]} are whole on one GPU",
    )
    return stage


def _read_tier(found: Findings, section: str, allowed: bool, why_not: str) -> Tier:
    """Where this part lives; on the device where what says so is refused."""
    there = found.has_section(section)
    tier: Tier = _read_device(found, section) if there else "device"
    for key, new in _DEPRECATED.items():
        name = f"{ZERO}.{key}"
        if new != section or (value := found.switch(name)) is None:
            continue
        if there:
            found.judge(name, "meaningless here", f"{section.rpartition('.')[2]} goes before this older key")
        elif value is True and allowed:
            tier = "host"
            found.judge(name, "mapped", f"an old form of {section.rpartition('.')[2]} with device cpu")
        else:
            found.judge(
                name, "meaningless here", why_not if value is True else "false is as if it were not there"
            )
    if not allowed:
        if tier != "device":
            found.judge(f"{section}.device", "meaningless here", why_not)
        return "device"
    return tier


def _read_device(found: Findings, section: str) -> Tier:
    key = f"{section}.device"
    written = found.word(key)
    if written is None:
        if not found.is_refused(key):
            found.assume(key, "DeepSpeed's default is none, which offloads nothing")
        return "device"
    tier = _TIERS.get(written.lower())
    if tier is None and written == "auto":
        found.judge(key, "mapped", '"auto" becomes none, DeepSpeed\'s default')
        return "device"
    if tier is None:
        found.refuse(key, 'must be "none", "cpu" or "nvme"')
        return "device"
    return tier


def _place(found: Findings, weights: Tier, state: Tier) -> None:
    """Set both tiers: those asked for, or where Workbench does not have the pair, the nearest."""
    nearest: Tier = state
    why = ""
    if weights == "host" and state == "device":
        nearest = "host"
        why = "Workbench keeps no state on the device for weights that leave it, so it is on the host"
    elif weights == "disk" and state != "disk":
        nearest = "disk"
        why = "the weights are on disk and the state is larger than they are, so it is there too"
    _set_tier(found, "offload.weights", weights, _PARAM, _WEIGHTS[weights])
    _set_tier(found, "offload.state", nearest, _OPTIMIZER, why or _STATE[nearest])


def _set_tier(found: Findings, field: str, tier: Tier, section: str, reason: str) -> None:
    """Set a tier from the key that says it: the section's device, an older key, or none."""
    older = [f"{ZERO}.{key}" for key, new in _DEPRECATED.items() if new == section]
    says = (key for key in (f"{section}.device", *older) if _counts(found, key))
    key = next(says, None)
    if key is None:
        found.fill(field, section, reason, tier)
    else:
        found.put(field, tier, key, reason)


def _counts(found: Findings, key: str) -> bool:
    """Whether the file has this key and it is not passed over."""
    verdict = found.verdicts.get(tuple(key.split(".")))
    return found.get(key) is not None and (verdict is None or verdict.judgement != "meaningless here")


def _read_paths(found: Findings, weights: Tier, state: Tier) -> None:
    """One folder for all that is on disk: the state's, else the weights'."""
    taken = ""
    for section, tier in ((_OPTIMIZER, state), (_PARAM, weights)):
        key = f"{section}.nvme_path"
        path = found.word(key)
        if tier != "disk":
            found.judge(key, "meaningless here", "nothing of it is on disk")
        elif path is not None and not path.strip():
            found.refuse(key, "must be a folder on a fast local disk")
        elif path is None:
            if not found.is_refused(key) and not taken:
                found.refuse(f"{section}.device", 'needs "nvme_path", a folder on a fast local disk')
        elif not taken:
            found.put("offload.disk_path", path, key, "the folder of all that is on disk")
            taken = path
        elif path == taken:
            found.judge(key, "used", "the same folder", "offload.disk_path")
        else:
            found.judge(
                key, "mapped", f"there is one folder for all that is on disk, {taken}", "offload.disk_path"
            )


def _read_ratio(found: Findings, stage: int) -> None:
    key = f"{_OPTIMIZER}.ratio"
    ratio = found.number(key)
    setting = found.settings.get("offload.state")
    if ratio is AUTO:
        found.auto("offload.device_fraction", key, "DeepSpeed's ratio 1.0", 0.0)
    elif ratio is None or isinstance(ratio, Auto):
        return
    elif not 0 <= ratio <= 1:
        found.refuse(key, "must be a number from 0 to 1")
    elif stage < 3:
        found.judge(key, "meaningless here", "only stage 3 reads it")
    elif setting is None or setting.value == "device":
        found.judge(key, "meaningless here", "the state is not offloaded")
    else:
        reason = "the share of the state that stays on the device is 1 - ratio, in whole units"
        found.put("offload.device_fraction", round(1 - ratio, 12), key, reason)


def _read_pinning(found: Findings, section: str, tier: Tier) -> None:
    key = f"{section}.pin_memory"
    pinned = found.switch(key)
    if found.is_refused(key):
        return
    if tier == "device":
        found.judge(key, "meaningless here", "nothing of it is offloaded")
    elif pinned is False:
        found.judge(
            key, "mapped", "host memory that is copied from and to a GPU is always pinned, where that can be"
        )
    elif pinned is not None:
        found.judge(key, "used", "host memory that is copied from and to a GPU is pinned, where that can be")
    else:
        found.assume(
            key, "true, DeepSpeed's default since 2026-08-07 (before that false): memory is pinned either way"
        )


def _read_checkpointing(found: Findings) -> None:
    if not found.has_section(_CHECKPOINTING):
        return
    key, field = f"{_CHECKPOINTING}.cpu_checkpointing", "offload.activations"
    offloaded = found.switch(key)
    if offloaded is True:
        found.put(field, "host", key, "what activation checkpointing keeps waits on the host")
    elif offloaded is not None:
        found.put(field, "device", key, "what activation checkpointing keeps stays on the device", "used")
