"""`workbench machine list|new`.

Nothing is measured here: profiles come from data sheets (`workbench.profiles.described`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.commands import report
from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.profiles.described import described_text
from workbench.profiles.description import data_sheets, describe
from workbench.profiles.named_machines import known_machines


def new(*, file: Path | None, **parts: Any) -> int:
    """Print the profile of the described machine, or write it to the new file `file`; return the exit code.

    Raises:
        ConfigurationError: nothing is described, an option is wrong, or the file is there or cannot be written.
    """
    described = describe(parts)
    if described is None:
        raise ConfigurationError(
            "machine new: describe the machine, for example --gpu RTX-4090 --memory 64G --channels 2 --ddr 5600"
        )
    text = described_text(described)
    if file is None:
        print(text, end="")
        return EXIT_DONE
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigurationError(f"machine new {file}: already exists; name a new file") from None
    except OSError as error:
        raise ConfigurationError(
            f"machine new {file}: cannot be written: {error.strerror or error}"
        ) from error
    report(f"written: {file}; edit it, and plan with --machine {file}")
    return EXIT_DONE


def list_(*, as_json: bool) -> int:
    """Print the machines that --machine knows and the cards that --gpu knows; return the exit code."""
    sheets = data_sheets()
    cards = sheets["cards"]
    if as_json:
        machines = {name: machine.gpu for name, machine in known_machines().items()}
        print(json.dumps({"machines": machines, "cards": cards, "sources": sheets["sources"]}, indent=2))
        return EXIT_DONE
    print("machines, for --machine:")
    for name, machine in known_machines().items():
        memory = machine.memory_bytes >> 30
        print(f"  {name:<18}{machine.gpu:<14}{memory:>5} GiB, {machine.channels} x DDR-{machine.ddr}")
    print("\ncards, for --gpu: data sheets' dense TFLOP/s, which plans derate")
    print(f"  {'card':<18}{'GB':>5}{'GB/s':>7}{'fp16':>8}{'bf16':>8}{'tf32':>8}{'fp32':>8}  PCIe")
    for name, card in cards.items():
        bf16 = f"{card['fp16']:g}" if sheets["architectures"][card["architecture"]]["bf16"] else "-"
        tf32 = f"{card['tf32']:g}" if "tf32" in card else "-"
        print(
            f"  {name:<18}{card['memory']:>5}{card['bandwidth']:>7,}{card['fp16']:>8g}{bf16:>8}{tf32:>8}"
            f"{card['fp32']:>8g}  {card['pcie']}"
        )
    return EXIT_DONE
