"""Starting `python -m workbench run` on a tiny model, watching its run directory, and ending it for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.runs import Event, RunDirectory, read_events, read_run_metrics, read_status

PATIENCE_S = 120.0
"""How long anything may take that takes a second on an idle machine."""

MODEL = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 257}
TABLES: dict[str, dict[str, Any]] = {
    "data": {"sequence_length": 32, "validation_fraction": 0.05},
    "train": {"device": '"cpu"', "steps": 20, "micro_batch_size": 2, "activation_checkpointing": "false"},
    "schedule": {"warmup_steps": 0},
    "evaluate": {"every": 0, "tokens": 256},
    "sample": {"tokens": 5},
    "checkpoint": {"every": 0, "keep": 2},
}


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Poll until `condition` holds; its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.01)
    return value


def preset(text: Path, model: dict[str, Any] | None = None) -> str:
    """A preset of the tiny model on the text in `text`."""
    lines = ['[model]\narchitecture = "gpt2"\n[model.config]']
    lines += [f"{key} = {value}" for key, value in {**MODEL, **(model or {})}.items()]
    for table, values in TABLES.items():
        lines += [f"[{table}]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines).replace("[data]", f'[data]\nsource = "{text}"') + "\n"


def losses(run: RunDirectory) -> dict[int, bytes]:
    """The loss of every step that stands, as the bits of its float64."""
    metrics = read_run_metrics(run)
    assert not metrics.problem
    steps = [int(step) for step in metrics.column("step")]
    assert steps == sorted(set(steps))
    return dict(zip(steps, (struct.pack("<d", loss) for loss in metrics.column("loss")), strict=True))


def events(run: RunDirectory, kind: str) -> list[Event]:
    found = read_events(run)
    assert not found.problems
    return [event for event in found.events if event.kind == kind]


class Trainers:
    """Starts commands in `folder` and remembers their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = folder / "text.txt"
        self.runs = folder / "runs"
        self._started: list[subprocess.Popen[str]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")},
            "OMP_NUM_THREADS": "1",
            "WORKBENCH_CACHE": os.environ["WORKBENCH_CACHE"],  # the tiny model is measured once for all tests
            "WORKBENCH_RUNS": str(self.runs),
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(folder),
        }

    def preset(self, name: str, text: str | None = None) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(preset(self.text) if text is None else text)
        return path

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """`workbench` with `words`, its output in pipes unless `options` say otherwise."""
        return self.start_python("-m", "workbench", *words, **options)

    def start_python(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """The same for Python itself."""
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "cwd": self.folder,
            "env": self.environment,
            **options,
        }
        process = subprocess.Popen([sys.executable, *map(str, words)], **settings)
        self._started.append(process)
        return process

    def call(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """The same, waited for."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def train(self, name: str, *changes: str, text: str | None = None, words: Sequence[object] = ()) -> Any:
        """Begin a run of the tiny preset, quietly; (process, run directory) once it has a folder."""
        path = self.preset(name, text)
        sets = [word for change in changes for word in ("--set", change)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = self.start("run", path, *sets, *words, **quiet)
        run = wait_for(lambda: self.run_of(name) or process.poll() is not None, "a run directory")
        assert isinstance(run, RunDirectory), f"the trainer ended with {process.returncode}"
        return process, run

    def run_of(self, name: str) -> RunDirectory | None:
        """The newest run of the preset `name`, once its configuration is there."""
        runs = [run for run in RunDirectory.list(self.runs) if run.is_of_preset(name) and run.config.exists()]
        return runs[-1] if runs else None

    def end(self) -> None:
        """Kill whatever still runs of what was started here, detached trainers included."""
        pids = [process.pid for process in self._started if process.poll() is None]
        for run in RunDirectory.list(self.runs):
            pid = read_status(run).pid
            if pid and self._is_ours(pid):
                pids.append(pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()

    def _is_ours(self, pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.folder).encode() in command


def at_step(run: RunDirectory, step: int) -> Callable[[], bool]:
    """Whether the run has recorded this step or a later one."""
    return lambda: read_run_metrics(run).last().get("step", 0) >= step


def in_phase(run: RunDirectory, phase: str) -> Callable[[], bool]:
    return lambda: read_status(run).phase == phase


def exit_code(process: subprocess.Popen[str]) -> int:
    return process.wait(timeout=PATIENCE_S)
