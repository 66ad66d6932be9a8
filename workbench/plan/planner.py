"""The plan: memory and time of a configuration before it starts. Arithmetic over a model profile and a
machine; no torch.

A form asks for a plan at every key, so what the next plan needs too is cached: layouts here, tasks in `two_steps`.

Invariant: a plan that fits promises no tier more than it has free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.layout import Layout, Tier
from workbench.plan.machine import Machine, WeightDtypes
from workbench.plan.memory import MemoryPlan, checkpoint_bytes, plan_memory
from workbench.plan.rates import Rates
from workbench.plan.step_time import RunTime, StepTime, run_time, step_time
from workbench.plan.workload import Workload, workload
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.model_profile import ModelProfile, ModelTimes

MOST_LAYOUTS = 64
FRACTIONS = 8
"""A share of the state that stays on the device is tried in steps of 1/8."""
BY_SPEED: tuple[tuple[Tier, Tier], ...] = (
    ("device", "device"),
    ("device", "host"),
    ("host", "host"),
    ("device", "disk"),
    ("host", "disk"),
    ("disk", "disk"),
)
"""Tiers of weights and state."""
NO_PLACEMENT = (
    "offload: no placement is compatible with the other fields; a disk tier needs offload.disk_path, and weights off "
    "the device "
    "need train.activation_checkpointing"
)

TimesOf = Callable[[int, int, str], ModelTimes | None]
"""(sequences, tokens, dtype) to measured times of the model's pieces, where there are any."""


@dataclass(frozen=True)
class Plan:
    """The memory and time of `config`, its placement chosen. `time`: None where `no_time` says why.

    `busy`: a warning where the machine was busy when its speeds were measured; else empty. `all_gradients_wait`: the
    host has room for the gradients of all units; `speculation`: for records of so much of them, by which their updates
    can be undone. Both are for the engine to know. `ranks`: all that train, `local_ranks` of them on a machine, whose
    host and disks `memory` is about.
    """

    config: RunConfig
    machine: str
    memory: MemoryPlan
    precision: WeightDtypes
    time: StepTime | None
    run: RunTime | None
    no_time: str = ""
    busy: str = ""
    all_gradients_wait: bool = False
    speculation: float = 0.0
    ranks: int = 1
    local_ranks: int = 1

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON."""
        return {
            "machine": self.machine,
            "fits": self.fits,
            "placement": {
                "weights": self.config.offload.weights,
                "state": self.config.offload.state,
                "device_fraction": self.config.offload.device_fraction,
            },
            "all_gradients_wait": self.all_gradients_wait,
            "speculation": self.speculation,
            "ranks": self.ranks,
            "local_ranks": self.local_ranks,
            "memory": self.memory.as_dict(),
            "time": None if self.time is None else self.time.as_dict(),
            "run": None if self.run is None else self.run.as_dict(),
            "no_time": self.no_time,
            "busy": self.busy,
        }


class Planner:
    """Plans configurations of one model on one machine, or on several like it. `times_of` gives measured times where
    there are any. `ranks`: those that train; None: as many as [parallel] asks for."""

    def __init__(
        self,
        model_profile: ModelProfile,
        machine: Machine,
        times_of: TimesOf | None = None,
        ranks: int | None = None,
    ) -> None:
        self._ranks = ranks
        self.model_profile = model_profile
        self.machine = machine
        self._times_of = times_of
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def check(self, config: RunConfig) -> None:
        """Refuse what a run would refuse, whatever memory there is.

        Raises:
            ConfigurationError: see `Machine.check` and `check_positions`.
        """
        self.machine.check(config)
        check_positions(config, self.model_profile)

    def ranks(self, config: RunConfig) -> tuple[int, int]:
        """Return how many ranks train `config`, and how many of them are on a machine."""
        wanted = config.parallel.gpus
        ranks = self._ranks or ((self.machine.gpus or 1) if wanted == "auto" else wanted)
        return ranks, min(ranks, self.machine.gpus or ranks)

    def placed(self, config: RunConfig) -> Iterator[RunConfig]:
        """Yield `config` with each placement that it allows, in the order of speed that is usual."""
        return placed(config, self.machine)

    def next_gpu(self, plan: Plan) -> Plan | None:
        """Return what `plan` would be with one GPU more; None where that has no time, or the plan has none."""
        ranks, _ = self.ranks(plan.config)
        if plan.time is None:
            return None
        more = Planner(self.model_profile, self.machine, self._times_of, ranks + 1).plan_fixed(plan.config)
        return None if more.time is None else more

    def plan(self, config: RunConfig) -> Plan:
        """Return the plan of `config`; where a tier is "auto", of the fastest placement that fits.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: a tier is "auto" and no placement fits.
        """
        self.check(config)
        if "auto" not in (config.offload.weights, config.offload.state):
            return self.plan_fixed(config)
        return fastest(self.plan_fixed(variant) for variant in self.placed(config))

    def nearest(self, config: RunConfig) -> Plan:
        """Return the plan of `config`; where a tier is "auto", of the placement that lacks least.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: no placement goes with the other fields.
        """
        self.check(config)
        is_open = "auto" in (config.offload.weights, config.offload.state)
        variants = self.placed(config) if is_open else (config,)
        plans = (self.plan_fixed(variant, timed=False) for variant in variants)
        least = min(plans, key=lambda plan: plan.memory.missing_bytes, default=None)
        if least is None:
            raise DoesNotFitError(NO_PLACEMENT)
        return self.plan_fixed(least.config)

    def plan_fixed(self, config: RunConfig, *, timed: bool = True) -> Plan:
        """Return the plan of `config`, whose placement is chosen; `timed`: with its time.

        Where sums over micro-batches are "auto", they are on the device if they fit there and the step is shorter so;
        without times they stay on the host.
        """
        plan = self._plan(config, timed)
        if plan.time is None or not _sums_are_open(config, self.machine):
            return plan
        offload = config.offload.model_copy(update={"gradient_sums": "device"})
        other = self._plan(config.model_copy(update={"offload": offload}), timed)
        faster = other.fits and other.time is not None and other.time.step_s < plan.time.step_s
        return other if faster else plan

    def _plan(self, config: RunConfig, timed: bool) -> Plan:
        machine, model_profile = self.machine, self.model_profile
        precision = machine.precision(config)
        ranks, local = self.ranks(config)
        work = workload(
            config, precision, shared_memory=machine.shared_memory, ranks=ranks, local_ranks=local
        )
        layout = self._layout(work)
        for roomier in _with_more_room(work):
            memory = plan_memory(layout, model_profile, roomier, machine.free)
            if memory.fits and not any(tier.is_tight for tier in memory.tiers if tier.tier == "host"):
                work = roomier
                break
        else:
            memory = plan_memory(layout, model_profile, work, machine.free)
        room: dict[str, Any] = {
            "all_gradients_wait": work.all_gradients_wait,
            "speculation": work.speculation,
            "ranks": ranks,
            "local_ranks": local,
        }
        no_time = _why_no_time(machine.profile, work)
        if not timed or no_time or machine.profile is None:
            why = no_time if timed else ""
            return Plan(config, machine.name, memory, precision, None, None, why, **room)
        times: ModelTimes | None = None
        if memory.fits and self._times_of is not None:  # which may have to be measured first
            times = self._times_of(work.micro_batch_size, work.sequence_length, work.compute_dtype)
        rates = Rates(machine.profile, work.threads, ranks, local)
        time = step_time(layout, model_profile, work, rates, times)
        if work.speculation:  # it makes updates longer, for which a slow host and a fast device have no time
            waiting = replace(work, speculation=0.0)
            alternative = step_time(layout, model_profile, waiting, rates, times)
            if alternative.step_s <= time.step_s:
                work, time, room["speculation"] = waiting, alternative, 0.0
                memory = plan_memory(layout, model_profile, work, machine.free)
        disk = machine.profile.disk
        disk_rate = None if disk is None else disk.write_bytes_per_s
        run = run_time(config, time, checkpoint_bytes(layout, work), disk_rate)
        busy = machine.profile.busy_warning
        return Plan(config, machine.name, memory, precision, time, run, busy=busy, **room)

    def _layout(self, work: Workload) -> Layout:
        key = work.precision, work.chunk_bytes, work.state_format, work.device_fraction
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self.model_profile.layout(*key)
        return layout


def _with_more_room(work: Workload) -> Iterator[Workload]:
    """Yield `work` with what is faster where the host has room for it, the most first."""
    if not (work.must_wait or work.several or work.shared_memory):
        yield replace(work, all_gradients_wait=True)
    for eighths in range(FRACTIONS, 0, -1) if work.could_speculate else ():
        yield replace(work, speculation=eighths / FRACTIONS)


def check_positions(config: RunConfig, model_profile: ModelProfile) -> None:
    """Refuse sequences that the model cannot read; see `workbench.model.build.check_positions`.

    Raises:
        ConfigurationError: they are longer than the model's positions.
    """
    length, longest = config.data.sequence_length, model_profile.positions
    if longest is not None and 0 <= longest < length:
        raise ConfigurationError(
            f"data.sequence_length = {length}: the model has {longest} positions; lower it to {longest}, or give "
            "model.config more positions"
        )


def _why_no_time(profile: MachineProfile | None, work: Workload) -> str:
    if profile is None:
        return "this machine has not been measured: `workbench probe` does it in under a minute"
    if "disk" in (work.weights, work.state) and profile.disk is None:
        return "the disk has not been measured: `workbench probe --disk PATH` does it in seconds"
    return ""


# Placements


def placed(config: RunConfig, machine: Machine) -> Iterator[RunConfig]:
    """Yield `config` with each placement that it allows on `machine`, in the order of speed that is usual."""
    offload = config.offload
    pairs = BY_SPEED
    if machine.shared_memory:
        # One memory: "device" says no more than "host", and leaves less room for state formats.
        pairs = (BY_SPEED[1], BY_SPEED[0], *BY_SPEED[2:])
    for weights, state in pairs:
        if offload.weights not in ("auto", weights) or offload.state not in ("auto", state):
            continue
        if "disk" in (weights, state) and not offload.disk_path:
            continue
        if weights != "device" and not config.train.activation_checkpointing:
            continue
        if weights == "disk" and offload.overlap == "delayed":
            continue
        if state == "device" and (offload.state_format != "exact" or offload.device_fraction):
            continue
        fractions = [offload.device_fraction]
        splits = offload.state == "auto" and (weights, state) == ("device", "host")
        if splits and not offload.device_fraction and not machine.shared_memory:
            fractions = [eighths / FRACTIONS for eighths in range(FRACTIONS - 1, -1, -1)]
        for fraction in fractions:
            chosen = {"weights": weights, "state": state, "device_fraction": fraction}
            yield config.model_copy(update={"offload": offload.model_copy(update=chosen)})


def _sums_are_open(config: RunConfig, machine: Machine) -> bool:
    """Return whether it is to be chosen where micro-batches are summed."""
    offload = config.offload
    several = config.train.gradient_accumulation > 1
    return (
        offload.gradient_sums == "auto" and offload.state == "host" and several and not machine.shared_memory
    )


def fastest(plans: Iterable[Plan]) -> Plan:
    """Return the fastest of `plans` that fits; the first that fits where no speed is known.

    A plan without a time comes after any that has one.

    Raises:
        DoesNotFitError: none fits; names the one that lacks least, field by field, with its table.
    """
    nearest: Plan | None = None
    best: Plan | None = None
    for plan in plans:
        if not plan.fits:
            if nearest is None or plan.memory.missing_bytes < nearest.memory.missing_bytes:
                nearest = plan
        elif plan.time is None:
            if best is None:
                return plan
        elif best is None or best.time is None or plan.time.step_s < best.time.step_s:
            best = plan
    if best is not None:
        return best
    if nearest is None:
        raise DoesNotFitError(NO_PLACEMENT)
    raise DoesNotFitError(
        f"no placement fits on this machine. The nearest is {placement_words(nearest.config)}, "
        f"which lacks {nearest.memory.lacking}:\n{nearest.memory.table()}"
    )


def placement_words(config: RunConfig) -> str:
    """Return the placement of `config` field by field, as a preset says it."""
    offload = config.offload
    return (
        f'offload.weights = "{offload.weights}", offload.state = "{offload.state}", '
        f"offload.device_fraction = {offload.device_fraction:g}"
    )
