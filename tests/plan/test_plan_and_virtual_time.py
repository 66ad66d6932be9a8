"""The plan's step beside the engine's own in virtual time, where the two were apart."""

from __future__ import annotations

import pytest

from benchmarks.virtual_gpu import measure, planned


@pytest.mark.slow
@pytest.mark.parametrize("title", ["gpt2-10b without clipping", "llama2-7b"])
def test_the_plan_and_the_engine_in_virtual_time_agree_within_a_tenth(title: str) -> None:
    plan = planned(title, "server-h200")
    assert plan is not None
    assert plan["time"]["step_s"] == pytest.approx(measure(title, "server-h200")["step_s"], rel=0.1)
