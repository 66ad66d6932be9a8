"""A hub that cannot be reached is told at once, in plain words, and its libraries then take what they have."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from workbench.data.sources.tables import open_hub
from workbench.data.tokenizers import load_tokenizer
from workbench.errors import WorkbenchError
from workbench.model import hub, hub_reach


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a hub that takes connections and says nothing."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_reach, "ANSWER_S", 0.05)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        yield port


def test_each_way_of_not_being_reached_has_its_words(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"http://127.0.0.1:{silent}: no answer within" in hub_reach.why_unreachable()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert hub_reach.why_unreachable().endswith("the connection is refused)")
    monkeypatch.setattr(constants, "ENDPOINT", "http://nowhere.invalid")
    assert "Errno" not in hub_reach.why_unreachable()
    with hub_reach.hub_offline(True):
        assert hub_reach.why_unreachable() == hub_reach.OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_models_tokenizers_and_datasets_do_not_wait_for_a_hub_that_is_silent(silent: int) -> None:
    pytest.importorskip("datasets")
    for ask in (
        lambda: open_hub("owner/name", "", "train"),
        lambda: load_tokenizer("owner/name"),
        lambda: hub.fetch("owner/name", weights=True, fresh=True, code=False, tell=print),
    ):
        with pytest.raises(
            WorkbenchError, match=r"the hub cannot be reached \(http.*: no answer .*; .* name "
        ) as error:
            ask()
        assert error.value.exit_code == 1
