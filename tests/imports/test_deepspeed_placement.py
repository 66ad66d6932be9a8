"""ZeRO stages and offloading become tiers; a pair that is not built becomes the nearest, and that is told."""

from __future__ import annotations

from typing import Any

import deepspeed_files
import pytest
from deepspeed_files import config_of

from workbench.imports import Imported

CPU: dict[str, Any] = {"device": "cpu"}
NVME: dict[str, Any] = {"device": "nvme", "nvme_path": "/fast"}
NONE: dict[str, Any] = {"device": "none"}


def imported(zero: Any, **others: Any) -> Imported:
    return deepspeed_files.imported(zero_optimization=zero, **others)


@pytest.mark.parametrize(
    ("zero", "weights", "state"),
    [
        (None, "device", "device"),
        (True, "device", "device"),
        ({}, "device", "device"),
        ({"stage": 3}, "device", "device"),
        ({"stage": 0, "offload_optimizer": CPU}, "device", "device"),
        ({"stage": 1, "offload_optimizer": CPU}, "device", "host"),
        ({"stage": 2, "offload_optimizer": {"pin_memory": True}}, "device", "device"),
        ({"stage": 2, "cpu_offload": True}, "device", "host"),
        ({"stage": 2, "cpu_offload": True, "offload_optimizer": NONE}, "device", "device"),
        ({"stage": 2, "offload_optimizer": CPU, "offload_param": CPU}, "device", "host"),
        ({"stage": 2, "offload_optimizer": NVME}, "device", "disk"),
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, "host", "host"),
        ({"stage": 3, "cpu_offload": True, "cpu_offload_params": True}, "host", "host"),
        ({"stage": 3, "offload_optimizer": NVME, "offload_param": CPU}, "host", "disk"),
        ({"stage": 3, "offload_optimizer": NVME, "offload_param": NVME}, "disk", "disk"),
        ({"stage": 3, "offload_param": CPU}, "host", "host"),
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": NVME}, "disk", "disk"),
        ({"stage": 3, "offload_param": NVME}, "disk", "disk"),
    ],
    ids=str,
)
def test_stage_and_devices_decide_the_tiers(zero: Any, weights: str, state: str) -> None:
    run = config_of(imported(zero))
    assert (run.offload.weights, run.offload.state) == (weights, state)
    assert run.offload.disk_path == ("/fast" if "disk" in (weights, state) else "")


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        (
            {"stage": 3, "offload_param": CPU},
            "Workbench keeps no state on the device for weights that leave it",
        ),
        ({"stage": 3, "offload_param": NVME}, "the weights are on disk and the state is larger"),
        ({"stage": 0, "offload_optimizer": CPU}, "stage 0 offloads nothing"),
        ({"stage": 2, "offload_param": CPU}, "only stage 3 offloads weights"),
        ({"stage": 2, "cpu_offload": True}, "the optimizer's state is on the host"),
    ],
)
def test_what_is_placed_elsewhere_than_it_says_is_told(zero: dict[str, Any], words: str) -> None:
    made = imported(zero)
    reasons = [verdict.reason for verdict in made.verdicts] + [assumed.reason for assumed in made.assumed]
    assert any(words in reason for reason in reasons)


@pytest.mark.parametrize(
    ("zero", "fraction"),
    [
        ({"stage": 3, "offload_optimizer": CPU | {"ratio": 0.3}}, 0.7),
        ({"stage": 3, "offload_optimizer": CPU | {"ratio": 1.0}}, 0.0),
        ({"stage": 2, "offload_optimizer": CPU | {"ratio": 0.3}}, 0.0),
        ({"stage": 3, "offload_optimizer": NONE | {"ratio": 0.3}}, 0.0),
    ],
)
def test_the_share_that_is_offloaded_leaves_the_rest_on_the_device(
    zero: dict[str, Any], fraction: float
) -> None:
    assert config_of(imported(zero)).offload.device_fraction == fraction


def test_two_folders_become_one_and_that_is_told() -> None:
    other = NVME | {"nvme_path": "/slow"}
    made = imported({"stage": 3, "offload_optimizer": NVME, "offload_param": other})
    assert config_of(made).offload.disk_path == "/fast"
    (verdict,) = [each for each in made.verdicts if each.key.endswith("offload_param.nvme_path")]
    assert (verdict.judgement, verdict.reason) == (
        "mapped",
        "there is one folder for all that is on disk, /fast",
    )


@pytest.mark.parametrize(("offloaded", "tier"), [(True, "host"), (False, "device"), ("auto", "device")])
def test_checkpoints_of_activations_wait_where_they_did(offloaded: Any, tier: str) -> None:
    checkpointing = {"partition_activations": True, "cpu_checkpointing": offloaded}
    run = config_of(imported({"stage": 2}, activation_checkpointing=checkpointing))
    assert run.offload.activations == tier
    assert run.train.activation_checkpointing
