"""A machine in the words of its order: card, memory channels, PCIe slot; and the data sheets that know the card."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.system.foreign import parse_toml

NO_GPU = "none"
DESKTOP_CHANNELS = 2
"""Machines with more memory channels are servers."""
FIRST_DDR5 = 4000
"""MT/s from which memory is DDR5."""
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Description:
    """A machine in the words of its order. `gpu`: a card's name in the data sheets, or "none".

    `ddr`: million transfers a second of each of the memory `channels`. `pcie`: generation and lanes of the card's slot;
    None: the card's own. `cores`: None for as many as machines with so many channels have. `disk_bytes`: 0 for no disk.
    `processor`: the instruction set that computes where there is no GPU. `rates`: figures of the profile by key
    ("link.up_bytes_per_s"), instead of computed ones; of a row by threads, the best.
    """

    gpu: str
    memory_bytes: int
    channels: int = 2
    ddr: int = 3200
    pcie: tuple[int, int] | None = None
    cores: int | None = None
    disk_bytes: int = 0
    processor: str = "avx2"
    rates: Mapping[str, float] = field(default_factory=dict)
    name: str = ""

    @property
    def kind(self) -> str:
        return "desktop" if self.channels <= DESKTOP_CHANNELS else "server"

    @property
    def memory_kind(self) -> str:
        return f"{self.kind}-ddr{5 if self.ddr >= FIRST_DDR5 else 4}"

    @property
    def own_cores(self) -> int:
        return self.cores or (8 if self.kind == "desktop" else 4) * self.channels

    @property
    def peak_bytes_per_s(self) -> float:
        """The bandwidth of all memory channels: 8 bytes a transfer."""
        return self.channels * self.ddr * 8e6


@cache
def data_sheets() -> dict[str, Any]:
    """Return the tables of `data_sheets.toml`."""
    text = resources.files("workbench.profiles").joinpath("data_sheets.toml").read_text(encoding="utf-8")
    return parse_toml(text)


# Words of the command line


def parse_memory(text: str) -> int:
    """Return the bytes of "1.5T", "512G" or "64GB", in powers of 1024, as memory is sold.

    Raises:
        ConfigurationError: it is no such size.
    """
    found = re.fullmatch(r"(\d{1,7}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(found[1]) * _SIZES[found[2].upper()]) if found else 0
    if not GIB // 4 <= size <= 1 << 50:
        raise ConfigurationError(f'"{text}": expected a size of memory such as 64G or 1.5T')
    return size


def parse_slot(text: str) -> tuple[int, int]:
    """Return the generation and lanes of "3x16".

    Raises:
        ConfigurationError: it is no such slot.
    """
    found = re.fullmatch(r"(\d)(?:\.0)?x(\d{1,2})", text.strip().lower())
    slot = (int(found[1]), int(found[2])) if found else (0, 0)
    if str(slot[0]) not in data_sheets()["pcie"]["lane"] or slot[1] not in (1, 2, 4, 8, 16):
        raise ConfigurationError(f"--pcie {text}: expected a generation from 3 to 5 and lanes, such as 4x16")
    return slot


def parse_rates(words: Sequence[str]) -> dict[str, float]:
    """Return the figures in words like "link.up_bytes_per_s=11e9".

    Raises:
        ConfigurationError: a word has another form.
    """
    rates = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            rates[key.strip()] = float(value)
        except ValueError:
            raise ConfigurationError(
                f"--rate {word}: expected TABLE.KEY=NUMBER, such as link.up_bytes_per_s=11e9"
            ) from None
    return rates


def find_card(name: str) -> dict[str, Any]:
    """Return the data sheet of the card called `name`, whatever its case and separators.

    Raises:
        ConfigurationError: there is none; names the nearest.
    """
    cards: dict[str, dict[str, Any]] = data_sheets()["cards"]
    by_letters = {_letters(each): each for each in cards}
    key = by_letters.get(_letters(name))
    if key is None:
        near = difflib.get_close_matches(_letters(name), by_letters, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(by_letters[each] for each in near)}? " if near else ""
        raise ConfigurationError(
            f"--gpu {name}: no data sheet of this card is here; {hint}`workbench machine list` lists them, "
            '"none" is a machine without one, and `workbench machine new` writes a profile to edit'
        )
    return cards[key]


def describe(parts: Mapping[str, Any]) -> Description | None:
    """Return the machine that the options describe; None where none of them is given.

    Raises:
        ConfigurationError: an option lacks --gpu or --memory, or is wrong.
    """
    given = {name: value for name, value in parts.items() if value not in (None, [])}
    if not given:
        return None
    for name in ("gpu", "memory"):
        if name not in given:
            raise ConfigurationError(
                f"--{next(iter(given))}: needs --{name} too: a machine is described by its card "
                "(or --gpu none) and its memory, for example --gpu RTX-4090 --memory 64G"
            )
    if given["gpu"] != "none":
        find_card(given["gpu"])
    for name, most in (("channels", 64), ("ddr", 20_000), ("cores", 1024)):
        if name in given and not 1 <= given[name] <= most:
            raise ConfigurationError(f"--{name} {given[name]}: expected 1 to {most}")
    return Description(
        gpu=given["gpu"],
        memory_bytes=_option_bytes(given, "memory"),
        channels=given.get("channels", Description.channels),
        ddr=given.get("ddr", Description.ddr),
        pcie=parse_slot(given["pcie"]) if "pcie" in given else None,
        cores=given.get("cores"),
        disk_bytes=_option_bytes(given, "disk") if "disk" in given else 0,
        processor=given.get("processor", Description.processor),
        rates=parse_rates(given.get("rates", [])),
    )


def _option_bytes(given: Mapping[str, Any], name: str) -> int:
    try:
        return parse_memory(given[name])
    except ConfigurationError as error:
        raise ConfigurationError(f"--{name} {error}") from None


def _letters(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain.removeprefix("nvidia").removeprefix("geforce")
