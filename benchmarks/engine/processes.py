"""A case as a process of its own: it gets a JSON object, prints another, and leaves nothing behind.

The parent owns the case's folder and removes it however the case ends: done, failed, out of time, killed for memory,
or the parent itself stopped by SIGINT or SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.host_optimizer.output import reserved_stdout

ROOT = Path(__file__).parents[2]
GRACE_S = 10.0
LONGEST_FAILURE = 400
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Outcome:
    """What came of a case: its `result`, or in words why there is none."""

    result: dict[str, Any] | None
    failure: str = ""


def run_case(
    package: str,
    case: Mapping[str, Any],
    *,
    limit_s: float | None = None,
    folder_in: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `python -m PACKAGE case` on `case`, which finds a fresh folder in `folder_in` under the key "folder".

    What the case prints on stderr is shown as it comes; its stdout ends with the line of its result.
    """
    with _stopped_by_signals(), _folder(folder_in) as folder:
        given = {**case, "folder": None if folder is None else str(folder)}
        process = subprocess.Popen(
            [sys.executable, "-m", package, "case"],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            printed, _ = process.communicate(json.dumps(given), timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Outcome(None, f"not done after {limit_s:.0f} s")
        finally:
            _end(process)
    return _outcome(process.returncode, printed)


def serve_case(run: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """The child's side: run the case that stdin holds; returns the exit code."""
    _die_with_parent()
    case = json.loads(sys.stdin.read())
    with reserved_stdout() as data:  # packages print on it, some of them from C
        try:
            answer: dict[str, Any] = {"result": run(case)}
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            traceback.print_exc()
            text = " ".join(str(error).split()) or type(error).__name__
            answer = {"failure": f"{type(error).__name__}: {text[:LONGEST_FAILURE]}"}
        print(json.dumps(answer), file=data, flush=True)
    return 0 if "result" in answer else 1


def tell(message: str) -> None:
    """Progress, for a person."""
    print(message, file=sys.stderr, flush=True)


def _outcome(code: int, printed: str) -> Outcome:
    lines = printed.strip().splitlines()
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(lines[-1])
        if isinstance(answer, dict) and ("result" in answer or "failure" in answer):
            return Outcome(answer.get("result"), answer.get("failure", ""))
    if code < 0:
        name = signal.Signals(-code).name
        return Outcome(None, f"killed by {name}" + ", most likely for memory" * (name == "SIGKILL"))
    return Outcome(None, f"ended with exit code {code} and no result")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _folder(inside: Path | None) -> Iterator[Path | None]:
    if inside is None:
        yield None
        return
    inside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-", dir=inside) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end this process through every `finally`, and further ones do not disturb the cleaning."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: Any) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    """A case whose parent was killed outright must not go on."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
