"""The memory breakdown: what the engine holds in each tier, by name. Read where memory ran out, and beside the plan."""

from __future__ import annotations

from workbench.engine.assembly import Assembly
from workbench.engine.blocks.weight_prefetcher import WeightPrefetcher
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.steps.step_work import StepWork

MemoryBreakdown = dict[str, dict[str, int]]


def memory_breakdown(
    assembly: Assembly,
    window: WeightPrefetcher | None,
    intake: GradientHooks,
    work: StepWork,
    device_staging_bytes: int,
    activation_bytes: int,
) -> MemoryBreakdown:
    """Bytes by tier ("device", "host", "disk") and by name. What autograd holds on the device is not the engine's;
    `activation_bytes` are those it has moved to the host, `device_staging_bytes` what a device's copies go through."""
    memory_breakdown: MemoryBreakdown = {"device": {}, "host": {}, "disk": {}}

    def add(tier: str, name: str, size: int) -> None:
        if size:
            memory_breakdown[tier][name] = memory_breakdown[tier].get(name, 0) + size

    for memory in assembly.memories:
        for tier, named in memory.memory_breakdown().items():
            for name, size in named.items():
                add(tier, name, size)
    for unit in assembly.streamed:
        tier, size = unit.frozen_bytes()
        add(tier, "frozen weights", size)
    streamed = {unit.unit.index for unit in assembly.streamed}
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
    return memory_breakdown


def memory_breakdown_text(memory_breakdown: MemoryBreakdown) -> str:
    """The memory breakdown in one line, the largest first."""
    parts = []
    for tier, named in memory_breakdown.items():
        if named:
            largest = sorted(named.items(), key=lambda item: -item[1])
            held = ", ".join(f"{name} {size / 2**30:,.2f} GiB" for name, size in largest)
            parts.append(f"{tier}: {held}")
    return "; ".join(parts) or "the engine holds nothing yet"
