"""Help lists exactly the keys that hold, under the words of what has the focus."""

from __future__ import annotations

from typing import Any

import pytest
from screen_host import text_of as screen_text
from screen_host import until
from settled_pilot import settled
from textual.binding import ActiveBinding
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Markdown, Static
from whole_app import App, House

from workbench.tui.form.choice import Choice
from workbench.tui.glyphs import PLAIN
from workbench.tui.messages import OpenPreset, OpenRun
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.screens.help import HelpScreen, keys_of


def held(screen: Screen[Any]) -> dict[str, ActiveBinding]:
    return {key: each for key, each in screen.active_bindings.items() if not each.binding.system}


def text_of(screen: Screen[Any]) -> str:
    return "\n".join(str(each.render()) for each in screen.query(Static))


@pytest.mark.slow
async def test_help_lists_exactly_the_bindings_that_hold_on_each_screen(house: House) -> None:
    path, run = house.preset("tiny"), house.run()

    async def check(app: App, pilot: Pilot[None]) -> None:
        beneath = app.screen
        holding = held(beneath)
        rows = [row for rows in keys_of(beneath).values() for row in rows]
        shown = {key for keys, _ in rows for key in keys.split()}
        assert shown == {app.get_key_display(each.binding) for each in holding.values()}
        assert len(rows) == len({each.binding.action for each in holding.values()})
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await settled(pilot)
        printed = text_of(app.screen)
        for keys, description in rows:
            assert any(keys in line and description in line for line in printed.splitlines())
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is beneath)

    async with house.shown() as (app, pilot):
        await check(app, pilot)
        await app.open(pilot, OpenPreset(path), "ConfigureScreen")
        await check(app, pilot)
        await app.open(pilot, OpenRun(run), "RunScreen")
        await check(app, pilot)
        await pilot.press("M")
        await until(pilot, lambda: app.shown == "TopScreen")
        await check(app, pilot)


async def test_the_words_of_the_focused_panel_come_first_and_those_of_its_screen_after(house: House) -> None:
    async with house.shown(part="top") as (app, pilot):
        app.screen.query_one("#gpu").focus()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        words = [each.source for each in app.screen.query(Markdown)]
        assert "GPU" in words[0] and words[-1].startswith("### Monitor")
        assert len(words) == len(set(words))
        await pilot.press("question_mark")  # the same key closes it
        await until(pilot, lambda: app.shown == "TopScreen")


async def test_keys_of_the_users_own_are_the_ones_told(house: House) -> None:
    house.keymap('[keys]\n"top.freeze" = "f9"\n')

    async with house.shown(part="top") as (app, pilot):
        await until(pilot, lambda: "f9" in app.screen.active_bindings)
        assert ("f9", "Freeze") in keys_of(app.screen)["Monitor"]
        assert "z" not in {key for rows in keys_of(app.screen).values() for key, _ in rows}


async def test_help_is_drawn_in_ascii_where_that_is_asked_for_and_fits_a_small_terminal(house: House) -> None:
    async with house.shown(size=(60, 16), glyphs=PLAIN, part="top") as (app, pilot):
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await settled(pilot)
        lines = screen_text(app).splitlines()
        assert all(len(line) == 60 for line in lines) and len(lines) == 16
        assert all(line.isascii() for line in lines), [line for line in lines if not line.isascii()]


async def test_in_a_form_and_its_questions_help_has_a_key_that_no_field_takes(house: House) -> None:
    path = house.preset("tiny")

    async with house.shown() as (app, pilot):
        app.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        line = app.screen.query_one(KeyLine)
        text = app.screen.query(Input).first()
        for each in (text, app.screen.query_one(Choice)):
            each.focus()
            await until(pilot, lambda each=each: app.screen.focused is each)
            assert line.render_line(0).text.startswith(" f1 Help "), "it does not jump from field to field"
        text.focus()
        await pilot.press("end", "question_mark")
        assert text.value.endswith("?") and app.shown == "ConfigureScreen"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: app.shown == "AskText")
        await pilot.press("question_mark", "f1")
        await until(pilot, lambda: app.shown == "HelpScreen")
        await pilot.press("escape")
        await until(pilot, lambda: app.shown == "AskText")
        assert app.screen.query_one(Input).value.endswith("?")
