"""Data of their own to evaluate on: all of it, by the run's tokenizer, and none of it trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_early_stopping import TINY

from workbench.config import DataConfig
from workbench.config.schema import EvaluateConfig
from workbench.data.prepare import prepare, with_evaluation
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory, read_events
from workbench.training.command import run as train


def write(path: Path, *texts: str) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
@pytest.mark.parametrize("records", [1, 3])
def test_all_of_a_source_is_evaluated_on_and_all_of_the_other_trained_on(
    tmp_path: Path, tokenizer: str, records: int
) -> None:
    source = write(tmp_path / "train.jsonl", *(f"one two three {number}" * 9 for number in range(4)))
    held, more = (
        write(tmp_path / f"{name}.jsonl", *[f"{name} one two " * 9] * records) for name in ("held", "more")
    )
    config = DataConfig(source=source, tokenizer=tokenizer, sequence_length=16)
    config = config.model_copy(update={"validation_fraction": 0.0})
    main = prepare(config)
    data = with_evaluation(main, config, EvaluateConfig(source=held, sources={"more": more}))
    assert data.tokenizer is main.tokenizer and data.fingerprint == main.fingerprint
    assert len(main.validation) == 0 and data.train is main.train
    decode = data.tokenizer.decode
    assert decode(data.train.tolist()).count("one two three") == 36
    assert decode(data.validation.tolist()).count("held one two") == 9 * records
    assert list(data.others) == ["more"]
    assert decode(data.others["more"].validation.tolist()).count("more one two") == 9 * records
    with pytest.raises(
        ConfigurationError, match=r"short.txt: has \d+ tokens, and data.sequence_length = 16 needs"
    ):
        (tmp_path / "short.txt").write_text("o")
        with_evaluation(main, config, EvaluateConfig(source=str(tmp_path / "short.txt")))


def test_a_run_measures_each_of_its_data_sets(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, other = tmp_path / "held.txt", tmp_path / "other.txt"
    held.write_text("one two three " * 20)
    other.write_text("XYZ! " * 40)
    words = [
        *TINY,
        f"data.source={text_file}",
        "train.steps=4",
        "evaluate.patience=0",
        f"evaluate.source={held}",
        f'evaluate.sources={{"other" = "{other}", "same" = "{held}"}}',
    ]
    assert train(preset="quickstart", overrides=words, runs=tmp_path / "runs") == 0
    run = RunDirectory.list(tmp_path / "runs")[-1]
    events = read_events(run).events
    own = [event.fields["loss"] for event in events if event.kind == "evaluation"]
    beside = {
        name: [e.fields["loss"] for e in events if e.kind == "evaluation_of" and e.fields["name"] == name]
        for name in ("other", "same")
    }
    assert len(own) == 2 and beside["same"] == own
    assert len(beside["other"]) == 2 and beside["other"] != own
    assert f"evaluation of other at step 4 | loss {beside['other'][-1]:.4f}" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match=r"evaluate.sources.other.*there is no such file or folder"):
        train(
            preset="quickstart", overrides=[*TINY, "evaluate.sources.other=/nowhere"], runs=tmp_path / "runs"
        )
