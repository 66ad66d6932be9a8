"""The ways to train one model that are compared: a plain torch loop, the Hugging Face Trainer, and the engine.

All have a model of their own with the same values, the same batch, fp32, no clipping, no checkpointing, and decay for
parameters of two or more dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.engine.processes import tell
from benchmarks.engine.shapes import SEED, Shape, meta_model, whole_model

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.1


class Contender(Protocol):
    """Trains on one batch. `mean_loss` is that of the last sample's steps, to see that all train the same."""

    mean_loss: float

    def set_batch(self, ids: Tensor) -> None: ...
    def seconds(self, steps: int) -> float: ...
    def close(self) -> None: ...


def batch(shape: Shape, tokens: int) -> Tensor:
    """Token ids, shape (1, tokens), int64."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, shape.vocab_size, (1, tokens), generator=generator)


def decayed(model: nn.Module) -> list[dict[str, Any]]:
    """torch's parameter groups: decay for two or more dimensions."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


class _Loop:
    """A loop of steps. `seconds` times them in the steady state: the step before has left what it leaves running."""

    def __init__(self) -> None:
        self.mean_loss = float("nan")
        self._ids = torch.zeros((1, 2), dtype=torch.int64)

    def set_batch(self, ids: Tensor) -> None:
        self._ids = ids

    def seconds(self, steps: int) -> float:
        losses = [self._step()]
        begin = time.perf_counter()
        for _ in range(steps):
            losses.append(self._step())
        elapsed_s = time.perf_counter() - begin
        self._settle()
        self.mean_loss = torch.stack(losses).mean().item()
        return elapsed_s

    def close(self) -> None:
        pass

    def _step(self) -> Tensor:
        raise NotImplementedError

    def _settle(self) -> None:
        pass


class PlainTorch(_Loop):
    """What a user writes without any library."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._model: Any = whole_model(shape)
        self._optimizer = torch.optim.AdamW(decayed(self._model), lr=LEARNING_RATE, fused=True)

    def _step(self) -> Tensor:
        loss: Tensor = self._model(input_ids=self._ids, labels=self._ids).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()


class Engine(_Loop):
    """The engine as the trainer of `workbench run` drives it."""

    def __init__(self, shape: Shape, state: Any) -> None:
        from workbench.engine import OffloadEngine
        from workbench.optimizer import AdamW

        super().__init__()
        self._model, materialize = meta_model(shape)
        self._engine = OffloadEngine(
            self._model,
            optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            state=state,
            precision="fp32",
            activation_checkpointing=False,
            device="cpu",
            materialize=materialize,
        )
        self._loss = trainers_loss(self._model, batch(shape, 16))

    def _step(self) -> Tensor:
        loss = self._loss(self._ids)
        self._engine.backward(loss)
        self._engine.step()
        return loss.detach()

    def _settle(self) -> None:
        self._engine.wait()

    def close(self) -> None:
        self._engine.close()


class HuggingFaceTrainer:
    """transformers' Trainer, a new run of `train` for each sample; its first step is not timed."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.mean_loss = float("nan")
        self._model = whole_model(shape)
        self._folder = folder
        self._ids = torch.zeros((1, 2), dtype=torch.int64)

    def set_batch(self, ids: Tensor) -> None:
        self._ids = ids

    def seconds(self, steps: int) -> float:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        ends: list[float] = []

        class Clock(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                ends.append(time.perf_counter())

        row = {"input_ids": self._ids[0], "labels": self._ids[0]}
        trainer = Trainer(
            model=self._model,
            args=TrainingArguments(
                output_dir=str(self._folder),
                per_device_train_batch_size=1,
                max_steps=steps + 1,
                learning_rate=LEARNING_RATE,
                weight_decay=WEIGHT_DECAY,
                lr_scheduler_type="constant",
                optim="adamw_torch_fused",
                max_grad_norm=0.0,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=[row] * (steps + 1),
            callbacks=[Clock()],
        )
        self.mean_loss = trainer.train().training_loss
        return ends[-1] - ends[0]

    def close(self) -> None:
        pass


def trainers_loss(model: Any, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """The loss that `workbench run` trains with, of token ids that are their own labels; checked on `ids`."""
    import importlib.util

    if importlib.util.find_spec("workbench.engine.loss.chunked_loss") is None:
        return lambda ids: model(input_ids=ids, labels=ids).loss
    from workbench.engine.loss.chunked_loss import ChunkedLoss

    chunked = ChunkedLoss(model)
    chunked.check(ids)
    if chunked.refusal is not None:
        tell(f"the model's own loss is used: {chunked.refusal}")
    return lambda ids: chunked(ids, ids)
