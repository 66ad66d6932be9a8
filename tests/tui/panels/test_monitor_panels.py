"""The monitor's panels say what was sampled, in every size and in both sets of characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from panel_host import BOXES, SIZES, check_box, drawn, picture, shown_widget
from sampled_machines import GIB, TRAINER, gpu, laptop, nothing, server

from workbench.monitor.samples import GpuProcess, HostSample, MonitorSample, TrainerSample
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.cores import CoresPanel, ThreadsPanel
from workbench.tui.panels.gpu import GpuPanel, PciePanel
from workbench.tui.panels.lanes import LanesPanel
from workbench.tui.panels.log import LogView
from workbench.tui.panels.memory_and_disk import DiskPanel, MemoryPanel
from workbench.tui.panels.status_line import StatusLine

MONITORS = (GpuPanel, CoresPanel, MemoryPanel, ThreadsPanel, PciePanel, DiskPanel)
Shown = GpuPanel | CoresPanel | MemoryPanel | ThreadsPanel | PciePanel | DiskPanel


def shown(*samples: MonitorSample) -> Callable[[Shown], None]:
    def prepare(panel: Shown) -> None:
        for sample in samples:
            panel.show(sample)

    return prepare


def text(panel: Shown, size: tuple[int, int], *samples: MonitorSample) -> str:
    return "\n".join(drawn(panel, size, shown(*samples)))


@BOXES
@pytest.mark.parametrize("panel", MONITORS, ids=lambda panel: panel.__name__)
async def test_every_panel_fills_its_box_and_no_more(
    panel: type[Shown], size: tuple[int, int], glyphs: Glyphs
) -> None:
    samples = (server(1.0), server(2.0), laptop(3.0), nothing(4.0), server(5.0, 1, 256))
    async with shown_widget(panel(glyphs), size) as (pilot, widget):
        for place, sample in enumerate(samples):
            widget.show(sample)
            await pilot.pause()
            rows = picture(widget)
            check_box(rows, size, ascii_only=glyphs.ascii)
            if place == 1:
                assert any(character.isdigit() for character in "".join(rows[1:-1])), rows
            widget.first_row = 10 * place
            widget.changed()


@pytest.mark.parametrize("panel", MONITORS, ids=lambda panel: panel.__name__)
def test_what_is_not_known_is_printed_as_not_available(panel: type[Shown]) -> None:
    bare = dataclasses.replace(nothing(), gpus=nothing().gpus[:1])
    assert "N/A" in text(panel(BLOCKS), (40, 10), bare)


@pytest.mark.parametrize("panel", [GpuPanel, PciePanel])
def test_a_machine_without_a_gpu_gets_a_calm_sentence(panel: type[Shown]) -> None:
    rows = text(panel(BLOCKS), (40, 10), laptop())
    assert "No GPU is shown: there is no NVIDIA" in rows and "driver here." in rows


def test_before_the_first_sample_a_panel_says_that_it_waits() -> None:
    for panel in MONITORS:
        rows = "\n".join(drawn(panel(PLAIN), (40, 5), lambda _: None))
        assert "Waiting" in rows or "No training process" in rows


def test_every_panel_explains_its_numbers() -> None:
    for panel in (*MONITORS, LanesPanel, LogView, StatusLine):
        assert panel.HELP and panel.HELP.startswith("###") and len(panel.HELP) > 200


def test_a_gpu_block_tells_all_that_the_driver_gives() -> None:
    sample = dataclasses.replace(server(gpus=1), gpus=(gpu(0, fan=0.35, throttled_by=("power cap",)),))
    rows = text(GpuPanel(BLOCKS), (80, 24), sample)
    for said in (
        "GPU 0 NVIDIA H200",
        "87 %",
        "103.0 of 140.0 GiB",
        "ours 98.0 GiB",
        "others 5.0 GiB",
        "free 37.0 GiB",
        "power 410 of 700 W",
        "temp 62 of 87 C",
        "fan 35 %",
        "clock 1,755 of 1,980 MHz",
        "memory 3,201 of 3,201 MHz",
        "! throttled: power cap",
        "history",
        "4242 python",
        "99 Xorg",
    ):
        assert said in rows, said


def test_the_trainers_process_is_marked_and_comes_first() -> None:
    small = (GpuProcess(7, "other", 100 * GIB), GpuProcess(TRAINER, "python", 1 * GIB))
    rows = drawn(
        GpuPanel(PLAIN), (80, 24), shown(dataclasses.replace(server(), gpus=(gpu(0, processes=small),)))
    )
    listed = [row for row in rows if "4242" in row or "7 other" in row]
    assert "> 4242 python" in listed[0] and ">" not in listed[1]


def test_eight_gpus_have_a_line_each_in_a_small_panel() -> None:
    rows = drawn(GpuPanel(BLOCKS), (40, 10), shown(server()))
    assert [row[1] for row in rows[1:9]] == list("01234567")
    assert all("87 %" in row and "103.0/140.0 GiB" in row for row in rows[1:9])


async def test_gpus_that_do_not_fit_are_scrolled_to_and_counted() -> None:
    async with shown_widget(GpuPanel(BLOCKS), (40, 5)) as (pilot, panel):
        panel.show(server())
        panel.focus()
        await pilot.pause()
        assert "GPU 1-3 of 8" in picture(panel)[-1]
        await pilot.press("down", "down")
        rows = picture(panel)
        assert "GPU 3-5 of 8" in rows[-1] and rows[1][1] == "2"
        await pilot.press("end")
        assert "GPU 6-8 of 8" in picture(panel)[-1]
        await pilot.press("pageup", "home")
        assert "GPU 1-3 of 8" in picture(panel)[-1]


def test_a_gpu_that_fell_out_says_so_and_the_others_go_on() -> None:
    gpus = (gpu(0), gpu(1, fault="It does not answer."))
    for size in ((60, 4), (60, 20)):
        rows = text(GpuPanel(BLOCKS), size, dataclasses.replace(server(), gpus=gpus))
        assert "It does not answer." in rows and "87 %" in rows


async def test_a_history_keeps_one_value_for_each_moment() -> None:
    async with shown_widget(GpuPanel(BLOCKS), (80, 12)) as (_, panel):
        for time in range(300):
            panel.show(dataclasses.replace(server(float(time), 1), gpus=(gpu(0, busy=time / 300),)))
            panel.show(dataclasses.replace(server(float(time), 1), gpus=(gpu(0, busy=0.0),)))
        history = panel.histories[0].values
        assert len(history) == 240
        assert history == [time / 300 for time in range(60, 300)]


@pytest.mark.parametrize(
    ("cores", "size"),
    [(2, (80, 24)), (7, (20, 3)), (32, (80, 24)), (65, (40, 10)), (192, (20, 3)), (256, (120, 40))],
)
async def test_every_core_is_drawn_somewhere(cores: int, size: tuple[int, int]) -> None:
    host = HostSample(cores=(0.5,) * cores, allowed_cores=tuple(range(cores)))
    seen: dict[int, int] = {}
    async with shown_widget(CoresPanel(BLOCKS), size) as (pilot, panel):
        panel.show(MonitorSample(1.0, host))
        panel.focus()
        await pilot.pause()
        hidden = panel.overflow_rows
        assert not hidden or f"of {cores}" in picture(panel)[-1]
        for row in range(hidden + 1):
            assert panel.first_row == row
            for y, line in enumerate(picture(panel)[1:-1]):
                is_of_all = " of " in line or "trainer" in line or "% " in line[:6]
                seen[row + y] = 0 if is_of_all else line.count("▄") + line.count("50 %")
            await pilot.press("down")
    assert sum(seen.values()) == cores


async def test_a_machine_too_large_for_the_panel_says_which_cores_are_seen() -> None:
    host = HostSample(cores=(0.5,) * 256, allowed_cores=tuple(range(256)))
    async with shown_widget(CoresPanel(BLOCKS), (71, 3)) as (pilot, panel):
        panel.show(MonitorSample(1.0, host))
        panel.focus()
        await pilot.pause()
        assert "cores 1-64 of 256" in picture(panel)[-1]
        await pilot.press("down")
        assert "cores 65-128 of 256" in picture(panel)[-1]


def test_memory_nodes_and_cores_that_are_not_ours_have_groups_of_their_own() -> None:
    rows = text(CoresPanel(BLOCKS), (80, 24), server())
    assert "node 0: 0-95" in rows and "node 1: 96-143" in rows and "node 1, not ours: 144-191" in rows
    assert "limit 64.0" in rows and "load 61.2 55.0 40.1" in rows


def test_cores_of_the_optimizer_are_marked_below_or_in_their_place() -> None:
    rows = drawn(CoresPanel(PLAIN), (80, 24), shown(server()))
    first = next(i for i, row in enumerate(rows) if row.startswith("|  0 "))
    assert [i - 5 for i, mark in enumerate(rows[first + 1]) if mark == "^"] == list(range(0, 32, 2))
    tight = drawn(CoresPanel(PLAIN), (80, 6), shown(server()))
    cells = next(row for row in tight if row.startswith("|  0 "))[5:]
    assert [i for i, cell in enumerate(cells) if cell in "aA"] == list(range(0, 32, 2))


def test_memory_is_told_apart_by_whose_it_is() -> None:
    rows = text(MemoryPanel(BLOCKS), (80, 12), server())
    for said in (
        "300 of 1,024 GiB",
        "trainer 250.0 GiB",
        "others 50.0 GiB",
        "cache 200.0 GiB",
        "free 524.0 GiB",
    ):
        assert said in rows, said
    bar = rows.splitlines()[1]
    cells = sum(map(bar.count, "█▓▒░"))
    drawn_gib = [1024 * bar.count(mark) / cells for mark in "█▓▒░"]
    assert drawn_gib == pytest.approx([250, 50, 200, 524], abs=1024 / cells)


def test_swap_in_use_is_a_warning_and_growing_swap_a_worse_one() -> None:
    assert "!" not in text(MemoryPanel(BLOCKS), (60, 12), server())
    assert "swap 1.0 of 2.0 GiB  ! in use" in text(MemoryPanel(BLOCKS), (60, 12), laptop(1.0), laptop(2.0))
    host = dataclasses.replace(laptop().host, swap_used_bytes=2 * GIB)
    grown = dataclasses.replace(laptop(2.0), host=host)
    assert "swap 2.0 of 2.0 GiB  ✗ growing" in text(MemoryPanel(BLOCKS), (60, 12), laptop(1.0), grown)


def test_the_optimizers_threads_are_marked() -> None:
    threads = [row for row in drawn(ThreadsPanel(PLAIN), (80, 24), shown(server())) if "core " in row]
    assert [">" in row for row in threads] == [False] + [True] * 16
    assert "95 %" in threads[1] and "core 0" in threads[1]


def test_a_trainer_that_has_ended_is_told_as_such() -> None:
    ended = dataclasses.replace(server(), trainer=TrainerSample(TRAINER, alive=False))
    assert "process 4242 has ended" in text(ThreadsPanel(BLOCKS), (60, 5), ended)


def test_pcie_is_shown_each_way_against_the_limit_of_the_link() -> None:
    rows = text(PciePanel(BLOCKS), (80, 12), server(gpus=1))
    assert "GPU 0 gen 5 x16" in rows and "58.7 GiB/s each way" in rows
    assert "24.0 GiB/s  41 %" in rows and "3.5 GiB/s   6 %" in rows and "history, up to 24.0 GiB/s" in rows


def test_a_disk_shows_its_rates_its_room_and_the_trainers_share() -> None:
    rows = text(DiskPanel(BLOCKS), (80, 24), server())
    for said in (
        "/data/runs",
        "nvme0n1",
        "read 2.0 GiB/s",
        "write 512.0 MiB/s",
        "busy 66 %",
        "1,200 of 3,500 GiB",
        "trainer  read 1.5 GiB/s  write 256.0 MiB/s",
    ):
        assert said in rows, said


def test_names_from_outside_can_neither_break_the_box_nor_leave_ascii() -> None:
    odd = (GpuProcess(7, "naïve\n\x1b[31m名前", 1 * GIB),)
    sample = dataclasses.replace(server(), gpus=(gpu(0, name="[bold]名前[/] \t", processes=odd),))
    for glyphs in (BLOCKS, PLAIN):
        for size in SIZES:
            check_box(drawn(GpuPanel(glyphs), size, shown(sample)), size, ascii_only=glyphs.ascii)


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
async def test_every_cell_has_the_background_of_its_theme(theme: str) -> None:
    async with shown_widget(MemoryPanel(BLOCKS), (60, 14)) as (pilot, panel):
        panel.show(server())
        pilot.app.theme = theme
        await pilot.pause()
        strips = panel.render_lines(panel.outer_size.region)
        backgrounds = {segment.style.bgcolor for strip in strips for segment in strip if segment.style}
        assert all(segment.style for strip in strips for segment in strip)
        assert len(backgrounds) == 1
