"""A machine profile is text that a person can write: it is read back as it was, and what is wrong in it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_probe import ON_CPU, ON_GPU, disk_at, profile_on

from workbench.errors import ConfigurationError
from workbench.profiles.machine_profile import parse_profile, profile_text
from workbench.profiles.named_machines import load_profile

PLANNED = ("desktop-24gb", "desktop-32gb", "server-80gb", "server-h200", "server-v100-32gb")


@pytest.mark.parametrize(
    "profile",
    [profile_on(ON_CPU), profile_on(ON_GPU), profile_on(ON_GPU, disk=disk_at("/a disk"))],
    ids=["processor", "card", "card and disk"],
)
def test_a_profile_is_read_back_as_it_was_written(profile: object, tmp_path: Path) -> None:
    text = profile_text(profile)  # type: ignore[arg-type]
    path = tmp_path / "machine.toml"
    path.write_text(text)
    assert parse_profile(text, "here") == profile == load_profile(path)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("cores = 16", "coers = 16", "host.coers = 16: there is no such key; did you mean cores?"),
        ("cores = 16", "", "host.cores: is missing"),
        ("cores = 16", 'cores = "many"', "host.cores = 'many': input should be a valid integer"),
        ("cores = 16", f"cores = {'9' * 5000}", "is not TOML: "),
        ("cores = 16", f"cores = '{'x' * 5000}'", f"host.cores = '{'x' * 56}...: input should be"),
        ("[host]", "[host", "is not TOML: "),
        ("[link]", "[cable]", "cable: there is no such key; there are name, source,"),
        ("threads = [1, 2, 4, 8, 16]", "threads = [1, 2, 4, 16, 8]", "host: threads must rise"),
        ("bfloat16-half = [0.6723, ", "bfloat16-half = [", "optimizer_ns.bfloat16-half has 4 figures for 5"),
        ("bfloat16-half = [", "bfloat16-hal = [", "unknown update; did you mean bfloat16-half?"),
        (
            "[host.redo_ratio]",
            "[host.redo_ratio]\nhlf = [1.5]",
            "host.redo_ratio.hlf = 'hlf': input should be 'exact',",
        ),
        ("[host.redo_ratio]", "[host.redo_ratio]\nhalf = [1.5]", "redo_ratio.half has 1 figures for 5"),
        ("launch_s = 5e-06", "launch_s = nan", "device.launch_s = nan: input should be a finite number"),
        ("\nup_bytes_per_s = 25200000000.0", "\nup_bytes_per_s = 5e-324", "link.up_bytes_per_s = 5e-324"),
        ("memory_bytes = 25653839659", "memory_bytes = 0", "device: a device with memory of its own needs"),
    ],
)
def test_what_is_wrong_in_a_profile_is_named_with_its_file_key_and_value(
    right: str, wrong: str, message: str
) -> None:
    text = profile_text(profile_on(ON_GPU))
    assert right in text
    with pytest.raises(ConfigurationError) as caught:
        parse_profile(text.replace(right, wrong, 1), "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert message in str(caught.value)


def test_a_device_with_memory_of_its_own_needs_a_link() -> None:
    text = profile_text(profile_on(ON_GPU))
    with pytest.raises(ConfigurationError, match=r"needs a \[link\] table"):
        parse_profile(text[: text.index("[link]")], "mine.toml")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.toml", "/no/such/folder/machine.toml"])
def test_a_missing_file_is_answered_with_the_names_of_the_shipped_ones(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_profile(Path(name))
    assert str(caught.value).startswith(f"machine {name}: cannot be read: No such file")
    assert all(shipped in str(caught.value) for shipped in PLANNED)


@pytest.mark.parametrize("name", PLANNED)
def test_a_shipped_profile_says_that_it_was_planned_and_holds_together(name: str) -> None:
    profile = load_profile(Path(name))
    host, device, link, disk = profile.host, profile.device, profile.link, profile.disk
    assert profile.source == "planned"
    assert "not measured" in profile.note
    assert link is not None and disk is not None
    assert host.threads[-1] == host.cores
    assert 0 < host.free_bytes < host.memory_bytes
    assert 0 < device.free_bytes < device.memory_bytes
    for figures in host.optimizer_ns.values():
        assert list(figures) == sorted(figures, reverse=True), "more threads are never slower"
    for dtype in ("float32", "bfloat16", "float16"):
        exact, half, compact = (host.optimizer_ns[f"{dtype}-{name}"] for name in ("exact", "half", "compact"))
        assert exact[-1] > half[-1] > compact[-1], "all threads are bound by bytes, and fewer move sooner"
    assert all(a >= b for a, b in zip(host.read_bytes_per_s, host.write_bytes_per_s, strict=True))
    assert link.both_up_bytes_per_s <= link.up_bytes_per_s <= host.read_bytes_per_s[-1]
    assert link.unpinned_up_bytes_per_s <= link.up_bytes_per_s
    assert disk.checked_read_bytes_per_s <= disk.read_bytes_per_s
