"""Golden hashes: the tokens and the first batches of a source never change by accident."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.config import DataConfig
from workbench.data.batches.sampling import (
    evaluation_batches,
    open_sampler,
    training_stream,
    validation_stream,
)
from workbench.data.prepare import prepare

LENGTH = 32


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name, count, words in (("small", 40, 30), ("large", 3, 2000)):
        (folder / name).mkdir()
        for index in range(count):
            (folder / name / f"{index:02d}.txt").write_text(
                f"document {index}: äöü\n" * (words * (index + 1) // 10)
            )
    texts = [{"text": f"record {index}: " + "äö " * (index % 7)} for index in range(300)]
    prompts = [{"prompt": f"{index}+{index}=", "completion": f" {2 * index}"} for index in range(300)]
    for name, records in (("texts", texts), ("prompts", prompts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    np.save(folder / "tokens.npy", np.array([*range(100, 250), 256, *range(99), 256, 7] * 20, np.uint16))
    return folder


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (["small"], {}, "c1d853e0f274b1f7"),
        (["small"], {"separate_documents": True}, "6e2c52f47cb48265"),
        (["large"], {}, "de930b84ed8e46cc"),
        (["texts.jsonl"], {}, "9f3e3385c80bdb87"),
        (["prompts.jsonl"], {}, "0e3af68e0e0dfe07"),
        (["prompts.jsonl"], {"loss_on": "everything"}, "692e07e2a8bcacd9"),
        (["prompts.jsonl", "texts.jsonl", "small"], {"separate_documents": True}, "625057205247a968"),
        (["tokens.npy"], {}, "5410d65c4433839e"),
    ],
)
def test_tokens_and_first_batches_are_these(
    corpus: Path, names: list[str], options: dict[str, Any], expected: str
) -> None:
    source = [str(corpus / name) for name in names]
    config = DataConfig.model_validate(
        {"source": source, "validation_fraction": 0.1, "sequence_length": LENGTH, **options}
    )
    data = prepare(config)
    settings: Any = {"separate": config.separate_documents, "padding": 256}
    sampler = open_sampler(training_stream(data), LENGTH, 4, 1234, **settings)
    digest = hashlib.sha256(f"{data.fingerprint} {len(data.train)} {len(data.validation)}".encode())
    for batch in (
        *(sampler.next() for _ in range(6)),
        *evaluation_batches(validation_stream(data), LENGTH, 4, 2048, **settings),
    ):
        for tensor in (batch.input_ids, batch.labels, batch.position_ids):
            digest.update(b"" if tensor is None else tensor.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected
