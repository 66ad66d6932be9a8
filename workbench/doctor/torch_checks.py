"""torch and the native extension: installed, new enough, built for this machine, and computing right."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.doctor.findings import REPEAT, Context, Finding, failure, ok, one_line, warning
from workbench.doctor.host_checks import own_requirements, version_problem
from workbench.formatting import amount

CHOICE = "https://pytorch.org/get-started"
REINSTALL = "`python -m pip install --force-reinstall torch`"
WAKE = (
    "see that `nvidia-smi` answers and what `sudo dmesg | grep -i -e nvrm -e xid` says; reboot if it does not"
)

LARGEST_ERROR = 1e-5
"""The largest error of a weight, as a share of the mean change. float32 leaves some 1e-6; a wrong formula far more."""
REBUILD = "rebuild it: `python -m pip install --force-reinstall --no-deps --editable .` in the checkout"

REMEDIES = {
    "no kernel image": f"this torch was not built for this GPU: {REINSTALL}, or another from {CHOICE}",
    "out of memory": "end what fills the GPU (`nvidia-smi` lists it), or train on another: `--set train.device=cuda:N`",
    "too old": f"update NVIDIA's driver, or install a torch for its CUDA (see the driver's line) from {CHOICE}",
    "system not yet initialized": "start the fabric manager: `sudo systemctl start nvidia-fabricmanager`",
}
"""The remedy for each of CUDA's messages, by some of its words."""


def check_torch(context: Context) -> Iterator[Finding]:
    """Yield the line of torch: its version, what it was built for, and that it can be imported."""
    required = [each for each in own_requirements() if each.name == "torch"]
    wrong = version_problem("torch", required[0]) if required else None
    if wrong is not None:
        yield wrong
        if wrong.status == "failure":
            return
    tried = context.trial("torch")
    if not tried.reached:
        yield failure("torch", f"not tried: {tried.problem}", REPEAT)
        return
    if tried.problem:
        yield failure("torch", f"cannot be imported: {tried.problem}", REINSTALL)
        return
    built = _build(tried.values)
    finding = f"{tried.values['version']}, a {built} build"
    if built == "CPU" and context.nvidia().present:
        yield warning(
            "torch",
            f"{finding}, on a machine with an NVIDIA GPU: training runs on the CPU",
            f"install a CUDA build: {REINSTALL} takes one on Linux; {CHOICE} has those for other drivers",
        )
    elif wrong is None:
        yield ok("torch", finding)


def check_cuda(context: Context) -> Iterator[Finding]:
    """Yield a line for each device that torch sees: it computes, or why not."""
    if context.trial("torch").problem:
        return
    tried = context.trial("cuda")
    if not tried.reached:
        yield warning("cuda", f"not tried: {tried.problem}", REPEAT)
        return
    if tried.problem:
        yield failure("cuda", f"torch did not get to use the GPU: {tried.problem}", WAKE)
        return
    devices: list[dict[str, Any]] = tried.values["devices"]
    for index, device in enumerate(devices):
        yield _device(index, device)
    if devices:
        return
    built = _build(context.trial("torch").values)
    if built == "CPU":
        yield ok("cuda", "not tried: torch is a CPU build")
    elif not context.nvidia().present:
        yield ok("cuda", "torch sees no GPU: training runs on the CPU")
    else:
        yield _unusable(context, tried.values["reason"] or "torch sees no device")


def check_pinned_memory(context: Context) -> Iterator[Finding]:
    """Yield the line of host memory that the driver registers, as the engine asks it to."""
    tried = context.trial("pinned memory")
    if context.trial("cuda").problem or context.trial("torch").problem:
        return
    remedy = (
        "restart a container with `--ulimit memlock=-1 --ipc=host`, see that host memory is free, and look at "
        "`sudo dmesg`; until then copies go through small buffers"
    )
    if tried.problem:
        yield warning("pinned memory", f"could not be tried: {tried.problem}", remedy)
        return
    asked, registered = tried.values["asked"], tried.values["registered"]
    if registered < asked:
        yield warning(
            "pinned memory", f"the driver registers {amount(registered)} of {amount(asked)}", remedy
        )
    elif asked:
        yield ok("pinned memory", f"the driver registers host memory ({amount(asked)} tried)")


def _build(values: Mapping[str, Any]) -> str:
    if values["cuda"]:
        return f"CUDA {values['cuda']}"
    return f"ROCm {values['hip']}" if values["hip"] else "CPU"


def _device(index: int, device: dict[str, Any]) -> Finding:
    name = device["name"] or "N/A"
    if not device["problem"]:
        return ok("cuda", f"{index}: {name} computes, {'with' if device['bf16'] else 'without'} bf16")
    return failure(
        "cuda", f"{index}: {name} does not compute: {one_line(device['problem'])}", _remedy(device["problem"])
    )


def _unusable(context: Context, reason: str) -> Finding:
    finding = f"torch cannot use the GPU: {one_line(reason)}"
    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and _remedy(reason) == WAKE:
        return failure(
            "cuda",
            f'{finding} (CUDA_VISIBLE_DEVICES is "{visible}")',
            "`unset CUDA_VISIBLE_DEVICES`, or let it name a GPU that is there",
        )
    return failure("cuda", finding, _remedy(reason))


def _remedy(reason: str) -> str:
    return next((remedy for words, remedy in REMEDIES.items() if words in reason), WAKE)


def check_extension(context: Context) -> Iterator[Finding]:
    """Yield the lines of the native extension and of the instruction set that it takes."""
    loaded = context.trial("extension")
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
    if context.trial("torch").problem:
        yield ok("extension", "loads; not tried, as torch cannot be imported")
        return
    tried = context.trial("update")
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
