"""A GPU that nobody has measured is planned by what its driver says."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from workbench.errors import ConfigurationError
from workbench.profiles.this_machine import Gpu
from workbench.tui.form.sources import Here


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_that_was_not_measured_is_planned_by_what_its_driver_says(
    capability: tuple[int, int], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    gpu = Gpu("a GPU", 24 << 30, 20 << 30, "1.0")
    for module in ("workbench.plan.machine", "workbench.profiles.this_machine"):
        monkeypatch.setattr(f"{module}.visible_gpus", lambda: [gpu])
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda handle: capability)
    ground = Here(tmp_path).ground("cuda:0", "")
    assert (ground.free.device, ground.has_bfloat16, ground.profile) == (20 << 30, expected, None)
    with pytest.raises(ConfigurationError, match=r'train\.device = "cuda:1": this machine has no such GPU'):
        Here(tmp_path).ground("cuda:1", "")
