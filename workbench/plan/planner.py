"""The plan: memory and time of a configuration before it starts. Arithmetic over a model profile and a
machine; no torch.

A form asks for a plan at every key, so what the next plan needs too is kept: layouts by what they depend on, timelines
and coarse layouts in `step_time`.

Invariant: a plan that fits promises no tier more than it has free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.layout import Layout
from workbench.plan.ground import Ground, check_device, check_precision
from workbench.plan.memory.needs import checkpoint_bytes
from workbench.plan.memory.tiers import MemoryPlan, plan_memory
from workbench.plan.placement import NO_PLACEMENT, Candidate, Wish, candidates, choose_placement
from workbench.plan.time.rates import Rates
from workbench.plan.time.run_time import RunTime, run_time
from workbench.plan.time.step_time import StepTime, step_time
from workbench.plan.workload import WeightDtypes, Workload, workload
from workbench.profiles.machine_profile import busy_warning
from workbench.profiles.model_profile import ModelProfile, ModelTimes

MOST_LAYOUTS = 64

TimesOf = Callable[[int, int, str], ModelTimes | None]
"""(sequences, tokens, dtype) to measured times of the model's pieces, where there are any."""


@dataclass(frozen=True)
class Plan:
    """What `config`, its placement chosen, needs and takes. `time`: None where `no_time` says why.

    `busy`: a warning where the machine was busy when its speeds, or else the model's pieces, were measured; else empty.
    """

    config: RunConfig
    machine: str
    memory: MemoryPlan
    precision: WeightDtypes
    time: StepTime | None
    run: RunTime | None
    no_time: str = ""
    busy: str = ""

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        return {
            "machine": self.machine,
            "fits": self.fits,
            "placement": {
                "weights": self.config.offload.weights,
                "state": self.config.offload.state,
                "device_fraction": self.config.offload.device_fraction,
            },
            "memory": self.memory.as_dict(),
            "time": None if self.time is None else self.time.as_dict(),
            "run": None if self.run is None else self.run.as_dict(),
            "no_time": self.no_time,
            "busy": self.busy,
        }


class Planner:
    """Plans configurations of one model on one machine. `times_of` gives measured times where there are any."""

    def __init__(self, model_profile: ModelProfile, ground: Ground, times_of: TimesOf | None = None) -> None:
        self.model_profile = model_profile
        self.ground = ground
        self._times_of = times_of
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def check(self, config: RunConfig) -> None:
        """Refuse what a run would refuse, whatever memory there is.

        Raises:
            ConfigurationError: its device is not there, or cannot compute as it says, or sequences are longer than the
                model's positions.
        """
        check_device(config, self.ground)
        check_precision(config, self.ground)
        check_positions(config, self.model_profile)

    def plan(self, config: RunConfig) -> Plan:
        """The plan of `config`; where a tier is "auto", of the fastest placement that fits.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: a tier is "auto" and no placement fits.
        """
        self.check(config)
        wish = wish_of(config, self.ground)
        if not wish.is_open:
            return self.plan_fixed(config)
        allowed = candidates(wish)
        plans: dict[Candidate, Plan] = {}

        def plan_of(candidate: Candidate) -> MemoryPlan:
            plans[candidate] = self.plan_fixed(with_placement(config, candidate))
            return plans[candidate].memory

        def seconds_of(candidate: Candidate) -> float | None:
            time = plans[candidate].time
            return None if time is None else time.step_s

        chosen, _ = choose_placement(allowed, plan_of, seconds_of)
        return plans[chosen]

    def nearest(self, config: RunConfig) -> Plan:
        """The plan of `config`; where a tier is "auto", of the placement that lacks least, the usual one of equals.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: no placement goes with the other fields.
        """
        self.check(config)
        wish = wish_of(config, self.ground)
        variants = (with_placement(config, c) for c in candidates(wish)) if wish.is_open else (config,)
        least = min(
            (self.plan_fixed(variant, timed=False) for variant in variants),
            key=lambda plan: plan.memory.missing_bytes,
            default=None,
        )
        if least is None:
            raise DoesNotFitError(NO_PLACEMENT)
        return self.plan_fixed(least.config)

    def plan_fixed(self, config: RunConfig, *, timed: bool = True) -> Plan:
        """The plan of `config`, whose placement is chosen; without its time where that is not wanted."""
        precision = self.ground.precision(config)
        work = workload(config, precision, shared_memory=self.ground.shared_memory)
        layout = self._layout(work)
        memory = plan_memory(layout, self.model_profile, work, self.ground.free)
        time, run, no_time, busy = None, None, "", ""
        if timed:
            no_time = self._why_no_time(work)
            if not no_time:
                times = self._times(work) if memory.fits else None
                time = self._time(work, times)
                busy = self._busy(time, times)
                run = run_time(config, time, checkpoint_bytes(layout, work), self._disk_rate())
        return Plan(config, self.ground.name, memory, precision, time, run, no_time, busy)

    def _times(self, work: Workload) -> ModelTimes | None:
        """Measured ones, which may have to be taken first."""
        if self._times_of is None:
            return None
        dtype = work.compute_dtype(work.precision)
        return self._times_of(work.micro_batch_size, work.sequence_length, dtype)

    def _time(self, work: Workload, times: ModelTimes | None) -> StepTime:
        assert self.ground.machine is not None
        return step_time(self.model_profile, work, Rates(self.ground.machine, work.threads), times)

    def _busy(self, time: StepTime, times: ModelTimes | None) -> str:
        assert self.ground.machine is not None
        of_times = times.busy_cores if times is not None and time.measured else 0.0
        return busy_warning(self.ground.machine.busy_cores or of_times)

    def _why_no_time(self, work: Workload) -> str:
        machine = self.ground.machine
        if machine is None:
            return "this machine has not been measured: `workbench probe` does it in under a minute"
        if "disk" in (work.weights, work.state) and machine.disk is None:
            return "the disk has not been measured: `workbench probe --disk PATH` does it in seconds"
        return ""

    def _disk_rate(self) -> float | None:
        machine = self.ground.machine
        return machine.disk.write_bytes_per_s if machine is not None and machine.disk is not None else None

    def _layout(self, work: Workload) -> Layout:
        key = work.precision, work.chunk_bytes, work.state_format, work.device_fraction
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self.model_profile.layout(*key)
        return layout


def check_positions(config: RunConfig, model_profile: ModelProfile) -> None:
    """Refuse sequences that the model cannot read; see `workbench.model.build.check_positions`.

    Raises:
        ConfigurationError: they are longer than its positions.
    """
    length, longest = config.data.sequence_length, model_profile.positions
    if longest is not None and 0 <= longest < length:
        raise ConfigurationError(
            f"data.sequence_length = {length}: the model has {longest} positions; lower it to {longest}, or give "
            "model.config more positions"
        )


def wish_of(config: RunConfig, ground: Ground) -> Wish:
    """What `config` fixes of its placement on `ground`, and what it leaves open."""
    offload = config.offload
    return Wish(
        weights=offload.weights,
        state=offload.state,
        device_fraction=offload.device_fraction,
        state_format=offload.state_format,
        overlap=offload.overlap,
        activation_checkpointing=config.train.activation_checkpointing,
        disk=bool(offload.disk_path),
        shared_memory=ground.shared_memory,
    )


def with_placement(config: RunConfig, candidate: Candidate) -> RunConfig:
    """`config` with the placement of `candidate`."""
    fields = {name: getattr(candidate, name) for name in ("weights", "state", "device_fraction")}
    return config.model_copy(update={"offload": config.offload.model_copy(update=fields)})
