"""The validation loss: the model's mean loss over held-out windows, the same ones every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workbench.data.sampling import evaluation_batches
from workbench.engine.chunked_loss import ChunkedLoss


@torch.no_grad()
def validation_loss(
    model: Any,
    tokens: Tensor,
    *,
    sequence_length: int,
    batch_size: int,
    total_tokens: int,
    device: torch.device,
    interrupted: Callable[[], bool],
    loss: ChunkedLoss | None = None,
) -> float | None:
    """Nats a predicted token over about `total_tokens` tokens of `tokens` (1-D ids); None when interrupted.

    `loss` is the model's, for a batch; one that nobody has checked if it is not given.
    """
    loss = loss or ChunkedLoss(model)
    training = model.training
    model.eval()
    total, counted = 0.0, 0
    try:
        for batch in evaluation_batches(tokens, sequence_length, batch_size, total_tokens):
            if interrupted():
                return None
            ids = batch.to(device)
            predicted = batch.shape[0] * (batch.shape[1] - 1)
            total += float(loss(ids, ids, use_cache=False)) * predicted
            counted += predicted
    finally:
        model.train(training)
    return total / counted
