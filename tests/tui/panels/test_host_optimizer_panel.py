"""The host optimizer's load: figures of the last step, whoever did the update, and what is not known said as such."""

from __future__ import annotations

import dataclasses

import pytest
from panel_host import drawn
from sampled_machines import laptop, server

from workbench.monitor.samples import MonitorSample, ThreadSample, TrainerSample
from workbench.tui.glyphs import BLOCKS, PLAIN
from workbench.tui.panels.cores import CoresPanel
from workbench.tui.panels.host_optimizer import HostOptimizerPanel, OptimizerLoad, optimizer_threads

LOAD = OptimizerLoad(
    step_s=(1.0, 1.5),
    update_s=(0.1, 0.204),
    exposed_s=(0.0, 0.032),
    threads=4,
    state_format="exact",
    gb_per_s=3.3,
    limit_gb_per_s=16.9,
)


EXPOSED = dataclasses.replace(LOAD, exposed_s=LOAD.update_s)
"""The model's own thread updates."""


def trainer(*threads: tuple[str, int, float, int]) -> TrainerSample:
    found = tuple(ThreadSample(name, number, busy, core) for name, number, busy, core in threads)
    return TrainerSample(100, busy=sum(thread.busy for thread in found), threads=found)


def shown(load: OptimizerLoad | None, size: tuple[int, int], sample: MonitorSample | None = None) -> str:
    def prepare(panel: HostOptimizerPanel) -> None:
        panel.show(sample or server())
        panel.set_load(load)

    return "\n".join(drawn(HostOptimizerPanel(PLAIN), size, prepare))


def test_the_last_steps_update_is_told_with_its_share_and_what_was_exposed() -> None:
    rows = shown(LOAD, (80, 12))
    for said in (
        "Host optimizer 14 % of the step | exposed 2.1 %",
        "update 204 ms of 1.50 s",
        "exposed 32.0 ms",
        "14.00 cores",
        "threads 4",
        "format exact",
        "3.3 of 16.9 GB/s",
        "20 %",
        "top 204 ms",
    ):
        assert said in rows, said
    assert "last step" in shown(dataclasses.replace(LOAD, ended=True), (80, 12))


def test_what_was_updated_ahead_of_the_norm_is_told_where_a_run_speculates() -> None:
    assert "ahead" not in shown(LOAD, (80, 12))
    ahead = dataclasses.replace(LOAD, ahead=0.92, undone=0.0)
    assert "ahead of the norm 92 %" in shown(ahead, (80, 12))
    assert "undone 31 %" in shown(dataclasses.replace(ahead, undone=0.31), (80, 12))


def test_at_the_least_height_the_shares_are_in_the_title() -> None:
    assert "14 %" in shown(LOAD, (40, 3)) and "update 204 ms" in shown(LOAD, (40, 3))


def test_what_is_not_there_is_said_in_a_sentence() -> None:
    assert "No run is training." in shown(None, (60, 5), laptop())
    assert "No step yet in this session." in shown(OptimizerLoad(), (60, 5))
    assert "the host updates nothing" in shown(dataclasses.replace(LOAD, on_device=True), (80, 5))
    assert "limit not measured" in shown(dataclasses.replace(LOAD, limit_gb_per_s=None), (80, 8))
    in_caches = dataclasses.replace(LOAD, gb_per_s=34.7, limit_gb_per_s=16.9)
    for size in ((80, 24), (46, 12)):
        assert "34.7 GB/s from caches" in shown(in_caches, size) and "205 %" not in shown(in_caches, size)


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        # The lane calls the optimizer, and the pool's threads help it.
        (
            [("python", 100, 0.9, 0), ("lane-update", 101, 0.5, 1), ("host-adam/1", 102, 0.4, 2)],
            {101: 0.5, 102: 0.4},
        ),
        # No lane: the first thread calls it, for as long as updates take (0.304 of 2.5 s).
        ([("python", 100, 0.9, 0), ("python", 103, 0.8, 1)], {100: 0.304 / 2.5}),
        ([("python", 100, 0.05, 0), ("host-adam/1", 102, 0.04, 2)], {100: 0.05, 102: 0.04}),
    ],
    ids=["lane", "alone", "pool"],
)
def test_whichever_thread_updates_counts(
    threads: list[tuple[str, int, float, int]], expected: dict[int, float]
) -> None:
    assert optimizer_threads(trainer(*threads), EXPOSED) == pytest.approx(expected)


def test_a_lane_that_was_too_quick_to_be_counted_leaves_the_first_thread_alone() -> None:
    assert optimizer_threads(trainer(("python", 100, 0.9, 0)), LOAD) == {}


def test_threads_of_a_run_that_prepares_or_keeps_its_state_on_the_device_do_not_update() -> None:
    found = trainer(("python", 100, 0.9, 0))
    assert optimizer_threads(found, OptimizerLoad()) == {}
    assert optimizer_threads(found, dataclasses.replace(LOAD, on_device=True)) == {}
    assert optimizer_threads(dataclasses.replace(found, alive=False), LOAD) == {}


def test_the_part_of_a_core_that_the_optimizer_used_is_a_part_of_its_bar() -> None:
    host = dataclasses.replace(laptop().host, cores=(1.0, 0.5), allowed_cores=(0, 1))
    busy = trainer(("python", 100, 1.0, 0), ("lane-update", 101, 0.5, 0), ("host-adam/1", 102, 0.25, 1))

    def prepare(panel: CoresPanel) -> None:
        panel.show(MonitorSample(1.0, host, trainer=busy))

    rows = drawn(CoresPanel(BLOCKS), (60, 5), prepare)
    first = next(row for row in rows if "100 %" in row and "│0" in row)
    left, _, right = first.partition("100 %")
    assert left.count("█") == pytest.approx(left.count("▓"), abs=1) and left.count("▓") > 5
    assert 0 < right.count("▓") <= right.count("░")


def test_all_cores_over_time_tell_the_trainers_part_apart() -> None:
    host = dataclasses.replace(laptop().host, cores=(1.0, 0.5), allowed_cores=(0, 1))
    busy = trainer(("python", 100, 0.5, 0))

    def prepare(panel: CoresPanel) -> None:
        panel.show(MonitorSample(1.0, host, trainer=busy))
        panel.show(MonitorSample(2.0, host, trainer=busy))

    rows = drawn(CoresPanel(BLOCKS), (60, 14), prepare)
    assert "trainer 25 %" in rows[1] and "others 50 %" in rows[1] and "average 75 %" in rows[1]
    assert rows[2].startswith("│100%") and any(row.startswith("│  0%") for row in rows)
    # Three quarters of the graph's height are filled, in its two newest columns alone.
    graph = [row[-3:-1] for row in rows[2 : next(i for i, row in enumerate(rows) if " 0%" in row[:6]) + 1]]
    filled = sum(cells == "██" for cells in graph)
    assert filled in (3 * len(graph) // 4, 3 * len(graph) // 4 + 1)
