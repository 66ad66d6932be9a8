"""The validation loss: the model's mean loss over held-out rows, the same ones every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from workbench.data.batches import Batch
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.training.batches.separation import DocumentSeparation


@torch.no_grad()
def validation_loss(
    model: Any,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    interrupted: Callable[[], bool],
    loss: ChunkedLoss | None = None,
    separation: DocumentSeparation | None = None,
) -> float | None:
    """Nats a counted token over `batches`, each of which has some; None when interrupted.

    `loss` is the model's, for a batch; one that nobody has checked if it is not given. `separation` is needed where the
    batches have position ids.
    """
    loss = loss or ChunkedLoss(model)
    training = model.training
    model.eval()
    total, counted = 0.0, 0
    try:
        for batch in batches:
            if interrupted():
                return None
            mean = batch_loss(loss, batch, device, separation)
            total += float(mean) * batch.loss_tokens
            counted += batch.loss_tokens
    finally:
        model.train(training)
    return total / counted


def batch_loss(
    loss: ChunkedLoss, batch: Batch, device: torch.device, separation: DocumentSeparation | None
) -> torch.Tensor:
    """The mean loss over the batch's counted tokens, a scalar on `device`."""
    arguments = {}
    if batch.position_ids is not None:
        assert separation is not None
        arguments = separation.arguments(batch.position_ids.to(device))
    ids, labels = batch.input_ids.to(device), batch.labels.to(device)
    return loss(ids, labels, use_cache=False, **arguments)
