"""Trials that need torch, in a helper process: a broken driver may hang or kill that process and no other.

Only the stages import torch. `Trial` is the parent's side: it asks for one stage after the other within a time limit;
a process that dies in a stage is replaced for the next one.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from workbench.doctor import Outcome, one_line
from workbench.errors import WorkbenchError
from workbench.system.child_process import CancelledError, ChildProcess, Report, module_arguments, serve

LIMIT_S = 90.0
"""For all stages; torch from a slow disk on a server of eight GPUs takes most of a minute."""
ELEMENTS = 65536 + 37
STEPS = 3
PINNED_BYTES = 64 << 20
MATRIX = 64


class Trial:
    """The helper process, started by the first stage that is asked for. It ends with the `with` block."""

    def __init__(self, *arguments: str, limit_s: float = LIMIT_S) -> None:
        """`arguments`: another program to ask, as Python's own arguments."""
        self._child = ChildProcess(*(arguments or module_arguments("workbench.doctor.trial")))
        self._limit_s = limit_s
        self._late = threading.Event()
        self._timer = threading.Timer(limit_s, self._late.set)
        self._timer.daemon = True
        self._outcomes: dict[str, Outcome] = {}

    def __enter__(self) -> Trial:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._child.stop()

    def outcome(self, stage: str) -> Outcome:
        """Return the outcome of `stage`; waits for it, until all time is used up."""
        if stage not in self._outcomes:
            try:
                found = Outcome(self._child.ask({"stage": stage}, cancelled=self._late))
            except CancelledError:
                found = Outcome(problem=f"no answer within {self._limit_s:g} s")
            except WorkbenchError as error:
                found = Outcome(problem=one_line(str(error)))
            self._outcomes[stage] = found
        return self._outcomes[stage]


# In the helper process


def import_torch() -> dict[str, Any]:
    """Return the toolkit that torch was built for, and the threads that it takes in this environment."""
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
    }


def update() -> dict[str, Any]:
    """Run a few native updates of a small parameter beside the same in float64.

    `missing`: why the extension does not load, or None. `error`: the largest difference of a weight, as a share of how
    far the weights moved on the average.
    """
    from workbench.optimizer import missing_extension

    missing = missing_extension()
    if missing is not None:
        return {"missing": missing}
    import torch

    from workbench.optimizer import AdamW
    from workbench.optimizer.host import HostOptimizer, Piece, PieceTable, choose_instruction_set
    from workbench.optimizer.reference import ReferenceParameter

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
    best = choose_instruction_set()
    return {"missing": None, "instruction_set": chosen, "best": best, "error": float(error)}


def try_cuda() -> dict[str, Any]:
    """Run a small matrix product on every device that torch sees; `devices` holds a `problem` or None for each."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return {"reason": "torch is a CPU build", "devices": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return {"reason": _why_not([str(each.message) for each in caught]), "devices": []}
    return {"reason": None, "devices": [_try_device(index) for index in range(torch.cuda.device_count())]}


def pin_memory() -> dict[str, Any]:
    """Register host memory as the engine does: `registered` of `asked` bytes; 0 are asked for without a device."""
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


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": import_torch,
    "extension": update,
    "cuda": try_cuda,
    "pinned memory": pin_memory,
}


def _answer(question: Mapping[str, Any], report: Report) -> dict[str, Any]:
    return STAGES[question["stage"]]()


if __name__ == "__main__":
    serve(_answer)
