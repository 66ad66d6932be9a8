"""What only a process with torch can tell, tried in a helper process: a broken driver may hang or kill it, and no more.

Each stage is told as one line of JSON when it begins and one when it ends, so that what was learnt before a crash is
not lost, and the crash has a place. torch is imported by the stages alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

GATE_S = 10.0
"""So long the CUDA stages wait for the parent to have counted what uses the GPU before they do."""
ELEMENTS = 65536 + 37
STEPS = 3
PINNED_BYTES = 64 << 20
MATRIX = 64


def main(descriptor: int, limit_s: int) -> None:
    """Go through the stages, telling of them on `descriptor`; end after `limit_s`, also where the parent is gone."""
    signal.alarm(limit_s)
    # What libraries print is no answer.
    os.dup2(2, 1)
    with open(descriptor, "w", encoding="utf-8", buffering=1) as answers:
        for name, stage in STAGES.items():
            print(json.dumps({"stage": name}), file=answers)
            try:
                told: dict[str, Any] = {"stage": name, "values": stage()}
            except Exception as error:
                told = {"stage": name, "problem": f"{type(error).__name__}: {error}"}
            print(json.dumps(told), file=answers)


def load_extension() -> dict[str, Any]:
    """Without torch: `missing` says why the native extension does not load, or is None."""
    from workbench.optimizer.extension import missing_extension

    return {"missing": missing_extension()}


def import_torch() -> dict[str, Any]:
    """What torch was built for, and the threads that it takes in this environment."""
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
    }


def update() -> dict[str, Any]:
    """A few native updates of a small parameter beside the same in float64.

    `error`: the largest difference of a weight, as a share of how far the weights moved on the average.
    """
    import torch

    from workbench.optimizer.host import HostOptimizer, Piece, PieceTable, choose_instruction_set
    from workbench.optimizer.reference import ReferenceParameter
    from workbench.optimizer.settings import AdamW

    generator = torch.Generator().manual_seed(1234)
    # Small weights: their rounding in float32 is then far below what an update moves them.
    before = torch.randn(ELEMENTS, generator=generator) * 1e-3
    master = before.clone()
    table = PieceTable([Piece(torch.zeros(ELEMENTS), torch.zeros(ELEMENTS), master=master)])
    truth = ReferenceParameter.fresh(before.double())
    settings = AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    with HostOptimizer(threads=2) as optimizer:
        for step in range(1, STEPS + 1):
            gradient = torch.randn(ELEMENTS, generator=generator)
            table.set_gradient(0, gradient)
            table.set_step(0, step)
            optimizer.update(table, settings, 0.5)
            truth.update(gradient.double(), settings, 0.5)
        chosen = optimizer.instruction_set
    moved = (truth.parameter - before.double()).abs().mean()
    error = (truth.parameter - master.double()).abs().max() / moved
    return {
        "instruction_set": chosen,
        "best": choose_instruction_set(),
        "error": float(error),
    }


def try_cuda() -> dict[str, Any]:
    """A small matrix product on every device that torch sees; `devices` holds a `problem` or None for each."""
    select.select([sys.stdin], [], [], GATE_S)
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return {"reason": "torch is a CPU build", "devices": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return {"reason": _why_not([str(each.message) for each in caught]), "devices": []}
    return {"reason": None, "devices": [_try_device(index) for index in range(torch.cuda.device_count())]}


def pin_memory() -> dict[str, Any]:
    """As the engine does it: how much of `asked` bytes the driver registers; 0 are asked for without a device."""
    import torch

    from workbench.engine.devices.pinned import HostMemory

    if (torch.version.cuda is None and torch.version.hip is None) or not torch.cuda.is_available():
        return {"asked": 0, "registered": 0}
    torch.zeros(1, device="cuda")
    memory = HostMemory(torch.cuda.cudart(), lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.allocate(PINNED_BYTES)
    registered = memory.registered_bytes
    memory.close()
    return {"asked": PINNED_BYTES, "registered": registered}


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "extension": load_extension,
    "torch": import_torch,
    "update": update,
    "cuda": try_cuda,
    "pinned memory": pin_memory,
}
"""In the order of how likely they are to be the process's last."""


def _why_not(warned: list[str]) -> str:
    import torch

    try:
        torch.cuda.init()
    except Exception as error:
        return str(error)
    return warned[0] if warned else "torch sees no device"


def _try_device(index: int) -> dict[str, Any]:
    import torch

    device: dict[str, Any] = {"name": None, "bf16": None, "problem": None}
    try:
        device["name"] = torch.cuda.get_device_name(index)
        # Small whole numbers: the product is exact in every mode of multiplication.
        generator = torch.Generator().manual_seed(1234)
        one, other = torch.randint(0, 8, (2, MATRIX, MATRIX), generator=generator).float()
        product = (one.to(f"cuda:{index}") @ other.to(f"cuda:{index}")).cpu()
        if not torch.equal(product, one @ other):
            device["problem"] = "a small matrix product comes out wrong"
        with torch.cuda.device(index):
            device["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    except Exception as error:
        device["problem"] = f"{type(error).__name__}: {error}"
    return device


def source() -> str:
    """The program of the helper process. It finds modules where this process does, whatever folder it is started in."""
    return (
        "import sys\n"
        f"sys.path[:] = {[path or str(Path.cwd()) for path in sys.path]!r}\n"
        "from workbench.doctor.trial import main\n"
        "main(int(sys.argv[1]), int(sys.argv[2]))\n"
    )
