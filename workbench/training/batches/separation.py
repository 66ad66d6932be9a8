"""Keeping the documents of a packed row apart: how this very model is told, found out by trying.

Most models of transformers see documents in position ids that begin again, and build their masks from them; some want
the mask itself. What a model does is tried on a few tokens before training: the second of two documents must come out
bit for bit alike whatever the first one says, and as it does alone.

Invariant: a way is used only if the model passed with it.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from workbench.errors import ConfigurationError

_FIRST, _SECOND = 9, 14
_SEED = 20
_LEAK_SHARE = 0.01
"""Of what the first document changes where nothing keeps them apart: kernels of other shapes may round otherwise."""

Arguments = dict[str, Tensor]


class Way(Protocol):
    def __call__(self, position_ids: Tensor, dtype: torch.dtype) -> Arguments: ...


class DocumentSeparation:
    """Gives a model's arguments that keep documents apart; `position_ids` say where documents are.

    Args:
        model: a causal language model; called a few times without gradients, its mode and random numbers left as
            they were.
        device: where its inputs go.
        sequence_length: tokens of the rows to come.

    Raises:
        ConfigurationError: the model knows no way that works.
    """

    def __init__(self, model: Any, device: torch.device, sequence_length: int) -> None:
        self._dtype = _float_dtype(model)
        trial = _Trial(model, device)
        told: list[str] = []
        for name, way in _WAYS.items():
            if "mask" in name and _has_window(model, sequence_length):
                told.append(f"{name}: its layers see windows of their own")
                continue
            problem = trial.problem(functools.partial(way, dtype=self._dtype))
            if problem is None:
                self.way = name
                self._way: Way = way
                return
            told.append(f"{name}: {problem}")
        raise ConfigurationError(
            f"data.separate_documents = true: {type(model).__name__} does not keep the documents of a sequence apart "
            f"({'; '.join(told)}); set it to false"
        )

    def arguments(self, position_ids: Tensor) -> Arguments:
        """What the model is called with beside its ids; `position_ids` int64 [rows, length], on the device."""
        return self._way(position_ids, self._dtype)


class _Trial:
    """Two documents in a row, the second one looked at."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        vocabulary = model.get_input_embeddings().weight.shape[0]
        draws = torch.Generator().manual_seed(_SEED)
        documents = [
            torch.randint(vocabulary, (1, count), generator=draws) for count in (_FIRST, _FIRST, _SECOND)
        ]
        one, other, second = (document.to(device) for document in documents)
        self._rows = [torch.cat([first, second], 1) for first in (one, other)]
        self._positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None].to(device)
        together = [self._second(row) for row in self._rows]
        self._leak = float((together[0] - together[1]).norm())
        self._alone = self._second(second)

    def problem(self, arguments: functools.partial[Arguments]) -> str | None:
        """What is wrong when the model is called with these; None where documents are apart."""
        try:
            apart = [self._second(row, **arguments(self._positions)) for row in self._rows]
        except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        if not bool(torch.isfinite(apart[0]).all()) and bool(torch.isfinite(self._alone).all()):
            return "it gives no numbers"
        if float((apart[0] - apart[1]).norm()) > _LEAK_SHARE * self._leak:
            return "a document sees the one before it"
        tolerance = 1e-4 if _float_dtype(self._model) == torch.float32 else 0.05
        if float((apart[0] - self._alone).norm()) > tolerance * float(self._alone.norm()):
            return "a document comes out otherwise than alone"
        return None

    @torch.no_grad()
    def _second(self, row: Tensor, **arguments: Tensor) -> Tensor:
        """The second document's logits, fp32 [tokens, vocabulary]."""
        training = self._model.training
        self._model.eval()
        try:
            logits: Tensor = self._model(input_ids=row, use_cache=False, **arguments).logits
        finally:
            self._model.train(training)
        return logits[0, -_SECOND:].float()


def _by_positions(position_ids: Tensor, dtype: torch.dtype) -> Arguments:
    return {"position_ids": position_ids}


def _by_both(position_ids: Tensor, dtype: torch.dtype) -> Arguments:
    return {"position_ids": position_ids, "attention_mask": _own_document(position_ids)}


def _by_added(position_ids: Tensor, dtype: torch.dtype) -> Arguments:
    mask = torch.zeros((), dtype=dtype, device=position_ids.device)
    mask = mask.masked_fill(~_own_document(position_ids), torch.finfo(dtype).min)
    return {"position_ids": position_ids, "attention_mask": mask}


def _own_document(position_ids: Tensor) -> Tensor:
    """Whether a token may see another: bool [rows, 1, length, length]."""
    document = (position_ids == 0).cumsum(1)
    length = position_ids.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=position_ids.device).tril()
    return (document[:, None, :, None] == document[:, None, None, :]) & earlier


_WAYS: dict[str, Way] = {
    "position ids": _by_positions,
    "a mask": _by_both,
    "a mask that is added": _by_added,
}


def _has_window(model: Any, sequence_length: int) -> bool:
    """Whether a layer sees less than the whole sequence: a mask of ours would take that away."""
    text = model.config.get_text_config()
    sizes = (getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    return any(type(size) is int and 0 < size < sequence_length for size in sizes)


def _float_dtype(model: Any) -> torch.dtype:
    """Of what the model's blocks compute in, as its logits tell."""
    dtype: torch.dtype = model.get_input_embeddings().weight.dtype
    return dtype
