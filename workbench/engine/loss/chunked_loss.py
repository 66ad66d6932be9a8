"""A causal language model's loss without its logits as a whole: head and cross entropy in chunks of tokens.

The model is called as always, hooks and all; only its output embedding returns `LazyLogits` meanwhile. Scaling,
capping, label masks, the shift, router losses: all that is the model's own code.

Invariant: outside `check`, a model whose `refusal` is set, or whose batch fits in one chunk, is called exactly as if
this file were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.engine.loss.chunked_cross_entropy import default_chunk_tokens
from workbench.engine.loss.lazy_logits import LazyLogits, LogitsTrace

CHECK_ROWS = 2
CHECK_TOKENS = 32
CHECK_WEIGHT_BYTES = 256 << 20
"""A head larger than this has its weight's gradient left out of the check, for the memory that would take."""

Forward = Callable[[Tensor], Tensor]


class ChunkedLoss:
    """Calls `model` with labels and gives its loss.

    Args:
        model: called with `input_ids` and `labels`; its `.loss` is a scalar. A transformers causal language model
            gets its logits in chunks, another one is called as it is, and `refusal` says why.
        chunk_tokens: the most tokens whose logits exist at a time; None for about 64 MiB of fp32 logits (on an
            accelerator 192 MiB, and more where the head is wide). A batch that fits in one chunk is the model's own
            affair.
        label_smoothing: of a model in training mode: this share of each target's probability goes to all tokens alike
            (Szegedy et al., 2016, section 7).

    Backward of the loss may run once.
    """

    refusal: str | None
    """The reason for the model's own loss, in one sentence; None where it is computed in chunks."""

    def __init__(
        self, model: nn.Module, *, chunk_tokens: int | None = None, label_smoothing: float = 0.0
    ) -> None:
        if chunk_tokens is not None and chunk_tokens < 1:
            raise ValueError(f"chunk_tokens = {chunk_tokens}: expected 1 or more")
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._label_smoothing = label_smoothing
        self._head, self.refusal = _find_head(model)

    def __call__(self, input_ids: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        """Return the mean loss over the tokens of the loss mask, as the model has it; further arguments are the
        model's.

        Raises ValueError where labels are to be smoothed and the model's loss is no cross entropy.
        """
        if self._label_smoothing and self._model.training:
            with _smoothed_labels(self._label_smoothing) as calls:
                loss = self._plain(input_ids, labels, **kwargs)
            if not calls:
                raise ValueError(f"label_smoothing: the loss of {self._name()} is not torch's cross entropy")
            return loss
        return self._plain(input_ids, labels, **kwargs)

    def _plain(self, input_ids: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        if self.refusal is not None or input_ids.numel() <= self._tokens_a_chunk():
            return self._own(input_ids, labels, **kwargs)
        return self._lazy(LogitsTrace(self._tokens_a_chunk()), input_ids, labels, **kwargs)

    def check(self, input_ids: Tensor, **kwargs: Any) -> None:
        """Compare with the model's own loss on a few tokens of `input_ids` (int64 [rows, tokens]), some of them masked.

        Both the value and the gradients of the head and of what goes into it; where they differ `refusal` is set for
        good. Random numbers, gradients, weights and the model's mode are left as they are. Further arguments are the
        model's, as in a call.
        """
        if self.refusal is not None:
            return
        ids = input_ids[:CHECK_ROWS, :CHECK_TOKENS]
        labels = ids.clone()
        labels[:, : ids.shape[1] // 3] = -100
        tally = LogitsTrace(chunk_tokens=max(1, ids.numel() // 3))
        own = self._measure(functional.linear, ids, labels, kwargs)
        try:
            chunked = self._measure(functools.partial(LazyLogits.make, tally), ids, labels, kwargs)
        except Exception as error:  # whatever the code of a model may do with logits that are not there
            self.refusal = f"{self._name()} cannot compute its loss in chunks: {error}"
            return
        self.refusal = self._difference(own, chunked, tally)

    def _difference(self, own: list[Tensor], chunked: list[Tensor], tally: LogitsTrace) -> str | None:
        name = self._name()
        if tally.forced_by:
            return f"the loss of {name} reads whole logits ({', '.join(dict.fromkeys(tally.forced_by))})"
        if not tally.in_chunks:
            return f"the loss of {name} is not the cross entropy of its head's output"
        (loss, *expected), (loss_in_chunks, *gradients) = own, chunked
        exact = all(g.dtype == torch.float32 for g in expected)
        if _distance(loss, loss_in_chunks) > (1e-6 if exact else 1e-3):
            return f"the loss of {name} is {float(loss):.7g}, and {float(loss_in_chunks):.7g} in chunks"
        if any(_distance(a, b) > (1e-5 if exact else 0.03) for a, b in zip(expected, gradients, strict=True)):
            return f"the gradients of the head of {name} differ in chunks"
        return None

    def _measure(self, head: Callable[..., Tensor], ids: Tensor, labels: Tensor, kwargs: Any) -> list[Tensor]:
        """Return the loss, and its gradients of the head's input, weight and bias; what is below the head makes no
        graph."""
        module = self._head
        assert module is not None
        leaves: list[Tensor] = []

        def forward(hidden: Tensor) -> Tensor:
            # The hooks on the parameters must see nothing of this: copies of them that share their memory.
            hidden = hidden.detach().requires_grad_()
            small = module.weight.nbytes <= CHECK_WEIGHT_BYTES
            weight = module.weight.detach().requires_grad_(small)
            bias = None if module.bias is None else module.bias.detach().requires_grad_()
            leaves.extend(leaf for leaf in (hidden, weight, bias) if leaf is not None and leaf.requires_grad)
            # Only what comes after the head makes a graph.
            torch.set_grad_enabled(True)
            return head(hidden, weight, bias)

        devices = [ids.device] if ids.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad(), _instead(module, forward):
            loss = self._own(ids, labels, **kwargs)
        # In fp16 gradients would be lost without a loss scale.
        scale = 4096.0 if leaves and leaves[0].dtype == torch.float16 else 1.0
        found = (
            torch.autograd.grad(loss * scale, leaves, allow_unused=True)
            if leaves and loss.requires_grad
            else ()
        )
        return [loss.detach(), *(g for g in found if g is not None)]

    def _lazy(self, tally: LogitsTrace, input_ids: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        head = self._head
        assert head is not None

        def forward(hidden: Tensor) -> Tensor:
            return LazyLogits.make(tally, hidden, head.weight, head.bias)

        with _instead(head, forward):
            return self._own(input_ids, labels, **kwargs)

    def _own(self, input_ids: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        loss: Tensor = self._model(input_ids=input_ids, labels=labels, **kwargs).loss
        return loss

    def _tokens_a_chunk(self) -> int:
        if self._chunk_tokens is not None:
            return self._chunk_tokens
        assert self._head is not None
        vocabulary, width = self._head.weight.shape
        return default_chunk_tokens(vocabulary, width, self._head.weight.device)

    def _name(self) -> str:
        return type(self._model).__name__


def _find_head(model: nn.Module) -> tuple[nn.Linear | None, str | None]:
    """Return the output embedding of `model`, or the reason for there being none to work with."""
    name = type(model).__name__
    get = getattr(model, "get_output_embeddings", None)
    head = get() if callable(get) else None
    if head is None:
        return (
            None,
            f"{name} names no output embedding, as a causal language model of transformers does",
        )
    # A subclass may quantise, adapt or split it; a forward of its own is somebody else's wrapper.
    if (
        not isinstance(head, nn.Linear)
        or type(head).forward is not nn.Linear.forward
        or "forward" in vars(head)
    ):
        return None, f"the output embedding of {name} is a {type(head).__name__} with a forward of its own"
    return head, None


@contextmanager
def _smoothed_labels(share: float) -> Iterator[list[bool]]:
    """Smooth the labels of torch's cross entropy meanwhile; yield a list that gets an item for each call."""
    plain, calls = functional.cross_entropy, []

    def smoothed(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(True)
        return plain(*args, **{**kwargs, "label_smoothing": share})

    functional.cross_entropy = smoothed
    try:
        yield calls
    finally:
        functional.cross_entropy = plain


@contextmanager
def _instead(head: nn.Module, forward: Forward) -> Iterator[None]:
    """Let `head` run `forward`, between its hooks as ever."""
    vars(head)["forward"] = forward
    try:
        yield
    finally:
        del vars(head)["forward"]


def _distance(expected: Tensor, found: Tensor) -> float:
    """Return the norm of the difference over that of `expected`; 0 where both are not finite in the same way."""
    expected, found = expected.detach().float(), found.detach().float()
    if torch.equal(expected.isnan(), found.isnan()) and expected.isnan().any():
        return 0.0
    norm = float(torch.linalg.vector_norm(expected))
    return float(torch.linalg.vector_norm(found - expected)) / (norm or 1.0)
