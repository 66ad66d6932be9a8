"""A panel may be made while an application runs: a screen makes its panels when it is first seen."""

from __future__ import annotations

from textual.app import App

from workbench.tui.glyphs import BLOCKS, PLAIN
from workbench.tui.panels.cores import CoresPanel


async def test_a_panel_is_made_inside_a_running_application_in_either_mode() -> None:
    app: App[None] = App()
    async with app.run_test(size=(40, 12)) as pilot:
        for glyphs, plain in ((PLAIN, True), (BLOCKS, False)):
            panel = CoresPanel(glyphs, classes="own")
            await app.mount(panel)
            await pilot.pause()
            assert (panel.has_class("own"), panel.has_class("-ascii")) == (True, plain)
            assert panel.styles.border_top[0] == ("ascii" if plain else "round")
