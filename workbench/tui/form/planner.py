"""Plans of configurations while somebody edits them. Each fact that a plan needs is asked for once.

`plan` takes milliseconds once the facts are known. Taking a model profile takes seconds: the caller asks for it.
`ThisMachine` gives the facts; tests give a subclass with facts of their own. No torch: what needs it runs in a process
of its own. Imports no textual. Every method may be called from any thread.

Invariant: where something fits, `plan` returns the plan that `Planner.plan` returns on the same machine.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from workbench.config import RunConfig
from workbench.config.rules import idle_options
from workbench.errors import ConfigurationError, DoesNotFitError, WorkbenchError
from workbench.plan.fit import Fit, fit
from workbench.plan.machine import Machine, MeasuredTimes, this_machine
from workbench.plan.planner import Plan, Planner, TimesOf
from workbench.profiles.model_profile import ModelProfile, model_profile_key, model_table
from workbench.profiles.obtain import essential, obtain_model_profile, profiling_process
from workbench.profiles.this_machine import cached_profile
from workbench.system.child_process import run_lines
from workbench.system.folders import expanded
from workbench.tui.form.fields import FIELDS
from workbench.tui.form.problems import missing_at_fields

NEEDED_BY_PROFILES = ("model.architecture", "model.config")
"""A model profile can only be taken where transformers knows the values of these fields."""

Report = Callable[[str], None]
Place = tuple[str, str]
"""The device and the disk folder of a configuration."""


class ThisMachine:
    """This machine, with runs under `runs_root`. All but `times_of` and `stop_profiler` may take long: for threads.

    Model profiles are taken by one process, which stays until `stop_profiler`.
    """

    def __init__(self, runs_root: Path) -> None:
        self.runs_root = runs_root
        self._profiler = profiling_process(warm=True)

    def start_profiler(self) -> None:
        """Start the process that takes model profiles, so that the first one comes sooner."""
        self._profiler.start()

    def stop_profiler(self) -> None:
        """End it; the next model profile starts it again."""
        self._profiler.stop()

    def known_model_profile(self, model: Mapping[str, Any]) -> ModelProfile | None:
        """Return the shipped or cached model profile of a [model] table."""
        return obtain_model_profile(model, lambda sentence: None, take=False)

    def take_model_profile(self, model: Mapping[str, Any], report: Report, cancelled: Event) -> ModelProfile:
        """Return the model profile of a [model] table, taken now where none is known.

        Raises:
            ConfigurationError: the table names no model that can be built.
            WorkbenchError: it could not be taken.
            CancelledError: `cancelled` was set.
        """

        def ask(question: Mapping[str, Any], report: Report) -> Any:
            return self._profiler.ask(question, report, cancelled)

        model_profile = obtain_model_profile(model, report, ask=ask)
        assert model_profile is not None, "it is made if there is none"
        return model_profile

    def machine(self, device: str, disk_path: str) -> Machine:
        """Return this machine with what is free on it now; without speeds where they have not been measured.

        Raises:
            ConfigurationError: it has no such device, or the folder does not exist.
        """
        folder = expanded(disk_path, "offload.disk_path") if disk_path else None
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                f'offload.disk_path = "{disk_path}": there is no such folder; create it, on a fast local disk'
            )
        machine = this_machine(device, folder, self.runs_root)
        # The process that takes model profiles ends before a run starts: its memory is the run's.
        free = replace(machine.free, host=machine.free.host + self._profiler.held_bytes)
        return replace(machine, free=free)

    def times_of(
        self, model: Mapping[str, Any], model_profile: ModelProfile, machine: Machine, device: str
    ) -> TimesOf:
        """Return a lookup of the times that were measured on `machine` before."""
        return MeasuredTimes(model, model_profile, machine, device)

    def measure(self, device: str, disk_path: str, report: Report, cancelled: Event) -> None:
        """Measure this machine, which takes up to a minute, and cache its profile.

        Raises:
            WorkbenchError: it could not be measured.
            CancelledError: `cancelled` was set.
        """
        folder = ("--disk", str(expanded(disk_path, "offload.disk_path"))) if disk_path else ()
        last = ""
        for line in run_lines(("workbench", "probe", "--device", device, *folder), cancelled):
            if line.startswith("workbench: "):
                last = line.removeprefix("workbench: ").removeprefix("probe: ").strip()
                report(last)
        if cached_profile(device) is None:
            raise WorkbenchError(f"this machine could not be measured: {last}")


@dataclass(frozen=True)
class PlanResult:
    """The plan of `config`; without one either `needs_profile` is set, or `refused` gives the reason.

    `field` is the dotted name of the field that the refusal is about, or empty. `notes` are by field, too.
    """

    config: RunConfig
    plan: Plan | None = None
    needs_profile: bool = False
    refused: str = ""
    field: str = ""
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ConfigPlanner:
    """Plans configurations on one machine. One `Planner` is kept for each model and place."""

    def __init__(self, source: ThisMachine) -> None:
        self.source = source
        self.other: Machine | None = None
        """A machine that is planned for in the place of this one."""
        self._lock = threading.RLock()
        self._profiles: dict[str, ModelProfile | WorkbenchError] = {}
        self._machines: dict[Place, Machine | ConfigurationError] = {}
        self._planners: dict[tuple[str, Place], Planner] = {}

    def plan(self, config: RunConfig) -> PlanResult:
        """Plan `config`. Looks at the machine, and for a known model profile, where it has not yet."""
        for problem in missing_at_fields(config, NEEDED_BY_PROFILES):
            return PlanResult(config, refused=f"{problem.field}: {problem.words}", field=problem.field)
        with self._lock:
            machine, profile = self._machine(config), self._profile(config)
            if isinstance(machine, ConfigurationError):
                return _refusal(config, machine)
            if isinstance(profile, WorkbenchError):
                return PlanResult(config, refused=str(profile), field="model.config")
            if profile is None:
                return PlanResult(config, needs_profile=True)
            key = model_key(config), _place(config)
            if key not in self._planners:
                self._planners[key] = self._planner(config, profile, machine)
            try:
                plan = plan_or_nearest(self._planners[key], config)
            except (ConfigurationError, DoesNotFitError) as error:
                return _refusal(config, error)
        return PlanResult(config, plan, notes=notes(config, plan, machine))

    def take_profile(self, config: RunConfig, report: Report, cancelled: Event) -> None:
        """Take the model profile of `config`, which lasts seconds. An error becomes the refusal of `plan`.

        Raises:
            CancelledError: `cancelled` was set.
        """
        profile: ModelProfile | WorkbenchError
        try:
            profile = self.source.take_model_profile(model_table(config), report, cancelled)
        except WorkbenchError as error:
            profile = error
        except OSError as error:
            profile = WorkbenchError(f"the model could not be profiled: {error}")
        with self._lock:
            self._profiles[model_key(config)] = profile

    def fit(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> Fit:
        """Search for the fastest configuration that fits, which takes a second. `plan` has succeeded before.

        Raises:
            ConfigurationError: nothing is left to try.
        """
        with self._lock:
            machine, profile = self._machine(config), self._profile(config)
        if not isinstance(machine, Machine) or not isinstance(profile, ModelProfile):
            raise ConfigurationError("there is no plan to search from")
        # With a planner of its own, outside the lock: plans go on meanwhile.
        return fit(self._planner(config, profile, machine), config, keep)

    def measure(self, config: RunConfig, report: Report, cancelled: Event) -> None:
        """Measure this machine, which takes up to a minute.

        Raises:
            WorkbenchError, OSError: it could not be measured.
            CancelledError: `cancelled` was set.
        """
        self.source.measure(*_place(config), lambda sentence: report(f"measuring: {sentence}"), cancelled)
        self.forget_machine()

    def parameters(self, config: RunConfig) -> int | None:
        """Return the number of parameters of the model; None where it is not known."""
        profile = self._profiles.get(model_key(config))
        return profile.parameters if isinstance(profile, ModelProfile) else None

    def is_measured(self, config: RunConfig) -> bool:
        """Return whether the speeds are known that the time of a step needs."""
        machine = self._machines.get(_place(config))
        profile = machine.profile if isinstance(machine, Machine) else None
        needs_disk = "disk" in (config.offload.weights, config.offload.state)
        return profile is not None and (not needs_disk or profile.disk is not None)

    def plan_for(self, other: Machine | None) -> None:
        """Plan for another machine from now on; None: for this one."""
        self.other = other
        self.forget_machine()

    def forget_machine(self) -> None:
        """Ask again for free memory and speeds, and for model profiles that failed."""
        with self._lock:
            self._machines.clear()
            self._planners.clear()
            for key, found in list(self._profiles.items()):
                if not isinstance(found, ModelProfile):
                    del self._profiles[key]

    def _machine(self, config: RunConfig) -> Machine | ConfigurationError:
        place = _place(config)
        if place not in self._machines:
            try:
                self._machines[place] = self.other or self.source.machine(*place)
            except ConfigurationError as error:
                self._machines[place] = error
        return self._machines[place]

    def _profile(self, config: RunConfig) -> ModelProfile | WorkbenchError | None:
        """Return the model profile, or the error of taking it; None where it has to be taken."""
        key = model_key(config)
        if key not in self._profiles:
            known = self.source.known_model_profile(model_table(config))
            if known is not None:
                self._profiles[key] = known
        return self._profiles.get(key)

    def _planner(self, config: RunConfig, profile: ModelProfile, machine: Machine) -> Planner:
        if self.other is not None:
            return Planner(profile, machine)
        times_of = self.source.times_of(model_table(config), profile, machine, config.train.device)
        return Planner(profile, machine, times_of)


def plan_or_nearest(planner: Planner, config: RunConfig) -> Plan:
    """Return the plan of `config`; where no placement fits that "auto" may choose, of the one that lacks least.

    Raises:
        ConfigurationError: see `Planner.check`.
        DoesNotFitError: no placement goes with the other fields.
    """
    try:
        return planner.plan(config)
    except DoesNotFitError:
        return planner.nearest(config)


def notes(config: RunConfig, plan: Plan, machine: Machine) -> dict[str, str]:
    """Return notes on right fields: those without an effect here, and the values that "auto" stands for."""
    found = {
        field: f"has no effect: {because}"
        for field, because in idle_options(config, shared_memory=machine.shared_memory)
    }
    placed = plan.config.offload
    share = f", the first {placed.device_fraction:.0%} of it on the device" if placed.device_fraction else ""
    how = "here this is" if plan.fits else "nothing fits; nearest is"
    if config.offload.weights == "auto":
        found["offload.weights"] = f'{how} "{placed.weights}"'
    if config.offload.state == "auto":
        found["offload.state"] = f'{how} "{placed.state}"{share}'
    if config.train.precision == "auto":
        stored = plan.precision.storage
        computed = plan.precision.computed_in.get(stored, stored)
        widened = f", computed in {computed}" if computed != stored else ""
        found["train.precision"] = f"here this is {stored}{widened}"
    return found


def model_key(config: RunConfig) -> str:
    """Return what identifies the model of a configuration: another key needs another model profile."""
    return model_profile_key(essential(model_table(config)))


def _place(config: RunConfig) -> Place:
    return config.train.device, config.offload.disk_path


def _refusal(config: RunConfig, error: Exception) -> PlanResult:
    """Return a refusal at the field that the error begins with."""
    name = str(error).partition(" ")[0]
    return PlanResult(config, refused=str(error), field=name if name in FIELDS else "")
