"""The registry: what is looked at, in the order of its lines."""

from __future__ import annotations

from workbench.doctor.examination import Check
from workbench.doctor.extension_check import check_extension
from workbench.doctor.folders import check_cache, check_disk, check_runs
from workbench.doctor.measured_profile import check_profile
from workbench.doctor.memory import check_memory
from workbench.doctor.nvidia import check_driver
from workbench.doctor.packages import check_packages, check_python
from workbench.doctor.process_limits import check_limits
from workbench.doctor.terminal import check_terminal
from workbench.doctor.threads import check_threads
from workbench.doctor.torch_checks import check_cuda, check_pinned_memory, check_torch
from workbench.doctor.trial_process import LIMIT_S

AFTER_TRIAL_S = LIMIT_S + 10.0

CHECKS = (
    Check("python", check_python),
    Check("packages", check_packages),
    Check("torch", check_torch, AFTER_TRIAL_S),
    Check("driver", lambda around: check_driver(around.nvidia())),
    Check("cuda", check_cuda, AFTER_TRIAL_S),
    Check("pinned memory", check_pinned_memory, AFTER_TRIAL_S),
    Check("extension", check_extension, AFTER_TRIAL_S),
    Check("threads", check_threads, AFTER_TRIAL_S),
    Check("memory", check_memory),
    Check("limits", check_limits),
    Check("runs", check_runs),
    Check("disk tier", check_disk),
    Check("cache", check_cache),
    Check("profile", check_profile),
    Check("terminal", check_terminal),
)
