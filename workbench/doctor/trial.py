"""Trials that need torch, in a helper process: a broken driver may hang or kill that process and no other.

Each stage writes one line of JSON when it begins and one when it ends, so that results before a crash survive and the
crash has a place. Only the stages import torch. `TrialProcess` is the parent's side: the process has a time limit, and
is never waited for without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO

from workbench.doctor.findings import Outcome, one_line
from workbench.system.child_process import package_environment

LIMIT_S = 90.0
"""The limit from the start; torch from a slow disk on a server of eight GPUs takes most of a minute."""
KILLED_S = 2.0
"""The wait for a killed process: one that hangs in a driver cannot be killed, and is left."""
GATE_S = 10.0
"""The longest wait of the CUDA stages until the parent has counted the processes on the GPU."""
ELEMENTS = 65536 + 37
STEPS = 3
PINNED_BYTES = 64 << 20
MATRIX = 64


def main(descriptor: int, limit_s: int) -> None:
    """Run the stages and write their lines to `descriptor`; end after `limit_s`, also where the parent is gone."""
    signal.alarm(limit_s)
    # Libraries print to stdout; the answers have a descriptor of their own.
    os.dup2(2, 1)
    with open(descriptor, "w", encoding="utf-8", buffering=1) as answers:
        for name, stage in STAGES.items():
            print(json.dumps({"stage": name}), file=answers)
            try:
                line: dict[str, Any] = {"stage": name, "values": stage()}
            except Exception as error:
                line = {"stage": name, "problem": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), file=answers)


def load_extension() -> dict[str, Any]:
    """Load the native extension, without torch. `missing`: why it does not load, or None."""
    from workbench.optimizer import missing_extension

    return {"missing": missing_extension()}


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

    `error`: the largest difference of a weight, as a share of how far the weights moved on the average.
    """
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
    return {
        "instruction_set": chosen,
        "best": choose_instruction_set(),
        "error": float(error),
    }


def try_cuda() -> dict[str, Any]:
    """Run a small matrix product on every device that torch sees; `devices` holds a `problem` or None for each."""
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


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "extension": load_extension,
    "torch": import_torch,
    "update": update,
    "cuda": try_cuda,
    "pinned memory": pin_memory,
}
"""In rising order of the risk that one ends the process."""


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


class TrialProcess:
    """The process; outcomes may be asked for by several threads. It ends with the `with` block.

    `program`: Python that is given a descriptor for its answers and a number of seconds. Where it cannot be started,
    every outcome says so.
    """

    def __init__(self, program: str | None = None, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._ends = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._outcomes: dict[str, Outcome] | None = None
        self._ending = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._files = contextlib.ExitStack()
        try:
            self._answers = self._in_memory("answers")
            self._errors = self._in_memory("errors")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *(("-c", program) if program else ("-m", "workbench.doctor.trial")),
                    str(self._answers.fileno()),
                    str(int(limit_s) + 5),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[self._answers.fileno()],
                env=package_environment(),
            )
        except OSError as error:
            self._outcomes = {}
            self._ending = f"could not be started ({error.strerror or error})"

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._files.close()

    def use_gpu(self) -> None:
        """Let the process go on to CUDA: the processes on the GPU have been counted."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def outcome(self, stage: str) -> Outcome:
        """Return the outcome of `stage`; waits until the process ends or its time is up."""
        with self._lock:
            if self._outcomes is None:
                self._ending = self._wait()
                self._outcomes = self._read()
        return self._outcomes.get(stage, Outcome(problem=self._died(), reached=False))

    def _in_memory(self, name: str) -> BinaryIO:
        """A file that is never full, and needs no folder that can be written."""
        return self._files.enter_context(
            os.fdopen(os.memfd_create(f"workbench-doctor-{name}"), "w+b", buffering=0)
        )

    def _wait(self) -> str:
        """Wait for the end; return how it ended, as a predicate ("ended with code 3")."""
        assert self._process is not None
        try:
            code = self._process.wait(max(0.0, self._ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._end()
            return f"gave no answer within {self._limit_s:.0f} s"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}{self._last_words()}"
        return f"ended with code {code}{self._last_words()}"

    def _end(self) -> None:
        self.use_gpu()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)

    def _read(self) -> dict[str, Outcome]:
        outcomes = {}
        for line in _text(self._answers).splitlines():
            try:
                answer: dict[str, Any] = json.loads(line)
            except ValueError:  # cut off in the middle
                continue
            if "values" in answer:
                outcomes[answer["stage"]] = Outcome(values=answer["values"])
            else:
                outcomes[answer["stage"]] = Outcome(problem=one_line(answer.get("problem", self._died())))
        return outcomes

    def _died(self) -> str:
        return f"the helper process {self._ending}"

    def _last_words(self) -> str:
        lines = [line for line in _text(self._errors).splitlines() if line.strip()]
        return f" ({one_line(lines[-1], 120)})" if lines else ""


def _text(file: BinaryIO) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", errors="replace")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
