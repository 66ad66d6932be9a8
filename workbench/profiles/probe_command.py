"""`workbench probe`: measure this machine, or show what was measured, and cache it for the planner.

torch is imported only where something has to be measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.obtain import forget_busy_times
from workbench.profiles.profile_lines import disk_line, profile_lines
from workbench.profiles.sampling import FULL, QUICK, BackgroundLoad, Budget
from workbench.profiles.this_machine import cache_profile, cached_profile, folder_of, resolved_device

QUICK_NOTE = "quick"


def probe(*, device: str, disk_path: Path | None, as_json: bool, fresh: bool, quick: bool) -> int:
    """Print the profile of this machine with `device` and the disk under `disk_path`, measured where it has to be.

    `fresh`: measured in any case. `quick`: in a few seconds, less exactly. A probe that is not quick measures again
    what a quick one measured, or what was measured while other programs kept the machine busy. `as_json`: as JSON.

    Raises:
        ConfigurationError: there is no such device, or the folder cannot be written.
    """
    profile = measured_machine(device, disk_path, fresh=fresh, quick=quick, idle=not quick)
    if not quick and forget_busy_times():
        _report("models' pieces that were timed on a busy machine are timed again by the next plan")
    print(profile.model_dump_json(indent=2) if as_json else "\n".join(profile_lines(profile)))
    return EXIT_DONE


def measured_machine(
    device: str, disk_path: Path | None, *, fresh: bool = False, quick: bool = False, idle: bool = False
) -> MachineProfile:
    """Return the profile of this machine, cached or measured now, which is reported; see `probe`.

    `idle`: a profile that was measured on a busy machine is measured again.
    """
    resolved_device(device)  # refuses a wrong name
    folder = None if disk_path is None else folder_of(disk_path)
    budget = QUICK if quick else FULL
    known = None if fresh else cached_profile(device, None if folder is None else str(folder))
    if known is not None and known.note.startswith(QUICK_NOTE) and not quick:
        known = None
    if known is not None and idle and known.busy_cores:
        _report(f"{known.busy_warning} It is measured again now.")
        known = None
    if known is None:
        return _measure_all(device, folder, budget, QUICK_NOTE if quick else "")
    if folder is not None and known.disk is None:
        _report(f"the machine was measured {known.measured_at}; --fresh measures it again")
        return _measure_disk(known, device, folder, budget)
    _report(
        f"measured {known.measured_at}, and the machine has not changed; `workbench probe --fresh` measures it again"
    )
    return known


def _measure_all(device: str, folder: Path | None, budget: Budget, note: str) -> MachineProfile:
    from workbench.profiles.probe import measure_machine

    began = time.perf_counter()
    _report("measuring this machine; other programs that run on it make the figures worse")
    profile = measure_machine(device, folder, _report, budget, note)
    if profile.busy_cores:
        _report(profile.busy_warning)
    _cache(profile, device, began)
    return profile


def _measure_disk(known: MachineProfile, device: str, folder: Path, budget: Budget) -> MachineProfile:
    from workbench.profiles.disk_speed import measure_disk

    began, load = time.perf_counter(), BackgroundLoad()
    disk = measure_disk(folder, budget)
    _report(disk_line(disk))
    busy = max(known.busy_cores, load.busy_cores())
    profile = known.model_copy(update={"disk": disk, "busy_cores": busy})
    _cache(profile, device, began)
    return profile


def _cache(profile: MachineProfile, device: str, began: float) -> None:
    path = cache_profile(profile, device)
    where = "not cached: the cache cannot be written" if path is None else f"cached in {path}"
    _report(f"done in {time.perf_counter() - began:.1f} s; {where}")


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: probe: {message}", file=sys.stderr, flush=True)
