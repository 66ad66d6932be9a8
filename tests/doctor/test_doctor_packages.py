"""Python and the required packages: which versions are enough, and what is said of those that are not."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from forged_machine import around, only
from packaging.requirements import Requirement

from workbench.doctor.findings import Interpreter
from workbench.doctor.host_checks import check_packages, check_python, own_requirements, version_problem


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.13.0+cu130", None),
        ("2.11.0", None),
        ("2.12.0.dev20250101", None),
        ("2.11.0a0+git123", "warning"),
        ("2.9.1", "failure"),  # older, though not by its letters
    ],
)
def test_an_installed_version_is_compared_with_the_requirement(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str | None
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = version_problem("torch", Requirement("torch>=2.11"))
    assert (found and found.status) == status


def test_requirements_of_extras_and_of_other_pythons_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        'ruff; extra == "dev"',
        "old>=2; python_version < '3'",
        "a[b] (>=1)",
        "c>=1 ; os_name == 'posix'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert [each.name for each in own_requirements()] == ["a", "c"]


def test_own_requirements_are_found_in_the_metadata_and_installed(tmp_path: Path) -> None:
    found = only(check_packages(around(tmp_path)))
    assert found.status == "ok"
    assert {"transformers", "textual", "pydantic"} <= set(found.finding.replace(",", "").split())


def test_a_package_that_is_missing_or_too_old_fails_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "psutil":
            raise metadata.PackageNotFoundError(name)
        return {"transformers": "4.57.0", "cffi": "1.17rc1", "tomlkit": "one"}.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    findings = {each.finding.split()[0].strip(":"): each for each in check_packages(around(tmp_path))}
    assert findings["psutil"].status == "failure"
    assert '`python -m pip install "psutil>=6"`' in findings["psutil"].remedy
    assert findings["transformers"].status == "failure" and "4.57.0" in findings["transformers"].finding
    assert findings["cffi"].status == "warning" and "before the release" in findings["cffi"].finding
    assert findings["tomlkit"].status == "warning"
    assert "pydantic" in list(findings.values())[-1].finding


def test_without_metadata_of_its_own_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    found = only(check_packages(around(tmp_path)))
    assert found.status == "warning" and "pip install --editable ." in found.remedy


@pytest.mark.parametrize(
    ("python", "status", "words"),
    [
        (Interpreter((3, 10, 0), "CPython", 64, "/v", "/usr"), "ok", "virtual environment /v"),
        (Interpreter((3, 14, 0), "CPython", 64, "/usr", "/usr"), "ok", "no virtual environment"),
        (Interpreter((3, 9, 20), "CPython", 64, "/v", "/usr"), "failure", "too old"),
        (Interpreter((3, 11, 0), "PyPy", 64, "/v", "/usr"), "failure", "PyPy"),
        (Interpreter((3, 11, 0), "CPython", 32, "/v", "/usr"), "failure", "32-bit"),
    ],
)
def test_python_is_judged_by_version_kind_and_word_size(
    tmp_path: Path, python: Interpreter, status: str, words: str
) -> None:
    found = only(check_python(around(tmp_path, python=python)))
    assert found.status == status and words in found.finding
    assert ("venv" in found.remedy) == (status != "ok")


def test_a_conda_environment_is_named(tmp_path: Path) -> None:
    python = Interpreter((3, 11, 0), "CPython", 64, "/opt/conda/envs/a", "/opt/conda/envs/a")
    found = only(check_python(around(tmp_path, python=python, environ={"CONDA_PREFIX": "/opt/conda/envs/a"})))
    assert "conda environment /opt/conda/envs/a" in found.finding
