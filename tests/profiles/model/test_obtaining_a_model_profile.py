"""A model profile is taken once, in a process of its own, and whatever goes wrong there is one sentence here."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from model_tables import FAMILIES, table

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.profiles import obtain
from workbench.profiles.block_times import FOLDER, answer, shipped_tables
from workbench.profiles.meta_model import count_parts, meta_model
from workbench.profiles.model_profile import ModelProfile
from workbench.profiles.obtain import (
    obtain_model_profile,
    obtain_times,
    read_shipped,
    shipped_name,
)
from workbench.system.child_process import ChildProcess
from workbench.system.folders import cache_folder

TABLE = FAMILIES["llama"]


def silent(_: str) -> None:
    pass


def played_by(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let the helper process be a small program."""
    monkeypatch.setattr(obtain, "profiling_process", lambda: ChildProcess("-c", textwrap.dedent(program)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, model_profile_of: Callable[[str], ModelProfile]) -> list[Any]:
    """The questions that would have gone to a helper process, which is not started."""
    questions: list[Any] = []

    def ask(question: dict[str, Any], report: Callable[[str], None]) -> Any:
        questions.append(question)
        if question["ask"] == "model_profile":
            return model_profile_of("llama").model_dump(mode="json")
        return answer({**question, "budget_s": 0.01}, report)

    monkeypatch.setattr(obtain, "ask_once", ask)
    return questions


@pytest.mark.slow
def test_a_real_helper_takes_the_same_model_profile(model_profile_of: Callable[[str], ModelProfile]) -> None:
    said: list[str] = []
    assert obtain_model_profile(TABLE, said.append) == model_profile_of("llama")
    assert any("block" in sentence for sentence in said)


def test_what_is_kept_is_not_asked_for_again_and_the_first_time_is_told(asked: list[Any]) -> None:
    said: list[str] = []
    first = obtain_model_profile(TABLE, said.append)
    assert said == ["profiling llama, once"]
    assert obtain_model_profile(TABLE, said.append) == first
    assert len(asked) == len(said) == 1


def test_defaults_that_are_written_out_are_the_same_model(asked: list[Any]) -> None:
    obtain_model_profile(TABLE, silent)
    obtain_model_profile({**TABLE, "pretrained": "", "trust_remote_code": False}, silent)
    beside = {"pretrained": "/nowhere", "revision": "v1", "trust_remote_code": True}
    obtain_model_profile({**TABLE, **beside}, silent)
    assert len(asked) == 1
    other = {**TABLE, "config": {**TABLE["config"], "num_hidden_layers": 4}}
    assert obtain_model_profile(other, silent, take=False) is None
    obtain_model_profile(other, silent)
    assert len(asked) == 2


def test_of_a_folder_alone_what_it_says_counts_and_not_where_it_is(asked: list[Any], tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
        obtain_model_profile({"pretrained": str(tmp_path / name)}, silent)
    assert len(asked) == 1 and asked[0]["model"]["pretrained"] == str(tmp_path / "one")
    (tmp_path / "one" / "config.json").write_text('{"model_type": "gpt2"}')
    obtain_model_profile({"pretrained": str(tmp_path / "one")}, silent)
    assert len(asked) == 2


def test_the_model_profile_of_a_folder_is_that_of_its_description(tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(TABLE["architecture"], **TABLE["config"]).save_pretrained(tmp_path)
    described, found = (count_parts(meta_model(t), "") for t in (TABLE, {"pretrained": str(tmp_path)}))
    assert found == described


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "\x00\xff",
        lambda stored: json.dumps({**stored, "kinds": stored["kinds"][:-1]}),
        lambda stored: json.dumps({**stored, "version": 1}),
    ],
    ids=["no JSON", "a block of a kind that is not there", "another version"],
)
def test_a_file_that_does_not_hold_together_is_taken_anew(
    damage: Callable[[Any], str], asked: list[Any]
) -> None:
    model_profile = obtain_model_profile(TABLE, silent)
    (path,) = (cache_folder() / "model_profiles").iterdir()
    path.write_text(damage(json.loads(path.read_text())))
    assert obtain_model_profile(TABLE, silent) == model_profile
    assert len(asked) == 2


def test_a_model_profile_that_lacks_something_is_taken_again_another_time(
    monkeypatch: pytest.MonkeyPatch, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    model_profile = model_profile_of("llama")
    kinds = tuple(k.model_copy(update={"costs": None, "problem": "no room"}) for k in model_profile.kinds)
    lacking = model_profile.model_copy(update={"kinds": kinds}).model_dump(mode="json")
    monkeypatch.setattr(obtain, "ask_once", lambda *_: lacking)
    assert obtain_model_profile(TABLE, silent) is not None
    assert obtain_model_profile(TABLE, silent, take=False) is None


def test_times_are_kept_by_machine_sizes_and_dtype(
    asked: list[Any], model_profile_of: Callable[[str], ModelProfile]
) -> None:
    model_profile = model_profile_of("llama")
    what: dict[str, Any] = {
        "fingerprint": "here",
        "sequences": 2,
        "tokens": 16,
        "dtype": "float32",
        "device": "cpu",
    }
    assert obtain_times(TABLE, model_profile, **what, report=silent, take=False) is None
    times = obtain_times(TABLE, model_profile, **what, report=silent)
    assert times is not None and times.fingerprint == "here"
    assert obtain_times(TABLE, model_profile, **what, report=silent) == times
    assert len(asked) == 1
    for change in ({"fingerprint": "there"}, {"tokens": 8}, {"dtype": "bfloat16"}):
        assert obtain_times(TABLE, model_profile, **{**what, **change}, report=silent, take=False) is None
    (path,) = (cache_folder() / "times").iterdir()
    damages: tuple[dict[str, Any], ...] = (
        {"tokens": 0},
        {"sequences": -1},
        {"outer_forward_s": math.inf},
        {"kinds": []},
    )
    for damage in damages:
        path.write_text(json.dumps({**times.model_dump(), **damage}))
        assert obtain_times(TABLE, model_profile, **what, report=silent, take=False) is None


@pytest.mark.slow
def test_a_wrong_model_is_told_in_the_models_own_words() -> None:
    with pytest.raises(ConfigurationError, match='did you mean "llama"'):
        obtain_model_profile(table("lama"), silent)


def test_a_helper_that_dies_is_one_sentence_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    played_by(monkeypatch, "import sys; sys.exit('first\\nthe library is missing')")
    with pytest.raises(WorkbenchError, match=r"ended with code 1: the library is missing$") as caught:
        obtain_model_profile(TABLE, silent)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(("name", "model"), list(shipped_tables()), ids=lambda value: str(value)[:20])
def test_a_shipped_presets_model_profile_is_shipped_and_is_not_stale(
    name: str, model: dict[str, Any], asked: list[Any]
) -> None:
    shipped = read_shipped(model)
    assert shipped is not None, (
        f"run `python -m workbench.profiles.block_times ship`: preset {name} has no model profile"
    )
    fresh = count_parts(meta_model(model), model["architecture"])
    assert shipped.layout("bfloat16", 16 << 20) == fresh.layout("bfloat16", 16 << 20)
    left_out = {"kinds": {"__all__": {"costs", "accelerator", "flops"}}}
    assert shipped.model_dump(exclude=left_out) == fresh.model_dump(exclude=left_out)
    assert all(kind.costs is not None and set(kind.costs) == {"32", "16"} for kind in shipped.kinds)
    assert obtain_model_profile(model, silent) == shipped
    assert not asked


def test_without_torch_what_is_shipped_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    (_, model), *_ = shipped_tables()
    assert obtain_model_profile(model, silent, take=False) == read_shipped(model) is not None
    assert obtain_model_profile(TABLE, silent, take=False) is None


def test_no_model_profile_is_shipped_that_no_preset_has() -> None:
    assert {p.name for p in FOLDER.glob("*.json")} == {shipped_name(model) for _, model in shipped_tables()}
