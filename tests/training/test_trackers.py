"""A run's metrics as trackers get them: each step once however often the run went on or died, and no wait for them.

Fakes have the public functions of wandb, trackio and mlflow that are called; the real ones are tried where installed.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from test_journal import record, result

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.runs import METRIC_COLUMNS, RunDirectory, append_event, read_events, read_run_metrics
from workbench.runs.metrics import MetricsWriter, record_resume
from workbench.training import trackers
from workbench.training.journal import Journal
from workbench.training.tracker_writers import WRITERS, tag
from workbench.training.trackers import Trackers, check_trackers

CONFIG = '[model]\narchitecture = "gpt2"\n[train]\nsteps = 9\n'


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> None:
    monkeypatch.setattr(trackers, "EVERY_S", 0.001)
    run.config.write_text(CONFIG)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def train(run: RunDirectory, tracker: str, first: int, last: int, loss: float) -> None:
    """A session that trains the steps `first` to `last`; the first goes back where the run has later ones."""
    with MetricsWriter(run.metrics) as metrics:
        if metrics.records >= first:
            record_resume(run, metrics, first)
    with Journal(run, 100, trackers=[tracker]) as journal:
        journal.begin_at(first - 1)
        for step in range(first, last + 1):
            if step % 2 == 0:
                journal.evaluation(step, 2.5, 12.2, 0.1)
                append_event(run, "evaluation_of", name="code", step=step, loss=1.5)
            journal.step(record(step=step, loss=loss), result(), 2.5 if step % 2 == 0 else None)


def die_after(run: RunDirectory, steps: int) -> None:
    """Leave metrics of a session whose trackers got none of them."""
    with Journal(run, 100) as journal:
        journal.begin_at(0)
        for step in range(1, steps + 1):
            journal.step(record(step=step, loss=3.5), result(), None)


class FakeRun(SimpleNamespace):
    """A run of wandb or trackio: rows by step, which must rise."""

    def log(self, values: dict[str, float], step: int) -> None:
        assert not self.rows or step > max(self.rows), "steps rise, or wandb drops them"
        self.rows[step] = values

    def finish(self) -> None:
        self.finished = True

    @property
    def step(self) -> int:
        return max(self.rows) + 1 if self.rows else 0


class FakeWandb:
    """Offline, each `init` begins a run of its own; at the server the last one of an id replaces those before."""

    def __init__(self) -> None:
        self.synced: dict[str, FakeRun] = {}
        self.asked: dict[str, Any] = {}

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802 - wandb's name
        return options

    def init(self, **asked: Any) -> FakeRun:
        self.asked = asked
        if asked["mode"] == "online" and asked["id"] in self.synced:
            return self.synced[asked["id"]]
        self.synced[asked["id"]] = FakeRun(rows={}, finished=False)
        return self.synced[asked["id"]]


class FakeTrackio:
    def __init__(self) -> None:
        self.there: dict[str, FakeRun] = {}

    def Api(self) -> Any:  # noqa: N802 - trackio's name
        if not self.there:
            return SimpleNamespace(runs=self._no_project)
        runs = [
            SimpleNamespace(name=name, delete=lambda name=name: self.there.pop(name)) for name in self.there
        ]
        return SimpleNamespace(runs=lambda project: runs)

    @staticmethod
    def _no_project(project: str) -> None:
        raise ValueError(f"Project {project!r} does not exist")

    def init(self, *, project: str, name: str, **_: Any) -> FakeRun:
        return self.there.setdefault(name, FakeRun(rows={}, finished=False))


class FakeMlflow:
    """A client whose runs live on in one database."""

    def __init__(self) -> None:
        self.entities = SimpleNamespace(Metric=lambda key, value, timestamp, step: (key, value, step))
        self.runs: dict[str, list[tuple[str, float, int]]] = {}
        self.uris: list[str] = []
        self.ended: list[str] = []

    def MlflowClient(self, tracking_uri: str) -> Any:  # noqa: N802 - mlflow's name
        self.uris.append(tracking_uri)
        return SimpleNamespace(
            get_experiment_by_name=lambda name: None,
            create_experiment=lambda name: "1",
            create_run=self._create,
            update_run=lambda number, status: None,
            log_param=lambda *_: None,
            log_batch=lambda number, metrics: self.runs[number].extend(metrics),
            get_metric_history=lambda number, key: [
                SimpleNamespace(step=step) for name, _, step in self.runs[number] if name == key
            ],
            set_terminated=self.ended.append,
        )

    def _create(self, experiment: str, run_name: str) -> Any:
        number = f"number-{len(self.runs)}"
        self.runs[number] = []
        return SimpleNamespace(info=SimpleNamespace(run_id=number))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())  # type: ignore[arg-type]
    return fake


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> FakeTrackio:
    monkeypatch.setitem(sys.modules, "trackio", fake := FakeTrackio())  # type: ignore[arg-type]
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    monkeypatch.setitem(sys.modules, "mlflow", fake := FakeMlflow())  # type: ignore[arg-type]
    return fake


def losses(rows: dict[int, dict[str, float]]) -> list[tuple[int, float]]:
    return [(step, values["training/loss"]) for step, values in rows.items()]


TWO_SESSIONS = [*((step, 3.5) for step in range(1, 4)), *((step, 3.0) for step in range(4, 9))]


def test_an_offline_wandb_run_has_every_step_once_after_a_crash_and_after_going_back(
    run: RunDirectory, wandb: FakeWandb
) -> None:
    die_after(run, 6)
    train(run, "wandb", 4, 8, loss=3.0)
    (rows,) = (each.rows for each in wandb.synced.values())
    assert losses(rows) == TWO_SESSIONS
    assert wandb.asked["mode"] == "offline" and wandb.asked["config"]["train"]["steps"] == 9
    assert all(each.finished for each in wandb.synced.values())
    units_apart = {tag(column.name) for column in METRIC_COLUMNS} - {
        tag("step"),
        tag("time"),
        tag("validation_loss"),
    }
    assert rows[7].keys() == units_apart
    assert {key: value for key, value in rows[8].items() if key not in rows[7]} == {
        "evaluation/loss": 2.5, "evaluation/perplexity": pytest.approx(12.18, rel=1e-3), "evaluation/code": 1.5,
    }  # fmt: skip


def test_a_wandb_run_that_its_user_puts_online_goes_on_after_its_last_step(
    run: RunDirectory, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    train(run, "wandb", 1, 6, loss=3.5)
    train(run, "wandb", 4, 8, loss=3.0)
    (rows,) = (each.rows for each in wandb.synced.values())
    assert [step for step, _ in losses(rows)] == list(range(1, 9))


def test_a_trackio_run_is_made_anew_under_its_name(run: RunDirectory, trackio: FakeTrackio) -> None:
    trackio.there["another"] = FakeRun(rows={}, finished=True)
    train(run, "trackio", 1, 6, loss=3.5)
    train(run, "trackio", 4, 8, loss=3.0)
    assert set(trackio.there) == {run.name, "another"}
    assert losses(trackio.there[run.name].rows) == TWO_SESSIONS and trackio.there[run.name].finished


def test_mlflow_goes_on_in_the_same_run_after_the_steps_that_it_has(
    run: RunDirectory, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run, "mlflow", 1, 6, loss=3.5)
    train(run, "mlflow", 4, 8, loss=3.0)
    (found,) = mlflow.runs.values()
    steps = [step for name, _, step in found if name == "training/loss"]
    assert steps == list(range(1, 9)), "each once, though three were done again"
    assert mlflow.uris == [f"sqlite:///{run.path.parent / 'mlflow.db'}"] * 2
    assert mlflow.ended == ["number-0"] * 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there:5000")
    train(run, "mlflow", 9, 9, loss=3.0)
    assert mlflow.uris[-1] == "http://there:5000"


def scalars(run: RunDirectory) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


def test_tensorboard_shows_every_column_with_its_unit_and_each_step_once(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    die_after(run, 6)
    train(run, "tensorboard", 4, 8, loss=3.0)
    found = scalars(run)
    expected = {
        tag(c.name, c.unit) for c in METRIC_COLUMNS if c.name not in ("step", "time", "validation_loss")
    }
    assert set(found) == expected | {"evaluation/loss", "evaluation/perplexity", "evaluation/code"}
    assert {"training/loss (nats per token)", "training/grad_norm", "lanes/update_exposed_s (s)"} < set(found)
    of_loss = found["training/loss (nats per token)"]
    assert [(event.step, event.value) for event in of_loss] == TWO_SESSIONS
    assert [event.wall_time for event in of_loss] == list(read_run_metrics(run).column("time"))


def test_a_tracker_that_fails_is_one_warning_and_the_run_goes_on(
    run: RunDirectory, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wandb, "init", refuse)
    train(run, "wandb", 1, 3, loss=3.5)
    assert [event.kind for event in read_events(run).events if event.kind == "warning"] == ["warning"]
    said = capsys.readouterr().err
    assert f"wandb no longer follows the run: No space left on device; {run.metrics} has all steps" in said
    assert list(read_run_metrics(run).column("step")) == [1, 2, 3]


def test_a_tracker_that_hangs_delays_neither_steps_nor_the_end(
    run: RunDirectory, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network that does not answer: steps are recorded meanwhile, and the end waits for its limit alone."""
    asked, answered = threading.Event(), threading.Event()

    def hang(**_: Any) -> None:
        asked.set()
        answered.wait()

    monkeypatch.setattr(wandb, "init", hang)
    monkeypatch.setattr(trackers, "END_S", 0.01)
    with Journal(run, 100, trackers=["wandb"]) as journal:
        journal.begin_at(0)
        assert asked.wait(30)
        journal.step(record(step=1, loss=3.5), result(), None)
        assert list(read_run_metrics(run).column("step")) == [1], "while it hangs"
    assert "wandb has not taken all steps yet" in capsys.readouterr().err
    events = len(read_events(run).events)
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "tracker wandb":
            thread.join(30)
    assert len(read_events(run).events) == events, "what it says after that is not the run's"


def test_what_is_not_installed_is_one_message_and_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_trackers(parse_config(CONFIG, "p"))
    for name in WRITERS:
        with pytest.raises(ConfigurationError, match=rf'pip install "workbench\[{name}\]"'):
            check_trackers(parse_config(CONFIG, "p", [f'log.tracker=["{name}"]']))
    with pytest.raises(ConfigurationError, match=r"log\.tracker"):
        parse_config(CONFIG, "p", ['log.tracker=["comet"]'])


def test_no_thread_runs_where_no_tracker_is_asked_for(run: RunDirectory) -> None:
    before = threading.active_count()
    following = Trackers(run, (), pytest.fail)
    following.begin()
    assert threading.active_count() == before
    following.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_the_real_library_takes_two_sessions_offline(
    name: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = pytest.importorskip(name)
    monkeypatch.setattr(trackers, "END_S", 120.0)
    monkeypatch.setenv("TRACKIO_DIR", str(run.path / "trackio"))
    die_after(run, 6)
    train(run, name, 4, 8, loss=3.0)
    train(run, name, 7, 10, loss=2.0)
    assert "warning" not in [event.kind for event in read_events(run).events], capsys.readouterr().err
    if name == "wandb":
        (offline,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
        assert offline.stat().st_size > 2000
    elif name == "mlflow":
        client = library.MlflowClient(tracking_uri=f"sqlite:///{run.path.parent / 'mlflow.db'}")
        found = client.get_metric_history((run.path / "mlflow.txt").read_text().strip(), "training/loss")
        assert [each.step for each in found] == list(range(1, 11))
    else:
        from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found, unused-ignore]

        rows = SQLiteStorage.get_logs("workbench", run.name)
        assert [row["step"] for row in rows if "training/loss" in row] == list(range(1, 11))
