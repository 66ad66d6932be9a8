"""A machine that is described by its parts: its profile is complete, explained, and derated as users measure."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from workbench.errors import ConfigurationError
from workbench.plan.machine import planned_machine
from workbench.profiles.described import described_machine, described_text
from workbench.profiles.description import (
    Description,
    data_sheets,
    find_card,
    parse_memory,
    parse_rates,
    parse_slot,
)
from workbench.profiles.machine_profile import MachineProfile, parse_profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

GIB = 1 << 30
CARDS = data_sheets()["cards"]
DGX2 = Description("V100-32GB", 1536 * GIB, channels=12, ddr=2666, pcie=(3, 16), disk_bytes=3 << 40)


def test_the_text_has_every_table_and_explains_every_figure_with_its_unit() -> None:
    text = described_text(DGX2)
    document = tomllib.loads(text)
    assert set(MachineProfile.model_fields) - {"measured_at", "fingerprint", "busy_cores"} == document.keys()
    above = of_table = ""
    for line in text.splitlines():
        figure, _, beside = line.partition("#")
        if line.startswith("["):
            of_table = above
        elif " = " in figure:
            key, words = line.split(" = ")[0], beside or above or of_table
            assert words, f"{key} is not explained"
            if key.endswith("_per_s") or "-" in key:
                assert re.search("a second|Nanoseconds", words), f"{key} has no unit"
        above = above + line if line.startswith("#") else ""
    assert parse_profile(text, "the text") == described_machine(DGX2)


def test_eight_channels_of_ddr4_give_what_users_measure_and_not_the_sheets_bandwidth() -> None:
    """STREAM on one memory node of an EPYC 7302P and a Threadripper Pro 3975WX: about 85 GB/s of 205."""
    machine = Description("A100-80GB", 512 * GIB, channels=8, ddr=3200)
    assert machine.peak_bytes_per_s == pytest.approx(204.8e9)
    for cores in (16, 32):
        read = described_machine(replace(machine, cores=cores)).host.read_bytes_per_s
        assert read[-1] == pytest.approx(85e9, rel=0.03)
        assert list(read) == sorted(read)


@pytest.mark.parametrize(
    ("card", "dtype", "measured"),
    [
        ("V100-32GB", "float16", 89e12 * 125 / 130),  # of a V100S, whose sheet says 130
        ("A100-80GB", "bfloat16", 264e12),
        ("A100-40GB", "float16", 248e12),
        ("A100-PCIE-80GB", "float16", 215e12),
        ("H100-80GB", "bfloat16", 789e12),
        ("H20", "bfloat16", 142e12),
        ("B200", "float16", 1628e12),
        ("RTX-3090", "bfloat16", 76e12),
        ("RTX-3080-Ti", "float16", 76e12),
        ("RTX-4090", "float16", 165e12),
        ("RTX-5090", "bfloat16", 236e12),
        ("RTX-3090", "float32", 24.5e12),
        ("RTX-4090", "float32", 54.7e12),
        ("RTX-5090", "float32", 69.2e12),
        ("A100-80GB", "float32", 19.2e12),
    ],
)
def test_products_are_within_a_fifth_of_what_users_measured_with_torch(
    card: str, dtype: str, measured: float
) -> None:
    device = described_machine(Description(card, 64 * GIB)).device
    assert device.matrix_flops_per_s[dtype] == pytest.approx(measured, rel=0.2)  # type: ignore[index]


@pytest.mark.parametrize("name", CARDS)
def test_every_cards_sheet_is_whole_and_of_one_piece(name: str) -> None:
    sheets, card = data_sheets(), CARDS[name]
    shares = sheets["architectures"][card["architecture"]]
    assert sheets["sources"][card["source"]]
    device = described_machine(Description(name, 64 * GIB)).device
    assert 0.9 * card["memory"] * GIB < device.memory_bytes < card["memory"] * GIB
    assert ("tf32" in card) == shares["bf16"] == device.has_bfloat16, "Ampere brought both"
    assert 1.9 * card["fp32"] < card["fp16"] < 35 * card["fp32"]
    if card["architecture"] == "geforce":
        # Tensor cores with fp32 sums do twice what the others do; TF32 half of that.
        assert card["fp16"] == pytest.approx(2 * card["fp32"], rel=0.02) and card["tf32"] == card["fp32"]
    elif "tf32" in card:
        assert card["tf32"] == pytest.approx(card["fp16"] / 2, rel=0.02)
    for dtype, rate in device.attention_flops_per_s.items():
        assert rate < device.matrix_flops_per_s[dtype], "attention is slower than products"


def test_there_are_some_forty_cards_and_each_is_found_however_it_is_written() -> None:
    assert len(CARDS) >= 40
    for written in ("RTX 4090", "rtx4090", "GeForce RTX 4090", "NVIDIA GeForce RTX 4090"):
        assert find_card(written) is CARDS["RTX-4090"]
    with pytest.raises(ConfigurationError, match=r"--gpu RTX-4095: no data sheet .* did you mean RTX-4090"):
        find_card("RTX-4095")


def test_the_slower_of_card_and_slot_is_the_link() -> None:
    def up(card: str, slot: tuple[int, int] | None) -> float:
        link = described_machine(Description(card, 64 * GIB, channels=8, pcie=slot)).link
        assert link is not None
        return link.up_bytes_per_s

    assert up("V100-32GB", (4, 16)) == up("V100-32GB", (3, 16)) == up("V100-32GB", None)
    assert up("RTX-4090", (3, 16)) == pytest.approx(up("V100-32GB", None))
    assert up("RTX-4060-Ti-16GB", None) == pytest.approx(up("RTX-4090", (4, 8)))
    assert up("RTX-4090", None) == pytest.approx(25.2e9, rel=0.01)  # users measure 24 to 27


def test_given_rates_are_taken_and_what_follows_from_them_follows() -> None:
    rates = parse_rates(
        [
            "host.read_bytes_per_s=50e9",
            "link.up_bytes_per_s=9e9",
            "host.optimizer_ns.bfloat16-half=0.7",
            "device.matrix_flops_per_s.float16=70e12",
            "device.free_bytes=30e9",
        ]
    )
    profile = described_machine(replace(DGX2, rates=rates))
    usual = described_machine(DGX2)
    host = profile.host
    assert max(host.read_bytes_per_s) == pytest.approx(50e9) and max(host.write_bytes_per_s) == pytest.approx(
        40e9
    )
    assert host.optimizer_ns["bfloat16-exact"][-1] > 2 * usual.host.optimizer_ns["bfloat16-exact"][-1]
    assert min(host.optimizer_ns["bfloat16-half"]) == pytest.approx(0.7)
    assert profile.link is not None and profile.link.up_bytes_per_s == 9e9
    assert profile.device.matrix_flops_per_s["float16"] == 70e12
    assert profile.device.free_bytes == 30_000_000_000
    with pytest.raises(
        ConfigurationError, match=r"--rate link.up: there is no such figure .* did you mean link\.up_"
    ):
        described_machine(replace(DGX2, rates={"link.up": 1e9}))
    with pytest.raises(ConfigurationError, match=r"launch_s"):
        described_machine(replace(DGX2, rates={"device.launch_s": -1.0}))


def test_a_machine_without_a_gpu_computes_on_its_cores() -> None:
    profile = described_machine(
        Description("none", 24 * GIB, channels=2, ddr=6000, cores=2, processor="avx512-bf16")
    )
    assert profile.device.shared_memory and profile.link is None
    machine = planned_machine(profile)
    assert machine.shared_memory and machine.has_bfloat16
    assert not planned_machine(described_machine(Description("none", 24 * GIB))).has_bfloat16
    with pytest.raises(ConfigurationError, match="--processor avx3: expected one of avx2, "):
        described_machine(Description("none", 24 * GIB, processor="avx3"))


@pytest.mark.parametrize(
    ("text", "size"), [("1.5T", 1536 * GIB), ("64G", 64 * GIB), ("64GB", 64 * GIB), ("512 GiB", 512 * GIB)]
)
def test_memory_is_read_in_powers_of_1024_as_it_is_sold(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "lots", "64", "-1G", "1e9", "9" * 400 + "G", "64GG"])
def test_what_is_no_size_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a size of memory"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["", "4", "x16", "2x16", "6x16", "4x3", "4x160"])
def test_what_is_no_slot_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"--pcie {text}: expected")):
        parse_slot(text)


def test_what_is_no_rate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected TABLE\.KEY=NUMBER"):
        parse_rates(["link.up_bytes_per_s"])
