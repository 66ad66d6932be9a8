"""A machine described by its parts: card, memory channels, PCIe slot. Its profile is computed from data sheets.

Figures and shares are in `data_sheets.toml`; here they become the rates of a profile, as a text with a comment beside
each figure, which `workbench machine new` writes to be edited.

Invariant: whatever is described, the text is a profile that `parse_profile` reads; a rate that was given is taken as it
is, and rates that follow from it follow.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.layout import MOMENTS
from workbench.profiles.description import NO_GPU, Description, data_sheets, find_card, parse_slot
from workbench.profiles.machine_profile import MachineProfile, parse_profile

DTYPES = ("float32", "bfloat16", "float16")
KEPT_BY_KERNEL = 0.02
"""Of the host's memory, what firmware and kernel keep."""
DESKTOP_BYTES = 4 * GIB
"""Of the host's memory, what a desktop session takes; a server's other programs take `SERVER_SHARE`."""
SERVER_SHARE = 0.015
CARD_SHARE = 0.9955
"""Of a card's memory, what its driver shows: 81,559 of 81,920 MiB of an H100."""
ECC_SHARE = 15 / 16
SCREEN_BYTES, DRIVER_BYTES = 768 << 20, 256 << 20
"""Of a card's memory, what a screen and what the driver alone takes."""
WRITE_SHARE = 0.8
"""Of reading, what writing gets: it reads its line first, or else the memory turns round."""
UPDATE_SHARE = 0.9
UPDATE_BYTES = {"exact": 26, "half": 18, "compact": 14}
"""Bytes of host memory that an update moves by parameter of bf16 weights; of others 2 more."""
ARITHMETIC_NS = {"exact": 0.65, "half": 0.65, "compact": 0.95}
FP16_ARITHMETIC_NS = {"exact": 1.1, "half": 0.95, "compact": 1.1}
"""Nanoseconds a parameter of one core's arithmetic, measured on Zen 3 with AVX2."""
BOTH_OF_MEMORY = 0.43
"""Of reading, what each way of the link gets while the other runs too: both go through the host's memory."""
CPU_ATTENTION = 0.25
WIDTH = 120
"""Characters of a line of a profile, but for rows of many threads."""
LAUNCH_S = {"desktop": 5e-6, "server": 7e-6, "cpu": 3e-6}


def described_machine(machine: Description) -> MachineProfile:
    """Return the profile of `machine`.

    Raises:
        ConfigurationError: there is no such card, generation or rate, or a number is out of range.
    """
    return parse_profile(described_text(machine), "the described machine")


def described_text(machine: Description) -> str:
    """Return the profile of `machine` as TOML, each figure with its meaning and what it was computed from.

    Raises:
        ConfigurationError: see `described_machine`.
    """
    document, why = _document(machine)
    _override(document, machine.rates)
    lines = [
        f"# {document['name']}.",
        "#",
        "# Planned, not measured: makers' data sheets, derated as the comments say. 1e9 is a giga. Edit what you know",
        "# better; `workbench plan PRESET --machine FILE` plans with it. On the machine itself, `workbench probe`",
        "# measures all of it.",
        "",
    ]
    lines += _table(document, "", why)
    return "\n".join(lines).rstrip() + "\n"


# The profile


def _document(machine: Description) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the profile's tables, and a comment by key."""
    why: dict[str, str] = dict(data_sheets()["meanings"])
    host = _host(machine, why)
    card = None if machine.gpu == NO_GPU else find_card(machine.gpu)
    document: dict[str, Any] = {
        "name": machine.name or _name(machine, card),
        "source": "planned",
        "note": "planned from data sheets, not measured",
        "host": host,
    }
    if card is None:
        document["device"] = _processor(machine, host, why)
    else:
        document["device"] = _card(machine, card, why)
        document["link"] = _link(machine, card, host, why)
        document["peers"] = _peers(machine, card, why)
    if machine.disk_bytes:
        document["disk"] = _disk(machine, card, why)
    return document, why


def _name(machine: Description, card: dict[str, Any] | None) -> str:
    device = "no GPU" if card is None else card["name"]
    return f"A {machine.kind} with {device}, {machine.memory_bytes / GIB:,.0f} GiB"


def _host(machine: Description, why: dict[str, str]) -> dict[str, Any]:
    cores, memory = machine.own_cores, data_sheets()["memory"][machine.memory_kind]
    threads = [count for count in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count < cores] + [cores]
    share, core = memory["share"], memory["core"] * 1e9
    whole = machine.rates.get("host.read_bytes_per_s", machine.peak_bytes_per_s * share)
    read = [(1 / (count * core) ** 4 + 1 / whole**4) ** -0.25 for count in threads]
    if "host.read_bytes_per_s" in machine.rates:
        read = [rate * whole / read[-1] for rate in read]
        why["host.read_bytes_per_s"] += "; as given for all threads"
    else:
        peak = machine.peak_bytes_per_s / 1e9
        why["host.read_bytes_per_s"] += (
            f"; {machine.channels} x DDR-{machine.ddr} give {peak:.1f} GB/s, derated to {share:g}, "
            f"{memory['core']} GB/s a core"
        )
    total = int(machine.memory_bytes * (1 - KEPT_BY_KERNEL))
    others = DESKTOP_BYTES if machine.kind == "desktop" else int(total * SERVER_SHARE)
    updates = {}
    for dtype in DTYPES:
        for state_format in MOMENTS:
            arithmetic = (FP16_ARITHMETIC_NS if dtype == "float16" else ARITHMETIC_NS)[state_format]
            moved = UPDATE_BYTES[state_format] + (0 if dtype == "bfloat16" else 2)
            updates[f"{dtype}-{state_format}"] = [
                max(moved / (UPDATE_SHARE * rate) * 1e9, arithmetic / count)
                for rate, count in zip(read, threads, strict=True)
            ]
    return {
        "cpu": f"{cores} cores, {machine.channels} channel{'s' * (machine.channels > 1)} of "
        f"DDR{machine.memory_kind[-1]}-{machine.ddr}",
        "cores": cores,
        "memory_bytes": total,
        "free_bytes": max(total // 2, total - others),
        "threads": threads,
        "read_bytes_per_s": read,
        "write_bytes_per_s": [WRITE_SHARE * rate for rate in read],
        "copy_bytes_per_s": [rate / (1 + 1 / WRITE_SHARE) for rate in read],
        "optimizer_ns": updates,
        "norm_bytes_per_s": {dtype: list(read) for dtype in DTYPES},
        # fp32 sums are read and written, gradients read.
        "accumulate_bytes_per_s": {
            dtype: [rate * 4 / (12 if dtype == "float32" else 10) for rate in read] for dtype in DTYPES
        },
    }


def _card(machine: Description, card: dict[str, Any], why: dict[str, str]) -> dict[str, Any]:
    sheets = data_sheets()
    shares = sheets["architectures"][card["architecture"]]
    limited = card.get("limited", 1.0)
    shown = card["memory"] * GIB * CARD_SHARE * (ECC_SHARE if card.get("ecc") else 1.0)
    taken = SCREEN_BYTES if machine.kind == "desktop" else DRIVER_BYTES
    peaks = {"float32": card["fp32"], "float16": card["fp16"]}
    peaks["bfloat16"] = card["fp16"] if shares["bf16"] else card["fp32"]
    of_peak = {
        dtype: (shares["fp32"] if dtype == "float32" else shares["products"]) * limited for dtype in peaks
    }
    if not shares["bf16"]:
        of_peak["bfloat16"] = of_peak["float32"]
    products = {dtype: peaks[dtype] * of_peak[dtype] * 1e12 for dtype in DTYPES}
    if "tf32" in card:
        products["tf32"] = card["tf32"] * shares["products"] * limited * 1e12
    why["device.name"] = sheets["sources"][card["source"]]
    why["device.memory_bytes_per_s"] += f"; {card['bandwidth']:,} GB/s, derated to {shares['memory']:g}"
    why["device.matrix_flops_per_s"] += (
        f". Sheet: {card['fp32']:g} TFLOP/s in fp32, derated to {of_peak['float32']:.2f}; {card['fp16']:g} in fp16"
        f"{' and bf16' if shares['bf16'] else ' (bf16 is computed in fp32)'}, derated to {of_peak['float16']:.2f}"
    )
    attention = shares["attention"] * limited
    why["device.attention_flops_per_s"] += f". {attention:.2f} of the sheet's products"
    return {
        "name": card["name"],
        "shared_memory": False,
        "memory_bytes": int(shown),
        "free_bytes": int(shown) - taken,
        "memory_bytes_per_s": card["bandwidth"] * shares["memory"] * 1e9,
        "launch_s": LAUNCH_S[machine.kind],
        "has_bfloat16": shares["bf16"],
        "matrix_flops_per_s": products,
        "attention_flops_per_s": {dtype: peaks[dtype] * attention * 1e12 for dtype in DTYPES},
    }


def _processor(machine: Description, host: dict[str, Any], why: dict[str, str]) -> dict[str, Any]:
    kinds = data_sheets()["processors"]
    if machine.processor not in kinds:
        raise ConfigurationError(f"--processor {machine.processor}: expected one of {', '.join(kinds)}")
    core = kinds[machine.processor]
    products = {"float32": core["fp32"] * machine.own_cores * 1e9}
    if "bf16" in core:
        products["bfloat16"] = core["bf16"] * machine.own_cores * 1e9
    why["device.name"] = "the host's own cores"
    why["device.matrix_flops_per_s"] += f". {core['fp32']:g} GFLOP/s a core in fp32 with {machine.processor}"
    return {
        "name": host["cpu"],
        "shared_memory": True,
        "memory_bytes_per_s": host["read_bytes_per_s"][-1],
        "launch_s": LAUNCH_S["cpu"],
        "has_bfloat16": "bf16" in core,
        "matrix_flops_per_s": products,
        "attention_flops_per_s": {dtype: CPU_ATTENTION * rate for dtype, rate in products.items()},
    }


def _slot(machine: Description, card: dict[str, Any]) -> tuple[int, int]:
    """Return the generation and lanes that card and slot both have."""
    own = parse_slot(card["pcie"])
    given = machine.pcie or own
    return min(own[0], given[0]), min(own[1], given[1])


def _link(
    machine: Description, card: dict[str, Any], host: dict[str, Any], why: dict[str, str]
) -> dict[str, Any]:
    pcie = data_sheets()["pcie"]
    generation, lanes = _slot(machine, card)
    whole, memory = pcie["lane"][str(generation)] * lanes * 1e9, max(host["read_bytes_per_s"])
    alone = min(pcie["alone"] * whole, memory)
    both = min(pcie["both"] * whole, BOTH_OF_MEMORY * memory)
    unpinned = min(pcie["unpinned"][machine.kind] * 1e9, alone)
    sheet = f"PCIe {generation}.0 x{lanes} gives {whole / 1e9:.1f} GB/s each way"
    why["link.up_bytes_per_s"] += f"; {sheet}, derated to {pcie['alone']:g}"
    why["link.both_up_bytes_per_s"] += (
        f"; {pcie['both']:g} of PCIe, or {BOTH_OF_MEMORY:g} of the host's memory"
    )
    return {
        "up_bytes_per_s": alone,
        "down_bytes_per_s": alone,
        "both_up_bytes_per_s": both,
        "both_down_bytes_per_s": both,
        "unpinned_up_bytes_per_s": unpinned,
        "unpinned_down_bytes_per_s": unpinned,
    }


def _peers(machine: Description, card: dict[str, Any], why: dict[str, str]) -> dict[str, Any]:
    sheet, pcie = data_sheets()["peers"], data_sheets()["pcie"]
    generation, lanes = _slot(machine, card)
    nvlink = card.get("nvlink")
    if nvlink:
        rate = nvlink * sheet["nvlink"] * 1e9
        why["peers.gpu_bytes_per_s"] += (
            f"; NVLink of {nvlink:g} GB/s each way, derated to {sheet['nvlink']:g}"
        )
    else:
        rate = pcie["lane"][str(generation)] * lanes * sheet["pcie"] * 1e9
        why["peers.gpu_bytes_per_s"] += (
            f"; PCIe {generation}.0 x{lanes} through the host, derated to {sheet['pcie']:g}"
        )
    network = sheet["network"][machine.kind]
    why["peers.network_bytes_per_s"] += f"; {network:g} Gb/s, derated to {sheet['share']:g}"
    return {
        "gpus": sheet["gpus"][machine.kind],
        "gpu_bytes_per_s": rate,
        "network_bytes_per_s": network / 8 * sheet["share"] * 1e9,
        "exchange_s": sheet["exchange_us"] * 1e-6,
    }


def _disk(machine: Description, card: dict[str, Any] | None, why: dict[str, str]) -> dict[str, Any]:
    sheet = data_sheets()["disk"]
    generation = str((machine.pcie or (4, 4))[0] if card is None else _slot(machine, card)[0])
    of_writing = sheet["desktop_write" if machine.kind == "desktop" else "share"]
    read, write = (
        sheet["read"][generation] * sheet["share"] * 1e9,
        sheet["write"][generation] * of_writing * 1e9,
    )
    checksum, both = sheet["checksum"] * 1e9, sheet["both"] / (1 / read + 1 / write)
    why["disk.read_bytes_per_s"] += (
        f"; a PCIe {generation}.0 x4 disk's {sheet['read'][generation]:g} GB/s, derated to {sheet['share']:g}"
    )
    why["disk.write_bytes_per_s"] += f"; {sheet['write'][generation]:g} GB/s, derated to {of_writing:g}"
    return {
        "path": "planned",
        "free_bytes": machine.disk_bytes,
        "direct": True,
        "read_bytes_per_s": read,
        "write_bytes_per_s": write,
        "checked_read_bytes_per_s": 1 / (1 / read + 1 / checksum),
        "checked_write_bytes_per_s": 1 / (1 / write + 1 / checksum),
        "both_read_bytes_per_s": both,
        "both_write_bytes_per_s": both,
    }


def _override(document: dict[str, Any], rates: Mapping[str, float]) -> None:
    """Put given figures into the tables; a row by threads is scaled to its best."""
    known = dict(_numbers(document, ""))
    for key, value in rates.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigurationError(f"--rate {key}: there is no such figure in a machine profile; {hint}")
        *tables, last = key.split(".")
        table = document
        for each in tables:
            table = table[each]
        old = table[last]
        if isinstance(old, list):
            best = min(old) if "optimizer_ns" in tables else max(old)
            table[last] = [each * value / best for each in old]
        else:
            table[last] = int(value) if isinstance(old, int) else value


def _numbers(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{path}{key}.")
        elif not isinstance(value, (str, bool)) and key not in ("threads", "cores"):
            yield f"{path}{key}", value


# The text


def _table(table: Mapping[str, Any], path: str, why: Mapping[str, str]) -> list[str]:
    """Return the lines of a table and of those in it: long comments above their key, short ones beside it."""
    lines, below = [], []
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        comment = why.get(name, "")
        if isinstance(value, dict):
            below += ["", *_wrapped(comment), f"[{name}]", *_table(value, name, why)]
            continue
        line = f"{key} = {_value(value)}"
        beside = f"{line}  # {comment}" if comment else line
        lines += [beside] if len(beside) <= WIDTH else [*_wrapped(comment), line]
    return lines + below


def _wrapped(comment: str) -> list[str]:
    return textwrap.wrap(comment, WIDTH, initial_indent="# ", subsequent_indent="# ")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if value >= 1e12:
        return f"{value / 1e12:.4g}e12"
    if value >= 1e6:
        return f"{value / 1e9:.4g}e9"
    return f"{value:.4g}" if value >= 1e-3 else f"{value:.3e}"
