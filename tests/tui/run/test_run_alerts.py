"""Alerts: each reported once when it begins, never for what was there before, never for what is daily."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from run_host import GIB
from sampled_machines import sample_at

from workbench.monitor.samples import MonitorSample
from workbench.tui.run.events import CALM_STEPS, SWAP_SAMPLES, THROTTLED_SAMPLES, Alerts

Records = tuple[list[float], list[float], list[float]]


def rows(losses: list[float], norms: list[float] | None = None, first: int = 1) -> Records:
    """Return steps from `first` on, losses and gradient norms."""
    steps = [float(step) for step in range(first, first + len(losses))]
    return steps, losses, norms or [1.0] * len(losses)


def noisy(count: int, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [2.0 + source.gauss(0, 0.05) for _ in range(count)]


def alerts_of(alerts: Alerts, given: Records) -> list[str]:
    return [event.text for event in alerts.of_records(*given, now=5.0)]


def test_a_loss_that_is_not_finite_is_reported_once_until_it_is_finite_again() -> None:
    alerts = Alerts()
    assert alerts_of(alerts, rows([2.0, 2.1])) == []
    assert alerts_of(alerts, rows([math.nan, math.nan], first=3)) == ["step 3: the loss is not finite"]
    assert alerts_of(alerts, rows([math.inf], first=5)) == []
    assert alerts_of(alerts, rows([2.0, math.nan], first=6)) == ["step 7: the loss is not finite"]


def test_a_leap_of_loss_or_gradient_norm_is_reported_and_noise_is_not() -> None:
    alerts = Alerts()
    assert alerts_of(alerts, rows(noisy(400), noisy(400, seed=2))) == []
    [loss] = alerts_of(alerts, rows([4.0], [2.0], first=401))
    assert loss.startswith("step 401: the loss jumps to 4,") or "jumps to 4" in loss
    [norm] = alerts_of(alerts, rows([2.0], [9.0], first=402))
    assert "step 402: the gradient norm jumps to 9" in norm


def test_leaps_that_follow_at_once_are_one_alert() -> None:
    alerts = Alerts()
    alerts_of(alerts, rows(noisy(200)))
    assert len(alerts_of(alerts, rows([5.0] * 10, first=201))) == 1


def test_a_falling_loss_at_the_start_is_no_alert() -> None:
    alerts = Alerts()
    falling = [10 * math.exp(-step / 30) + 2 for step in range(300)]
    assert alerts_of(alerts, rows(falling, [1 / (1 + step / 50) for step in range(300)])) == []


def test_nothing_is_judged_before_some_calm_steps() -> None:
    alerts = Alerts()
    assert alerts_of(alerts, rows(noisy(CALM_STEPS - 10))) == []
    assert alerts_of(alerts, rows([9.0], first=CALM_STEPS)) == []


def samples(alerts: Alerts, given: list[MonitorSample]) -> list[str]:
    return [event.text for sample in given for event in alerts.of_sample(sample)]


def slowed(time: float, *reasons: str) -> MonitorSample:
    sample = sample_at(time, gpus=1)
    return replace(sample, gpus=(replace(sample.gpus[0], throttled_by=reasons),))


def test_a_gpu_that_slows_itself_down_is_reported_when_it_lasts_and_again_when_it_comes_back() -> None:
    alerts = Alerts()
    hot = [slowed(i, "thermal") for i in range(THROTTLED_SAMPLES + 5)]
    assert samples(alerts, hot[: THROTTLED_SAMPLES - 1]) == []
    assert samples(alerts, hot[THROTTLED_SAMPLES - 1 :]) == ["GPU 0 is throttled: thermal"]
    assert samples(alerts, [slowed(50)]) == []
    assert len(samples(alerts, hot)) == 1


def test_a_power_cap_is_daily_work() -> None:
    assert samples(Alerts(), [slowed(i, "power cap") for i in range(20)]) == []


def test_growing_swap_is_reported_once_and_swap_in_use_is_not() -> None:
    used = [GIB] * SWAP_SAMPLES + [GIB + (i << 25) for i in range(10)]
    found = samples(Alerts(), [sample_at(i, swap_used_bytes=size) for i, size in enumerate(used)])
    assert len(found) == 1 and found[0].startswith("swap grows: 1.1 GiB in use")
    assert samples(Alerts(), [sample_at(i, swap_used_bytes=GIB) for i in range(40)]) == []


def test_a_disk_that_is_nearly_full_is_reported() -> None:
    sample = sample_at(1.0)
    full = replace(sample, disks=(replace(sample.disks[0], free_bytes=GIB),))
    alerts = Alerts()
    assert samples(alerts, [sample, full, full]) == ["/data/runs: only 1.0 GiB free (0 %)"]


def test_a_gpu_that_stops_answering_is_reported() -> None:
    sample = sample_at(1.0, gpus=1)
    gone = replace(sample, gpus=(replace(sample.gpus[0], fault="fallen off the bus"),))
    assert samples(Alerts(), [sample, gone, gone]) == ["GPU 0: fallen off the bus"]


def test_values_that_are_not_known_are_no_alert() -> None:
    sample = sample_at(1.0, gpus=1, swap_used_bytes=None)
    unknown = replace(
        sample,
        gpus=(replace(sample.gpus[0], throttled_by=None),),
        disks=(replace(sample.disks[0], free_bytes=None, total_bytes=None),),
    )
    assert samples(Alerts(), [unknown] * 30) == []
