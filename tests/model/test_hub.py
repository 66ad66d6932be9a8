"""The hub is asked for what is not here, quickly and for no more; what it refuses ends in one sentence."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, errors
from saved_families import build

from workbench.data.sources.tables import open_hub
from workbench.data.tokenizers import load_tokenizer
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub
from workbench.model.pretrained import find_pretrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PART = "model-00003-of-00004.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with its weights in four files."""
    folder = tmp_path_factory.mktemp("original")
    build("llama").save_pretrained(folder, max_shard_size="20KB")
    return folder


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Gives the hub an answer: its files with their sizes, or an exception. Without one there is no network. The cache,
    `tmp_path / "hub"`, is empty, and nothing can be downloaded."""

    def answer(value: Any) -> None:
        def asked(*_: Any, **__: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        monkeypatch.setattr(hub, "_listed", asked)

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    answer(ConnectionError("Name or service not known"))
    return answer


def keep(cache: Path, source: Path) -> Path:
    """Put a model into the cache as if it had been fetched as owner/model."""
    repository = cache / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(source, repository / "snapshots" / COMMIT))


def test_without_network_a_model_that_was_fetched_before_is_taken(
    listed: Any, tmp_path: Path, original: Path
) -> None:
    kept = keep(tmp_path / "hub", original)
    log: list[str] = []
    files = find_pretrained("owner/model", log=log.append)
    assert (files.folder, files.commit, len(files.weights)) == (kept, COMMIT, 4)
    [warning] = log
    assert warning.startswith("warning: ") and "the hub cannot be reached" in warning


def test_a_commit_that_is_here_is_not_asked_for(listed: Any, tmp_path: Path, original: Path) -> None:
    keep(tmp_path / "hub", original)
    listed(AssertionError("the hub was asked"))
    log: list[str] = []
    assert find_pretrained("owner/model", COMMIT, log=log.append).commit == COMMIT
    assert find_pretrained("owner/model", weights=False, fresh=False, log=log.append).commit == COMMIT
    assert log == []


@pytest.mark.parametrize("lost", [None, PART, "config.json"])
def test_without_network_and_not_all_in_the_cache_says_what_to_do(
    listed: Any, tmp_path: Path, original: Path, lost: str | None
) -> None:
    if lost is not None:
        (keep(tmp_path / "hub", original) / lost).unlink()
    with pytest.raises(WorkbenchError, match=r"cannot be reached.*Name or .*hf download owner/model"):
        find_pretrained("owner/model")


def refusal(kind: str, status: int) -> Exception:
    import httpx2

    response: Any = httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co/x"))
    error: Exception = getattr(errors, kind)("no", response=response)
    return error


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refusal("GatedRepoError", 403), ConfigurationError, r"https://huggingface\.co/owner/model"),
        (refusal("RepositoryNotFoundError", 404), ConfigurationError, r"no such model on the hub"),
        (refusal("RevisionNotFoundError", 404), ConfigurationError, r'model\.revision = "v9"'),
        (refusal("HfHubHTTPError", 401), ConfigurationError, r"the hub denies access \(401\)"),
        (errors.OfflineModeIsEnabled("offline"), WorkbenchError, r"HF_HUB_OFFLINE.*name a folder"),
        (
            {"config.json": 9, "model.safetensors": 10**15},
            WorkbenchError,
            r"needs 931,322\.6 GiB in .*HF_HOME",
        ),
        (
            {"config.json": 9, "pytorch_model.bin": 10},
            ConfigurationError,
            r"only pickle files \(pytorch_model\.bin\)",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_fetched_is_one_sentence_before_anything_is(
    listed: Callable[[Any], None], answer: Any, kind: type[WorkbenchError], words: str
) -> None:
    listed(answer)
    with pytest.raises(kind, match=words) as raised:
        find_pretrained("owner/model", "v9")
    assert type(raised.value) is kind and "\n" not in str(raised.value)


def test_only_description_tokenizer_and_safetensors_are_fetched_and_progress_is_logged(
    listed: Callable[[Any], None], tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {path.name: path.stat().st_size for path in original.iterdir()}
    others = ("pytorch_model.bin", "README.md", "original/model.safetensors", "modeling_x.py", "x.pkl")

    def download(name: str, *, allow_patterns: list[str], tqdm_class: Any, **_: Any) -> str:
        assert allow_patterns == sorted([*sizes, "tokenizer.json"])
        files, come = tqdm_class(total=5, desc="files"), tqdm_class(total=3 << 30, unit="B", unit_scale=True)
        files.update(1)
        come.update(1 << 30)
        return str(keep(tmp_path / "hub", original))

    listed({**sizes, **dict.fromkeys(others, 9), "tokenizer.json": 5})
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(hub, "REPORT_EVERY_S", 0.0)
    log: list[str] = []
    find_pretrained("owner/model", log=log.append)
    begin, progress = log
    assert begin.startswith("fetching owner/model from the hub: ")
    assert progress.startswith("fetched 1.00 of 3.00 GiB of owner/model, ")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub that takes connections and says nothing."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ANSWER_S", 0.05)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", address, raising=False)
        yield address


def test_each_way_of_not_being_reached_has_its_words(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"{silent}: no answer within" in hub.why_unreachable()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1: " in hub.why_unreachable() and "refused" in hub.why_unreachable()
    with hub.hub_offline(True):
        assert hub.why_unreachable() == hub.OFFLINE
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    "ask",
    [
        lambda: open_hub("owner/name", "", "train"),
        lambda: load_tokenizer("owner/name"),
        lambda: find_pretrained("owner/name"),
    ],
    ids=["dataset", "tokenizer", "model"],
)
def test_nobody_waits_for_a_hub_that_is_silent(silent: str, ask: Callable[[], Any]) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(WorkbenchError, match=r"the hub cannot be reached \(http.*: no answer ") as raised:
        ask()
    assert raised.value.exit_code == 1
