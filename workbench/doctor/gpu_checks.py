"""Checks of the NVIDIA driver, of torch on it, and of the native extension: present, new enough, computing right.

Checks that need torch run in a helper process (`trial.py`). Invariant: a value that the driver does not give is printed
N/A; it is never a zero and never an exception.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.doctor import Context, Finding, failure, ok, one_line, warning
from workbench.formatting import amount
from workbench.monitor.nvml import GpuReader
from workbench.monitor.samples import GpuSample

VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
"""Of NVIDIA, and of display controllers, in the PCI configuration space."""
BUSY_BYTES, BUSY_SHARE = 1 << 30, 0.05
"""Memory in use beyond both of these is somebody's work; a desktop and the driver itself take less."""
LARGEST_ERROR = 1e-5
"""The largest error of a weight, as a share of the mean change. float32 leaves some 1e-6; a wrong formula far more."""
CHOICE = "https://pytorch.org/get-started"
REINSTALL = "`python -m pip install --force-reinstall torch`"
REBUILD = "rebuild it: `python -m pip install --force-reinstall --no-deps --editable .` in the checkout"
WAKE = "check `sudo dmesg | grep -i -e nvrm -e xid`; reboot if `nvidia-smi` does not answer"
REMEDIES = {
    "no kernel image": f"this torch was not built for this GPU: {REINSTALL}, or another from {CHOICE}",
    "out of memory": "stop the GPU's processes (`nvidia-smi` lists them), or use another: `--set train.device=cuda:N`",
    "too old": f"update NVIDIA's driver, or install a torch for its CUDA (see the driver's line) from {CHOICE}",
    "system not yet initialized": "start the fabric manager: `sudo systemctl start nvidia-fabricmanager`",
}
"""The remedy for each of CUDA's messages, by some of its words."""


@dataclass(frozen=True)
class DriverReport:
    """The driver's report. `problem`: why there is none. `on_bus`: NVIDIA's GPUs that the PCI bus shows."""

    gpus: tuple[GpuSample, ...] = ()
    driver: str = "N/A"
    cuda: str = "N/A"
    problem: str = ""
    broken: bool = False
    """A driver is there and does not work."""
    on_bus: int = 0

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpus) or self.on_bus > 0 or self.broken


def ask_driver(devices: Path = Path("/sys/bus/pci/devices")) -> DriverReport:
    """Ask NVML for the GPUs and their processes. `devices`: where the kernel lists the PCI bus."""
    on_bus = sum(_is_nvidia_gpu(device) for device in devices.glob("*"))
    try:
        import pynvml
    except ImportError as error:
        return DriverReport(problem=f"pynvml cannot be imported ({error})", on_bus=on_bus)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return DriverReport(problem=str(error), broken=error.value not in absent, on_bus=on_bus)

    def answer(ask: Callable[[], Any]) -> Any:
        try:
            value = ask()
        except pynvml.NVMLError:
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    try:
        with GpuReader(pynvml) as reader:
            gpus = reader.read().gpus
        cuda = answer(pynvml.nvmlSystemGetCudaDriverVersion)  # 1000 * major + 10 * minor
        return DriverReport(
            gpus=gpus,
            driver=answer(pynvml.nvmlSystemGetDriverVersion) or "N/A",
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "N/A",
            on_bus=on_bus,
        )
    finally:
        answer(pynvml.nvmlShutdown)


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == VENDOR and kind.startswith(DISPLAY_CLASS)


def check_driver(context: Context) -> Iterator[Finding]:
    """Yield one line for the driver and one for each GPU."""
    report = context.driver()
    if report.problem and report.broken:
        yield failure(
            "driver",
            f"the NVIDIA driver does not answer: {report.problem}",
            "try `nvidia-smi`; after an update of the driver, reboot; in a container, restart it with `--gpus all`",
        )
    elif report.problem and report.on_bus:
        yield warning(
            "driver",
            f"{report.on_bus} NVIDIA card(s) on the bus, but {report.problem}: training runs on the CPU",
            "install NVIDIA's driver and `python -m pip install nvidia-ml-py` until `nvidia-smi` lists the card; "
            "start a container with `--gpus all`",
        )
    elif not report.gpus:
        yield ok("driver", "no NVIDIA GPU here: training runs on the CPU")
    else:
        yield ok("driver", f"NVIDIA {report.driver}, for CUDA up to {report.cuda}")
        yield from map(_gpu, report.gpus)


def _gpu(gpu: GpuSample) -> Finding:
    if gpu.fault:
        return failure("gpu", f"{gpu.index}: {gpu.fault}", WAKE)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    free = None if used is None or total is None else total - used
    finding = f"{gpu.index}: {gpu.name or 'N/A'}, {amount(free)} of {amount(total)} free"
    if gpu.processes:
        finding += f", used by {len(gpu.processes)} process{'es' if len(gpu.processes) > 1 else ''}"
    if used is None or total is None or used <= max(BUSY_BYTES, BUSY_SHARE * total):
        return ok("gpu", finding)
    remedy = (
        "stop those processes (`nvidia-smi` lists them), or train on another: `--set train.device=cuda:N`"
    )
    return warning("gpu", f"{finding}: {amount(used)} are taken", remedy)


def check_torch(context: Context) -> Iterator[Finding]:
    """Yield the line of torch: its version, what it was built for, and that it can be imported."""
    tried = context.trial("torch")
    if tried.problem:
        yield failure("torch", f"cannot be imported: {tried.problem}", REINSTALL)
        return
    build = _build(tried.values)
    finding = f"{tried.values['version']}, a {build} build"
    if build == "CPU" and context.driver().has_gpu:
        yield warning(
            "torch",
            f"{finding}, on a machine with an NVIDIA GPU: training runs on the CPU",
            f"install a CUDA build: {REINSTALL} takes one on Linux; {CHOICE} has those for other drivers",
        )
    else:
        yield ok("torch", finding)


def check_cuda(context: Context) -> Iterator[Finding]:
    """Yield a line for each device that torch sees: it computes, or why not."""
    torch, tried = context.trial("torch"), context.trial("cuda")
    if torch.problem:
        return
    if tried.problem:
        yield failure("cuda", f"torch did not get to use the GPU: {tried.problem}", WAKE)
        return
    for index, device in enumerate(tried.values["devices"]):
        name, problem = device["name"] or "N/A", device["problem"]
        if problem:
            finding = f"{index}: {name} does not compute: {one_line(problem)}"
            yield failure("cuda", finding, _remedy(problem))
        else:
            yield ok("cuda", f"{index}: {name} computes, {'with' if device['bf16'] else 'without'} bf16")
    if tried.values["devices"]:
        return
    if _build(torch.values) == "CPU":
        yield ok("cuda", "not tried: torch is a CPU build")
    elif not context.driver().has_gpu:
        yield ok("cuda", "torch sees no GPU: training runs on the CPU")
    else:
        reason = tried.values["reason"]
        finding, remedy = f"torch cannot use the GPU: {one_line(reason)}", _remedy(reason)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and remedy == WAKE:
            finding += f' (CUDA_VISIBLE_DEVICES is "{visible}")'
            remedy = "`unset CUDA_VISIBLE_DEVICES`, or let it name a GPU that is there"
        yield failure("cuda", finding, remedy)


def check_pinned_memory(context: Context) -> Iterator[Finding]:
    """Yield the line of host memory that the driver registers, as the engine asks it to."""
    if context.trial("torch").problem or context.trial("cuda").problem:
        return
    tried = context.trial("pinned memory")
    asked, registered = tried.values.get("asked", 0), tried.values.get("registered", 0)
    if tried.problem or registered < asked:
        yield warning(
            "pinned memory",
            f"could not be tried: {tried.problem}"
            if tried.problem
            else f"the driver registers {amount(registered)} of {amount(asked)}",
            "restart a container with `--ulimit memlock=-1 --ipc=host`, see that host memory is free, and look at "
            "`sudo dmesg`; until then copies go through small buffers",
        )
    elif asked:
        yield ok("pinned memory", f"the driver registers host memory ({amount(asked)} tried)")


def _build(values: Mapping[str, Any]) -> str:
    if values["cuda"]:
        return f"CUDA {values['cuda']}"
    return f"ROCm {values['hip']}" if values["hip"] else "CPU"


def _remedy(reason: str) -> str:
    return next((remedy for words, remedy in REMEDIES.items() if words in reason), WAKE)


def check_extension(context: Context) -> Iterator[Finding]:
    """Yield the lines of the native extension and of the instruction set that it takes."""
    if context.trial("torch").problem:
        yield ok("extension", "not tried, as torch cannot be imported")
        return
    tried = context.trial("extension")
    if "WORKBENCH_ISA" in tried.problem:
        remedy = "`unset WORKBENCH_ISA`: the best instructions are then taken"
        yield failure("extension", tried.problem, remedy)
    elif tried.problem:
        yield failure("extension", f"does not load or compute: {tried.problem}", REBUILD)
    elif missing := tried.values["missing"]:
        build = "`python -m pip install --editable .` in the checkout"
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            build = f"install a C compiler (`sudo apt install gcc python3-dev`), then {build}"
        finding = f"{missing.partition(';')[0]}: updates are slower, and state_format can only be exact"
        yield warning("extension", finding, f"build it: {build}")
    elif not tried.values["error"] <= LARGEST_ERROR:  # also where it is no number
        error = tried.values["error"]
        finding = f"a small update comes out wrong: by {error:.1e} of it, {LARGEST_ERROR:.0e} are allowed"
        yield failure("extension", finding, REBUILD)
    else:
        yield ok("extension", f"loads, and a small update is right (to {tried.values['error']:.0e} of it)")
        yield _instructions(tried.values["instruction_set"], tried.values["best"])


def _instructions(chosen: str, best: str) -> Finding:
    check = "instructions"
    if chosen != best:
        remedy = "`unset WORKBENCH_ISA` for the faster ones"
        return warning(check, f"{chosen}, by WORKBENCH_ISA; this CPU has {best}", remedy)
    if chosen != "scalar":
        return ok(check, chosen)
    if platform.machine() in ("x86_64", "AMD64"):
        finding = "scalar: this CPU has no AVX2; results are right, and updates slower"
        return warning(
            check, finding, "in a virtual machine, pass the host's CPU through (QEMU: `-cpu host`)"
        )
    finding = (
        f"scalar: there is no vector code for {platform.machine()}; results are right, and updates slower"
    )
    remedy = "put more of the state on the GPU: `--set offload.device_fraction=0.5`, as far as it fits"
    return warning(check, finding, remedy)
