"""A run's metrics as TensorBoard reads them: every column, its unit, each step once however often the run went on."""

from __future__ import annotations

from typing import Any

import pytest
from test_journal import record, result

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.runs import METRIC_COLUMNS, MetricsWriter, RunDirectory, read_events, read_run_metrics
from workbench.training import tensorboard
from workbench.training.journal import Journal
from workbench.training.tensorboard import check_tensorboard, tag

pytest.importorskip("tensorboard")


def write(run: RunDirectory, first: int, last: int, loss: float) -> None:
    """A session that trains the steps `first` to `last`."""
    with Journal(run, 100, tensorboard=True) as journal:
        journal.begin_at(first - 1)
        for step in range(first, last + 1):
            journal.step(record(step=step, loss=loss), result(), 2.5 if step % 2 == 0 else None)
            if step % 2 == 0:
                journal.evaluation(step, 2.5, 12.2, 0.1)


def scalars(run: RunDirectory) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


def test_every_column_is_there_with_its_unit_and_evaluations_too(run: RunDirectory) -> None:
    write(run, 1, 4, loss=3.5)
    found = scalars(run)
    expected = {tag(c.name, c.unit) for c in METRIC_COLUMNS} - {
        tag("step", "steps"),
        tag("time", "unix s"),
        tag("validation_loss", "nats/token"),
    }
    assert set(found) == expected | {"evaluation/loss (nats per token)", "evaluation/perplexity"}
    assert {
        "training/loss (nats per token)",
        "training/grad_norm",
        "training/device_bytes (B)",
        "lanes/update_exposed_s (s)",
        "lanes/compute_s (s)",
    } < set(found)
    losses = found["training/loss (nats per token)"]
    assert [(event.step, event.value) for event in losses] == [(step, 3.5) for step in range(1, 5)]
    times = read_run_metrics(run).column("time")
    assert [event.wall_time for event in losses] == list(times)
    assert [(e.step, e.value) for e in found["evaluation/loss (nats per token)"]] == [(2, 2.5), (4, 2.5)]


def test_steps_that_are_done_again_are_there_once_and_the_others_stay(run: RunDirectory) -> None:
    write(run, 1, 6, loss=3.5)
    with MetricsWriter(run.metrics) as metrics:
        metrics.truncate(4)
    write(run, 4, 8, loss=3.0)
    losses = scalars(run)["training/loss (nats per token)"]
    assert [(event.step, event.value) for event in losses] == [
        *((step, 3.5) for step in range(1, 4)),
        *((step, 3.0) for step in range(4, 9)),
    ]


def test_what_is_written_is_there_when_a_checkpoint_is(run: RunDirectory) -> None:
    with Journal(run, 100, tensorboard=True) as journal:
        journal.begin_at(0)
        journal.step(record(step=1), result(), None)
        journal.event("checkpoint", step=1, path="p", seconds=0.0)
        assert len(scalars(run)["training/grad_norm"]) == 1


def test_events_that_cannot_be_written_are_one_warning_and_the_run_goes_on(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "tensorboard").write_text("in the way")
    write(run, 1, 3, loss=3.5)
    assert [event.kind for event in read_events(run).events if event.kind == "warning"] == ["warning"]
    assert capsys.readouterr().err.count("TensorBoard events are no longer written") == 1
    assert list(read_run_metrics(run).column("step")) == [1, 2, 3]


def test_a_missing_tensorboard_is_one_message_and_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    model = '[model]\narchitecture = "gpt2"\n'
    check_tensorboard(parse_config(model, "p"))
    with pytest.raises(ConfigurationError, match=r'pip install "workbench\[tensorboard\]"'):
        check_tensorboard(parse_config(model, "p", ["log.tensorboard=true"]))
