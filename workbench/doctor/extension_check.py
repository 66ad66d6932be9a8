"""The native extension: it loads, takes the CPU's best instructions, and its update is right."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator

from workbench.doctor.findings import Finding, failure, ok, warning
from workbench.doctor.surroundings import REPEAT, Surroundings

LARGEST_ERROR = 1e-5
"""Of a weight, as a share of the average movement. float32 leaves some 1e-6; a wrong formula shows far above."""
REBUILD = "rebuild it: `python -m pip install --force-reinstall --no-deps --editable .` in the checkout"


def check_extension(around: Surroundings) -> Iterator[Finding]:
    """The lines of the extension and of the instruction set."""
    loaded = around.trial.outcome("extension")
    if not loaded.reached:
        yield warning("extension", f"not tried: {loaded.problem}", REPEAT)
        return
    if loaded.problem:
        yield failure("extension", f"does not load: {loaded.problem}", REBUILD)
        return
    missing = loaded.values["missing"]
    if missing is not None:
        build = "`python -m pip install --editable .` in the checkout"
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            build = f"install a C compiler (`sudo apt install gcc python3-dev`), then {build}"
        yield warning(
            "extension",
            f"{missing.partition(';')[0]}: updates are slower, and state_format can only be exact",
            f"build it: {build}",
        )
        return
    if around.trial.outcome("torch").problem:
        yield ok("extension", "loads; not tried, as torch cannot be imported")
        return
    tried = around.trial.outcome("update")
    if "WORKBENCH_ISA" in tried.problem:
        yield failure(
            "extension", tried.problem, "`unset WORKBENCH_ISA`: the best instructions are then taken"
        )
        return
    if tried.problem:
        yield failure("extension", f"loads, but a small update fails: {tried.problem}", REBUILD)
        return
    if not tried.values["error"] <= LARGEST_ERROR:  # also where it is no number
        yield failure(
            "extension",
            f"a small update comes out wrong: by {tried.values['error']:.1e} of it, {LARGEST_ERROR:.0e} are allowed",
            REBUILD,
        )
        return
    yield ok("extension", f"loads, and a small update is right (to {tried.values['error']:.0e} of it)")
    yield _instructions(tried.values["instruction_set"], tried.values["best"])


def _instructions(chosen: str, best: str) -> Finding:
    check = "instructions"
    if chosen != best:
        return warning(
            check,
            f"{chosen}, by WORKBENCH_ISA; this CPU has {best}",
            "`unset WORKBENCH_ISA` for the faster ones",
        )
    if chosen == "scalar":
        if platform.machine() in ("x86_64", "AMD64"):
            return warning(
                check,
                "scalar: this CPU shows no AVX2; results are right, and updates slower",
                "in a virtual machine, show it the host's CPU (QEMU: `-cpu host`)",
            )
        return warning(
            check,
            f"scalar: there is none other for {platform.machine()}; results are right, and updates slower",
            "put more of the state on the GPU: `--set offload.device_fraction=0.5`, as far as it fits",
        )
    return ok(check, chosen)
