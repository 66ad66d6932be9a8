"""The command palette finds every action that holds on the screen beneath it, every preset and every run."""

from __future__ import annotations

import asyncio

import pytest
from screen_host import until
from settled_pilot import settled
from textual.app import SystemCommand
from textual.command import CommandPalette, Provider
from whole_app import App, House

from workbench.tui.messages import OpenPreset, OpenRun
from workbench.tui.palette import PresetsAndRuns


def commands(app: App) -> dict[str, SystemCommand]:
    return {command.title: command for command in app.get_system_commands(app.screen)}


async def found(app: App, query: str) -> dict[str, object]:
    """What the provider of presets and runs answers to a query."""
    provider = PresetsAndRuns(app.screen)
    await provider.startup()
    hits = [hit async for hit in (provider.search(query) if query else provider.discover())]
    return {str(hit.text or hit.prompt): hit.command for hit in hits}


async def test_every_action_of_every_screen_is_in_the_palette_with_its_key(house: House) -> None:
    path, run = house.preset("tiny"), house.run()

    async def check(app: App, *, left_out: frozenset[str] = frozenset()) -> None:
        listed = commands(app)
        for active in app.screen.active_bindings.values():
            binding = active.binding
            if binding.id and not binding.system:  # of ours
                command = listed[binding.description]
                assert command.help.startswith("Key: ")
        assert {"Theme", "Quit", "Screenshot"} <= set(listed)

    async with house.shown() as (app, pilot):
        await check(app)
        for message, name in ((OpenPreset(path), "ConfigureScreen"), (OpenRun(run), "RunScreen")):
            app.post_message(message)
            await until(pilot, lambda name=name: app.shown == name)
            await settled(pilot)
            await check(app)
        await pilot.press("M")
        await until(pilot, lambda: app.shown == "TopScreen")
        await check(app)


async def test_an_action_chosen_in_the_palette_is_done_on_the_screen_beneath(house: House) -> None:
    async with house.shown() as (app, pilot):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"duplicate")
        await until(pilot, lambda: bool(app.screen.query("CommandList").first().option_count))  # type: ignore[attr-defined]
        await settled(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.shown == "PresetsScreen")
        await until(pilot, lambda: any("copied to" in said for said, _ in app.reports))
    assert len(list(house.presets.glob("*.toml"))) == 1


async def test_presets_and_runs_are_found_by_name_and_open(house: House) -> None:
    house.preset("very-tiny")
    house.preset("broken", "[train]\nsteps = 'many'\n")
    run = house.run()

    async with house.shown() as (app, pilot):
        everything = await found(app, "")
        assert {"Preset: very-tiny", "Preset: broken", f"Run: {run.name}"} <= set(everything)
        [(_, choose)] = (await found(app, "very-ti")).items()
        choose()  # type: ignore[operator]
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        [(_, choose)] = (await found(app, run.name)).items()
        choose()  # type: ignore[operator]
        await until(pilot, lambda: app.shown == "RunScreen")
        assert await found(app, "no such thing at all") == {}


async def test_a_read_only_look_offers_nothing_that_changes_anything(house: House) -> None:
    run = house.run(living=True)
    changing = {
        *("Pause/continue", "Save now", "Stop", "Resume", "Delete", "Run", "Duplicate"),
        *("Start", "Save", "Measure", "Drop unknown"),
    }

    async def check(app: App, here: set[str], offered: set[str]) -> None:
        titles = set(commands(app)) | {a.binding.description for a in app.screen.active_bindings.values()}
        assert not titles & changing & here
        assert offered <= titles

    async with house.shown(read_only=True) as (app, pilot):
        await check(app, changing, {"Open", "Filter", "Help"})
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunsScreen")
        await settled(pilot)
        await check(app, changing, {"Open", "Copy path"})
        app.post_message(OpenPreset(house.preset("tiny")))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        await check(app, changing - {"Drop unknown"}, {"Make it fit", "Back"})
        await pilot.press("f5", "ctrl+s")
        await settled(pilot)
        assert app.shown == "ConfigureScreen"
        app.post_message(OpenRun(run))
        await until(pilot, lambda: app.shown == "RunScreen")
        await settled(pilot)
        await check(app, changing, {"Freeze", "Leave"})
        for key in "pksR":
            await pilot.press(key)
        await settled(pilot)
        assert app.shown == "RunScreen" and not run.control.exists()
        await pilot.press("ctrl+q")  # unasked
        await until(pilot, lambda: app.return_code == 0)


async def test_a_folder_of_runs_that_cannot_be_read_leaves_the_presets(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.runs.write_text("a file where the folder should be")

    async with house.shown() as (app, _):
        assert "Preset: quickstart" in await found(app, "")


def test_the_providers_are_textuals_own_and_ours() -> None:
    made = [make() for make in App.COMMANDS]  # type: ignore[call-arg]
    assert PresetsAndRuns in made and len(made) == 2
    assert all(isinstance(each, type) and issubclass(each, Provider) for each in made)
    assert asyncio.iscoroutinefunction(PresetsAndRuns.startup)
