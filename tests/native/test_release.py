"""What a release is made with: the check that tries an extension without torch, and the definition of an image."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RELEASE = Path(__file__).parents[2] / "release"


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, RELEASE / f"{name}.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_check_of_a_wheel_finds_equal_bits_of_all_instruction_sets_and_threads_and_says_so_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("workbench._native")
    check: Any = script("native_check")
    monkeypatch.setattr(check, "COUNT", 1_027)
    assert check.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[f, m] for f in check.FORMATS for m in ("fp16", "split")]
    assert len({line.split()[2] for line in lines}) == 6, "each case has bits of its own"
    true = check.updated
    monkeypatch.setattr(check, "updated", lambda *args, split: true(*args, split=split) + str(args[2]))
    assert check.main() == 1
    assert "instruction sets or threads differ" in capsys.readouterr().err
    monkeypatch.setattr(check, "SETS", {"scalar": check.SETS["scalar"]})
    monkeypatch.setattr(check.platform, "machine", lambda: "aarch64")
    assert check.main() == 1
    assert "lacks NEON" in capsys.readouterr().err


def test_pip_does_not_take_the_checkout_for_what_a_trial_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels: Any = script("wheels")
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    monkeypatch.setattr(wheels.venv, "create", lambda folder, with_pip: None)
    monkeypatch.setenv("PYTHONPATH", str(RELEASE.parent))
    found: list[dict[str, str]] = []

    def install(words: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        found.append(env)
        return subprocess.CompletedProcess(words, 0, "")

    monkeypatch.setattr(wheels.subprocess, "run", install)
    assert wheels.environment("empty", "workbench.whl") == tmp_path / "empty" / "bin"
    assert [env["PYTHONPATH"] for env in found] == [""]


def test_the_image_is_defined_by_the_wheels_that_were_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image: Any = script("containerfile")
    monkeypatch.setattr(image, "DIST", tmp_path)
    with pytest.raises(SystemExit, match="make wheels first"):
        image.main()
    (tmp_path / "workbench-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl").touch()
    assert image.main() == 0
    text = (tmp_path / "Containerfile").read_text()
    assert text.startswith("# workbench 0.1.0: ") and "ENTRYPOINT" in text and "{" not in text
    for name in text.split("COPY ")[1].split(" /tmp/")[0].split():
        assert list(tmp_path.glob(name)), f"{name} is copied"
