"""Keep the documents of a packed row apart: a model of transformers sees them in position ids that begin again.

Most models build their masks from such position ids. Each is tried on a few tokens before training: the second of two
documents must come out bit for bit alike whatever the first one says, and as it does alone.

Invariant: a model that fails the trial does not train on packed documents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workbench.errors import ConfigurationError

_FIRST, _SECOND = 9, 14
"""Tokens of the trial's two documents."""
_SEED = 20
_LEAK_SHARE = 0.01
"""Allowed share of the change where nothing keeps documents apart: kernels of other shapes may round otherwise."""


def separating_arguments(position_ids: Tensor) -> dict[str, Tensor]:
    """Return the model's arguments that keep documents apart; `position_ids` int64 [rows, length], on the device."""
    return {"position_ids": position_ids}


def check_separation(model: Any, device: torch.device) -> None:
    """Try a causal language model out, without gradients; its mode and random numbers are left as they were.

    Raises:
        ConfigurationError: it does not keep the documents of a sequence apart.
    """
    problem = _problem(model, device)
    if problem:
        raise ConfigurationError(
            f"data.separate_documents = true: {type(model).__name__} does not keep the documents of a sequence apart "
            f"by position ids ({problem}); set it to false"
        )


def _problem(model: Any, device: torch.device) -> str:
    """Return what is wrong when the model is given position ids that begin again; empty where documents are apart."""
    vocabulary, dtype = (
        model.get_input_embeddings().weight.shape[0],
        model.get_input_embeddings().weight.dtype,
    )
    draws = torch.Generator().manual_seed(_SEED)
    one, other, second = (
        torch.randint(vocabulary, (1, count), generator=draws).to(device)
        for count in (_FIRST, _FIRST, _SECOND)
    )
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None].to(device)
    rows = [torch.cat([first, second], 1) for first in (one, other)]
    together = [_second_logits(model, row) for row in rows]
    alone = _second_logits(model, second)
    try:
        apart = [_second_logits(model, row, **separating_arguments(positions)) for row in rows]
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    if not bool(torch.isfinite(apart[0]).all()) and bool(torch.isfinite(alone).all()):
        return "it gives no numbers"
    if float((apart[0] - apart[1]).norm()) > _LEAK_SHARE * float((together[0] - together[1]).norm()):
        return "a document sees the one before it"
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    if float((apart[0] - alone).norm()) > tolerance * float(alone.norm()):
        return "a document comes out otherwise than alone"
    return ""


@torch.no_grad()
def _second_logits(model: Any, row: Tensor, **arguments: Tensor) -> Tensor:
    """Return the second document's logits, fp32 [tokens, vocabulary]."""
    training = model.training
    model.eval()
    try:
        logits: Tensor = model(input_ids=row, use_cache=False, **arguments).logits
    finally:
        model.train(training)
    return logits[0, -_SECOND:].float()
