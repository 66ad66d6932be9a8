"""All results in one JSON file, rewritten whole after each case, so that a run that is stopped has lost nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VERSION = 1


class ResultsFileError(Exception):
    """The file is there and is not one of ours."""


class Results:
    """The cases measured so far, by name: each a dictionary with its `status`, "done", "failed" or "skipped"."""

    def __init__(self, path: Path) -> None:
        """Raises ResultsFileError."""
        self._path = path
        self.cases: dict[str, dict[str, Any]] = {}
        if not path.exists():
            return
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["version"] != VERSION:
                raise KeyError(f"version {held['version']}, expected {VERSION}")
            self.cases = dict(held["cases"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsFileError(
                f"{path} holds no results of this benchmark ({error}); choose another --output"
            ) from error

    def has(self, name: str) -> bool:
        """Whether the case was run; one that was skipped was not, and what hindered it may have gone."""
        return self.cases.get(name, {}).get("status") in ("done", "failed")

    def put(self, name: str, case: dict[str, Any]) -> None:
        """Set a case's result and write the file."""
        self.cases[name] = case
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump({"version": VERSION, "cases": self.cases}, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
