"""Record a run as it goes: status with its heartbeat, phases, metrics, events, and the step line.

The trainer is the only writer. The status is written at every change, and every few seconds by a thread: a reader can
so tell a slow run from a dead one. Nothing of torch is imported: a process that was announced as a run's trainer shows
its progress before it imports that. Invariant: a run that had done all its steps stays finished until it trains again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.errors import EXIT_ERROR, WorkbenchError
from workbench.formatting import GIB, NOT_KNOWN, duration
from workbench.runs import (
    LaneSpan,
    MetricsWriter,
    RunDirectory,
    Status,
    append_event,
    read_events,
    read_status,
    write_lanes,
    write_status,
)
from workbench.runs.metrics import HOST_LANES
from workbench.timeline import Lane
from workbench.training.signals import StopBeforeTraining
from workbench.training.trackers import Trackers

if TYPE_CHECKING:
    from workbench.engine import Span, StepResult

STATUS_EVERY_S = 1.0
HEARTBEAT_S = 5.0


class Heartbeat:
    """Writes the status of `run`; as a context manager also from a thread. With `timed` it counts `elapsed_s` on."""

    def __init__(self, run: RunDirectory, status: Status, *, timed: bool = True) -> None:
        self.run = run
        self.stays_finished = _is_done(run)
        """True where all steps were done before, until training begins again."""
        self.written = 0.0
        """When the status was last written, on the monotonic clock."""
        self._status = status
        self._started = time.monotonic() - status.elapsed_s if timed else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)

    @property
    def status(self) -> Status:
        return self._status

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, *, durable: bool = False, write: bool = True, **changes: object) -> None:
        """Change the status and write it, unless `write` is False. Raises WorkbenchError where the disk refuses."""
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
            if write:
                self.written = time.monotonic()
                if self._started is not None:
                    self._status = replace(self._status, elapsed_s=self.written - self._started)
                write_status(self.run, self._status, durable=durable)

    def end(self, phase: str, exit_code: int, message: str) -> None:
        """Record how the run ended. Raises WorkbenchError where the disk refuses."""
        step = self._status.step
        if self.stays_finished:
            append_event(
                self.run, "warning", message=f"the run could not continue, and stays finished: {message}"
            )
            phase, exit_code, message = "finished", 0, f"{step} steps; it could not continue: {message}"
            self.update(write=False, total_steps=step)
        self.update(durable=True, phase=phase, exit_code=exit_code, message=message, progress="", eta_s=None)
        append_event(self.run, "finished", phase=phase, exit_code=exit_code, message=message, step=step)

    def _renew(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            # A full disk is met by the next real write, on the thread that can stop the run.
            with contextlib.suppress(WorkbenchError):
                self.update()


def _is_done(run: RunDirectory) -> bool:
    """Return True where the last session of `run` did all its steps. By its events: each start rewrites the status."""
    last = next((e for e in reversed(read_events(run).events) if e.kind in ("finished", "resume")), None)
    return last is not None and last.fields.get("phase") == "finished"


class StartupStatus:
    """The status of a run that was announced before its process came up, while the process prepares it.

    Whoever started the process watches the status and nothing else: it shows how far the preparation is, or how it
    failed. As a context manager around the preparation. `run` is None where nobody watches; nothing is written then.
    """

    def __init__(self, run: RunDirectory | None, report: Callable[[str], None]) -> None:
        self._report = report
        self._heartbeat = None if run is None else Heartbeat(run, read_status(run), timed=False)

    def report(self, message: str) -> None:
        """Report a message to the user, and show it as progress unless it is a warning."""
        self._report(message)
        if not message.startswith("warning:"):
            self.progress(message)

    def progress(self, message: str) -> None:
        """Show what is being done, in words."""
        if self._heartbeat:
            # A full disk is met by the training itself, which can say so.
            with contextlib.suppress(WorkbenchError):
                self._heartbeat.update(progress=message)

    def __enter__(self) -> StartupStatus:
        if self._heartbeat:
            self._heartbeat.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._heartbeat:
            return
        self._heartbeat.__exit__()
        if error is None:
            return
        phase = "stopped" if isinstance(error, StopBeforeTraining) else "failed"
        code, message = EXIT_ERROR, f"{type(error).__name__}: {error}"
        if isinstance(error, (StopBeforeTraining, WorkbenchError)):
            code, message = error.exit_code, str(error)
        with contextlib.suppress(WorkbenchError):
            self._heartbeat.end(phase, code, message)


@dataclass(frozen=True)
class StepRecord:
    """One step as it is recorded: counts in tokens, times in seconds, sizes in bytes; None is "not known"."""

    step: int
    total_steps: int
    loss: float
    tokens: int
    tokens_total: int
    step_s: float
    mfu: float | None
    device_bytes: tuple[int, int] | None
    host_bytes: int
    eta_s: float | None

    def line(self, result: StepResult) -> str:
        """Return the step line."""
        width = max(5, len(str(self.total_steps)))
        mfu = NOT_KNOWN if self.mfu is None else f"{100 * self.mfu:.1f}%"
        gpu = NOT_KNOWN
        if self.device_bytes is not None:
            used, total = self.device_bytes
            gpu = f"{used / GIB:.1f}/{total / GIB:.1f} GiB"
        parts = [
            f"step {self.step:0{width}}/{self.total_steps}",
            f"loss {self.loss:.4f}",
            f"gnorm {result.grad_norm:.2f}",
            f"lr {result.learning_rate:.1e}",
            f"{self.tokens / self.step_s:,.0f} tok/s",
            f"mfu {mfu}",
            f"gpu {gpu}",
            f"host {self.host_bytes / GIB:.1f} GiB",
            f"{self.step_s:.2f}s",
            f"eta {duration(self.eta_s)}",
            f"forward {result.forward_s:.2f}s backward {_backward_s(result):.2f}s "
            f"update {result.lane_seconds[Lane.UPDATE]:.2f}s",
        ]
        if result.loss_scale != 1:
            parts.append(f"loss scale {result.loss_scale:g}")
        return " | ".join(parts) + (" | skipped" if result.skipped else "")


class Journal:
    """Writes one run's directory. A full disk ends the run; it never leaves a half-written file behind."""

    def __init__(self, run: RunDirectory, total_steps: int, *, trackers: Sequence[str] = ()) -> None:
        before = read_status(run)
        self.run = run
        self.metrics = MetricsWriter(run.metrics)
        self.heartbeat = Heartbeat(
            run,
            Status(
                phase="starting",
                step=before.step,
                total_steps=total_steps,
                loss=before.loss,
                validation_loss=before.validation_loss,
                elapsed_s=before.elapsed_s,
            ),
        )
        self._trackers = Trackers(run, trackers, self.warn)
        self._loss_scale: float | None = None

    def __enter__(self) -> Journal:
        self.heartbeat.update(durable=True)
        self.heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.__exit__()
        self.metrics.close()
        self._trackers.close()

    def phase(self, phase: str, progress: str = "") -> None:
        """Enter a phase; a change of it is an event."""
        status = self.heartbeat.status
        if (phase, progress) == (status.phase, status.progress):
            return
        if phase != status.phase:
            append_event(self.run, "phase", phase=phase, step=status.step)
        self.heartbeat.update(durable=True, phase=phase, progress=progress)

    def progress(self, progress: str) -> None:
        """Set how far the present phase is, in words."""
        self.heartbeat.update(progress=progress)

    def begin_at(self, step: int) -> None:
        """Begin training after `step`."""
        self.heartbeat.stays_finished = False
        self.heartbeat.update(durable=True, step=step)
        self._trackers.begin()

    def step(self, record: StepRecord, result: StepResult, validation_loss: float | None) -> None:
        """Record a finished step."""
        values: dict[str, float | None] = {
            "step": record.step,
            "time": time.time(),
            "loss": record.loss,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "tokens": record.tokens,
            "tokens_total": record.tokens_total,
            "step_s": record.step_s,
            "tokens_per_s": record.tokens / record.step_s,
            "mfu": record.mfu,
            "device_bytes": None if record.device_bytes is None else record.device_bytes[0],
            "host_bytes": record.host_bytes,
            "validation_loss": validation_loss,
            "skipped": float(result.skipped),
            "loss_scale": result.loss_scale,
            "update_threads": result.update_threads,
            "speculated": result.speculation.speculated,
            "undone": result.speculation.undone,
            "undo_s": result.speculation.seconds,
            **_lane_metrics(result),
        }
        self.metrics.append(**values)
        scale = result.loss_scale
        if self._loss_scale is not None and scale != self._loss_scale:
            self.event("loss_scale", step=record.step, scale=scale)
        self._loss_scale = scale
        # Steps that overflow are a part of the search for a scale.
        if result.skipped and not result.scale_can_fall:
            self.warn(f"step {record.step} was skipped: its gradients are not finite")
        last = record.step == record.total_steps
        due = last or time.monotonic() - self.heartbeat.written >= STATUS_EVERY_S
        self.heartbeat.update(
            write=due,
            step=record.step,
            loss=record.loss,
            tokens_per_s=record.tokens / record.step_s,
            eta_s=record.eta_s,
        )
        if due:
            write_lanes(self.run, record.step, _lane_spans(result.spans))

    def evaluation(self, step: int, loss: float, perplexity: float, seconds: float) -> None:
        """Record a validation loss, nats a token."""
        append_event(self.run, "evaluation", step=step, loss=loss, perplexity=perplexity, seconds=seconds)
        self.heartbeat.update(validation_loss=loss)

    def event(self, kind: str, **fields: object) -> None:
        append_event(self.run, kind, **fields)

    def warn(self, message: str) -> None:
        """Print a warning on stderr, and keep it as an event."""
        print(f"workbench: warning: {message}", file=sys.stderr, flush=True)
        append_event(self.run, "warning", message=message)

    def end(self, phase: str, exit_code: int, message: str) -> None:
        """Record how the run ended. Never raises: the error that ended it is the one to report."""
        try:
            self.heartbeat.end(phase, exit_code, message)
        except WorkbenchError as error:
            print(
                f"workbench: warning: the end of the run is not recorded: {error}",
                file=sys.stderr,
                flush=True,
            )


def _backward_s(result: StepResult) -> float:
    """Return the seconds of the step's backwards, of recomputed forwards too."""
    return max(0.0, result.lane_seconds[Lane.COMPUTE] - result.forward_s)


def _lane_metrics(result: StepResult) -> dict[str, float]:
    """Return busy and exposed seconds of every lane, by the names of their columns."""
    busy = {lane.value: seconds for lane, seconds in result.lane_seconds.items()}
    waited = {lane.value: seconds for lane, seconds in result.exposed_seconds.items()}
    metrics = {"compute_s": busy["compute"], "exposed_s": result.exposed_s}
    metrics |= {"forward_s": result.forward_s, "backward_s": _backward_s(result)}
    for lane in HOST_LANES:
        metrics[f"{lane}_s"] = busy[lane]
        metrics[f"{lane}_exposed_s"] = waited[lane]
    return metrics


def _lane_spans(spans: tuple[Span, ...]) -> list[LaneSpan]:
    begin = min((span.start_s for span in spans), default=0.0)
    return [
        LaneSpan(
            span.lane.value,
            span.kind.value,
            -1 if span.unit is None else span.unit,
            -1 if span.chunk is None else span.chunk,
            span.start_s - begin,
            span.stop_s - begin,
        )
        for span in spans
    ]
