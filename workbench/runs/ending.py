"""How a run stands or ended, where its model is, and the commands that come next: for the command line and the screen.

Nothing here raises; what cannot be read is left out.
"""

from __future__ import annotations

import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.formatting import decimal_bytes
from workbench.runs.checkpoints import MARGIN_BYTES, SavedStep, newest_checkpoint
from workbench.runs.directory import RunDirectory
from workbench.runs.status import ACTIVE, Status, liveness, read_status
from workbench.system.folders import runs_root
from workbench.system.oom_kills import oom_kills

_WORDS = {"stopped": "was stopped", "failed": "has failed", "unknown": "has an unknown state"}


@dataclass(frozen=True)
class Ending:
    """The lines to print about a run when its training, or the screen that shows it, ends."""

    sentence: str
    model: Path | None
    """The folder of the newest checkpoint, which `from_pretrained` loads; None where none was saved."""
    commands: tuple[str, ...]
    """Three command lines, the likeliest first."""

    def lines(self, *, sentence: bool = True) -> list[str]:
        """Return all of it, a line each."""
        first = [self.sentence] if sentence else []
        model = f"model: {self.model}" if self.model else "model: no checkpoint was saved"
        return [*first, model, "next:", *(f"  {command}" for command in self.commands)]


def ending(run: RunDirectory, *, over: bool = False) -> Ending:
    """Return the present state or the end of `run`. `over`: it has ended, also where a full disk did not take that."""
    status = read_status(run)
    state = liveness(status)
    if over and state in ACTIVE:
        state = "failed"
    saved = newest_checkpoint(run.checkpoints)
    name = _word(run)
    sample, export = f'workbench sample {name} --prompt "Once upon"', f"workbench export {name} DIR"
    log, resume = f"workbench log {name}", f"workbench resume {name}"
    if state in ACTIVE:
        commands = (f"workbench attach {name}", f"{log} -f", f"workbench stop {name}")
    elif state == "finished":
        commands = (sample, export, f"{resume} --set train.steps={2 * max(1, status.total_steps)}")
    elif saved is None:
        commands = (log, resume, f"workbench rm {name}")
    elif state == "stopped":
        commands = (resume, sample, export)
    elif lacking := _lacking_room(run, saved):
        commands = (f"{resume}  # {lacking}", log, sample)
    else:
        commands = (log, resume, sample)
    return Ending(_sentence(run, status, state), None if saved is None else saved.path, commands)


def _lacking_room(run: RunDirectory, saved: SavedStep) -> str:
    """Return what to do first where the disk has no room for one more checkpoint like `saved`; empty where it has."""
    try:
        files = sum(file.stat().st_size for file in saved.path.rglob("*") if file.is_file())
        free = shutil.disk_usage(run.path).free
    except OSError:
        return ""
    needed = files + MARGIN_BYTES
    if free >= needed:
        return ""
    return f"make room first: {decimal_bytes(free)} are free, a save needs {decimal_bytes(needed)}"


def _sentence(run: RunDirectory, status: Status, state: str) -> str:
    if state == "died":
        return f"run {run.name} died at step {status.step:,} of {status.total_steps:,}: {death(run, status)}"
    if state == "finished":
        loss = "" if status.validation_loss is None else f", validation loss {status.validation_loss:.4f}"
        return f"run {run.name} has finished: {status.step:,} steps{loss}"
    where = f" at step {status.step:,} of {status.total_steps:,}" if status.total_steps else ""
    why = f": {status.message.splitlines()[0]}" if status.message else ""
    return f"run {run.name} {_WORDS.get(state, f'is {state}')}{where}{why}"


def death(run: RunDirectory, status: Status) -> str:
    """Return why the process of a run is gone, as far as it can be known, and what resuming does, in a sentence."""
    return f"{status.message or cause_of_death(status)}; {_what_resuming_does(run, status)}"


def cause_of_death(status: Status) -> str:
    """Return what ended a process that could not record its end: a clause."""
    code = status.exit_code
    how = f"its process {status.pid} is gone"
    if code is not None and code > 128:
        how = f"its process was ended by {_signal_name(code - 128)}"
    elif code is not None:
        return f"its process ended with exit code {code}; its log has the last messages"
    now = oom_kills(Path(status.cgroup)) if status.cgroup else None
    if now is None or status.oom_kills is None:
        return how + (
            "; usually the system does this when memory runs out" if code == 128 + signal.SIGKILL else ""
        )
    killed = now - status.oom_kills
    if killed > 0:
        return f"{how}: memory ran out, and the system killed {killed} {'process' if killed == 1 else 'processes'}"
    return how + ("; not for lack of memory in its cgroup" if code == 128 + signal.SIGKILL else "")


def _what_resuming_does(run: RunDirectory, status: Status) -> str:
    saved = newest_checkpoint(run.checkpoints)
    if saved is None:
        return "no checkpoint was saved yet, so `workbench resume` starts again at the first step"
    lost = status.step - saved.step
    again = f", {lost:,} {'step is' if lost == 1 else 'steps are'} done again" if lost > 0 else ""
    return f"`workbench resume` continues from its last checkpoint, step {saved.step:,}{again}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _word(run: RunDirectory) -> str:
    """Return the run as it is named on a command line: by its folder where its name alone would not be found."""
    try:
        found = run.path.parent.absolute() == runs_root(None).absolute()
    except WorkbenchError:
        found = False
    return run.name if found else shlex.quote(str(run.path.absolute()))
