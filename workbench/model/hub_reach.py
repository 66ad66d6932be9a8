"""Whether the hub answers, asked once and shortly before anything is fetched from it.

Its own libraries try for half a minute where there is no network, and wait for ever for a hub that does not answer.
Invariant: whatever an answer says, a hub that gives one can be reached.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

ANSWER_S = 5.0
"""How long a connection, and then an answer, may take."""

OFFLINE = "HF_HUB_OFFLINE keeps the hub from being asked"


def why_unreachable() -> str:
    """Why the hub cannot be asked, in a few words; empty where it can."""
    hub: Any = importlib.import_module("huggingface_hub")
    if hub.constants.is_offline_mode():
        return OFFLINE
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=ANSWER_S)
    except Exception as error:  # whatever the network, a proxy or an address that is none raises
        return f"the hub cannot be reached ({hub.constants.ENDPOINT}: {_words(error)})"
    return ""


@contextlib.contextmanager
def hub_offline(offline: bool) -> Iterator[None]:
    """Where `offline`: the libraries of the hub take what is in their caches, and ask nobody."""
    modules: list[Any] = [importlib.import_module("huggingface_hub.constants")]
    with contextlib.suppress(ImportError):
        modules.append(importlib.import_module("datasets.config"))
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module, was in zip(modules, before, strict=True):
        module.HF_HUB_OFFLINE = was or offline
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = was


def _words(error: BaseException) -> str:
    """What an attempt ran into, told by the innermost of its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for kinds, words in _TROUBLES:
        if any(isinstance(one, kinds) for one in chain):
            return words
    if any("Timeout" in type(one).__name__ for one in chain):
        return _TROUBLES[1][1]
    return next((line for line in str(chain[-1]).splitlines() if line), type(chain[-1]).__name__)


_TROUBLES: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "no network, or no server that knows this name"),
    (TimeoutError, f"no answer within {ANSWER_S:.0f} s"),
    (ConnectionRefusedError, "the connection is refused"),
    (ConnectionResetError, "the connection is cut"),
    (ssl.SSLError, "its certificate is not trusted here"),
)
