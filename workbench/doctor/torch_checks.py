"""torch: installed, new enough, built for the GPU that is here, and able to use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from workbench.doctor.findings import Finding, failure, gib, ok, one_line, warning
from workbench.doctor.packages import what_is_wrong
from workbench.doctor.requirements import Requirement, own_requirements
from workbench.doctor.surroundings import REPEAT, Surroundings

CHOICE = "https://pytorch.org/get-started"
REINSTALL = "`python -m pip install --force-reinstall torch`"
WAKE = (
    "see that `nvidia-smi` answers and what `sudo dmesg | grep -i -e nvrm -e xid` says; reboot if it does not"
)

REMEDIES = {
    "no kernel image": f"this torch was not built for this GPU: {REINSTALL}, or another from {CHOICE}",
    "out of memory": "end what fills the GPU (`nvidia-smi` lists it), or train on another: `--set train.device=cuda:N`",
    "too old": f"update NVIDIA's driver, or install a torch for its CUDA (see the driver's line) from {CHOICE}",
    "system not yet initialized": "start the fabric manager: `sudo systemctl start nvidia-fabricmanager`",
}
"""What to do, by words of CUDA's own messages."""


def check_torch(around: Surroundings) -> Iterator[Finding]:
    """Installed, its version, what it was built for, and whether it can be imported at all."""
    wrong = what_is_wrong("torch", _required(around))
    if wrong is not None:
        yield wrong
        if wrong.status == "failure":
            return
    tried = around.trial.outcome("torch")
    if not tried.reached:
        yield failure("torch", f"not tried: {tried.problem}", REPEAT)
        return
    if tried.problem:
        yield failure("torch", f"cannot be imported: {tried.problem}", REINSTALL)
        return
    built = _build(tried.values)
    finding = f"{tried.values['version']}, a {built} build"
    if built == "CPU" and around.nvidia().present:
        yield warning(
            "torch",
            f"{finding}, on a machine with an NVIDIA GPU: trainings run on the CPU",
            f"install a CUDA build: {REINSTALL} takes one on Linux; {CHOICE} has those for other drivers",
        )
    elif wrong is None:
        yield ok("torch", finding)


def check_cuda(around: Surroundings) -> Iterator[Finding]:
    """Each device that torch sees computes."""
    if around.trial.outcome("torch").problem:
        return
    tried = around.trial.outcome("cuda")
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
    built = _build(around.trial.outcome("torch").values)
    if built == "CPU":
        yield ok("cuda", "not tried: torch is a CPU build")
    elif not around.nvidia().present:
        yield ok("cuda", "torch sees no GPU: trainings run on the CPU")
    else:
        yield _unusable(around, tried.values["reason"] or "torch sees no device")


def check_pinned_memory(around: Surroundings) -> Iterator[Finding]:
    """Host memory can be registered with the driver, as the engine does it."""
    tried = around.trial.outcome("pinned memory")
    if around.trial.outcome("cuda").problem or around.trial.outcome("torch").problem:
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
        yield warning("pinned memory", f"the driver registers {gib(registered)} of {gib(asked)}", remedy)
    elif asked:
        yield ok("pinned memory", f"the driver registers host memory ({gib(asked)} tried)")


def _required(around: Surroundings) -> Requirement:
    try:
        own = own_requirements(around.python.version[:2])
    except metadata.PackageNotFoundError:  # the packages' line says so
        own = []
    return next((requirement for requirement in own if requirement.name == "torch"), Requirement("torch", ()))


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


def _unusable(around: Surroundings, reason: str) -> Finding:
    finding = f"torch cannot use the GPU: {one_line(reason)}"
    visible = around.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and _remedy(reason) == WAKE:
        return failure(
            "cuda",
            f'{finding} (CUDA_VISIBLE_DEVICES is "{visible}")',
            "`unset CUDA_VISIBLE_DEVICES`, or let it name a GPU that is there",
        )
    return failure("cuda", finding, _remedy(reason))


def _remedy(reason: str) -> str:
    return next((remedy for words, remedy in REMEDIES.items() if words in reason), WAKE)
