"""Looks at a run: the first is quick, later ones give what has changed, and nothing in a folder makes one fail."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from run_host import CONFIG, NAME, PLAN, add_steps, ended, live, new_run, rewrite

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.runs import (
    LaneSpan,
    MetricsWriter,
    RunDirectory,
    append_event,
    record_resume,
    write_lanes,
    write_plan,
    write_sample,
)
from workbench.runs.metrics import read_downsampled
from workbench.tui.charts.series import AXES
from workbench.tui.run import reading
from workbench.tui.run.reading import RunReader


def test_the_first_look_leaves_metrics_and_measured_limits_to_the_second(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    first = reader.look()
    assert first.more and first.rows is None and first.optimizer is None
    assert (first.status.step, first.state, first.preset) == (20, "running", "quickstart")
    assert reader.records.records_read == 0
    second = reader.look()
    assert not second.more and second.rows is not None and len(second.rows) == 20
    speed, limit = second.optimizer or (0.0, 0.0)
    assert speed == pytest.approx(1e6 * 26 / 0.1 / 1e9) and limit is None


def test_looks_give_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    found = [reader.look(), reader.look()]
    assert [event.kind for event in found[0].events] == ["evaluation", "checkpoint", "sample", "warning"]
    assert found[0].samples == (run.samples / "step-00000020.txt",)
    quiet = reader.look()
    assert (quiet.rows, quiet.events, quiet.lanes, quiet.samples, quiet.compared) == (
        None,
        (),
        None,
        None,
        None,
    )
    add_steps(run, 21, 23)
    append_event(run, "checkpoint", step=23, path="checkpoints/step-00000023", seconds=1.0)
    write_sample(run, 23, "more")
    write_lanes(run, 23, [])
    write_plan(run, {**PLAN, "measured": {"step_s": 0.4, "host_peak_bytes": 1 << 32}})
    later = reader.look()
    assert later.rows is not None and list(later.rows.step) == [21, 22, 23]
    assert [event.kind for event in later.events] == ["checkpoint"]
    assert later.samples is not None and len(later.samples) == 2
    assert later.lanes is not None and later.lanes.step == 23
    assert later.compared is not None and [row.name for row in later.compared] == ["host memory", "step"]
    assert reader.records.records_read == 23


def test_thousands_of_spans_are_read_every_other_second_while_the_run_lives(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    spans = [
        LaneSpan("update", "update", 0, number, 0.1 * number, 0.1 * number + 0.05) for number in range(500)
    ]
    write_lanes(run, 20, spans)
    reader = RunReader(run)
    assert [look.lanes is not None for look in (reader.look(), reader.look())] == [True, True]
    found = []
    for step in range(21, 29):
        write_lanes(run, step, spans)
        found.append(reader.look().lanes)
    assert [lanes.step for lanes in found if lanes is not None] == [22, 26]
    rewrite(run, phase="finished", exit_code=0)
    ended_with = reader.look().lanes
    assert ended_with is not None and ended_with.step == 28


def test_a_long_run_comes_as_curves_and_before_as_a_glimpse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_downsampled", partial(read_downsampled, shortest=9_000))
    run = new_run(tmp_path, live(), steps=10_000)
    reader = RunReader(run)
    seen = reader.glimpse()
    assert seen is not None and seen.of == 10_000 and len(seen) < 5_000
    assert seen.best_validation is None
    reader.look()
    look = reader.look()
    curves = look.curves
    assert curves is not None and look.rows is None and len(curves) == 10_000 and curves.of == 0
    assert curves.best_validation is not None
    # The title says the newest average, and a summary all tokens: neither changes when the rest is read.
    assert seen.loss.average_at(len(seen) - 1) == pytest.approx(curves.loss.average_at(9_999), rel=1e-9)
    for axis in AXES:
        places, all_places = seen.positions.along(axis), curves.positions.along(axis)
        assert places[-1] == pytest.approx(all_places[-1]) and places[0] == pytest.approx(all_places[0])
    assert reader.glimpse() is None
    newest = curves.newest(3)
    assert list(newest.step) == [9_998, 9_999, 10_000] and list(newest.loss) == list(curves.loss.values[-3:])


def test_a_resumption_takes_steps_back(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    reader.look()
    reader.look()
    with MetricsWriter(run.metrics) as writer:
        record_resume(run, writer, 16)
    cut = reader.look()
    assert cut.rows is not None and (cut.rows.keep, len(cut.rows)) == (15, 0)
    add_steps(run, 16, 17)
    again = reader.look()
    assert again.rows is not None and (again.rows.keep, list(again.rows.step)) == (15, [16, 17])


def test_an_end_comes_with_last_words_and_what_was_recorded_of_the_machine(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
        writer.append(step=0, time=5.0, gpu_busy=0.5)
    reader = RunReader(run)
    reader.look()
    assert reader.look().ended is None
    rewrite(run, phase="failed", exit_code=1, message="out of memory")
    look = reader.look()
    assert look.state == "failed" and not look.living
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

    def limit(config: object) -> float:
        asked.append(config)
        return 40.0

    monkeypatch.setattr(reading, "memory_limit_gb_per_s", limit)
    run = new_run(tmp_path, live())
    reader = RunReader(run)
    reader.look()
    found = reader.look().optimizer
    assert found is not None and found[1] == 40.0
    write_lanes(run, 21, [])
    assert reader.look().optimizer == (None, 40.0)
    assert len(asked) == 1
    rewrite(run, host="faraway")
    other = RunReader(run)
    other.look()
    found = other.look().optimizer
    assert found is not None and found[1] is None and len(asked) == 1


def broken(run: RunDirectory, what: str) -> None:
    if what == "nothing but a folder":
        for file in run.path.iterdir():
            if file.is_file():
                file.unlink()
    elif what == "status cut":
        run.status.write_text(run.status.read_text()[:40])
    elif what == "status newer":
        run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "version": 9, "mood": 1}))
    elif what == "status of other kinds":
        run.status.write_text(json.dumps({"phase": 3, "step": "x", "pid": None}))
    elif what == "metrics cut":
        run.metrics.write_bytes(run.metrics.read_bytes()[:-7])
    elif what == "metrics of something else":
        run.metrics.write_bytes(b"something else entirely, not a metrics file")
    elif what == "metrics newer":
        data = run.metrics.read_bytes()
        run.metrics.write_bytes(data[:8] + (77).to_bytes(4, "little") + data[12:])
    elif what == "events half":
        with run.events.open("ab") as events:
            events.write(
                b'no json\n{"kind": "warning", "time": 1, "version": 7, "message": "new"}\n{"kind": "warn'
            )
    elif what == "lanes cut":
        run.lanes.write_text(run.lanes.read_text()[:50])
    elif what == "plan newer":
        run.plan.write_text(json.dumps({"version": 9, "memory": [1, 2], "time": "soon", "measured": 5}))
    elif what == "plan missing":
        run.plan.unlink()
    elif what == "config cut":
        run.config.write_text("[train\n")


@pytest.mark.parametrize("state", ["living", "ended"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing but a folder", ""),
        ("status cut", "damaged"),
        ("status newer", "version 9"),
        ("status of other kinds", "phase = 3"),
        ("metrics of something else", "no metrics file"),
        ("metrics newer", "version 77"),
        ("events half", "no JSON object"),
        ("lanes cut", "lanes.json is damaged"),
        ("plan newer", "plan.json has version 9"),
        ("plan missing", "plan.json is missing"),
        ("config cut", "config.toml is damaged"),
    ],
)
def test_what_is_wrong_with_a_folder_is_a_sentence(tmp_path: Path, what: str, said: str, state: str) -> None:
    run = new_run(tmp_path, live() if state == "living" else ended("stopped", 143, "stopped"))
    broken(run, what)
    reader = RunReader(run)
    looks = [reader.look() for _ in range(3)]
    told = "\n".join(looks[-1].problems)
    assert said in told
    assert str(run.path) not in told
    if what not in ("nothing but a folder", "metrics of something else", "metrics newer"):
        assert looks[1].rows is not None and len(looks[1].rows) == 20


def test_the_end_of_an_ended_runs_metrics_in_the_middle_of_a_record_is_told(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))
    broken(run, "metrics cut")
    reader = RunReader(run)
    reader.look()
    look = reader.look()
    assert look.rows is not None and len(look.rows) == 19
    assert "metrics.bin ends in the middle of a record" in look.problems


def test_a_run_that_is_being_set_up_has_no_problems(tmp_path: Path) -> None:
    run = new_run(tmp_path, live("allocating", step=0, progress="unit 3 of 50"), steps=0)
    run.plan.unlink()
    reader = RunReader(run)
    assert [reader.look().problems for _ in range(3)] == [(), (), ()]


def test_a_folder_that_is_gone_is_told_and_nothing_else(tmp_path: Path) -> None:
    reader = RunReader(RunDirectory(tmp_path / NAME))
    look = [reader.look() for _ in range(2)][-1]
    assert look.state == "unknown" and not look.living and look.problems


def test_before_the_first_step_no_lanes_are_missed(tmp_path: Path) -> None:
    run = new_run(tmp_path, live("allocating"), steps=0)
    reader = RunReader(run)
    looks = [reader.look(0.0) for _ in range(3)]
    assert [look.lanes for look in looks] == [None] * 3
    assert not any("lanes" in problem for look in looks for problem in look.problems)
