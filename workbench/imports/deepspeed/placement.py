"""ZeRO and offloading become a placement: in which tier weights and state live.

On one GPU the stages differ in nothing but what may be offloaded: stages 1 and 2 the optimizer's state, stage 3 the
weights too. What DeepSpeed ignores at a stage is ignored here. A placement that Workbench does not have becomes the
nearest one, which computes the same, and the verdict says so.
"""

from __future__ import annotations

from typing import Literal

from workbench.imports.deepspeed.keys import OFFLOAD_OPTIMIZER, OFFLOAD_PARAM, ZERO
from workbench.imports.findings import Auto, Findings

Tier = Literal["device", "host", "disk"]

_TIERS: dict[str, Tier] = {"none": "device", "cpu": "host", "nvme": "disk"}
_ON: dict[Tier, str] = {"device": "on the device", "host": "on the host", "disk": "on disk"}
_OLDER_KEYS = {
    OFFLOAD_OPTIMIZER: [f"{ZERO}.cpu_offload"],
    OFFLOAD_PARAM: [f"{ZERO}.cpu_offload_param", f"{ZERO}.cpu_offload_params"],
}
_PARTITIONED = ("nothing", "the state", "state and gradients", "weights, state and gradients")


def read_placement(found: Findings) -> None:
    """Judge ZeRO and activation checkpointing; set [offload]."""
    stage = _read_stage(found)
    state = _read_tier(found, OFFLOAD_OPTIMIZER, "" if stage >= 1 else "stage 0 offloads nothing")
    weights = _read_tier(found, OFFLOAD_PARAM, "" if stage >= 3 else "only stage 3 offloads weights")
    _place(found, weights, state)
    _read_paths(found, weights, state)
    _read_ratio(found, stage)
    if found.switch(f"{ZERO}.overlap_comm") is not None:
        reason = "the update overlaps with backward and forward, to the same bits as without"
        found.put("offload.overlap", "exact", f"{ZERO}.overlap_comm", reason)
    for section, tier in ((OFFLOAD_OPTIMIZER, state), (OFFLOAD_PARAM, weights)):
        _read_pinning(found, f"{section}.pin_memory", tier)
    if found.has_section("activation_checkpointing"):
        key = "activation_checkpointing.cpu_checkpointing"
        offloaded = found.switch(key)
        if offloaded is not None:
            tier = "host" if offloaded is True else "device"
            reason = f"checkpointed activations are on the {tier}"
            found.put("offload.activations", tier, key, reason, "mapped" if tier == "host" else "used")


def _read_stage(found: Findings) -> int:
    """Return the stage, 0 where there is none; 3, which reads every key, where it is refused."""
    member = found.get(ZERO)
    if member is None:
        found.assume(ZERO, "the file has none, so nothing is offloaded: weights and state stay on the device")
        return 0
    if isinstance(member.value, bool):
        found.judge(member, "mapped", f"an old form of stage {int(member.value)}")
        return int(member.value)
    key = f"{ZERO}.stage"
    stage = found.whole(key) if found.has_section(ZERO) else None
    if found.is_refused(ZERO) or found.is_refused(key):
        return 3
    if isinstance(stage, Auto):
        found.judge(key, "mapped", '"auto" becomes 0, DeepSpeed\'s default')
        return 0
    if stage is None:
        wanted = next(
            (each for each in (OFFLOAD_PARAM, OFFLOAD_OPTIMIZER) if found.get(each) is not None), None
        )
        if wanted is not None:
            stage = 3 if wanted == OFFLOAD_PARAM else 2
            found.assume(key, f"DeepSpeed's default is 0 and ignores {wanted}; it is meant, so stage {stage}")
            return stage
        found.assume(key, "DeepSpeed's default is 0, which offloads nothing")
        return 0
    if not 0 <= stage <= 3:
        found.refuse(key, "must be 0, 1, 2 or 3")
        return 3
    found.judge(
        key,
        "mapped",
        f"it partitions {_PARTITIONED[stage]} between GPUs; all is whole on one GPU, and several (parallel.gpus) share "
        "the state and the gradients that wait for it, in any stage",
    )
    return stage


def _read_tier(found: Findings, section: str, why_not: str) -> Tier:
    """Return where this part lives; on the device where its key is refused, or the stage says `why_not`."""
    there = found.has_section(section)
    tier = _read_device(found, f"{section}.device") if there else "device"
    short = section.rpartition(".")[2]
    for key in _OLDER_KEYS[section]:
        value = found.switch(key)
        if there:
            found.judge(key, "meaningless here", f"{short} takes precedence over this older key")
        elif value is not True:
            found.judge(key, "meaningless here", "false has no effect")
        elif why_not:
            found.judge(key, "meaningless here", why_not)
        else:
            tier = "host"
            found.judge(key, "mapped", f"an old form of {short} with device cpu")
    if why_not and tier != "device":
        found.judge(f"{section}.device", "meaningless here", why_not)
    return "device" if why_not else tier


def _read_device(found: Findings, key: str) -> Tier:
    written = found.word(key)
    if written is None:
        if not found.is_refused(key):
            found.assume(key, "DeepSpeed's default is none, which offloads nothing")
    elif written.lower() in _TIERS:
        return _TIERS[written.lower()]
    elif written == "auto":
        found.judge(key, "mapped", '"auto" becomes none, DeepSpeed\'s default')
    else:
        found.refuse(key, 'must be "none", "cpu" or "nvme"')
    return "device"


def _place(found: Findings, weights: Tier, state: Tier) -> None:
    """Set both tiers: those asked for, or where Workbench does not have the pair, the nearest."""
    nearest, why = state, f"the optimizer's state is {_ON[state]}"
    if weights == "host" and state == "device":
        nearest = "host"
        why = "Workbench keeps no state on the device for weights that leave it, so it is on the host"
    elif weights == "disk" and state != "disk":
        nearest = "disk"
        why = "the weights are on disk and the state is larger than they are, so it is there too"
    for field, tier, section, reason in (
        ("offload.weights", weights, OFFLOAD_PARAM, f"weights are {_ON[weights]}"),
        ("offload.state", nearest, OFFLOAD_OPTIMIZER, why),
    ):
        decides = [key for key in (f"{section}.device", *_OLDER_KEYS[section]) if _counts(found, key)]
        if decides:
            found.put(field, tier, decides[0], reason)
        else:
            found.fill(field, section, reason, tier)


def _counts(found: Findings, key: str) -> bool:
    """Return True if the file has this key and it is not ignored."""
    verdict = found.verdicts.get(tuple(key.split(".")))
    return found.get(key) is not None and (verdict is None or verdict.judgement != "meaningless here")


def _read_paths(found: Findings, weights: Tier, state: Tier) -> None:
    """Set the one folder for all that is on disk: the state's, else the weights'."""
    taken, field = "", "offload.disk_path"
    for section, tier in ((OFFLOAD_OPTIMIZER, state), (OFFLOAD_PARAM, weights)):
        key = f"{section}.nvme_path"
        path = found.word(key)
        if tier != "disk":
            found.judge(key, "meaningless here", "nothing of it is on disk")
        elif path is None:
            if not found.is_refused(key) and not taken:
                found.refuse(f"{section}.device", 'needs "nvme_path", a folder on a fast local disk')
        elif not path.strip():
            found.refuse(key, "must be a folder on a fast local disk")
        elif not taken:
            found.put(field, path, key, "the folder of all that is on disk")
            taken = path
        elif path == taken:
            found.judge(key, "used", "the same folder", field)
        else:
            found.judge(key, "mapped", f"there is one folder for all that is on disk, {taken}", field)


def _read_ratio(found: Findings, stage: int) -> None:
    key, field = f"{OFFLOAD_OPTIMIZER}.ratio", "offload.device_fraction"
    ratio = found.number(key)
    setting = found.settings.get("offload.state")
    if isinstance(ratio, Auto):
        found.auto(field, key, "DeepSpeed's ratio 1.0", 0.0)
    elif ratio is None:
        return
    elif not 0 <= ratio <= 1:
        found.refuse(key, "must be a number from 0 to 1")
    elif stage < 3:
        found.judge(key, "meaningless here", "only stage 3 reads it")
    elif setting is None or setting.value == "device":
        found.judge(key, "meaningless here", "the state is not offloaded")
    else:
        reason = "the share of the state that stays on the device is 1 - ratio, in whole units"
        found.put(field, round(1 - ratio, 12), key, reason)


def _read_pinning(found: Findings, key: str, tier: Tier) -> None:
    pinned = found.switch(key)
    always = "host memory that is copied from and to a GPU is always pinned, where that can be"
    if tier == "device":
        found.judge(key, "meaningless here", "nothing of it is offloaded")
    elif pinned is not None:
        found.judge(key, "mapped" if pinned is False else "used", always)
    elif not found.is_refused(key):
        found.assume(
            key, "true, DeepSpeed's default since 2026-08-07 (before that false): memory is pinned either way"
        )
