"""A run on chats, answers only, has the loss curve that Hugging Face's Trainer has with the same batches."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.config import RunConfig, load_config
from workbench.data.prepare import prepare
from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.runs import RunDirectory, read_run_metrics
from workbench.training.batches import training_sampler
from workbench.training.command import run
from workbench.training.evaluation import batch_loss

STEPS = 50
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCE = "what is the answer to all of this when nobody asks and everybody knows it by heart already"
WORDS = SENTENCE.split()
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
    },
    "gpt2": {
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 128,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}


def save_pretrained(folder: Path, architecture: str) -> None:
    """A small model with random weights and a tokenizer trained on the spot, as transformers saves them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.train_from_iterator(
        [" ".join(WORDS)] * 8,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, eos_token=special[0], bos_token=special[0])
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = CONFIG_MAPPING[architecture](
        vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **MODELS[architecture]
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def write_chats(path: Path) -> None:
    choose = random.Random(3)

    def words() -> str:
        return " ".join(choose.choices(WORDS, k=choose.randint(2, 9)))

    with path.open("w") as file:
        for _ in range(400):
            roles = ["user", "assistant"] * choose.randint(1, 2)
            messages = [{"role": role, "content": words()} for role in roles]
            file.write(json.dumps({"messages": messages}) + "\n")


def configured(folder: Path, architecture: str) -> Path:
    save_pretrained(folder / "model", architecture)
    write_chats(folder / "chats.jsonl")
    preset = folder / "chats.toml"
    preset.write_text(
        f'[model]\npretrained = "{folder / "model"}"\n'
        f'[data]\nsource = "{folder / "chats.jsonl"}"\ntokenizer = "{folder / "model"}"\nsequence_length = 96\n'
        "validation_fraction = 0.05\n"
        f'[train]\ndevice = "cpu"\nprecision = "fp32"\nsteps = {STEPS}\nmicro_batch_size = 3\n'
        "gradient_accumulation = 2\ngradient_clipping = 1.0\n"
        "[optimizer]\nlearning_rate = 3e-4\nbetas = [0.9, 0.999]\nweight_decay = 0.01\n"
        '[schedule]\ntype = "constant"\n[evaluate]\nevery = 0\n[sample]\ntokens = 0\n[checkpoint]\nevery = 0\n'
    )
    return preset


def hugging_face_losses(config: RunConfig, folder: Path) -> list[float]:
    """Of the same rows, each with its attention mask over what is no padding."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    data = prepare(config.data)
    sampler = training_sampler(config, data)
    batches = [sampler.next() for _ in range(STEPS * config.train.gradient_accumulation)]
    rows = [
        {"input_ids": ids, "labels": labels}
        for batch in batches
        for ids, labels in zip(batch.input_ids, batch.labels, strict=True)
    ]
    end = data.tokenizer.end_of_text

    def collate(chosen: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = torch.stack([row["input_ids"] for row in chosen])
        return {
            "input_ids": ids,
            "labels": torch.stack([row["labels"] for row in chosen]),
            "attention_mask": (ids != end).long(),
        }

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)  # type: ignore[arg-type]

        def training_step(self, *arguments: Any, **options: Any) -> Tensor:
            loss: Tensor = super().training_step(*arguments, **options)
            parts.append(loss.item())
            return loss

    parts: list[float] = []
    train = config.train
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation,
        max_steps=STEPS,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.01,
        adam_beta1=0.9,
        adam_beta2=0.999,
        optim="adamw_torch",
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    InOrder(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
    # Each part is its micro-batch's sum over the whole step's count.
    every = train.gradient_accumulation
    return [sum(parts[at : at + every]) for at in range(0, len(parts), every)]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", MODELS)
def test_fifty_steps_have_the_loss_curve_of_hugging_face(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    preset = configured(tmp_path, architecture)
    assert run(preset=str(preset), runs=tmp_path / "runs") == 0
    (directory,) = (RunDirectory(path) for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    ours = list(read_run_metrics(directory).column("loss"))
    theirs = hugging_face_losses(load_config(preset), tmp_path)
    assert len(ours) == len(theirs) == STEPS
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[-1] < 0.8 * ours[0]


@pytest.fixture
def chats(tmp_path: Path) -> tuple[RunConfig, Path]:
    return load_config(configured(tmp_path, "llama")), tmp_path / "model"


def test_micro_batches_weigh_by_their_answers_so_that_accumulation_equals_one_batch(
    chats: tuple[RunConfig, Path],
) -> None:
    from transformers import AutoModelForCausalLM

    config, folder = chats
    data = prepare(config.data)
    losses: list[list[float]] = []
    norms: list[list[float]] = []
    for size, accumulation in ((1, 6), (6, 1)):
        train = config.train.model_copy(
            update={"micro_batch_size": size, "gradient_accumulation": accumulation}
        )
        sampler = training_sampler(config.model_copy(update={"train": train}), data)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        engine = OffloadEngine(
            model,
            optimizer=AdamW(lr=3e-4),
            gradient_accumulation=accumulation,
            precision="fp32",
            device="cpu",
            threads=1,
        )
        with engine:
            seen: list[float] = []
            reports = []
            for _ in range(3):
                counts, means = [], []
                for _ in range(accumulation):
                    batch = sampler.next()
                    loss = batch_loss(ChunkedLoss(model), batch, CpuDevice())
                    engine.backward(loss, tokens=batch.loss_tokens)
                    counts.append(batch.loss_tokens)
                    means.append(loss.item())
                reports.append(engine.step())
                assert accumulation == 1 or len(set(counts)) > 1
                seen.append(sum(m * c for m, c in zip(means, counts, strict=True)) / sum(counts))
            engine.wait()
            losses.append(seen)
            norms.append([report.result().grad_norm for report in reports])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
