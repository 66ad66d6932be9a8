"""Looks at a run: the first is quick, later ones give what has changed, and nothing in a folder makes one fail."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from run_host import CONFIG, NAME, PLAN, add_steps, ended, live, new_run, rewrite

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.runs import (
    LaneSpan,
    MetricsWriter,
    RunDirectory,
    append_event,
    read_run_metrics,
    read_status,
    record_resume,
    write_lanes,
    write_plan,
    write_sample,
)
from workbench.runs.metrics import read_downsampled
from workbench.tui.charts.series import AXES
from workbench.tui.run import reading
from workbench.tui.run.charts import RunCurves
from workbench.tui.run.reading import RunLook, RunReader


class Follower:
    """Does with looks what the screen does."""

    def __init__(self, run: RunDirectory) -> None:
        self.reader = RunReader(run)
        self.curves = RunCurves()
        self.reader.look()

    def look(self) -> RunLook:
        found = self.reader.look()
        if found.curves is not None:
            self.curves = found.curves
        elif found.rows is not None:
            self.curves.add(found.rows)
        return found

    @property
    def steps(self) -> list[float]:
        return list(self.curves.positions.along("step"))


def test_the_first_look_leaves_metrics_and_measured_limits_to_the_second(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    first = reader.look()
    assert first.more and first.curves is None and first.rows is None and first.optimizer is None
    assert (first.status.step, first.state, first.preset) == (20, "running", "quickstart")
    assert reader.records == 0
    second = reader.look()
    assert not second.more and second.curves is not None and len(second.curves) == 20
    load = second.optimizer
    assert load is not None and load.gb_per_s == pytest.approx(1e6 * 26 / 0.1 / 1e9)
    assert load.limit_gb_per_s is None and len(load.step_s) == 20


def test_the_optimizers_load_is_of_this_session_alone(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    reader.look()
    load = reader.look().optimizer
    assert load is not None and (load.threads, load.state_format) == (4, "exact")
    assert (load.share, load.exposed_share) == (pytest.approx(0.2), pytest.approx(0.04))
    # Resumed: the trainer began after all that is recorded, and prepares itself.
    began_later = replace(read_status(run), pid_started=2e9 + 1000)
    load = reader._optimizer_load(began_later, active=True)
    assert not load.step_s and load.gb_per_s is None and load.short == ""
    rewrite(run, phase="finished", exit_code=0)
    load = reader.look().optimizer
    assert load is not None and load.ended and len(load.step_s) == 20


def test_looks_give_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    found = [reader.look(), reader.look()]
    assert [event.kind for event in found[0].events] == ["evaluation", "checkpoint", "sample", "warning"]
    assert found[0].samples == (run.samples / "step-00000020.txt",)
    quiet = reader.look()
    assert (quiet.rows, quiet.curves, quiet.lanes, quiet.samples, quiet.compared) == (None,) * 5
    assert quiet.events == ()
    add_steps(run, 21, 23)
    append_event(run, "checkpoint", step=23, path="checkpoints/step-00000023", seconds=1.0)
    write_sample(run, 23, "more")
    write_lanes(run, 23, [])
    write_plan(run, {**PLAN, "measured": {"step_s": 0.4, "host_peak_bytes": 1 << 32}})
    later = reader.look()
    assert later.rows is not None and list(later.rows.column("step")) == [21, 22, 23]
    assert [event.kind for event in later.events] == ["checkpoint"]
    assert later.samples is not None and len(later.samples) == 2
    assert later.lanes is not None and later.lanes.step == 23
    assert later.compared is not None and [row.name for row in later.compared] == ["host memory", "step"]
    assert reader.records == 23


def test_thousands_of_spans_are_read_every_other_second_while_the_run_lives(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    spans = [
        LaneSpan("update", "update", 0, number, 0.1 * number, 0.1 * number + 0.05) for number in range(500)
    ]
    write_lanes(run, 20, spans)
    reader = RunReader(run)
    assert reader.look().lanes is not None
    reader.look()
    found = []
    for step in range(21, 29):
        write_lanes(run, step, spans)
        found.append(reader.look().lanes)
    assert [lanes.step for lanes in found if lanes is not None] == [22, 26]
    rewrite(run, phase="finished", exit_code=0)
    last = reader.look().lanes
    assert last is not None and last.step == 28


def test_a_long_run_comes_in_pieces_and_before_downsampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.runs.metrics._PATIENCE_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(reading, "read_downsampled", partial(read_downsampled, shortest=9_000))
    monkeypatch.setattr(reading, "_PIECE", 3_000)
    reader = RunReader(new_run(tmp_path, live(), steps=10_000))
    sample = reader.downsampled()
    assert sample is not None and sample.of == 10_000 and len(sample) < 5_000
    assert sample.best_validation is None
    reader.look()
    curves = reader.look().curves
    assert curves is not None and len(curves) == 10_000 and curves.of == 0
    assert curves.best_validation is not None and reader.downsampled() is None
    # The title says the newest average, and a summary all tokens: neither changes when the rest is read.
    assert sample.loss.average_at(len(sample) - 1) == pytest.approx(curves.loss.average_at(9_999), rel=1e-9)
    for axis in AXES:
        places, all_places = sample.positions.along(axis), curves.positions.along(axis)
        assert places[-1] == pytest.approx(all_places[-1]) and places[0] == pytest.approx(all_places[0])
    steps, losses, _ = curves.newest(3)
    assert list(steps) == [9_998, 9_999, 10_000] and list(losses) == list(curves.loss.values[-3:])


def test_a_follower_has_what_a_reading_of_the_whole_run_gives_after_any_resumptions(tmp_path: Path) -> None:
    source = random.Random(3)
    for trial in range(5):
        run = RunDirectory(tmp_path / f"{trial}")
        run.path.mkdir()
        followers = [Follower(run) for _ in range(3)]
        step = 0
        for session in range(source.randrange(1, 6)):
            with MetricsWriter(run.metrics) as writer:
                if session:
                    step = source.randrange(0, step + 1)
                    record_resume(run, writer, step + 1)
                for _ in range(source.randrange(0, 4)):
                    for _ in range(source.randrange(0, 7)):
                        step += 1
                        writer.append(step=step, loss=step + 1000.0 * session, step_s=0.5)
                    source.choice(followers).look()
        whole = read_run_metrics(run)
        for follower in followers:
            follower.look()
            follower.look()
            assert follower.steps == list(whole.column("step")), trial
            assert list(follower.curves.loss.values) == list(whole.column("loss")), trial
            assert list(follower.curves.positions.along("time")) == [0.5 * (i + 1) for i in range(len(whole))]


def test_a_torn_last_record_waits_until_it_is_whole_and_a_damaged_file_leaves_what_was_read(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path, live(), steps=4)
    whole = run.metrics.read_bytes()
    run.metrics.write_bytes(whole[:-3])
    follower = Follower(run)
    follower.look()
    assert follower.steps == [1, 2, 3]
    run.metrics.write_bytes(whole)
    follower.look()
    assert follower.steps == [1, 2, 3, 4]
    run.metrics.write_bytes(b"no metrics at all, but something else")
    assert "metrics.bin is not a metrics file" in follower.look().problems
    assert follower.steps == [1, 2, 3, 4]


def test_curves_have_seconds_of_training_validation_losses_at_their_steps_and_mfu_where_it_is_known(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path / NAME)
    run.path.mkdir()
    follower = Follower(run)
    assert follower.curves.best_validation is None and not follower.curves.has_mfu
    with MetricsWriter(run.metrics) as writer:
        for step, seconds, loss, mfu in ((1, 1.0, None, None), (2, None, 3.5, None), (3, 2.0, 2.5, 0.4)):
            writer.append(step=step, step_s=seconds, tokens_total=10 * step, validation_loss=loss, mfu=mfu)
            follower.look()
    curves = follower.curves
    assert list(curves.positions.along("time")) == [1.0, 1.0, 3.0]
    assert all(len(getattr(curves, name)) == 3 for name in RunCurves.NAMES)
    assert list(curves.validation.positions.along("tokens")) == [20, 30]
    assert curves.best_validation == (2.5, 3) and curves.has_mfu
    assert np.isnan(curves.loss.values).all()


def test_an_end_comes_with_its_reason_and_what_was_recorded_of_the_machine(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
        writer.append(step=0, time=5.0, gpu_busy=0.5)
    reader = RunReader(run)
    reader.look()
    assert reader.look().ended is None
    rewrite(run, phase="failed", exit_code=1, message="out of memory")
    look = reader.look()
    assert look.state == "failed" and not look.active
    assert look.ended is not None and look.ended.exit_code == 1
    assert look.ended.lines[-1] == "step 00020/00100 | loss 3.2"
    assert look.recorded is not None and look.recorded.last()["gpu_busy"] == 0.5


def test_the_disk_tier_is_named_from_the_configuration(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    run.config.write_text(
        CONFIG.replace('disk_path = ""', 'disk_path = "/fast"').replace('state = "host"', 'state = "disk"')
    )
    assert RunReader(run).look().disk_path == Path("/fast")


def test_the_machines_limit_is_asked_for_once_and_not_for_a_run_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(reading, "memory_limit_gb_per_s", lambda config: (asked.append(config), 40.0)[1])
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    reader.look()
    found = reader.look().optimizer
    assert found is not None and found.limit_gb_per_s == 40.0
    write_lanes(run, 21, [])
    found = reader.look().optimizer
    assert found is not None and (found.gb_per_s, found.limit_gb_per_s) == (None, 40.0)
    rewrite(run, host="faraway")
    other = RunReader(run)
    other.look()
    found = other.look().optimizer
    assert found is not None and found.limit_gb_per_s is None and len(asked) == 1


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


BROKEN = {
    "nothing but a folder": (
        lambda run: [file.unlink() for file in run.path.iterdir() if file.is_file()],
        "",
    ),
    "status cut": (lambda run: cut(run.status, 40), "damaged"),
    "status newer": (lambda run: rewrite(run, version=9, mood=1), "version 9"),
    "status of other kinds": (
        lambda run: run.status.write_text(json.dumps({"phase": 3, "step": "x", "pid": None})),
        "phase = 3",
    ),
    "metrics of something else": (
        lambda run: run.metrics.write_bytes(b"something else entirely, not a metrics file"),
        "not a metrics file",
    ),
    "metrics newer": (
        lambda run: run.metrics.write_bytes(
            run.metrics.read_bytes()[:8] + (77).to_bytes(4, "little") + run.metrics.read_bytes()[12:]
        ),
        "version 77",
    ),
    "events half": (
        lambda run: run.events.write_bytes(
            run.events.read_bytes()
            + b'no json\n{"kind": "warning", "time": 1, "version": 7, "message": "new"}\n{"kind": "warn'
        ),
        "not a JSON object",
    ),
    "lanes cut": (lambda run: cut(run.lanes, 50), "lanes.json is damaged"),
    "plan newer": (
        lambda run: run.plan.write_text(
            json.dumps({"version": 9, "memory": [1, 2], "time": "soon", "measured": 5})
        ),
        "plan.json has version 9",
    ),
    "plan missing": (lambda run: run.plan.unlink(), "plan.json is missing"),
    "config cut": (lambda run: run.config.write_text("[train\n"), "config.toml is damaged"),
}


@pytest.mark.parametrize("state", ["active", "ended"])
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_with_a_folder_is_a_sentence(tmp_path: Path, what: str, state: str) -> None:
    run = new_run(tmp_path, live() if state == "active" else ended("stopped", 143, "stopped"))
    breaks, sentence = BROKEN[what]
    breaks(run)
    reader = RunReader(run)
    looks = [reader.look() for _ in range(3)]
    problems = "\n".join(looks[-1].problems)
    assert sentence in problems and str(run.path) not in problems
    if what not in ("nothing but a folder", "metrics of something else", "metrics newer"):
        assert looks[1].curves is not None and len(looks[1].curves) == 20


def test_the_end_of_an_ended_runs_metrics_in_the_middle_of_a_record_is_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))
    cut(run.metrics, -7)
    reader = RunReader(run)
    reader.look()
    look = reader.look()
    assert look.curves is not None and len(look.curves) == 19
    assert "metrics.bin ends in the middle of a record" in look.problems


def test_a_run_that_is_being_set_up_has_no_problems(tmp_path: Path) -> None:
    run = new_run(tmp_path, live("allocating", step=0, progress="unit 3 of 50"), steps=0)
    run.plan.unlink()
    reader = RunReader(run)
    looks = [reader.look() for _ in range(3)]
    assert [look.problems for look in looks] == [()] * 3 and [look.lanes for look in looks] == [None] * 3


def test_a_folder_that_is_gone_is_reported_and_nothing_else(tmp_path: Path) -> None:
    reader = RunReader(RunDirectory(tmp_path / NAME))
    look = [reader.look() for _ in range(2)][-1]
    assert look.state == "unknown" and not look.active and look.problems
