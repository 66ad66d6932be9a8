"""What the loss in chunks adds to a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.config import load_config
from workbench.plan.machine import planned_machine
from workbench.plan.rates import Rates
from workbench.plan.step_time import compute_times
from workbench.plan.workload import workload
from workbench.presets import find_preset
from workbench.profiles.model_profile import model_table
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import read_shipped


def test_each_chunk_of_the_loss_reads_and_writes_the_sum_of_the_heads_gradient() -> None:
    config = load_config(find_preset("gpt2-124m"))
    profile = read_shipped(model_table(config))
    assert profile is not None and profile.loss_in_chunks
    machine = planned_machine(load_profile(Path("server-80gb")))
    work = workload(config, machine.precision(config), shared_memory=False)
    assert machine.profile is not None
    rates = Rates(machine.profile, "auto")
    in_chunks, whole = (
        compute_times(profile.model_copy(update={"loss_in_chunks": chunked}), work, rates, None)
        for chunked in (True, False)
    )
    tokens, vocabulary, width = work.micro_batch_size * work.sequence_length, profile.vocab_size, 768
    chunks = -(-tokens * 4 * vocabulary // (192 << 20))
    assert chunks > 5
    # The product in bf16 is written and read, the fp32 sum read and written.
    sums = chunks * vocabulary * width * (2 * 2 + 2 * 4) / machine.profile.device.memory_bytes_per_s
    times = [each.outer_forward + each.outer_backward for each in (in_chunks, whole)]
    assert times[0] - times[1] == pytest.approx(sums)
