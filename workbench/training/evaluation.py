"""Loss of a batch, the validation loss, generated text, and the check that packed documents do not see each other.

A model of transformers keeps the documents of a packed row apart by position ids that begin again. Each is tried on a
few tokens before training: the second of two documents must come out bit for bit alike whatever the first one says, and
as it does alone. Invariant: a model that fails the trial does not train on packed documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from workbench.data.batches import Batch
from workbench.engine.devices.device import Device
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.errors import ConfigurationError
from workbench.training.ranks import ONE_RANK, RunRanks, of_all

TEMPERATURE = 0.8
TOP_K = 40
LENGTH_STEP = 64
"""Tokens: texts that are generated have lengths of multiples of it."""

_FIND_DOCUMENTS = "find_packed_sequence_indices"

_FIRST, _SECOND = 9, 14
"""Tokens of the trial's two documents."""
_SEED = 20
_LEAK_SHARE = 0.01
"""Allowed share of the change where nothing keeps documents apart: kernels of other shapes may round otherwise."""


def batch_loss(loss: ChunkedLoss, batch: Batch, device: Device) -> torch.Tensor:
    """Return the mean loss over the batch's tokens in the loss mask, a scalar on `device`."""
    arguments = {} if batch.position_ids is None else {"position_ids": device.send(batch.position_ids)}
    with _documents_found(batch, device):
        return loss(device.send(batch.input_ids), device.send(batch.labels), use_cache=False, **arguments)


@contextmanager
def _documents_found(batch: Batch, device: Device) -> Iterator[None]:
    """Tell transformers where the batch's documents begin: it would look on the device, and wait for it to be idle."""
    find = getattr(masking_utils, _FIND_DOCUMENTS, None)
    if find is None:
        yield
        return
    found = None if batch.position_ids is None else find(batch.position_ids)
    found = None if found is None else device.send(found)
    setattr(masking_utils, _FIND_DOCUMENTS, lambda position_ids: found)
    try:
        yield
    finally:
        setattr(masking_utils, _FIND_DOCUMENTS, find)


@torch.no_grad()
def validation_loss(
    model: Any,
    batches: Iterable[Batch],
    *,
    device: Device,
    interrupted: Callable[[], bool],
    loss: ChunkedLoss,
    ranks: RunRanks = ONE_RANK,
) -> float | None:
    """Return nats a token of the loss mask over `batches`, each of which has some; None when interrupted.

    Each of several ranks takes its part of them, and all call the model equally often.
    """
    training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device.torch_device)
    tokens = 0
    left = iter(batches)
    try:
        while together := list(islice(left, ranks.size)):
            if interrupted():
                return None
            # Where none is left for this rank, the others may need its part of the model's weights.
            counts = ranks.rank < len(together)
            batch = together[ranks.rank if counts else 0]
            found = batch_loss(loss, batch, device).double()
            if counts:
                total += found * batch.loss_tokens
                tokens += batch.loss_tokens
    finally:
        model.train(training)
    nats, counted = of_all(ranks.tell([float(total), tokens]))
    return nats / counted


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
    ranks: RunRanks = ONE_RANK,
) -> list[int]:
    """Return up to `tokens` ids that follow `prompt`, drawn from the `TOP_K` most likely at `TEMPERATURE`; on several
    ranks, which do it together, those that the first one draws.

    The model sees the last `context` ids, and behind them ids that they do not see: libraries keep code and memory for
    each new length (oneDNN's bf16 0.3 GiB for 200 of a tiny model). Generation ends at `end_of_text`, when interrupted,
    or where the model gives no numbers. `model.generate` is not used: it draws from the global generator, as training
    does, and its cache of keys and values takes memory that the run's plan has not counted.
    """
    generator = torch.Generator().manual_seed(seed)
    training = model.training
    model.eval()
    ids = list(prompt) or [end_of_text]
    made: list[int] = []
    try:
        while len(made) < tokens and not interrupted():
            seen = ids[-context:]
            length = min(context, LENGTH_STEP * math.ceil(len(seen) / LENGTH_STEP))
            window = torch.tensor([seen + [end_of_text] * (length - len(seen))], device=device)
            logits = model(input_ids=window, use_cache=False).logits[0, len(seen) - 1, :vocabulary_size]
            logits = logits.float().cpu()
            best = torch.topk(logits / TEMPERATURE, min(TOP_K, len(logits)))
            probabilities = best.values.softmax(0)
            # A model that gives no numbers has diverged, which the training loop reports.
            drawn = end_of_text
            if not probabilities.isnan().any():
                drawn = int(best.indices[torch.multinomial(probabilities, 1, generator=generator)])
            drawn = ranks.tell(drawn)[0]
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
    embedding = model.get_input_embeddings().weight
    draws = torch.Generator().manual_seed(_SEED)
    one, other, second = (
        torch.randint(len(embedding), (1, count), generator=draws).to(device)
        for count in (_FIRST, _FIRST, _SECOND)
    )
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None].to(device)
    rows = [torch.cat([first, second], 1) for first in (one, other)]
    together = [_second_logits(model, row) for row in rows]
    alone = _second_logits(model, second)
    try:
        apart = [_second_logits(model, row, position_ids=positions) for row in rows]
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    if not bool(torch.isfinite(apart[0]).all()) and bool(torch.isfinite(alone).all()):
        return "it gives no numbers"
    if float((apart[0] - apart[1]).norm()) > _LEAK_SHARE * float((together[0] - together[1]).norm()):
        return "a document sees the one before it"
    tolerance = 1e-4 if embedding.dtype == torch.float32 else 0.05
    if float((apart[0] - alone).norm()) > tolerance * float(alone.norm()):
        return "a document gives other logits than alone"
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
