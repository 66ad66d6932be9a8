"""Plans while somebody edits: what a configuration needs here, or what has to be known first. No textual.

`look` is arithmetic and answers within milliseconds; what it lacks, a model's model profile or the machine,
`obtain` gets, in
a thread. One planner is kept for each model and place, and planners of one model share its model profile.

Invariant: where something fits, `look` gives the plan that `Planner.plan` gives on the same ground.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Literal

from workbench.config import RunConfig
from workbench.config.rules import idle_options
from workbench.errors import ConfigurationError, DoesNotFitError, WorkbenchError
from workbench.plan.fit import Fit, fit
from workbench.plan.ground import Ground
from workbench.plan.memory.tiers import MemoryPlan
from workbench.plan.placement import Candidate, candidates, choose_placement
from workbench.plan.planner import Plan, Planner, TimesOf, wish_of, with_placement
from workbench.profiles.model_profile import ModelProfile, ModelTimes, model_profile_key, model_table
from workbench.profiles.obtain import essential
from workbench.tui.form.checking import missing_at_fields
from workbench.tui.form.draft import FIELDS
from workbench.tui.form.sources import Sources, Tell

Lack = Literal["model_profile", "ground"]
OF_A_MODEL_PROFILE = ("model.architecture", "model.config")
"""None can be taken where transformers does not know these."""
MOST_PLANNERS = 64


@dataclass(frozen=True)
class Outlook:
    """What a configuration comes to. One of three: a plan, something that has to be obtained first, or a refusal.

    `refused`: why it cannot be planned here; `at`: the field that this is about. `notes`: sentences about fields that
    are right, by their dotted names.
    """

    config: RunConfig
    plan: Plan | None = None
    lacks: frozenset[Lack] = frozenset()
    refused: str = ""
    at: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


class Planning:
    """Plans of one machine's configurations. `look` and `obtain` may be called from different threads."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._model_profiles: dict[str, ModelProfile | WorkbenchError] = {}
        self._grounds: dict[tuple[str, str], Ground | ConfigurationError] = {}
        self._planners: dict[tuple[str, tuple[str, str]], Planner] = {}

    def look(self, config: RunConfig) -> Outlook:
        """The outlook of `config`; arithmetic only."""
        for problem in missing_at_fields(config, OF_A_MODEL_PROFILE):
            return Outlook(config, refused=f"{problem.field}: {problem.words}", at=problem.field)
        model, place = _model_key(config), _place(config)
        with self._lock:
            model_profile, ground = self._model_profiles.get(model), self._grounds.get(place)
            if isinstance(ground, ConfigurationError):
                return _refusal(config, str(ground))
            if isinstance(model_profile, WorkbenchError):
                return Outlook(config, refused=str(model_profile), at="model.config")
            lacks: set[Lack] = set()
            if model_profile is None:
                lacks.add("model_profile")
            if ground is None:
                lacks.add("ground")
            if model_profile is None or ground is None:
                return Outlook(config, lacks=frozenset(lacks))
            planner = self._planner(config, model_profile, ground)
            try:
                plan = chosen_plan(planner, config)
            except (ConfigurationError, DoesNotFitError) as error:
                return _refusal(config, str(error))
        return Outlook(config, plan, notes=notes(config, plan, ground))

    def obtain(self, config: RunConfig, tell: Tell, cancelled: Event, *, take: bool = True) -> None:
        """Get what `look` lacks for `config`; what goes wrong is what `look` says from then on.

        `take`: whether a model profile that nobody has kept is taken, which lasts seconds.

        Raises:
            CancelledError: `cancelled` was set.
        """
        model, place, table = _model_key(config), _place(config), model_table(config)
        if place not in self._grounds:
            ground: Ground | ConfigurationError
            try:
                ground = self.sources.ground(*place)
            except ConfigurationError as error:
                ground = error
            with self._lock:
                self._grounds[place] = ground
        if self._model_profiles.get(model) is None:
            model_profile: ModelProfile | WorkbenchError | None
            try:
                model_profile = self.sources.known_model_profile(table)
                if model_profile is None and take:
                    model_profile = self.sources.take_model_profile(table, tell, cancelled)
            except WorkbenchError as error:
                model_profile = error
            except OSError as error:
                model_profile = WorkbenchError(f"the model profile of the model could not be taken: {error}")
            if model_profile is not None:
                with self._lock:
                    self._model_profiles[model] = model_profile

    def fit(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> Fit | None:
        """The fastest that fits; None where `look` lacks something. Takes a second: for a thread.

        Raises:
            ConfigurationError: with `keep` nothing is left to try.
        """
        with self._lock:
            model_profile, ground = (
                self._model_profiles.get(_model_key(config)),
                self._grounds.get(_place(config)),
            )
        if not isinstance(model_profile, ModelProfile) or not isinstance(ground, Ground):
            return None
        # A planner of its own: the form's goes on answering meanwhile.
        return fit(
            Planner(model_profile, ground, self._times_of(config, model_profile, ground)), config, keep
        )

    def model_profile(self, config: RunConfig) -> ModelProfile | None:
        """The model profile of its model where that is known."""
        model_profile = self._model_profiles.get(_model_key(config))
        return model_profile if isinstance(model_profile, ModelProfile) else None

    def is_measured(self, config: RunConfig) -> bool | None:
        """Whether the speeds are known that a step's time needs; None where the machine has not been looked at."""
        ground = self._grounds.get(_place(config))
        if not isinstance(ground, Ground):
            return None
        disk = "disk" in (config.offload.weights, config.offload.state)
        return ground.machine is not None and (not disk or ground.machine.disk is not None)

    def forget_machine(self) -> None:
        """What is free, and what was measured, is asked anew; failed model profiles too."""
        with self._lock:
            self._grounds.clear()
            self._planners.clear()
            self._model_profiles = {
                key: model_profile
                for key, model_profile in self._model_profiles.items()
                if isinstance(model_profile, ModelProfile)
            }

    def _planner(self, config: RunConfig, model_profile: ModelProfile, ground: Ground) -> Planner:
        key = _model_key(config), _place(config)
        planner = self._planners.get(key)
        if planner is None:
            if len(self._planners) >= MOST_PLANNERS:
                self._planners.clear()
            planner = Planner(model_profile, ground, self._times_of(config, model_profile, ground))
            self._planners[key] = planner
        return planner

    def _times_of(self, config: RunConfig, model_profile: ModelProfile, ground: Ground) -> TimesOf:
        """Times measured at the very sizes, else those first asked for of that dtype, which the planner scales."""
        table, device = model_table(config), config.train.device
        known: dict[tuple[int, int, str], ModelTimes | None] = {}
        first: dict[str, ModelTimes] = {}

        def times_of(sequences: int, tokens: int, dtype: str) -> ModelTimes | None:
            sizes = sequences, tokens, dtype
            if sizes not in known:
                try:
                    known[sizes] = self.sources.times(table, model_profile, ground, (*sizes, device))
                except WorkbenchError:
                    known[sizes] = None
            found = known[sizes]
            if found is not None:
                first.setdefault(dtype, found)
            return found or first.get(dtype)

        return times_of


def chosen_plan(planner: Planner, config: RunConfig) -> Plan:
    """`planner.plan(config)`; where nothing fits that "auto" may choose, the one that lacks least, which does not fit.

    Raises:
        ConfigurationError: see `Planner.check`.
        DoesNotFitError: no placement goes with the other fields.
    """
    planner.check(config)
    wish = wish_of(config, planner.ground)
    if not wish.is_open:
        return planner.plan_fixed(config)
    memory: dict[Candidate, MemoryPlan] = {}
    timed: dict[Candidate, Plan] = {}

    def memory_of(candidate: Candidate) -> MemoryPlan:
        made = planner.plan_fixed(with_placement(config, candidate), timed=False)
        return memory.setdefault(candidate, made.memory)

    def seconds_of(candidate: Candidate) -> float | None:
        plan = timed[candidate] = planner.plan_fixed(with_placement(config, candidate))
        return None if plan.time is None else plan.time.step_s

    try:
        chosen, _ = choose_placement(candidates(wish), memory_of, seconds_of)
    except DoesNotFitError:
        if not memory:
            raise
        chosen = min(memory, key=lambda candidate: memory[candidate].missing_bytes)
    return timed.get(chosen) or planner.plan_fixed(with_placement(config, chosen))


def notes(config: RunConfig, plan: Plan, ground: Ground) -> dict[str, str]:
    """What is worth knowing of fields that are right: that one does nothing here, or what "auto" comes to."""
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


def _refusal(config: RunConfig, message: str) -> Outlook:
    """A refusal, at the field that its message begins with."""
    name = message.partition(" ")[0]
    return Outlook(config, refused=message, at=name if name in FIELDS else "")


def _model_key(config: RunConfig) -> str:
    return model_profile_key(essential(model_table(config)))


def _place(config: RunConfig) -> tuple[str, str]:
    return config.train.device, config.offload.disk_path
