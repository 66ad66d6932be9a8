"""`workbench probe`: measure this machine, or show what was measured, and keep it for the planner.

torch is imported only where something has to be measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.plan.profile import MachineProfile
from workbench.plan.time.kept_times import forget_busy_times
from workbench.profiles.machine.budget import FULL, QUICK, Budget
from workbench.profiles.machine.fingerprint import resolved_device
from workbench.profiles.machine.measured import cached_profile, folder_of, keep_profile
from workbench.profiles.machine.others import WORSE, Others
from workbench.profiles.machine.table import profile_lines

QUICK_NOTE = "quick"


def probe(*, device: str, disk_path: Path | None, json: bool, fresh: bool, quick: bool) -> int:
    """Print the profile of this machine with `device` and the disk under `disk_path`, measured where it has to be.

    `fresh`: measured in any case. `quick`: in a few seconds, less exactly; a quick profile is measured again by a probe
    that is not, and so is one of a busy machine; what plans timed on a busy one is thrown away then. `json`: as JSON.

    Raises:
        ConfigurationError: there is no such device, or the folder cannot be written.
    """
    profile = measured_machine(device, disk_path, fresh=fresh, quick=quick, mend=not quick)
    if not quick:
        forgotten = forget_busy_times()
        if forgotten:
            _tell(
                f"{forgotten} timing{'s' if forgotten > 1 else ''} of models' pieces from a busy machine thrown away; "
                "the next plan times them anew"
            )
    print(profile.model_dump_json(indent=2) if json else "\n".join(profile_lines(profile)))
    return EXIT_DONE


def measured_machine(
    device: str, disk_path: Path | None, *, fresh: bool = False, quick: bool = False, mend: bool = False
) -> MachineProfile:
    """The profile of this machine, kept from before or measured now, which is told; see `probe`.

    `mend`: what was measured while the machine was busy is measured again.
    """
    resolved_device(device)  # refuses a wrong name
    folder = None if disk_path is None else folder_of(disk_path)
    budget = QUICK if quick else FULL
    known = None if fresh else cached_profile(device, None if folder is None else str(folder))
    if known is not None and known.note.startswith(QUICK_NOTE) and not quick:
        known = None
    if known is not None and mend and known.busy:
        _tell(f"measured {known.measured_at} on a busy machine ({known.busy}); it is measured anew")
        known = None
    if known is not None and mend and known.disk is not None and known.disk.busy:
        known = known.model_copy(update={"disk": None})
    if known is None:
        return _measure_all(device, folder, budget, QUICK_NOTE if quick else "")
    if folder is not None and known.disk is None:
        _tell(f"the machine was measured {known.measured_at}; --fresh measures it anew")
        return _measure_disk(known, device, folder, budget)
    _tell(
        f"measured {known.measured_at}, and the machine has not changed; `workbench probe --fresh` measures it anew"
    )
    return known


def _measure_all(device: str, folder: Path | None, budget: Budget, note: str) -> MachineProfile:
    from workbench.profiles.machine.run import measure_machine

    began = time.perf_counter()
    _tell("measuring this machine; whatever else runs on it makes the figures worse")
    profile = measure_machine(device, folder, _tell, budget, note)
    _keep(profile, device, began)
    return profile


def _measure_disk(known: MachineProfile, device: str, folder: Path, budget: Budget) -> MachineProfile:
    from workbench.profiles.machine.disk import measure_disk
    from workbench.profiles.machine.table import disk_line

    began = time.perf_counter()
    others = Others()
    disk = measure_disk(folder, budget)
    disk = disk.model_copy(update={"busy": others.note()})
    _tell(disk_line(disk))
    if disk.busy:
        _tell(f"{disk.busy}: {WORSE}")
    profile = known.model_copy(update={"disk": disk})
    _keep(profile, device, began)
    return profile


def _keep(profile: MachineProfile, device: str, began: float) -> None:
    path = keep_profile(profile, device)
    kept = "could not be kept: the cache cannot be written" if path is None else f"kept in {path}"
    _tell(f"done in {time.perf_counter() - began:.1f} s; {kept}")


def _tell(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: probe: {message}", file=sys.stderr, flush=True)
