"""`python -m benchmarks.screen.shown WHAT RUN SECONDS`: the screen as it is measured, in the terminal this runs in.

WHAT is "run", "presets" or "configure" (the form of gpt2-10b, at the micro-batch size); RUN is a run's folder; SECONDS
lie between two samples of the machine, which is forged. Plans stand on a machine whose speeds are known, so that each
of them is simulated.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.screen.forged import ForgedMonitor
from workbench.plan.machine import Machine, planned_machine
from workbench.presets import shipped_folder
from workbench.profiles.named_machines import load_profile
from workbench.runs import RunDirectory
from workbench.tui.app import WorkbenchApp
from workbench.tui.context import AppContext
from workbench.tui.form.planner import ThisMachine
from workbench.tui.screens.configure import ConfigureScreen
from workbench.tui.screens.presets import PresetsScreen

PRESET = shipped_folder() / "gpt2-10b.toml"
FIELD = "train.micro_batch_size"


class Known(ThisMachine):
    """Plans stand on the profile of a desktop instead of this machine."""

    def machine(self, device: str, disk_path: str) -> Machine:
        return planned_machine(load_profile(Path("desktop-32gb")))


class Shown(WorkbenchApp):
    """The application, with the form at its field where that is asked for."""

    def __init__(self, context: AppContext, what: str, run: RunDirectory) -> None:
        super().__init__(context, part="presets", run=run if what == "run" else None)
        self.what = what

    def _presets(self) -> PresetsScreen:
        return PresetsScreen(self.context, Known(self.context.runs_root))

    async def on_mount(self) -> None:
        if self.what == "configure":
            screen = ConfigureScreen(self.context, PRESET, Known(self.context.runs_root))
            await self.push_screen(screen)
            await screen.go_to(FIELD)


def main(what: str, folder: str, sample_s: str) -> None:
    run = RunDirectory(Path(folder))
    Shown(AppContext(run.path.parent, ForgedMonitor(float(sample_s))), what, run).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
