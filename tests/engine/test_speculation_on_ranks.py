"""Updates ahead of one verdict on several ranks: the bits of one rank's `serial`, though one rank alone has what goes
against them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from plain_torch import Outcome, train_engine
from rank_processes import RankProcesses, of_rank
from small_models import MODELS, SeparateMemory, batches
from test_speculation import CASES, CLIPPING, STEPS, VERDICTS, Losses
from torch import Tensor

from workbench.engine.non_finite import LossScaling
from workbench.engine.speculation import MOST_AGAINST

OPTIONS = {
    "gradient_clipping": CLIPPING,
    "speculation": 1.0,
    "loss_scale": LossScaling(initial=16.0),
    "compute": "fp32",
}
ON_RANKS = (
    "fp32",
    "bf16",
    "fp16, weights on the host",
    "weights on the host",
    "accumulated",
    "state on both",
    "a part",
    "half",
    "compact, bf16",
)


@pytest.fixture(scope="module", params=[2, 3], ids=lambda size: f"{size} ranks")
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankProcesses]:
    processes = RankProcesses(request.param, tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.kill()


def train(
    rank: int, size: int, steps: list[list[Tensor]], verdicts: list[str], options: dict[str, Any]
) -> Outcome:
    """Train on one of `size` ranks. `verdicts`: of each micro-batch of each step."""
    mine = of_rank(rank, size, steps)
    given = "".join(verdict for step in of_rank(rank, size, verdicts) for verdict in step)
    losses = Losses(given, late_s=0.0 if options.get("overlap") == "serial" else 0.02)
    options = {**OPTIONS, **options, "gradient_accumulation": len(mine[0])}
    seed = None if size == 1 else rank
    return train_engine(MODELS["llama"](), mine, SeparateMemory(seed), compute_loss=losses, **options)


@pytest.mark.parametrize(
    ("case", "verdicts"),
    [*((case, "now and then") for case in ON_RANKS), *(("fp32", each) for each in VERDICTS)],
)
def test_ranks_have_the_bits_of_one_that_waits(ranks: RankProcesses, case: str, verdicts: str) -> None:
    options = {**CASES[case]}
    several = options.pop("gradient_accumulation", 1) * ranks.size
    data = batches(STEPS * several)
    steps = [data[number::STEPS] for number in range(STEPS)]
    # The last rank's last micro-batch alone has what the verdict is against.
    given = ["=" * (several - 1) + verdict for verdict in VERDICTS[verdicts]]
    found = ranks.run(train, steps, given, options)
    if several > ranks.size:  # another order of sums: the bits are those of ranks that wait
        references = ranks.run(train, steps, given, {**options, "overlap": "serial"})
    else:
        references = [train(0, 1, steps, given, {**options, "overlap": "serial"})] * ranks.size
    for ahead, serial in zip(found, references, strict=True):
        assert list(map(repr, ahead.norms)) == list(map(repr, found[0].norms))
        if case != "state on both":  # whose norm is summed in fp32, by another rank otherwise
            assert list(map(repr, ahead.norms)) == list(map(repr, serial.norms))
        assert ahead.parameter_steps == serial.parameter_steps
        for name, theirs in serial.parameters.items():
            assert ahead.parameters[name].equal(theirs), name
        assert not any(each.speculated for each in serial.speculation)
        for verdict, each in zip(VERDICTS[verdicts], ahead.speculation, strict=True):
            assert each.undone == (0 if verdict == "=" else each.speculated)
    steps_of_all = zip(*(outcome.speculation for outcome in found), strict=True)
    together = [sum(each.speculated for each in step) for step in steps_of_all]
    assert any(together), "nothing was updated ahead"
    for number in range(STEPS):
        against = number - VERDICTS[verdicts][:number].count("=")
        assert against <= MOST_AGAINST or not together[number], "a rank has decided by itself"
