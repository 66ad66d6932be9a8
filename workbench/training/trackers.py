"""Trackers follow a run: a thread reads the metrics that the run directory has got, and hands them on.

The trainer only writes its own files. What a tracker does not take is warned of once and never ends or delays a run:
it is in `metrics.bin`, from which the next session fills the tracker again.

Invariant: a tracker has each step once, in order, and none that the run directory does not have.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory, read_events
from workbench.runs.metrics import MetricsReader
from workbench.system.foreign import parse_toml
from workbench.training.tracker_writers import WRITERS, TrackerWriter

EVERY_S = 1.0
MOST_AT_ONCE = 200
"""Steps between two looks at whether the run has ended: a long run's first steps are handed on beside the training."""
END_S = 30.0
"""The longest that a run which has ended waits for a tracker: by then that has to write the last second."""


def check_trackers(config: RunConfig) -> None:
    """Raise ConfigurationError where a tracker is asked for that is not installed."""
    for name in config.log.tracker:
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(
                f'log.tracker: {name} is not installed; pip install "workbench[{name}]", or leave it out'
            )


class Trackers:
    """The trackers `names` of one run; `warn` gets a message when one of them fails."""

    def __init__(self, run: RunDirectory, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._run = run
        self._names = names
        self._warn = warn
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._left: set[str] = set()
        """Trackers that the end of the run has not waited for."""

    def begin(self) -> None:
        """Begin to follow the run, whose records of steps that are done again have been removed."""
        for name in self._names:
            thread = threading.Thread(target=self._follow, args=(name,), name=f"tracker {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Hand the last steps on, for at most `END_S` in all."""
        self._ended.set()
        for thread, name in zip(self._threads, self._names, strict=False):
            thread.join(END_S)
            if thread.is_alive():
                self._left.add(name)
                self._warn(f"{name} has not taken all steps yet; {self._where()} has them")

    def _follow(self, name: str) -> None:
        writer: TrackerWriter = WRITERS[name]()
        try:
            config = parse_toml(self._run.config.read_text(encoding="utf-8"))
            steps = self._steps(writer.open(self._run, config))
            while not self._ended.is_set():
                for _, step in zip(range(MOST_AT_ONCE), steps, strict=False):
                    if step is None:
                        break
                    writer.write(*step)
                writer.flush()
                self._ended.wait(EVERY_S)
            for step in steps:
                if step is None:
                    break
                writer.write(*step)
            writer.close()
        except Exception as error:
            if name in self._left:  # the run's directory is no longer ours
                return
            reason = getattr(error, "strerror", None) or error
            self._warn(f"{name} no longer follows the run: {reason}; {self._where()} has all steps")

    def _where(self) -> str:
        return f"{self._run.metrics}"

    def _steps(self, after: int) -> Iterator[tuple[int, float, dict[str, float]] | None]:
        """Yield (step, unix seconds, values) of each step after `after`; None where there is no further one now."""
        reader, evaluations = MetricsReader(self._run), _Evaluations(self._run)
        while True:
            found = reader.read(MOST_AT_ONCE)
            by_step = evaluations.by_step()  # after the metrics: a step's evaluations are recorded before it
            for record in found.values.tolist():
                values = {
                    column.name: value
                    for column, value in zip(found.columns, record, strict=True)
                    if not math.isnan(value)
                }
                step, time_s = int(values.pop("step")), values.pop("time", 0.0)
                if step > after:
                    loss = values.pop("validation_loss", None)
                    if loss is not None:
                        values["evaluation/loss"] = loss
                        values["evaluation/perplexity"] = math.exp(loss) if loss < 700 else math.inf
                    yield step, time_s, values | by_step.get(step, {})
            if not len(found):
                yield None


class _Evaluations:
    """The losses on `evaluate.sources`, which are events and no metrics."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offset = 0
        self._found: dict[int, dict[str, float]] = {}

    def by_step(self) -> Mapping[int, dict[str, float]]:
        """Return the losses of each step by "evaluation/name"; of a step that was done twice, the later ones."""
        read = read_events(self._run, self._offset)
        self._offset = read.offset
        for event in read.events:
            if event.kind == "evaluation_of":
                fields: Any = event.fields
                self._found.setdefault(int(fields["step"]), {})[f"evaluation/{fields['name']}"] = float(
                    fields["loss"]
                )
        return self._found
