"""Loss of a batch, the validation loss, and generated text: what the model is asked between and in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from workbench.data.batches import Batch
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.training.separation import separating_arguments

TEMPERATURE = 0.8
TOP_K = 40


def batch_loss(loss: ChunkedLoss, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the mean loss over the batch's tokens in the loss mask, a scalar on `device`."""
    arguments = {}
    if batch.position_ids is not None:
        arguments = separating_arguments(batch.position_ids.to(device))
    ids, labels = batch.input_ids.to(device), batch.labels.to(device)
    return loss(ids, labels, use_cache=False, **arguments)


@torch.no_grad()
def validation_loss(
    model: Any,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    interrupted: Callable[[], bool],
    loss: ChunkedLoss | None = None,
) -> float | None:
    """Return nats a token of the loss mask over `batches`, each of which has some; None when interrupted.

    `loss` is the model's, for a batch; one that nobody has checked if it is not given.
    """
    loss = loss or ChunkedLoss(model)
    training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        for batch in batches:
            if interrupted():
                return None
            total += float(batch_loss(loss, batch, device)) * batch.loss_tokens
            tokens += batch.loss_tokens
    finally:
        model.train(training)
    return total / tokens


@torch.no_grad()
def generate(
    model: Any,
    prompt: Sequence[int],
    *,
    tokens: int,
    context: int,
    vocabulary_size: int,
    end_of_text: int,
    seed: int,
    device: torch.device,
    interrupted: Callable[[], bool],
) -> list[int]:
    """Return up to `tokens` ids that follow `prompt`, drawn from the `TOP_K` most likely at `TEMPERATURE`.

    The model sees the last `context` ids. Generation ends at `end_of_text`, when interrupted, or where the model gives
    no numbers. `model.generate` is not used: it draws from the global generator, as training does, and its cache of
    keys and values takes memory that the run's plan has not counted.
    """
    generator = torch.Generator().manual_seed(seed)
    training = model.training
    model.eval()
    ids = list(prompt) or [end_of_text]
    made: list[int] = []
    try:
        while len(made) < tokens and not interrupted():
            window = torch.tensor([ids[-context:]], device=device)
            logits = model(input_ids=window, use_cache=False).logits[0, -1, :vocabulary_size].float().cpu()
            best = torch.topk(logits / TEMPERATURE, min(TOP_K, len(logits)))
            probabilities = best.values.softmax(0)
            if probabilities.isnan().any():
                break  # the model has diverged, which the training loop reports
            choice = torch.multinomial(probabilities, 1, generator=generator)
            drawn = int(best.indices[choice])
            if drawn == end_of_text:
                break
            ids.append(drawn)
            made.append(drawn)
    finally:
        model.train(training)
    return made


def continued(
    decode: Callable[[Sequence[int]], str], text: str, prompt: Sequence[int], made: Sequence[int]
) -> str:
    """Return `text`, whose ids are `prompt`, followed by the text of `made`.

    They are decoded together: some tokenizers leave out a space where a text begins.
    """
    head, whole = decode(prompt), decode([*prompt, *made])
    return text + (whole[len(head) :] if whole.startswith(head) else decode(made))
