"""The scenes: what is done on the stage before the picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from form_host import LARGE, SMALL

from scenes.picture import Picture
from scenes.samples import desktop, h200_box, laptop_at
from scenes.stage import NOW, Stage, photograph
from scenes.stored_runs import make_runs
from workbench.monitor.samples import MonitorSample
from workbench.presets import edited_preset
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.messages import OpenPreset
from workbench.tui.run.screen import RunScreen
from workbench.tui.screens.configure import ConfigureScreen
from workbench.tui.screens.top import TopScreen

BROKEN = """\
# What I tried first.
description = "my own, with mistakes"

[model]
architecture = "gpt2"

[model.config]
n_layer = 4
n_embd = 128
n_head = 4
n_positions = 128
vocab_size = 257

[data]
sequence_length = 128

[train]
steps = "many"          # how many?
micro_batch_size = 0
gradient_clipping = 1.0
"""

Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """One picture. `part`: of the application, where it begins."""

    name: str
    about: str
    part: str
    play: Play
    prepare: Callable[[Path], None]
    is_main: bool = True
    """Whether it stands for its screen; others show one more thing of it."""

    def picture(self, size: tuple[int, int], *, glyphs: Glyphs = BLOCKS, no_color: bool = False) -> Picture:
        """It, as the application draws it for `size` cells."""
        return photograph(
            self.play, size, part=self.part, glyphs=glyphs, no_color=no_color, prepare=self.prepare
        )

    def show(self, size: tuple[int, int], hold: Callable[[Path], Awaitable[None]]) -> None:
        """Show it on this process's terminal, of `size` cells, until `hold` returns, which is given its folder."""
        photograph(self.play, size, part=self.part, prepare=self.prepare, hold=hold)


# Folders


def _presets(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    half = {
        "description": "GPT-2, 10.3 billion parameters, moments in 16 bits",
        "offload.state_format": "half",
    }
    (own / "gpt2-10b-half.toml").write_text(edited_preset(LARGE.read_text(), half))
    far = {"description": "The quickstart, for an afternoon", "train.steps": 20000}
    (own / "quickstart-long.toml").write_text(edited_preset(SMALL.read_text(), far))
    (own / "wip.toml").write_text(BROKEN)


def _runs(folder: Path) -> None:
    make_runs(folder / "runs", NOW)


# Plays


async def _nothing(stage: Stage) -> None:
    await stage.settle()


async def _configure(stage: Stage) -> None:
    """The large preset does not fit; another format of the state makes it."""
    stage.app.post_message(OpenPreset(LARGE))
    await stage.settle()
    screen = stage.app.screen
    assert isinstance(screen, ConfigureScreen)
    await screen.go_to("offload.state_format")
    await stage.press("right")


async def _mistakes(stage: Stage) -> None:
    stage.app.post_message(OpenPreset(stage.folder / "own" / "wip.toml"))
    await stage.settle()
    screen = stage.app.screen
    assert isinstance(screen, ConfigureScreen)
    await screen.go_to("train.steps")


async def _compare(stage: Stage) -> None:
    """The three runs of the quickstart, the oldest marked first."""
    await stage.press("down", "down", "down", "space", "space", "space", "c")


async def _top(samples: Callable[[float], Iterable[MonitorSample]], stage: Stage) -> None:
    screen = stage.app.screen
    assert isinstance(screen, TopScreen)
    for sample in samples(NOW):
        stage.monitor.latest = sample
        screen.look()
    await stage.settle()


async def _run(stage: Stage) -> None:
    """The run that trains, on a desktop with a 32 GiB card."""
    await stage.press("enter")
    screen = stage.app.screen
    assert isinstance(screen, RunScreen)
    for sample in desktop(NOW, 32, "NVIDIA GeForce RTX 5090"):
        stage.monitor.latest = sample
        screen.tick()
    await stage.settle()
    screen.tick()  # the first look leaves the metrics out


async def _ended(stage: Stage) -> None:
    """The run that finished last."""
    await stage.press("down", "down", "down", "down", "enter")
    screen = stage.app.screen
    assert isinstance(screen, RunScreen)
    screen.tick()
    await stage.settle()
    await stage.press("6")


async def _group(digit: str, stage: Stage) -> None:
    await _run(stage)
    await stage.settle()
    await stage.press(digit)


async def _help(stage: Stage) -> None:
    await stage.press("question_mark")


async def _stop(stage: Stage) -> None:
    await stage.press("s")


SCENES = (
    Scene("presets", "Presets, with what fits this machine", "presets", _nothing, _presets),
    Scene("configure", "A preset's form: an edit makes it fit", "presets", _configure, _presets),
    Scene("mistakes", "A preset with mistakes", "presets", _mistakes, _presets, is_main=False),
    Scene("run", "A run that trains", "runs", _run, _runs),
    Scene("run-machine", "The machine under a run", "runs", partial(_group, "2"), _runs, is_main=False),
    Scene("run-lanes", "The lanes of a run's last step", "runs", partial(_group, "3"), _runs, is_main=False),
    Scene("run-log", "A run's log", "runs", partial(_group, "4"), _runs, is_main=False),
    Scene("run-ended", "A run that has finished", "runs", _ended, _runs),
    Scene("runs", "Runs in every state", "runs", _nothing, _runs),
    Scene("compare", "Three runs on shared axes", "runs", _compare, _runs),
    Scene("top", "The monitor on a machine with 8 GPUs and 192 cores", "top", partial(_top, h200_box), _runs),
    Scene("top-card", "The monitor with one 24 GB card", "top", partial(_top, desktop), _runs, is_main=False),
    Scene("top-laptop", "The monitor without a GPU", "top", partial(_top, laptop_at), _runs, is_main=False),
    Scene("help", "Help on the runs", "runs", _help, _runs),
    Scene("dialog", "A question", "runs", _stop, _runs),
)
