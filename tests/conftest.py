"""What all tests share; above all a cache of their own, so that they neither read nor leave anything in the user's."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.runs import RunDirectory
from workbench.system import processor

_FOLDER = "WORKBENCH_TEST_CACHE"


def pytest_configure(config: pytest.Config) -> None:
    """Before workers are started, which take the variable over: what one has measured serves them all."""
    if not hasattr(config, "workerinput"):
        os.environ[_FOLDER] = os.environ["WORKBENCH_CACHE"] = tempfile.mkdtemp(prefix="workbench-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_FOLDER), ignore_errors=True)


@pytest.fixture(autouse=True)
def processor_without_bfloat16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see the processor that most have, whatever it is: 16-bit weights are computed in fp32."""
    if "own_processor" not in request.fixturenames:
        monkeypatch.setattr(processor, "has_bfloat16", lambda: False)


@pytest.fixture
def own_processor() -> None:
    """The test sees this machine's processor as it is, as a process of its own does."""


@pytest.fixture(scope="session")
def one_torch_thread() -> Iterator[None]:
    """One thread for torch, for small models of whom several are tested at a time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def no_progress_bars() -> Iterator[None]:
    """None of transformers'."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A new run with nothing in it."""
    return RunDirectory.create(tmp_path, "p")


@pytest.fixture
def no_lane_left() -> Iterator[None]:
    """See that the test leaves no thread of an engine behind."""
    before = set(threading.enumerate())
    yield
    left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("lane-")]
    assert not left, f"lanes still alive: {left}"
