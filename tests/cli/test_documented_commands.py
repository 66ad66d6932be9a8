"""Every command line in the pages' shell blocks is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

from workbench.commands.parser import build_parser
from workbench.config import fields
from workbench.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def documented_commands(page: Path) -> list[list[str]]:
    """Return the words of each `workbench` command of a page, without what a shell does with its output."""
    commands = []
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "workbench" in words[:1]:
                redirected = next((i for i, word in enumerate(words) if word in ("|", ">")), len(words))
                commands.append([word for word in words[1:redirected] if word != "[RUN]"])
    return commands


def test_the_documented_fields_exist() -> None:
    known = {field.name for field in fields()}
    for page in PAGES:
        for words in documented_commands(page):
            for option, change in pairwise(words):
                name = change.partition("=")[0]
                if option == "--set" and name.count(".") == 1 and name != "TABLE.KEY":
                    assert name in known, (page.name, words)


def test_the_documented_commands_are_taken() -> None:
    commands = [(page, words) for page in PAGES for words in documented_commands(page) if words]
    assert len(commands) > 80
    refused = []
    for page, words in commands:
        try:
            build_parser().parse_args(words)
        except ConfigurationError as error:
            refused.append((page.name, " ".join(words), str(error)))
    assert refused == []
