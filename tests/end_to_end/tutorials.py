"""A page of docs/tutorials followed as a reader does: its fenced blocks are written as files and run as commands,
section by section, in an empty folder with a HOME of its own.

    ```json title="NAME"    a file of this name
    ```sh                   commands, a line each
    ```python               a program
    ```text                 what the commands above it print, shortened: lines of theirs, "…" for what is left out
    ```console              what they print of the true model, which no test has
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import tomlkit
from trainers import PATIENCE_S, Trainers

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "tutorials"
READERS_FOLDER = "/home/you"
"""The folder in which the pages' output was printed."""
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"\d{8}-\d{6}-(\S+?)-[0-9a-f]{6}\b")
_NUMBER = re.compile(r"\d[\d.,:e+-]*")
_ESCAPES = re.compile(r"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07]*\x07|.)")


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def sections(page: Path) -> dict[str, list[Block]]:
    """Return the blocks of a page under their headings, which are of the second level."""
    _, *parts = re.split(r"^## ", page.read_text("utf-8"), flags=re.MULTILINE)
    return {
        part.partition("\n")[0]: [Block(*found) for found in _BLOCK.findall(part)]
        for part in parts
        if _BLOCK.search(part)
    }


class Tutorial:
    """`provided`: first words of commands that a test does itself, such as a download, and how."""

    def __init__(
        self, name: str, folder: Path, provided: Mapping[str, Callable[[list[str]], None]] | None = None
    ) -> None:
        self.folder = folder / "folder"
        self.folder.mkdir()
        self.left = sections(PAGES / f"{name}.md")
        self.provided = provided or {}
        self.trainers = Trainers(self.folder)
        home, programs = folder / "home", folder / "bin"
        home.mkdir()
        programs.mkdir()
        (programs / "workbench").write_text(f'#!/bin/sh\nexec {sys.executable} -m workbench "$@"\n')
        (programs / "workbench").chmod(0o755)
        own = self.trainers.environment
        for variable in [name for name in own if name.startswith(("WORKBENCH_", "XDG_"))]:
            del own[variable]
        own.update(
            HOME=str(home),
            PATH=f"{programs}:{Path(sys.executable).parent}:{own['PATH']}",
            PYTHONPATH=str(ROOT),
            TERM="xterm-256color",
            LC_ALL="C.UTF-8",
        )

    def follow(self, heading: str, codes: Mapping[str, int] | None = None) -> list[str]:
        """Do what a section says, which is done with then. Return what each of its commands and programs printed.

        `codes`: the exit codes of commands for which they are not 0.
        """
        printed = []
        for block in self.left.pop(heading):
            if block.title:
                (self.folder / block.title).write_text(block.text, "utf-8")
            elif block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    printed.append(self._do(line, (codes or {}).get(line, 0)))
            elif block.language == "python":
                printed.append(self._run([sys.executable, "-c", block.text]))
            elif block.language == "text":
                missing = lines_missing(block.text, "\n".join(printed), self.folder)
                assert not missing, f"{heading}: not in what was printed:\n{missing}\n{printed}"
        return printed

    def change(self, name: str, changes: Mapping[str, Any]) -> None:
        """Set "table.key" in a TOML file of the reader's."""
        path = self.folder / name
        document: Any = tomlkit.parse(path.read_text("utf-8"))
        for dotted, value in changes.items():
            *tables, key = dotted.split(".")
            inner = document
            for table in tables:
                inner = inner.setdefault(table, {})
            inner[key] = value
        path.write_text(tomlkit.dumps(document), "utf-8")

    def _do(self, line: str, code: int) -> str:
        words = shlex.split(line, comments=True)
        for start, instead in self.provided.items():
            if words[: len(start.split())] == start.split():
                instead(words)
                return ""
        if words[:2] == ["workbench", "attach"]:
            return self._watch(words)
        return self._run(["bash", "-c", line], code)

    def _run(self, words: list[str], code: int = 0) -> str:
        """Run a command to its end; what it printed, its messages last."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.trainers.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def _watch(self, words: list[str]) -> str:
        """Look at a run on the screen until steps are there, and leave it; what the screen showed."""
        # Of a terminal's own size, whatever the shell that started the tests says of its own.
        environment = {
            name: value
            for name, value in self.trainers.environment.items()
            if name not in ("COLUMNS", "LINES")
        }
        screen = pexpect.spawn(
            words[0],
            words[1:],
            cwd=str(self.folder),
            env=environment,
            dimensions=(40, 120),
            timeout=PATIENCE_S,
            encoding="utf-8",
        )
        try:
            screen.delaybeforesend = None
            written = ""
            for sought, key in (("tok/s", "\x11"), ("Detach: training goes on", "d"), (pexpect.EOF, "")):
                screen.expect(sought)
                written += screen.before
                screen.send(key)
            screen.wait()
            assert screen.exitstatus == 0
        finally:
            screen.close(force=True)
        return _ESCAPES.sub("", written)


def lines_missing(shown: str, printed: str, folder: Path) -> list[str]:
    """Return the lines of a page's output that nothing printed, but for numbers, names of runs, and folders."""

    def plain(text: str) -> str:
        text = _RUN.sub(r"RUN-\1", text.replace(str(folder), READERS_FOLDER))
        return " ".join(_NUMBER.sub("#", text).split())

    lines = [plain(line) for line in printed.splitlines()]
    return [
        line
        for line in shown.splitlines()
        if line.strip()
        and not any(
            found.startswith(start) and found.endswith(end) if cut else found == start
            for start, cut, end in [plain(line).partition("…")]
            for found in lines
        )
    ]
