"""events.jsonl and the other JSON files: appended and replaced whole, read whatever happened to them."""

import json
import math
import threading
from pathlib import Path

import pytest

from workbench.errors import WorkbenchError
from workbench.runs import (
    LaneSpan,
    RunDirectory,
    append_event,
    read_events,
    read_lanes,
    read_plan,
    write_config,
    write_lanes,
    write_plan,
    write_sample,
)


def test_an_event_is_one_line_with_version_time_and_kind(run: RunDirectory) -> None:
    append_event(run, "warning", message="two\nlines", path=Path("a/b"), value=math.inf)
    (line,) = run.events.read_text().splitlines()
    event = json.loads(line, parse_constant=pytest.fail)
    assert event["version"] == 1
    assert event["kind"] == "warning"
    assert event["message"] == "two\nlines"
    assert event["path"] == "a/b"
    assert event["value"] is None
    (read,), _, problems = read_events(run)
    assert (read.kind, read.time, read.fields["message"]) == ("warning", event["time"], "two\nlines")
    assert problems == []


def test_an_undocumented_kind_is_refused(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="wraning"):
        append_event(run, "wraning", message="")


def test_a_line_that_is_being_written_is_left_for_the_next_reading(run: RunDirectory) -> None:
    append_event(run, "phase", phase="loading")
    whole = run.events.read_bytes()
    run.events.write_bytes(whole + whole[:20])
    events, offset, problems = read_events(run)
    assert (len(events), offset, problems) == (1, len(whole), [])
    run.events.write_bytes(whole + whole)
    assert len(read_events(run, offset).events) == 1


def test_an_event_after_a_torn_line_is_not_lost(run: RunDirectory) -> None:
    run.events.write_text('{"version": 1, "time": 5, "ki')
    append_event(run, "phase", phase="loading")
    events, _, problems = read_events(run)
    assert [event.kind for event in events] == ["phase"]
    assert problems == [f"{run.events}: the line at byte 0 is not a JSON object and was skipped"]


def test_lines_that_are_no_events_are_skipped_and_named(run: RunDirectory) -> None:
    lines = [
        b'{"version": 1, "time": 5.0, "kind": "phase"}',
        b"[1]",
        b'{"version": 1, "kind": "phase"}',
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": 7, "time": 6, "kind": "of tomorrow", "new": 1}',
        b"null",
    ]
    run.events.write_bytes(b"\n".join(lines) + b"\n")
    events, offset, problems = read_events(run)
    assert [event.kind for event in events] == ["phase", "of tomorrow"]
    assert events[1].fields == {"new": 1}
    assert offset == run.events.stat().st_size
    assert sum("skipped" in problem for problem in problems) == 4
    assert sum("version 7" in problem for problem in problems) == 1


def test_a_full_disk_is_an_error_that_names_the_file(run: RunDirectory) -> None:
    run.events.unlink()
    run.events.symlink_to("/dev/full")
    with pytest.raises(WorkbenchError, match=r"events\.jsonl: cannot be written: No space left"):
        append_event(run, "phase", phase="loading")


def test_appends_from_several_threads_keep_their_lines_whole(run: RunDirectory) -> None:
    def append(name: str) -> None:
        for index in range(50):
            append_event(run, "warning", message=name * 200, index=index)

    threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events, _, problems = read_events(run)
    assert problems == []
    assert len(events) == 200
    for name in "abcd":
        mine = [event.fields["index"] for event in events if event.fields["message"] == name * 200]
        assert mine == list(range(50))


def test_the_lanes_of_a_step_come_back_as_they_were(run: RunDirectory) -> None:
    spans = (LaneSpan("compute", "forward", 0, -1, 0.0, 0.5), LaneSpan("update", "update", 3, 2, 0.25, 0.75))
    write_lanes(run, 12, spans)
    lanes = read_lanes(run)
    assert (lanes.step, lanes.spans, lanes.problem) == (12, spans, "")


@pytest.mark.parametrize(
    "content",
    [None, "", "{}", '{"version": 2}', '{"version": 1, "step": 1, "fields": ["lane"], "spans": [["a", 2]]}'],
)
def test_lanes_that_cannot_be_read_say_so(run: RunDirectory, content: str | None) -> None:
    if content is not None:
        run.lanes.write_text(content)
    assert read_lanes(run).spans == ()
    assert "lanes.json" in read_lanes(run).problem


def test_plan_configuration_and_samples_are_kept_as_given(run: RunDirectory) -> None:
    assert "missing" in read_plan(run)[1]
    write_plan(run, {"seconds_per_step": 8.5, "fits": True})
    assert read_plan(run) == ({"version": 1, "seconds_per_step": 8.5, "fits": True}, "")
    write_config(run, 'description = "é"\n')
    assert run.config.read_text(encoding="utf-8") == 'description = "é"\n'
    path = write_sample(run, 200, "def f():\n")
    assert path == run.path / "samples" / "step-00000200.txt"
    assert path.read_text() == "def f():\n"
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]
