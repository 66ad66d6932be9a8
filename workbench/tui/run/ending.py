"""End a trainer at once, without saving: what a second ctrl+c in its terminal does.

Invariant: a signal goes to the process that the run's status names, on this machine, and to no other.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from workbench.runs import RunDirectory, read_status
from workbench.runs.control import Answer
from workbench.runs.status import process_started

_SAME_PROCESS_S = 5.0
_BETWEEN_S = 0.2
ENDS_WITHIN_S = 10.0


def end_at_once(
    run: RunDirectory,
    *,
    kill: Callable[[int, int], None] = os.kill,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Send SIGINT twice to the trainer of `run`: the first ends its step, the second everything. Never raises.

    They come one after the other: two that are waiting together would be one.
    """
    status = read_status(run)
    if status.host not in ("", socket.gethostname()):
        return Answer(False, f"its trainer runs on {status.host}: end process {status.pid} there")

    def there() -> bool:
        started = process_started(status.pid)
        return started is not None and abs(started - status.pid_started) <= _SAME_PROCESS_S

    if not there():
        return Answer(False, f"its process {status.pid} is gone already")
    try:
        for _ in range(2):
            if there():
                kill(status.pid, signal.SIGINT)
                sleep(_BETWEEN_S)
    except ProcessLookupError:
        pass
    except OSError as error:
        return Answer(False, f"process {status.pid} cannot be ended: {error.strerror or error}")
    for _ in range(round(ENDS_WITHIN_S / _BETWEEN_S)):
        if not there():
            return Answer(True, "ended at once; the last checkpoint stands")
        sleep(_BETWEEN_S)
    return Answer(False, f"process {status.pid} has not ended yet")
