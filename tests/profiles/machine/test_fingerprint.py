"""The fingerprint changes with what makes a measurement stale, with nothing else, and never fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import ConfigurationError
from workbench.profiles import this_machine
from workbench.profiles.this_machine import Gpu, cpu_model, machine_fingerprint, resolved_device

CARD = Gpu("a card", 24 << 30, 20 << 30, "555.1")


@pytest.fixture
def one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: [CARD])
    monkeypatch.setattr(this_machine, "_torch_version", lambda: "2.13.0+cu126")


@pytest.mark.usefixtures("one_card")
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("cpu_model", lambda: "another processor"),
        ("usable_cpus", lambda: 1000),
        ("instruction_set", lambda: "neon"),
        ("total_memory_bytes", lambda: 7 << 30),
        ("_torch_version", lambda: "2.14.0"),
        ("PROBE_VERSION", 1000),
        ("visible_gpus", lambda: [CARD._replace(name="another card")]),
        ("visible_gpus", lambda: [CARD._replace(memory_bytes=48 << 30)]),
        ("visible_gpus", lambda: [CARD._replace(driver="560.2")]),
        ("visible_gpus", list),
    ],
)
def test_it_changes_with_what_it_names(name: str, other: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_fingerprint("cuda:0")
    monkeypatch.setattr(this_machine, name, other)
    assert machine_fingerprint("cuda:0") != before


@pytest.mark.usefixtures("one_card")
def test_it_does_not_change_with_what_is_free_nor_with_a_few_mib_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(this_machine, "total_memory_bytes", lambda: 64 << 30)
    before = machine_fingerprint("cuda:0")
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: [CARD._replace(free_bytes=1)])
    monkeypatch.setattr(this_machine, "total_memory_bytes", lambda: (64 << 30) - (90 << 20))
    assert machine_fingerprint("cuda:0") == before


@pytest.mark.usefixtures("one_card")
def test_the_processor_s_does_not_depend_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_fingerprint("cpu")
    assert (
        before != machine_fingerprint("cuda:0") == machine_fingerprint("auto") == machine_fingerprint("cuda")
    )
    monkeypatch.setattr(this_machine, "visible_gpus", list)
    assert machine_fingerprint("cpu") == before == machine_fingerprint("auto")


def test_auto_is_the_processor_where_torch_knows_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: [CARD])
    monkeypatch.setattr(this_machine, "_torch_version", lambda: "2.13.0+cpu")
    assert resolved_device("auto") == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "mps"])
def test_a_device_that_cannot_be_is_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match="expected auto, cpu, cuda or cuda:N"):
        machine_fingerprint(device)


def test_the_processor_s_name_is_found_and_its_lack_survived(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert cpu_model(cpuinfo)
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fine CPU @ 3 GHz\nflags\t: fpu\n")
    assert cpu_model(cpuinfo) == "A Fine CPU @ 3 GHz"


@pytest.mark.parametrize("module", ["this_machine", "probe_command", "obtain"])
def test_what_the_screen_uses_brings_in_no_torch(module: str) -> None:
    program = (
        f"import sys, workbench.profiles.{module} as part\n"
        "if hasattr(part, 'machine_fingerprint'): part.machine_fingerprint()\n"
        "if hasattr(part, 'cached_profile'): part.cached_profile()\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["False", "False"], 0), done.stderr
