"""Making, finding and naming run directories."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs import RunDirectory, Status, directory, find_run, runs_root, write_status


def test_the_root_is_the_option_then_the_environment_then_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", "/from/environment")
    assert runs_root(Path("/given")) == Path("/given")
    assert runs_root(None) == Path("/from/environment")
    monkeypatch.delenv("WORKBENCH_RUNS")
    assert runs_root(None) == Path("runs")


def test_a_run_is_named_by_time_preset_and_id_and_latest_points_to_it(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "runs"
    first = RunDirectory.create(root, "my preset/x.y")
    assert re.fullmatch(r"\d{8}-\d{6}-my-preset-x\.y-[0-9a-f]{4,}", first.name)
    assert (root / "latest").resolve() == first.path
    second = RunDirectory.create(root, "other")
    assert (root / "latest").resolve() == second.path
    assert first.samples.is_dir()
    assert first.checkpoints.is_dir()
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []


def test_many_runs_in_one_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities = iter(["aaaaaa", "1", "aaaaaa", "aaaaaa", "bbbbbb", "2"])  # runs, and temporary links
    monkeypatch.setattr(directory.secrets, "token_hex", lambda size: next(identities))
    monkeypatch.setattr(directory.time, "strftime", lambda form: "20261121-014930")
    names = [RunDirectory.create(tmp_path, "p").name for _ in range(2)]
    assert names == ["20261121-014930-p-aaaaaa", "20261121-014930-p-bbbbbb"]


def test_a_root_that_cannot_be_written_is_a_configuration_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/runs: cannot be written: not a directory.*--runs"):
        RunDirectory.create(tmp_path / "file" / "runs", "p")


def test_a_run_is_found_by_path_name_unique_part_and_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = RunDirectory.create(tmp_path, "alpha"), RunDirectory.create(tmp_path, "beta")
    monkeypatch.chdir(tmp_path)
    for name in (str(one.path), one.name, "alpha", one.name[-6:], f"./{one.name}"):
        assert find_run(tmp_path, name) == one, name
    assert find_run(tmp_path, None) == two
    assert find_run(tmp_path, "latest") == two
    assert RunDirectory.open(one.path) == one


def test_no_name_means_the_run_that_trains_and_latest_the_newest(tmp_path: Path) -> None:
    trains, newest = RunDirectory.create(tmp_path, "alpha"), RunDirectory.create(tmp_path, "beta")
    write_status(newest, Status(phase="stopped"))
    for phase in ("training", "paused"):
        write_status(trains, Status(phase=phase))
        assert find_run(tmp_path, None) == trains
        assert find_run(tmp_path, "latest") == newest
    write_status(trains, Status(phase="finished"))
    assert find_run(tmp_path, None) == newest


def test_a_run_is_found_by_the_name_and_the_tags_that_it_was_given(tmp_path: Path) -> None:
    one = RunDirectory.create(tmp_path, "high", ["low", "sweep"])
    two = RunDirectory.create(tmp_path, "low", ["high", "sweep"])
    assert (one.labels, two.labels) == (("low", "sweep"), ("high", "sweep"))
    assert one.is_of_preset("high") and not one.is_of_preset("low")
    assert find_run(tmp_path, "low") == one and find_run(tmp_path, "high") == two
    with pytest.raises(ConfigurationError, match="2 runs"):
        find_run(tmp_path, "sweep")
    assert RunDirectory.create(tmp_path, "p-q").labels == ()
    for wrong in ("", "a+b", "a/b", "x" * 41):
        with pytest.raises(ConfigurationError, match="must be 1 to 40 letters"):
            RunDirectory.create(tmp_path, "p", [wrong])


def test_latest_is_the_newest_run_that_is_there_when_the_pointer_is_dead(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("20000101-000000-gone-abcdef")
    assert find_run(tmp_path, None) == run


def test_a_name_that_is_wrong_or_ambiguous_gets_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        find_run(tmp_path / "nothing", None)
    one, two = RunDirectory.create(tmp_path, "alpha"), RunDirectory.create(tmp_path, "alphabet")
    with pytest.raises(ConfigurationError, match="2 runs") as ambiguous:
        find_run(tmp_path, "alpha")
    assert one.name in str(ambiguous.value)
    assert two.name in str(ambiguous.value)
    with pytest.raises(ConfigurationError, match="closest") as wrong:
        find_run(tmp_path, one.name[:-6] + "nonono")
    assert one.name in str(wrong.value)
    with pytest.raises(ConfigurationError, match="no such folder"):
        find_run(tmp_path, "./nowhere")
    (tmp_path / "plain").mkdir()
    with pytest.raises(ConfigurationError, match="not a run"):
        RunDirectory.open(tmp_path / "plain")


def test_listing_shows_runs_only_oldest_first(tmp_path: Path) -> None:
    assert RunDirectory.list(tmp_path / "nothing") == ()
    for name in ("20260102-000000-b-0001", "20260101-000000-a-0002", "notes"):
        (tmp_path / name).mkdir()
    for name in ("20260102-000000-b-0001", "20260101-000000-a-0002"):
        (tmp_path / name / "events.jsonl").touch()
    (tmp_path / "latest").symlink_to("20260102-000000-b-0001")
    assert [run.name for run in RunDirectory.list(tmp_path)] == [
        "20260101-000000-a-0002",
        "20260102-000000-b-0001",
    ]


HOLD = """
import sys
from pathlib import Path
from workbench.runs import RunDirectory
RunDirectory.open(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_trainer_is_refused_by_pid_until_the_first_is_killed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p")
    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(WorkbenchError, match=f"process {holder.pid} is training it already"):
            run.acquire()
        assert run.acquired_at is None
        holder.kill()
        holder.wait()
    run.acquire()
    assert run.acquired_at is not None
    with pytest.raises(WorkbenchError):
        RunDirectory.open(run.path).acquire()
    run.release()
    again = RunDirectory.open(run.path)
    again.acquire()
    again.release()


def test_what_a_killed_trainer_left_half_written_is_removed_by_the_next(run: RunDirectory) -> None:
    run.samples.mkdir(exist_ok=True)
    left = [run.path / ".status.json.15416-463d2e7d", run.samples / ".step-00000008.txt.17068-9db5c7b0"]
    kept = [run.path / ".notes", run.path / "status.json.15416-463d2e7d", run.config]
    for path in (*left, *kept):
        path.write_text("half")
    run.acquire()
    assert not [path for path in left if path.exists()]
    assert all(path.exists() for path in kept)
