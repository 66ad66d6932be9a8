"""`workbench probe`: measure this machine, or show what was measured, and cache it for the planner.

torch is imported only where something has to be measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.formatting import GIB
from workbench.profiles.machine_profile import DiskProfile, MachineProfile
from workbench.profiles.obtain import forget_times
from workbench.profiles.sampling import FULL, QUICK
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
    began = time.perf_counter()
    known = None if fresh else cached_profile(device, None if folder is None else str(folder))
    was_quick = known is not None and known.note.startswith(QUICK_NOTE)
    if known is None or (was_quick and not quick) or (idle and known.busy_cores):
        from workbench.profiles.probe import measure_machine

        _report("measuring this machine; other running programs make the figures worse")
        profile = measure_machine(device, folder, _report, budget, QUICK_NOTE if quick else "")
        forget_times()
        if profile.busy_cores:
            _report(profile.busy_warning)
    elif folder is not None and known.disk is None:
        from workbench.profiles.disk_speed import measure_disk

        _report(f"the machine was measured {known.measured_at}; --fresh measures it again")
        profile = known.model_copy(update={"disk": measure_disk(folder, budget)})
    else:
        _report(
            f"measured {known.measured_at}, and the machine has not changed; `workbench probe --fresh` measures it "
            "again"
        )
        return known
    path = cache_profile(profile, device)
    where = "not cached: the cache cannot be written" if path is None else f"cached in {path}"
    _report(f"done in {time.perf_counter() - began:.1f} s; {where}")
    return profile


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: probe: {message}", file=sys.stderr, flush=True)


def profile_lines(profile: MachineProfile) -> Iterator[str]:
    """Yield the lines of a whole profile: host by threads, device, link and disk."""
    host, device = profile.host, profile.device
    when = f" {profile.measured_at}" if profile.measured_at else ""
    note = profile.note
    yield profile.name
    yield f"{profile.source}{when}{f' ({note})' if note else ''}"
    yield ""
    yield (
        f"host    {host.cpu}: {host.cores} cores, {_gib(host.memory_bytes)} GiB of memory, "
        f"{_gib(host.free_bytes)} GiB free"
    )
    yield from _by_threads(profile)
    yield ""
    memory = (
        "in the host's memory"
        if device.shared_memory
        else f"{_gib(device.memory_bytes)} GiB, {_gib(device.free_bytes)} GiB free"
    )
    yield f"device  {device.name}: {memory}"
    products = ", ".join(f"{dtype} {_tera(flops)}" for dtype, flops in device.matrix_flops_per_s.items())
    attention = ", ".join(f"{dtype} {_tera(flops)}" for dtype, flops in device.attention_flops_per_s.items())
    if attention:
        yield f"  attention {attention} TFLOP/s"
    yield (
        f"  products {products} TFLOP/s; elements {_gb(device.memory_bytes_per_s)} GB/s; "
        f"one operation {device.launch_s * 1e6:.1f} us"
    )
    link = profile.link
    if link is not None:
        yield (
            f"link    up {_gb(link.up_bytes_per_s)}, down {_gb(link.down_bytes_per_s)}; at once "
            f"{_gb(link.both_up_bytes_per_s)} and {_gb(link.both_down_bytes_per_s)}; unpinned "
            f"{_gb(link.unpinned_up_bytes_per_s)} and {_gb(link.unpinned_down_bytes_per_s)} GB/s"
        )
    yield ""
    yield _disk_line(profile.disk) if profile.disk else "disk    not measured; --disk FOLDER measures one"
    if profile.busy_cores:
        yield profile.busy_warning


def _by_threads(profile: MachineProfile) -> Iterator[str]:
    host = profile.host
    rows: dict[str, Sequence[str]] = {
        "threads": [str(count) for count in host.threads],
        "read GB/s": [_gb(rate) for rate in host.read_bytes_per_s],
        "write GB/s": [_gb(rate) for rate in host.write_bytes_per_s],
        "copy GB/s": [_gb(rate) for rate in host.copy_bytes_per_s],
    }
    for key, times in host.optimizer_ns.items():
        rows[f"update {key} ns"] = [f"{ns:.3f}" for ns in times]
    for state_format, ratios in host.ahead_ratio.items():
        rows[f"update {state_format} ahead of the verdict, times"] = [f"{each:.2f}" for each in ratios]
    for state_format, ratios in host.redo_ratio.items():
        rows[f"update {state_format} undone and redone, times"] = [f"{each:.2f}" for each in ratios]
    for dtype, rates in host.norm_bytes_per_s.items():
        rows[f"norm {dtype} GB/s"] = [_gb(rate) for rate in rates]
    for dtype, rates in host.accumulate_bytes_per_s.items():
        rows[f"accumulate {dtype} GB/s"] = [_gb(rate) for rate in rates]
    left = max(map(len, rows))
    width = max(len(cell) for cells in rows.values() for cell in cells)
    for name, cells in rows.items():
        yield "  " + "  ".join([name.ljust(left), *(cell.rjust(width) for cell in cells)])


def _gb(bytes_per_s: float) -> str:
    """Return GB/s with three significant digits, whatever the size."""
    giga = bytes_per_s / 1e9
    return f"{giga:.0f}" if giga >= 100 else f"{giga:.1f}" if giga >= 1 else f"{giga:.3f}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f}"


def _tera(flops: float) -> str:
    tera = flops / 1e12
    return f"{tera:.0f}" if tera >= 100 else f"{tera:.1f}" if tera >= 10 else f"{tera:.3g}"


def _disk_line(disk: DiskProfile) -> str:
    both = ""
    if disk.both_read_bytes_per_s is not None and disk.both_write_bytes_per_s is not None:
        both = f"; at once {_gb(disk.both_read_bytes_per_s)} and {_gb(disk.both_write_bytes_per_s)}"
    return (
        f"disk {disk.path}: {'direct I/O' if disk.direct else 'no direct I/O'}: read {_gb(disk.read_bytes_per_s)}, "
        f"write {_gb(disk.write_bytes_per_s)}; with checksums {_gb(disk.checked_read_bytes_per_s)} and "
        f"{_gb(disk.checked_write_bytes_per_s)}{both} GB/s; {_gib(disk.free_bytes)} GiB free"
    )
