"""Each page of docs/tutorials works from its first command to its last, on models of a size that a test can train."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pretrained_folders import chats, save_pretrained, write_chats
from tutorials import Tutorial

SMALL_GPT2 = {
    "model.config.n_layer": 2,
    "model.config.n_embd": 64,
    "model.config.n_head": 4,
    "model.config.vocab_size": 320,
    "data.sequence_length": 128,
    "train.micro_batch_size": 2,
    "train.steps": 1_000_000,
    "evaluate.tokens": 1024,
}
"""Instead of ten billion parameters; it trains until it is stopped."""


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Callable[..., Tutorial]]:
    """Open a page in an empty folder; nothing that it starts outlives the test."""
    opened = []

    def open_page(name: str, **options: object) -> Tutorial:
        opened.append(Tutorial(name, tmp_path, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_page
    for page in opened:
        page.trainers.end()


def test_ten_billion_parameters_on_one_gpu(tutorial: Callable[..., Tutorial]) -> None:
    page = tutorial("10b-on-one-gpu")
    [imported] = page.follow("The same model")
    assert "4 keys: 0 used, 3 mapped, 1 meaningless here, 0 unknown, 0 refused" in imported
    exact, fit = page.follow("Plan it on the tutorial's machine")
    assert "10,279,239,680 parameters on a server with Tesla V100-SXM2-32GB, 1,536 GiB: it fits" in exact
    assert "V100-SXM2-32GB, 128 GiB: it fits" in fit
    [small] = page.follow("Try it small first")
    assert "has finished: 20 steps, validation loss 5." in small

    page.change("10b.toml", SMALL_GPT2)
    started, screen = page.follow("Run and watch")
    assert "training in process" in started
    for panel in ("Host optimizer", "Loss", "Memory"):
        assert panel in screen
    saved, paused, resumed, stopped, again, stopped_again = page.follow("Save, pause, stop, go on")
    assert "checkpoints/step-" in saved and "paused after step" in paused
    assert "continuing after step" in resumed and "then saving" in stopped
    assert "training in process" in again and "step" in stopped_again
    exported, loaded = page.follow("Take the model out")
    assert "its logits are the run's" in exported
    assert "186,112 parameters" in loaded
    assert not page.left


def make_llama(folder: Path) -> None:
    """Make a small LLaMA with a tokenizer and a chat template, which takes as many tokens as the true one."""
    save_pretrained(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))


def write_alpaca(path: Path, count: int) -> None:
    """Write the first questions and answers of so many chats as Alpaca's records."""
    records = []
    for chat in chats(count):
        question, answer = chat["messages"][-2:]
        records.append({"instruction": question["content"], "input": "", "output": answer["content"]})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.slow
def test_a_llama_is_fine_tuned(tutorial: Callable[..., Tutorial]) -> None:
    page = tutorial(
        "finetune-llama", provided={"hf download": lambda words: make_llama(page.folder / words[-1])}
    )
    page.follow("The model")
    page.follow("The data")
    write_alpaca(page.folder / "alpaca.jsonl", 200)
    imported, checked = page.follow("Import the configuration")
    assert "15 keys: 6 used, 4 mapped, 5 meaningless here, 0 unknown, 0 refused" in imported
    assert "ok" in checked
    [fit] = page.follow("Plan")
    assert "1,416,768 parameters on a desktop with a 24 GB card: it fits" in fit
    ran, said, metrics, slower, compared = page.follow("Train and evaluate")
    assert "has finished: 4 steps, validation loss 5." in ran and "the best so far" in ran
    assert said.strip() and not metrics
    assert (page.folder / "steps.csv").read_text().startswith("step,time,loss,")
    assert "lr 2.0e-05" in slower and "optimizer.learning_rate" in compared
    exported, answered = page.follow("Export")
    assert "its logits are the run's" in exported
    assert "torch.bfloat16" in answered
    assert not page.left


def test_a_recipe_of_llama_factory_is_trained(tutorial: Callable[..., Tutorial]) -> None:
    page = tutorial(
        "from-llama-factory", provided={"hf download": lambda words: make_llama(page.folder / words[-1])}
    )
    page.follow("The file")
    write_chats(page.folder / "chats.jsonl", 100)
    imported, refused = page.follow("Import", {"workbench import qlora.yaml --out qlora.toml": 2})
    assert "0 unknown, 0 refused" in imported
    assert "quantization_bit = 4" in refused and not (page.folder / "qlora.toml").exists()
    plan, ran = page.follow("Plan and run")
    assert "it fits" in plan
    assert "has finished: 20 steps, validation loss 5." in ran
    adapter, merged, loaded = page.follow("The adapter, or one model")
    assert "its logits are the run's" in adapter and "merging the adapter" in merged
    assert "PeftModelForCausalLM" in loaded and "torch.bfloat16" in loaded
    assert not page.left


def test_a_model_on_disk_is_planned_trained_and_moved(tutorial: Callable[..., Tutorial]) -> None:
    page = tutorial("model-on-disk")
    [too_large] = page.follow("What is too large", {"workbench plan gpt2-10b --machine desktop-24gb": 3})
    assert "IT DOES NOT FIT" in too_large
    _, fit = page.follow("Plan it with a disk")
    assert "it fits" in fit
    [measured] = page.follow("What it costs")
    assert "fast-disk: direct I/O" in measured or "fast-disk: " in measured
    [ran] = page.follow("Try it small first")
    assert "disk tier: " in ran and "has finished: 20 steps" in ran
    assert not list((page.folder / "fast-disk").iterdir())
    moved, exported = page.follow("Move it")
    assert "resuming from step-00000020" in moved and "has finished: 40 steps" in moved
    assert "its logits are the run's" in exported
    assert not page.left
