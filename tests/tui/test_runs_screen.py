"""The runs' screen: every state is told, every key does what it says, and nothing is done in read-only mode."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from screen_host import NEVER_S, NoMonitor, picture, text_of, until
from settled_pilot import settled
from textual.app import App
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input

from workbench.errors import ConfigurationError
from workbench.runs import ControlReader, MetricsWriter, RunDirectory, Status, write_status
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.messages import CompareRuns, OpenRun, ResumeRun
from workbench.tui.screens.runs import RunsScreen

GONE = 2**22 + 1
SCROLLBAR = dict.fromkeys(map(ord, "▁▂▃▄▅▆▇█"))  # the application draws its own in ASCII mode


class Host(App[None]):
    """Shows the screen and keeps what it asks for."""

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self.runs_screen = RunsScreen(context)
        self.asked: list[Message] = []
        self.reports: list[str] = []
        self.copied: list[str] = []

    def on_mount(self) -> None:
        self.push_screen(self.runs_screen)

    def on_open_run(self, message: OpenRun) -> None:
        self.asked.append(message)

    def on_resume_run(self, message: ResumeRun) -> None:
        self.asked.append(message)

    def on_compare_runs(self, message: CompareRuns) -> None:
        self.asked.append(message)

    def notify(self, message: str, **_: object) -> None:  # type: ignore[override]
        self.reports.append(message)

    def copy_to_clipboard(self, text: str) -> None:
        self.copied.append(text)

    @property
    def text(self) -> str:
        return text_of(self)

    @property
    def here(self) -> RunDirectory | None:
        """The run under the cursor."""
        row = self.runs_screen.run_list.highlighted
        return None if row is None else row.run


@asynccontextmanager
async def shown(
    root: Path,
    *,
    size: tuple[int, int] = (80, 24),
    glyphs: Glyphs = BLOCKS,
    read_only: bool = False,
    interval_s: float = NEVER_S,
) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    """Show the runs in a folder, once they were read."""
    host = Host(AppContext(root, NoMonitor(), glyphs, time.time, interval_s, read_only))
    async with host.run_test(size=size) as pilot:
        await until(pilot, lambda: host.runs_screen.rows is not None)
        yield host, pilot


def new_run(root: Path, number: int, preset: str, status: Status | None) -> RunDirectory:
    """A run whose name says that it is the older the smaller its number is."""
    path = root / f"20260101-0000{number:02d}-{preset}-{number:06x}"
    (path / "checkpoints").mkdir(parents=True)
    run = RunDirectory(path)
    run.events.touch()
    if status is not None:
        write_status(run, status, durable=False)
    return run


def status(phase: str, **values: object) -> Status:
    return Status(phase=phase, step=12, total_steps=100, loss=3.25, elapsed_s=75.0, **values)  # type: ignore[arg-type]


@pytest.fixture
def zoo(tmp_path: Path) -> dict[str, RunDirectory]:
    """A run of every kind, the newest last."""
    died = status("training", pid=GONE, pid_started=1.0)
    silent = status("training", pid=1, pid_started=1.0, host="elsewhere")
    runs = {
        "foreign": RunDirectory(tmp_path / "notes"),
        "half": new_run(tmp_path, 1, "half", None),
        "newer": new_run(tmp_path, 2, "newer", None),
        "torn": new_run(tmp_path, 3, "torn", status("finished")),
        "stale": new_run(tmp_path, 4, "stale", silent),
        "died": new_run(tmp_path, 5, "died", died),
        "failed": new_run(tmp_path, 6, "failed", status("failed", exit_code=3, message="12 GiB are missing")),
        "stopped": new_run(tmp_path, 7, "stopped", status("stopped", exit_code=143)),
        "finished": new_run(tmp_path, 8, "finished", status("finished", exit_code=0)),
        "paused": new_run(tmp_path, 9, "paused", status("paused")),
        "running": new_run(tmp_path, 10, "running", status("training")),
    }
    runs["foreign"].path.mkdir()
    runs["newer"].status.write_text('{"version": 99, "phase": "finished", "step": 3}')
    text = runs["stale"].status.read_text()
    runs["stale"].status.write_text(text.replace('"heartbeat": ', '"heartbeat": 0.0, "was": '))
    with MetricsWriter(runs["torn"].metrics) as writer:
        writer.append(step=1, tokens_total=5_000_000)
    with runs["torn"].metrics.open("ab") as file:
        file.write(b"torn")
    runs["died"].log.write_text("one\nKilled for want of memory\n")
    return runs


def root_of(zoo: dict[str, RunDirectory]) -> Path:
    return zoo["running"].path.parent


NEWEST_FIRST = "running paused finished stopped failed died stale torn newer half foreign".split()  # noqa: SIM905


async def go_to(host: Host, pilot: Pilot[None], kind: str) -> None:
    host.runs_screen.run_list.move_cursor(row=NEWEST_FIRST.index(kind), animate=False)
    await pilot.pause()


async def test_every_run_is_listed_in_its_state_the_newest_first(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, _):
        assert [row.run for row in host.runs_screen.run_list.shown] == [zoo[kind] for kind in NEWEST_FIRST]
        told = {row.run: row.state for row in host.runs_screen.run_list.shown}
        for kind in ("running", "paused", "finished", "stopped", "failed", "died", "stale", "foreign"):
            assert told[zoo[kind]] == kind
            assert f" {kind} " in host.text
        for kind in ("newer", "torn"):  # what is wrong shows in the list already
            assert f"{BLOCKS.warning} finished {kind} " in " ".join(host.text.split())
        assert told[zoo["half"]] == "unknown"
        [line] = [line for line in host.text.splitlines() if f"{BLOCKS.dot} running" in line]
        assert {"12/100", "3.2500", "1m15s"} <= set(line.split())


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("half", "status.json is missing"),
        ("newer", "status.json has version 99"),
        ("torn", "ends in the middle of a record"),
        ("foreign", "the folder is not a run"),
        ("failed", "12 GiB are missing"),
        ("failed", "exit code 3"),
        ("died", "Killed for want of memory"),
        ("running", "running: training"),
    ],
)
async def test_what_is_wrong_with_a_run_is_told_in_its_detail(
    zoo: dict[str, RunDirectory], kind: str, told: str
) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await go_to(host, pilot, kind)
        await until(pilot, lambda: told in host.text)


async def test_a_letter_or_digit_begins_the_filter(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        for key in "skxq2":
            await pilot.press(key)
            assert host.runs_screen.query_one(Input).value == key and host.screen is host.runs_screen
            await pilot.press("escape")
    assert not host.asked and not zoo["running"].control.exists()


async def test_typing_after_a_slash_filters_and_escape_brings_all_back(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await pilot.press("slash", *"FAIL")
        await until(pilot, lambda: len(host.runs_screen.run_list.shown) == 1)
        assert host.here == zoo["failed"]
        await pilot.press("x", "x")
        await until(pilot, lambda: "No run has 'failxx'" in host.text)
        await pilot.press("backspace", "backspace", "enter")
        assert host.focused is host.runs_screen.run_list
        assert host.runs_screen.query_one(Input).display
        await pilot.press("enter")
        await until(pilot, lambda: bool(host.asked))
        await pilot.press("escape")
        await until(pilot, lambda: len(host.runs_screen.run_list.shown) == len(zoo))
        assert host.focused is host.runs_screen.run_list
        assert not host.runs_screen.query_one(Input).display
        assert host.here == zoo["failed"]
    assert [message.run for message in host.asked] == [zoo["failed"]]  # type: ignore[attr-defined]


async def test_enter_and_a_click_on_the_cursor_open_a_run_and_one_elsewhere_moves_it(
    zoo: dict[str, RunDirectory],
) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await pilot.press("down", "enter")
        await pilot.click(host.runs_screen.run_list, offset=(20, 4))
        assert host.here == zoo["finished"]
        assert len(host.asked) == 1
        await pilot.click(host.runs_screen.run_list, offset=(20, 4))
        await pilot.press("end", "enter")
        await until(pilot, lambda: bool(host.reports))
    assert all(isinstance(message, OpenRun) for message in host.asked)
    assert [message.run for message in host.asked] == [zoo["paused"], zoo["finished"]]  # type: ignore[attr-defined]
    assert "cannot open: the folder is not a run" in host.reports[0]


async def test_resuming_is_offered_where_there_is_something_to_resume(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        for kind, offered in {"running": False, "paused": True, "finished": True, "stopped": True}.items():
            await go_to(host, pilot, kind)
            await pilot.pause()
            assert host.screen.active_bindings["R"].enabled is offered, kind
            if not offered:
                await pilot.press("R")
    assert not host.asked and not zoo["running"].control.exists()


@pytest.mark.parametrize("kind", ["stopped", "failed", "died", "half", "finished"])
async def test_a_run_without_a_trainer_is_resumed_by_the_application(
    zoo: dict[str, RunDirectory], kind: str
) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await go_to(host, pilot, kind)
        await pilot.press("R")
        await until(pilot, lambda: bool(host.asked))
    [message] = host.asked
    assert isinstance(message, ResumeRun) and message.run == zoo[kind]


@pytest.mark.parametrize(("kind", "key"), [("stopped", "A"), ("died", "K"), ("failed", "S")])
async def test_what_makes_no_sense_for_a_run_is_told_and_not_done(
    zoo: dict[str, RunDirectory], kind: str, key: str
) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await go_to(host, pilot, kind)
        await pilot.press(key)
        await until(pilot, lambda: bool(host.reports))
    assert kind in host.reports[0] and not host.asked
    assert not zoo[kind].control.exists()


@pytest.mark.parametrize(
    ("kind", "keys", "verb"),
    [
        ("running", ["A"], "pause"),
        ("paused", ["A"], "resume"),
        ("paused", ["R"], "resume"),
        ("running", ["K"], "save"),
        ("running", ["S", "y"], "stop"),
    ],
)
async def test_a_living_run_is_steered_and_its_answer_told(
    zoo: dict[str, RunDirectory], kind: str, keys: list[str], verb: str
) -> None:
    trainer = ControlReader(zoo[kind])
    obeyed: list[str] = []

    def trainer_obeys() -> bool:
        for command in trainer.poll():
            obeyed.append(command.verb)
            trainer.acknowledge(command, "it is done, after step 12")
        return bool(obeyed)

    async with shown(root_of(zoo)) as (host, pilot):
        await go_to(host, pilot, kind)
        for key in keys:
            await pilot.press(key)
        await until(pilot, trainer_obeys)
        await until(pilot, lambda: any("it is done, after step 12" in told for told in host.reports))
    assert obeyed == [verb]


async def test_a_stop_that_is_not_confirmed_is_not_sent(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await pilot.press("S")
        assert isinstance(host.screen, Confirm)
        await pilot.press("escape")
    assert not zoo["running"].control.exists()


async def test_leaving_does_not_wait_for_an_answer_that_is_outstanding(zoo: dict[str, RunDirectory]) -> None:
    begun = time.monotonic()

    async with shown(root_of(zoo)) as (_, pilot):
        await pilot.press("K")
        await until(pilot, zoo["running"].control.exists)
    assert time.monotonic() - begun < 20


async def test_marked_runs_are_compared_in_the_order_of_the_list(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await pilot.press("C")
        await until(pilot, lambda: bool(host.reports))
        await go_to(host, pilot, "failed")
        await pilot.press("space")
        assert host.here == zoo["died"]
        await go_to(host, pilot, "finished")
        await pilot.press("space", "space", "up", "space", "C")
        await until(pilot, lambda: bool(host.asked))
        assert "2 marked" in host.text
        await go_to(host, pilot, "failed")
        await pilot.press("space")
        await go_to(host, pilot, "running")
        await pilot.press("C")
        await until(pilot, lambda: len(host.asked) == 2)
    assert "two or more" in host.reports[0]
    assert [message.runs for message in host.asked] == [  # type: ignore[attr-defined]
        (zoo["finished"], zoo["failed"]),
        (zoo["finished"], zoo["running"]),
    ]


async def test_deleting_asks_with_name_and_size_and_deletes_only_after_yes(
    zoo: dict[str, RunDirectory],
) -> None:
    root = root_of(zoo)
    (zoo["stopped"].path / "weights").write_bytes(bytes(3 << 20))

    async with shown(root) as (host, pilot):
        await go_to(host, pilot, "stopped")
        await pilot.press("X")
        await until(pilot, lambda: isinstance(host.screen, Confirm))
        asked = " ".join(host.text.replace("│", " ").split())
        assert zoo["stopped"].name in asked and "3.0 MiB" in asked
        await pilot.press("enter")
        assert zoo["stopped"].path.is_dir()
        await pilot.press("X")
        await until(pilot, lambda: isinstance(host.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: not zoo["stopped"].path.exists() and "is deleted" in "".join(host.reports))
        await until(pilot, lambda: len(host.runs_screen.run_list.shown) == len(zoo) - 1)
        assert host.here == zoo["failed"]
    assert sum(1 for _ in root.iterdir()) == len(zoo) - 1


@pytest.mark.parametrize("kind", ["running", "paused", "stale", "foreign"])
async def test_what_may_not_be_deleted_is_not_even_asked_about(
    zoo: dict[str, RunDirectory], kind: str
) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await go_to(host, pilot, kind)
        await pilot.press("X")
        await until(pilot, lambda: bool(host.reports))
        assert not isinstance(host.screen, Confirm)
    assert "not a run" in host.reports[0] if kind == "foreign" else "stop it first" in host.reports[0]
    assert zoo[kind].path.is_dir()


async def test_e_exports_the_model_into_a_folder_that_is_asked_for(
    zoo: dict[str, RunDirectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import workbench.export.export as exporting

    def export(run: RunDirectory, target: Path, *, step: int | None = None) -> exporting.Exported:
        if run == zoo["failed"]:
            raise ConfigurationError("export: it has no checkpoint")
        return exporting.Exported(target, 12, 3 << 20)

    monkeypatch.setattr(exporting, "export", export)

    async with shown(root_of(zoo)) as (host, pilot):
        for kind, told in (("stopped", "Exported step 12"), ("failed", "it has no checkpoint")):
            await go_to(host, pilot, kind)
            await pilot.press("E")
            await until(pilot, lambda: isinstance(host.screen, AskText))
            entry = host.screen.query_one(Input)
            assert zoo[kind].name in entry.value
            entry.value = str(tmp_path)
            await pilot.press("enter")
            await until(pilot, lambda: "empty folder" in " ".join(host.text.replace("│", " ").split()))
            assert isinstance(host.screen, AskText)
            entry.value = str(tmp_path / "model")
            await pilot.press("enter")
            await until(pilot, lambda told=told: told in "".join(host.reports))  # type: ignore[misc]
        await pilot.press("E")
        await until(pilot, lambda: isinstance(host.screen, AskText))
        await pilot.press("escape")
        await until(pilot, lambda: host.screen is host.runs_screen)
    assert len(host.reports) == 2


async def test_y_copies_the_path(zoo: dict[str, RunDirectory]) -> None:
    async with shown(root_of(zoo)) as (host, pilot):
        await pilot.press("down", "Y")
    assert host.copied == [str(zoo["paused"].path)]


async def test_in_read_only_mode_nothing_is_changed_and_looking_still_works(
    zoo: dict[str, RunDirectory],
) -> None:
    async with shown(root_of(zoo), read_only=True, size=(160, 24)) as (host, pilot):
        for kind in ("running", "stopped"):
            await go_to(host, pilot, kind)
            await pilot.press("A", "K", "S", "R", "E", "X")
            assert host.screen is host.runs_screen
        assert not host.asked and not host.reports
        for text in ("Delete", "Stop", "Resume"):
            assert f" {text}" not in host.text
        await pilot.press("enter", "Y")
        await until(pilot, lambda: bool(host.asked and host.copied))
    assert not zoo["running"].control.exists()


async def test_the_list_follows_the_folder_without_reading_what_has_not_changed(
    zoo: dict[str, RunDirectory],
) -> None:
    root = root_of(zoo)

    async with shown(root) as (host, pilot):
        screen = host.runs_screen
        await go_to(host, pilot, "stopped")
        read = screen.summaries.read_folders
        screen.look()
        await settled(pilot)
        assert screen.summaries.read_folders == read
        newest = new_run(root, 11, "newest", status("training"))
        write_status(zoo["running"], status("stopped"))
        screen.look()
        await settled(pilot)
        assert [row.state for row in screen.run_list.shown[:2]] == ["running", "stopped"]
        assert screen.run_list.shown[0].run == newest
        assert host.here == zoo["stopped"]
        assert screen.summaries.read_folders == read + 2


async def test_a_folder_without_runs_says_how_to_get_one(tmp_path: Path) -> None:
    async with shown(tmp_path / "nowhere", size=(200, 24)) as (host, pilot):
        await pilot.press("enter", "X", "S", "R", "C", "Y", "space", "up", "end")
        assert "There are no runs in" in host.text
    assert not host.asked


@pytest.mark.parametrize("size", [(60, 16), (200, 60), (24, 8)])
@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN])
async def test_it_fits_every_terminal_and_plain_mode_draws_panels_in_ascii(
    zoo: dict[str, RunDirectory], size: tuple[int, int], glyphs: Glyphs
) -> None:
    async with shown(root_of(zoo), size=size, glyphs=glyphs) as (host, pilot):
        for kind in NEWEST_FIRST:
            await go_to(host, pilot, kind)
            for panel in (host.runs_screen.run_list, host.runs_screen.query_one("#detail")):
                width, height = panel.outer_size
                for y in range(height):
                    line = panel.render_line(y) if y < panel.content_size.height else None
                    assert line is None or line.cell_length <= width
        await go_to(host, pilot, "running")
        assert f"{glyphs.dot} running" in host.text
        text = "\n".join(host.text.splitlines()[:-1])  # the last line is the footer's
        assert text.translate(SCROLLBAR).isascii() is glyphs.ascii


@pytest.mark.slow
async def test_many_rows_are_moved_through_with_the_cursor_always_in_sight(tmp_path: Path) -> None:
    for number in range(200):
        run = RunDirectory(tmp_path / f"20260101-{number:06d}-p-{number:06x}")
        run.path.mkdir()
        run.events.touch()

    async with shown(tmp_path) as (host, pilot):
        listed = host.runs_screen.run_list
        page = listed.content_size.height - 1
        for key, place in (
            ("end", 199),
            ("up", 198),
            ("home", 0),
            ("pagedown", page),
            ("pageup", 0),
            ("up", 0),
        ):
            await pilot.press(key)
            assert listed.cursor_row == place
            assert BLOCKS.selected in "\n".join(picture(listed))
