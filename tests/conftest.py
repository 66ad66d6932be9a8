"""What all tests share: a cache of their own, so that they neither read nor leave anything in the user's."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

_FOLDER = "WORKBENCH_TEST_CACHE"


def pytest_configure(config: pytest.Config) -> None:
    """Before workers are started, which take the variable over: what one has measured serves them all."""
    if not hasattr(config, "workerinput"):
        os.environ[_FOLDER] = os.environ["WORKBENCH_CACHE"] = tempfile.mkdtemp(prefix="workbench-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_FOLDER), ignore_errors=True)
