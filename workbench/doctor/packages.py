"""Python itself, and the packages that Workbench requires, by their metadata: nothing of them is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from workbench.doctor.findings import Finding, failure, ok, warning
from workbench.doctor.requirements import Requirement, own_requirements, satisfies, without_stage
from workbench.doctor.surroundings import Surroundings

OLDEST_PYTHON = (3, 10, 0)
REINSTALL = "in the checkout, `python -m pip install --editable .`"


def check_python(around: Surroundings) -> Iterator[Finding]:
    """Its version, its word size, and whether packages go into an environment of its own."""
    python = around.python
    version = ".".join(map(str, python.version))
    remedy = "make the environment with a 64-bit CPython 3.10 or later: `python3 -m venv .venv`"
    if python.version < OLDEST_PYTHON:
        yield failure("python", f"{version} is too old", remedy)
    elif python.implementation != "CPython":
        yield failure("python", f"{python.implementation} {version}, for which there is no torch", remedy)
    elif python.bits != 64:
        yield failure(
            "python", f"{version} is a {python.bits}-bit build, for which there is no torch", remedy
        )
    else:
        yield ok("python", f"{version}, 64 bit, {_environment(around)}")


def check_packages(around: Surroundings) -> Iterator[Finding]:
    """Every required package but torch, which has a line of its own: one line if all are right."""
    try:
        required = own_requirements(around.python.version[:2])
    except metadata.PackageNotFoundError:
        yield warning(
            "packages", "Workbench is imported but not installed: nothing says what it requires", REINSTALL
        )
        return
    right = []
    for requirement in required:
        if requirement.name == "torch":
            continue
        wrong = what_is_wrong("packages", requirement)
        if wrong is None:
            right.append(f"{requirement.name} {metadata.version(requirement.name)}")
        else:
            yield wrong
    if right:
        yield ok("packages", ", ".join(right))


def what_is_wrong(check: str, requirement: Requirement) -> Finding | None:
    """Why the installed package does not do; None where it does."""
    name = requirement.name
    remedy = f'`python -m pip install "{requirement}"`'
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return failure(check, f"{name} is not installed", remedy)
    try:
        if satisfies(version, requirement):
            return None
        # A container's own build of the very release that is asked for calls itself 2.11.0a0+...
        of_the_release = satisfies(without_stage(version), requirement)
    except ValueError as error:
        return warning(check, f"{name}: {error}", remedy)
    if of_the_release:
        return warning(
            check, f"{name} {version} comes before the release that is required ({requirement})", remedy
        )
    return failure(check, f"{name} {version} is installed, {requirement} is required", remedy)


def _environment(around: Surroundings) -> str:
    python = around.python
    if python.prefix != python.base_prefix:
        return f"in the virtual environment {python.prefix}"
    if around.environ.get("CONDA_PREFIX"):
        return f"in the conda environment {around.environ['CONDA_PREFIX']}"
    return f"in {python.prefix}, which is no virtual environment"
