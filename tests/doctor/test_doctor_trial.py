"""The helper process: what it learns here, and that hanging or dying in it is told and goes no further."""

from __future__ import annotations

import time

from workbench.doctor.trial import STAGES, Trial

PROGRAM = """
import os, signal, time
from workbench.system.child_process import serve

def answer(question, report):
    if question["stage"] == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question["stage"] == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if question["stage"] == "raises":
        raise OSError("of two\\nlines")
    return {"pid": os.getpid()}

serve(answer)
"""


def test_every_stage_has_an_outcome_on_this_machine() -> None:
    with Trial() as trial:
        outcomes = {stage: trial.outcome(stage) for stage in STAGES}
    assert {stage: outcome.problem for stage, outcome in outcomes.items() if outcome.problem} == {}
    assert outcomes["torch"].values["threads"] >= 1
    assert outcomes["extension"].values["missing"] or 0 <= outcomes["extension"].values["error"] < 1e-5
    assert isinstance(outcomes["cuda"].values["devices"], list)


def test_a_stage_that_raises_or_dies_is_told_and_the_next_one_is_tried() -> None:
    with Trial("-c", PROGRAM) as trial:
        assert "OSError: of two" in trial.outcome("raises").problem
        first = trial.outcome("one").values["pid"]
        assert trial.outcome("dies").problem.endswith("was ended by signal 11")
        assert trial.outcome("two").values["pid"] != first
        assert trial.outcome("one").values["pid"] == first, "each stage is tried once"


def test_a_process_that_hangs_is_given_up_and_killed() -> None:
    began = time.monotonic()
    with Trial("-c", PROGRAM, limit_s=1.0) as trial:
        assert "no answer within" in trial.outcome("hangs").problem
        assert "no answer within" in trial.outcome("later").problem
        child = trial._child
    assert child.pid is None
    assert time.monotonic() - began < 20
