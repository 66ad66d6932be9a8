"""Plans of configurations while somebody edits them: the facts they need, each asked for once, and arithmetic.

`plan` takes milliseconds once the facts are known. Taking a model profile takes seconds: the caller asks for it.
Imports no textual. Every method may be called from any thread.

Invariant: where something fits, `plan` returns the plan that `Planner.plan` returns on the same machine.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.config import RunConfig
from workbench.config.rules import idle_options
from workbench.errors import ConfigurationError, DoesNotFitError, WorkbenchError
from workbench.plan.fit import Fit, fit
from workbench.plan.machine import Machine
from workbench.plan.planner import Plan, Planner, TimesOf
from workbench.profiles.model_profile import ModelProfile, ModelTimes, model_profile_key, model_table
from workbench.profiles.obtain import essential
from workbench.tui.form.fields import FIELDS
from workbench.tui.form.problems import missing_at_fields
from workbench.tui.form.sources import Sources

NEEDED_BY_PROFILES = ("model.architecture", "model.config")
"""A model profile can only be taken where transformers knows the values of these fields."""
MOST_PLANNERS = 64

Place = tuple[str, str]
"""The device and the disk folder of a configuration."""


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

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._lock = threading.RLock()
        self._profiles: dict[str, ModelProfile | WorkbenchError] = {}
        self._grounds: dict[Place, Machine | ConfigurationError] = {}
        self._planners: dict[tuple[str, Place], Planner] = {}

    def plan(self, config: RunConfig) -> PlanResult:
        """Plan `config`. Looks at the machine, and for a known model profile, where it has not yet."""
        for problem in missing_at_fields(config, NEEDED_BY_PROFILES):
            return PlanResult(config, refused=f"{problem.field}: {problem.words}", field=problem.field)
        with self._lock:
            ground, profile = self._ground(config), self._profile(config)
            if isinstance(ground, ConfigurationError):
                return _refusal(config, ground)
            if isinstance(profile, WorkbenchError):
                return PlanResult(config, refused=str(profile), field="model.config")
            if profile is None:
                return PlanResult(config, needs_profile=True)
            key = model_key(config), _place(config)
            if key not in self._planners:
                if len(self._planners) >= MOST_PLANNERS:
                    self._planners.clear()
                self._planners[key] = self._planner(config, profile, ground)
            try:
                plan = plan_or_nearest(self._planners[key], config)
            except (ConfigurationError, DoesNotFitError) as error:
                return _refusal(config, error)
        return PlanResult(config, plan, notes=notes(config, plan, ground))

    def take_profile(
        self, config: RunConfig, report: Callable[[str], None], cancelled: threading.Event
    ) -> None:
        """Take the model profile of `config`, which lasts seconds. An error becomes the refusal of `plan`.

        Raises:
            CancelledError: `cancelled` was set.
        """
        profile: ModelProfile | WorkbenchError
        try:
            profile = self.sources.take_model_profile(model_table(config), report, cancelled)
        except WorkbenchError as error:
            profile = error
        except OSError as error:
            profile = WorkbenchError(f"the model profile could not be taken: {error}")
        with self._lock:
            self._profiles[model_key(config)] = profile

    def fit(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> Fit:
        """Search for the fastest configuration that fits, which takes a second. `plan` has succeeded before.

        Raises:
            ConfigurationError: nothing is left to try.
        """
        with self._lock:
            ground, profile = self._ground(config), self._profile(config)
        if not isinstance(ground, Machine) or not isinstance(profile, ModelProfile):
            raise ConfigurationError("there is no plan to search from")
        # With a planner of its own, outside the lock: plans go on meanwhile.
        return fit(self._planner(config, profile, ground), config, keep)

    def measure(self, config: RunConfig, report: Callable[[str], None], cancelled: threading.Event) -> None:
        """Measure this machine, which takes up to a minute.

        Raises:
            WorkbenchError, OSError: it could not be measured.
            CancelledError: `cancelled` was set.
        """
        device, folder = _place(config)
        self.sources.measure(device, folder, lambda sentence: report(f"measuring: {sentence}"), cancelled)
        self.forget_machine()

    def parameters(self, config: RunConfig) -> int | None:
        """Return the number of parameters of the model; None where it is not known."""
        profile = self._profiles.get(model_key(config))
        return profile.parameters if isinstance(profile, ModelProfile) else None

    def is_measured(self, config: RunConfig) -> bool:
        """Return whether the speeds are known that the time of a step needs."""
        ground = self._grounds.get(_place(config))
        disk = "disk" in (config.offload.weights, config.offload.state)
        machine = ground.profile if isinstance(ground, Machine) else None
        return machine is not None and (not disk or machine.disk is not None)

    def forget_machine(self) -> None:
        """Ask again for free memory and speeds, and for model profiles that failed."""
        with self._lock:
            self._grounds.clear()
            self._planners.clear()
            self._profiles = {
                k: found for k, found in self._profiles.items() if isinstance(found, ModelProfile)
            }

    def _ground(self, config: RunConfig) -> Machine | ConfigurationError:
        place = _place(config)
        if place not in self._grounds:
            try:
                self._grounds[place] = self.sources.ground(*place)
            except ConfigurationError as error:
                self._grounds[place] = error
        return self._grounds[place]

    def _profile(self, config: RunConfig) -> ModelProfile | WorkbenchError | None:
        """Return the model profile, or the error of taking it; None where it has to be taken."""
        key = model_key(config)
        if key not in self._profiles:
            known = self.sources.known_model_profile(model_table(config))
            if known is not None:
                self._profiles[key] = known
        return self._profiles.get(key)

    def _planner(self, config: RunConfig, profile: ModelProfile, ground: Machine) -> Planner:
        return Planner(profile, ground, self._times_of(config, profile, ground))

    def _times_of(self, config: RunConfig, profile: ModelProfile, ground: Machine) -> TimesOf:
        """Return a lookup of times measured at the same sizes, else of the first of that dtype, which plans scale."""
        table, device = model_table(config), config.train.device
        known: dict[tuple[int, int, str], ModelTimes | None] = {}
        first: dict[str, ModelTimes] = {}

        def times_of(sequences: int, tokens: int, dtype: str) -> ModelTimes | None:
            sizes = sequences, tokens, dtype
            if sizes not in known:
                try:
                    known[sizes] = self.sources.times(table, profile, ground, (*sizes, device))
                except WorkbenchError:
                    known[sizes] = None
            found = known[sizes]
            if found is not None:
                first.setdefault(dtype, found)
            return found or first.get(dtype)

        return times_of


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


def notes(config: RunConfig, plan: Plan, ground: Machine) -> dict[str, str]:
    """Return notes on right fields: those without an effect here, and the values that "auto" stands for."""
    found = {
        row.field: f"has no effect: {row.because}"
        for row in idle_options(config, shared_memory=ground.shared_memory)
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
