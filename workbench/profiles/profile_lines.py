"""A machine profile in lines that people read. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.formatting import GIB
from workbench.profiles.machine_profile import DiskProfile, Dtype, LinkProfile, MachineProfile

Row = Sequence[float]


def profile_lines(profile: MachineProfile) -> list[str]:
    """Return the lines of a whole profile: host by threads, device, link and disk."""
    return list(_profile_lines(profile))


def memory_line(threads: Sequence[int], read: Row, write: Row, copy: Row) -> str:
    """Return the probe's line about memory: the best of each."""
    return (
        f"memory: {len(threads)} numbers of threads up to {threads[-1]}: "
        f"read {_gb(max(read))}, write {_gb(max(write))}, copy {_gb(max(copy))} GB/s"
    )


def optimizer_line(threads: Sequence[int], optimizer_ns: Mapping[str, Row]) -> str:
    """Return the probe's line about updates: bf16 in each format, at the best number of threads."""
    shown = [f"{key} {min(row):.2f}" for key, row in optimizer_ns.items() if key.startswith("bfloat16")]
    return f"host optimizer: {', '.join(shown)} ns a parameter, up to {threads[-1]} threads"


def sums_line(norm: Mapping[Dtype, Row], accumulate: Mapping[Dtype, Row]) -> str:
    """Return the probe's line about sums over gradients, at the best number of threads."""
    norms = ", ".join(f"{dtype} {_gb(max(row))}" for dtype, row in norm.items())
    sums = ", ".join(f"{dtype} {_gb(max(row))}" for dtype, row in accumulate.items())
    return f"gradients: norm {norms}; accumulation {sums} GB/s"


def compute_line(matrix_flops: Mapping[Dtype, float], element_bytes: float, launch_s: float) -> str:
    """Return the probe's line about the device."""
    products = ", ".join(f"{dtype} {_tera(flops)}" for dtype, flops in matrix_flops.items())
    return (
        f"device: products {products} TFLOP/s; elements {_gb(element_bytes)} GB/s; "
        f"one operation {launch_s * 1e6:.1f} us"
    )


def link_line(link: LinkProfile) -> str:
    """Return the probe's line about copies between host and device."""
    return (
        f"link: up {_gb(link.up_bytes_per_s)}, down {_gb(link.down_bytes_per_s)}; at once "
        f"{_gb(link.both_up_bytes_per_s)} and {_gb(link.both_down_bytes_per_s)}; unpinned "
        f"{_gb(link.unpinned_up_bytes_per_s)} and {_gb(link.unpinned_down_bytes_per_s)} GB/s"
    )


def disk_line(disk: DiskProfile) -> str:
    """Return the probe's line about a folder's disk."""
    both = ""
    if disk.both_read_bytes_per_s is not None and disk.both_write_bytes_per_s is not None:
        both = f"; at once {_gb(disk.both_read_bytes_per_s)} and {_gb(disk.both_write_bytes_per_s)}"
    return (
        f"disk {disk.path}: {'direct I/O' if disk.direct else 'no direct I/O'}: read {_gb(disk.read_bytes_per_s)}, "
        f"write {_gb(disk.write_bytes_per_s)}; with checksums {_gb(disk.checked_read_bytes_per_s)} and "
        f"{_gb(disk.checked_write_bytes_per_s)}{both} GB/s; {_gib(disk.free_bytes)} GiB free"
    )


def _profile_lines(profile: MachineProfile) -> Iterator[str]:
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
    yield f"  {compute_line(device.matrix_flops_per_s, device.memory_bytes_per_s, device.launch_s)}"
    if profile.link is not None:
        yield f"  {link_line(profile.link)}"
    yield ""
    yield disk_line(profile.disk) if profile.disk else "disk    not measured; --disk FOLDER measures one"
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
