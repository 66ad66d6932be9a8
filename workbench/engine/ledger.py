"""The ledger: what the engine holds in each tier, by name. Read where memory ran out, and beside the plan."""

from __future__ import annotations

from workbench.engine.assembly import Assembly
from workbench.engine.blocks.weight_window import WeightWindow
from workbench.engine.gradients.arrival import GradientIntake
from workbench.engine.steps.step_work import StepWork

Ledger = dict[str, dict[str, int]]


def memory_ledger(
    assembly: Assembly,
    window: WeightWindow | None,
    intake: GradientIntake,
    work: StepWork,
    device_staging_bytes: int,
    activation_bytes: int,
) -> Ledger:
    """Bytes by tier ("device", "host", "disk") and by name. What autograd holds on the device is not the engine's;
    `activation_bytes` are those it has moved to the host, `device_staging_bytes` what a device's copies go through."""
    ledger: Ledger = {"device": {}, "host": {}, "disk": {}}

    def add(tier: str, name: str, size: int) -> None:
        if size:
            ledger[tier][name] = ledger[tier].get(name, 0) + size

    for memory in assembly.memories:
        for tier, named in memory.ledger().items():
            for name, size in named.items():
                add(tier, name, size)
    for shard in assembly.streamed:
        tier, size = shard.frozen_bytes()
        add(tier, "frozen weights", size)
    streamed = {shard.shard.index for shard in assembly.streamed}
    for index, frozen in enumerate(assembly.frozen):
        if index not in streamed:
            add("device", "frozen weights", sum(parameter.nbytes for _, parameter in frozen))
    add("host", "activations", activation_bytes)
    if window is not None:
        add("device", "weight slots", window.slot_bytes)
        add("host", "staging", window.staging_bytes)
    add("host", "staging", work.buffer_bytes + device_staging_bytes)
    add("host", "gradient slots", intake.host_slots.nbytes)
    if intake.device_slots is not intake.host_slots:
        add("device", "gradient slots", intake.device_slots.nbytes)
    return ledger


def ledger_text(ledger: Ledger) -> str:
    """The ledger in one line, the largest first."""
    parts = []
    for tier, named in ledger.items():
        if named:
            largest = sorted(named.items(), key=lambda item: -item[1])
            held = ", ".join(f"{name} {size / 2**30:,.2f} GiB" for name, size in largest)
            parts.append(f"{tier}: {held}")
    return "; ".join(parts) or "the engine holds nothing yet"
