"""The plan: memory and time of a configuration before it starts. Arithmetic over a model profile and a
machine; no torch.

A form asks for a plan at every key, so what the next plan needs too is cached: layouts here, tasks in `two_steps`.

Invariant: a plan that fits promises no tier more than it has free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.layout import Layout
from workbench.plan.machine import Machine, WeightDtypes
from workbench.plan.memory import MemoryPlan, checkpoint_bytes, plan_memory
from workbench.plan.placement import NO_PLACEMENT, Candidate, PlacementRequest, candidates, choose_placement
from workbench.plan.rates import Rates
from workbench.plan.step_time import RunTime, StepTime, run_time, step_time
from workbench.plan.workload import Workload, workload
from workbench.profiles.model_profile import ModelProfile, ModelTimes

MOST_LAYOUTS = 64

TimesOf = Callable[[int, int, str], ModelTimes | None]
"""(sequences, tokens, dtype) to measured times of the model's pieces, where there are any."""


@dataclass(frozen=True)
class Plan:
    """The memory and time of `config`, its placement chosen. `time`: None where `no_time` says why.

    `busy`: a warning where the machine was busy when its speeds were measured; else empty.
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
        """Return the plan as plain data, for JSON."""
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

    def __init__(
        self, model_profile: ModelProfile, machine: Machine, times_of: TimesOf | None = None
    ) -> None:
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

    def plan(self, config: RunConfig) -> Plan:
        """Return the plan of `config`; where a tier is "auto", of the fastest placement that fits.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: a tier is "auto" and no placement fits.
        """
        self.check(config)
        request = placement_request(config, self.machine)
        if not request.is_open:
            return self.plan_fixed(config)
        allowed = candidates(request)
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
        """Return the plan of `config`; where a tier is "auto", of the placement that lacks least.

        Raises:
            ConfigurationError: see `check`.
            DoesNotFitError: no placement goes with the other fields.
        """
        self.check(config)
        request = placement_request(config, self.machine)
        variants = (with_placement(config, c) for c in candidates(request)) if request.is_open else (config,)
        least = min(
            (self.plan_fixed(variant, timed=False) for variant in variants),
            key=lambda plan: plan.memory.missing_bytes,
            default=None,
        )
        if least is None:
            raise DoesNotFitError(NO_PLACEMENT)
        return self.plan_fixed(least.config)

    def plan_fixed(self, config: RunConfig, *, timed: bool = True) -> Plan:
        """Return the plan of `config`, whose placement is chosen; `timed`: with its time."""
        precision = self.machine.precision(config)
        work = workload(config, precision, shared_memory=self.machine.shared_memory)
        layout = self._layout(work)
        memory = plan_memory(layout, self.model_profile, work, self.machine.free)
        time, run, no_time, busy = None, None, "", ""
        if timed:
            no_time = self._why_no_time(work)
            if not no_time:
                times = self._times(work) if memory.fits else None
                time = self._time(layout, work, times)
                assert self.machine.profile is not None
                busy = self.machine.profile.busy_warning
                run = run_time(config, time, checkpoint_bytes(layout, work), self._disk_rate())
        return Plan(config, self.machine.name, memory, precision, time, run, no_time, busy)

    def _times(self, work: Workload) -> ModelTimes | None:
        """Return measured times, which may have to be taken first."""
        if self._times_of is None:
            return None
        return self._times_of(work.micro_batch_size, work.sequence_length, work.compute_dtype)

    def _time(self, layout: Layout, work: Workload, times: ModelTimes | None) -> StepTime:
        assert self.machine.profile is not None
        rates = Rates(self.machine.profile, work.threads)
        return step_time(layout, self.model_profile, work, rates, times)

    def _why_no_time(self, work: Workload) -> str:
        profile = self.machine.profile
        if profile is None:
            return "this machine has not been measured: `workbench probe` does it in under a minute"
        if "disk" in (work.weights, work.state) and profile.disk is None:
            return "the disk has not been measured: `workbench probe --disk PATH` does it in seconds"
        return ""

    def _disk_rate(self) -> float | None:
        profile = self.machine.profile
        return None if profile is None or profile.disk is None else profile.disk.write_bytes_per_s

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
        ConfigurationError: they are longer than the model's positions.
    """
    length, longest = config.data.sequence_length, model_profile.positions
    if longest is not None and 0 <= longest < length:
        raise ConfigurationError(
            f"data.sequence_length = {length}: the model has {longest} positions; lower it to {longest}, or give "
            "model.config more positions"
        )


def placement_request(config: RunConfig, machine: Machine) -> PlacementRequest:
    """Return what `config` fixes of its placement on `machine`, and what it leaves open."""
    offload = config.offload
    return PlacementRequest(
        weights=offload.weights,
        state=offload.state,
        device_fraction=offload.device_fraction,
        state_format=offload.state_format,
        overlap=offload.overlap,
        activation_checkpointing=config.train.activation_checkpointing,
        disk=bool(offload.disk_path),
        shared_memory=machine.shared_memory,
    )


def with_placement(config: RunConfig, candidate: Candidate) -> RunConfig:
    """Return `config` with the placement of `candidate`."""
    fields = {name: getattr(candidate, name) for name in ("weights", "state", "device_fraction")}
    return config.model_copy(update={"offload": config.offload.model_copy(update=fields)})
