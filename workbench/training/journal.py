"""Record a run as it goes: status with its heartbeat, phases, metrics, events, and the step line.

The trainer is the only writer.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from workbench.engine import Span, StepResult
from workbench.errors import WorkbenchError
from workbench.formatting import GIB, NOT_KNOWN, duration
from workbench.runs import (
    LaneSpan,
    MetricsWriter,
    RunDirectory,
    Status,
    append_event,
    read_status,
    write_lanes,
)
from workbench.runs.metrics import HOST_LANES
from workbench.training.heartbeat import Heartbeat
from workbench.training.tensorboard import FOLDER, TensorBoard

STATUS_EVERY_S = 1.0


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
        ]
        return " | ".join(parts) + (" | skipped" if result.skipped else "")


class Journal:
    """Writes one run's directory. A full disk ends the run; it never leaves a half-written file behind."""

    def __init__(self, run: RunDirectory, total_steps: int, *, tensorboard: bool = False) -> None:
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
        self._board = TensorBoard(run.path / FOLDER, self.warn) if tensorboard else None
        self._loss_scale: float | None = None

    def __enter__(self) -> Journal:
        self.heartbeat.update(durable=True)
        self.heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.__exit__()
        self.metrics.close()
        if self._board is not None:
            self._board.close()

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
        if self._board is not None:
            self._board.open(step)

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
            **_lane_metrics(result),
        }
        self.metrics.append(**values)
        if self._board is not None:
            self._board.step({name: value for name, value in values.items() if value is not None})
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
        if self._board is not None:
            self._board.evaluation(step, loss, perplexity)

    def event(self, kind: str, **fields: object) -> None:
        append_event(self.run, kind, **fields)
        if kind == "checkpoint" and self._board is not None:
            self._board.flush()

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


def _lane_metrics(result: StepResult) -> dict[str, float]:
    """Return busy and exposed seconds of every lane, by the names of their columns."""
    busy = {lane.value: seconds for lane, seconds in result.lane_seconds.items()}
    waited = {lane.value: seconds for lane, seconds in result.exposed_seconds.items()}
    metrics = {"compute_s": busy["compute"], "exposed_s": result.exposed_s}
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
