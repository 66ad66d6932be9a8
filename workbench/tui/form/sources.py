"""Where a plan's facts come from: a model's model profile, this machine as it is now, and times measured here before.

The screens stand on `Sources` and not on this machine, so that tests give their own. No torch: what needs it runs
in a process of its own. Invariant: nothing here measures or takes anything by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.plan.machine import Machine, this_machine
from workbench.profiles.model_profile import ModelProfile, ModelTimes
from workbench.profiles.obtain import obtain_model_profile, obtain_times, profiling_process
from workbench.profiles.this_machine import cached_profile
from workbench.system.child_process import run_lines
from workbench.system.folders import expanded

Tell = Callable[[str], None]


class Sources(Protocol):
    """All but `known_model_profile`, `times` and `let_go` may take long: they are called in threads."""

    def make_ready(self) -> None:
        """A model profile may be wanted soon: what takes it may be started, which takes a while."""

    def let_go(self) -> None:
        """None is wanted any more for now: what takes it goes."""

    def known_model_profile(self, model: Mapping[str, Any]) -> ModelProfile | None:
        """The model profile that is shipped or kept for a [model] table."""

    def take_model_profile(self, model: Mapping[str, Any], tell: Tell, cancelled: Event) -> ModelProfile:
        """It, taken now.

        Raises:
            ConfigurationError: the table names no model that can be built.
            WorkbenchError: it could not be taken.
            CancelledError: `cancelled` was set.
        """

    def ground(self, device: str, disk_path: str) -> Machine:
        """This machine with what is free on it now; without its speeds where they have not been measured.

        Raises:
            ConfigurationError: it has no such device, or the folder is not there.
        """

    def times(
        self, model: Mapping[str, Any], model_profile: ModelProfile, ground: Machine, sizes: Sizes
    ) -> ModelTimes | None:
        """The times of the model's pieces where they have been measured at these very sizes."""

    def measure(self, device: str, disk_path: str, tell: Tell, cancelled: Event) -> None:
        """Measure this machine, under a minute, and keep it.

        Raises:
            WorkbenchError: it could not be measured; what was said last.
            CancelledError: `cancelled` was set.
        """


Sizes = tuple[int, int, str, str]
"""Sequences, tokens, dtype, device."""


class Here:
    """This machine, with runs under `runs_root`. Model profiles are taken by one process that stays until it
    is let go.
    """

    def __init__(self, runs_root: Path) -> None:
        self.runs_root = runs_root
        self._helper = profiling_process(warm=True)

    def make_ready(self) -> None:
        self._helper.start()

    def let_go(self) -> None:
        self._helper.stop()

    def known_model_profile(self, model: Mapping[str, Any]) -> ModelProfile | None:
        return obtain_model_profile(model, _not_told, take=False)

    def take_model_profile(self, model: Mapping[str, Any], tell: Tell, cancelled: Event) -> ModelProfile:
        def ask(question: Mapping[str, Any], tell: Tell) -> Any:
            return self._helper.ask(question, tell, cancelled)

        model_profile = obtain_model_profile(model, tell, ask=ask)
        assert model_profile is not None, "it is taken where there is none"
        return model_profile

    def ground(self, device: str, disk_path: str) -> Machine:
        folder = expanded(disk_path, "offload.disk_path") if disk_path else None
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                f'offload.disk_path = "{disk_path}": there is no such folder; make it, on a fast local disk'
            )
        machine = this_machine(device, folder, self.runs_root)
        # The process that takes model profiles ends before a run starts: its memory is the run's.
        free = replace(machine.free, host=machine.free.host + self._helper.held_bytes)
        return replace(machine, free=free)

    def times(
        self, model: Mapping[str, Any], model_profile: ModelProfile, ground: Machine, sizes: Sizes
    ) -> ModelTimes | None:
        if ground.profile is None:
            return None
        sequences, tokens, dtype, device = sizes
        return obtain_times(
            model,
            model_profile,
            fingerprint=ground.profile.fingerprint,
            sequences=sequences,
            tokens=tokens,
            dtype=dtype,
            device=device,
            report=_not_told,
            take=False,
        )

    def measure(self, device: str, disk_path: str, tell: Tell, cancelled: Event) -> None:
        folder = ("--disk", str(expanded(disk_path, "offload.disk_path"))) if disk_path else ()
        last = ""
        for line in run_lines(("workbench", "probe", "--device", device, *folder), cancelled):
            if line.startswith("workbench: "):
                last = line.removeprefix("workbench: ").removeprefix("probe: ").strip()
                tell(last)
        if cached_profile(device) is None:
            raise WorkbenchError(f"this machine could not be measured: {last}")


def _not_told(sentence: str) -> None:
    """Nothing is taken, so nothing is told."""
