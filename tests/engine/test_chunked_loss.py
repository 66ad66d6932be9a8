"""The loss in chunks is the model's own with all its gradients, or the model's own because it says why not."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import COMMON, FAMILIES, GROUPED, add_adapters
from small_models import VOCABULARY, SeparateMemory, batches, build, gpt2, llama
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import workbench.engine.loss.lazy_logits
from workbench.engine import AdamW, OffloadEngine
from workbench.engine.loss.chunked_loss import ChunkedLoss

CHUNK = 7
DROPOUT = 0.1


SHORT = {**GROUPED, "intermediate_size": 64}
OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gemma2": ({**SHORT, "head_dim": 16, "final_logit_softcapping": 0.5}, ()),
    "phi": (SHORT, ("resid_pdrop",)),
    "cohere": ({**SHORT, "logit_scale": 0.3}, ("attention_dropout",)),
    "granite": ({**SHORT, "logits_scaling": 3.0}, ()),
    "gptj": (
        {**COMMON, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 24, "rotary_dim": 8},
        ("resid_pdrop",),
    ),
    "bloom": ({**COMMON, "hidden_size": 48, "n_head": 4, "n_layer": 2}, ("hidden_dropout",)),
}


def _router() -> Any:
    model = build("mixtral", *FAMILIES["mixtral"], DROPOUT)
    model.config.output_router_logits = True
    model.router_aux_loss_coef = 0.5
    return model


MODELS: dict[str, Callable[[], Any]] = {
    **{name: partial(build, name, *how, DROPOUT) for name, how in {**FAMILIES, **OTHERS}.items()},
    "mixtral with router loss": _router,
}


class Small(nn.Module):
    """An embedding and a head, and whatever is done to the logits between them and the loss."""

    def __init__(
        self, after: Callable[[Any], Any] | None = None, loss: Callable[..., Any] | None = None
    ) -> None:
        super().__init__()
        self.body = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.learned = nn.Parameter(torch.tensor(1.5))
        self.after = after or (lambda logits: logits)
        self.loss = loss or _shifted

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.after(self.head(self.body(input_ids)))
        return SimpleNamespace(loss=self.loss(logits, labels), logits=logits)


def _shifted(logits: Any, labels: Tensor, **options: float) -> Any:
    """The loss as models wrote it before they shared one."""
    shifted = logits[..., :-1, :].contiguous()
    return nn.CrossEntropyLoss(**options)(shifted.view(-1, shifted.size(-1)), labels[..., 1:].reshape(-1))


class Wrapper(nn.Module):
    """Passes all on to what it wraps, as an adapter library's outermost module does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Largest(TorchDispatchMode):
    """The most rows of logits that any tensor had; `weight` is the head's, which is as long and no logits."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.rows = 0
        self._width = weight.shape[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.shape[-1:] == (VOCABULARY,):
                rows = value.numel() // VOCABULARY
                self.rows = max(self.rows, 0 if rows == self._width else rows)
        return result


def data(rows: int = 3, tokens: int = 22) -> tuple[Tensor, Tensor]:
    """Ids, and labels of which some are masked."""
    ids = torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(4))
    labels = ids.clone()
    labels[0, :9] = labels[2, 5] = -100
    return ids, labels


def own_loss(model: Any, ids: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=labels, **kwargs).loss
    return loss


def gradients(model: nn.Module, loss: Callable[..., Tensor], **kwargs: Any) -> dict[str, Tensor]:
    """The loss and every parameter's gradient, by name, with the same random numbers at each call."""
    model.zero_grad()
    torch.manual_seed(6)
    value = loss(*data(), **kwargs)
    value.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {"the loss": value.detach(), **found}


def assert_same(model: nn.Module, chunked: ChunkedLoss, **kwargs: Any) -> dict[str, Tensor]:
    expected = gradients(model, lambda *batch, **more: own_loss(model, *batch, **more), **kwargs)
    found = gradients(model, chunked, **kwargs)
    assert found.keys() == expected.keys()
    largest = max(float(g.norm()) for g in expected.values())
    for name, value in expected.items():
        # Some gradients are nothing but rounding (a key's bias): those are compared with the largest.
        allowed = 1e-6 * max(float(value.norm()), 0.05 * largest)
        assert float((found[name] - value).norm()) <= allowed, name
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_familys_loss_and_gradients_are_its_own_without_whole_logits(name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().train()
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    chunked.check(data()[0], use_cache=False)
    assert chunked.refusal is None
    assert_same(model, chunked, use_cache=False)
    with Largest(model.get_output_embeddings().weight) as largest:
        chunked(*data(), use_cache=False).backward()
    assert 0 < largest.rows <= CHUNK
    model.eval()
    with torch.no_grad():
        loss = chunked(*data(), use_cache=False)
        expected = own_loss(model, *data(), use_cache=False)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_a_batch_of_one_chunk_is_left_to_the_model_bit_for_bit() -> None:
    model = gpt2()
    chunked = ChunkedLoss(model)
    found = gradients(model, chunked)
    expected = gradients(model, lambda *batch: own_loss(model, *batch))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_sum_over_a_count_of_the_callers_is_honoured() -> None:
    model = llama()
    assert_same(model, ChunkedLoss(model, chunk_tokens=CHUNK), num_items_in_batch=torch.tensor(200))


def test_adapters_in_a_wrapper_are_trained_and_a_frozen_head_gets_no_gradient() -> None:
    torch.manual_seed(1)
    model = Wrapper(add_adapters(llama(), dropout=DROPOUT)).train()
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    chunked.check(data()[0])
    assert chunked.refusal is None
    names = assert_same(model, chunked).keys()
    assert len(names) > 1 and all("lora" in name for name in names if name != "the loss")


def test_a_frozen_head_below_which_all_is_trained_gets_no_gradient() -> None:
    model = llama()
    model.lm_head.requires_grad_(False)
    assert "lm_head.weight" not in assert_same(model, ChunkedLoss(model, chunk_tokens=CHUNK))


@pytest.mark.parametrize("build", [gpt2, llama])
def test_the_heads_weight_gets_one_gradient_a_backward_tied_or_not(build: Callable[[], Any]) -> None:
    model = build()
    calls: list[Tensor] = []
    model.lm_head.weight.register_post_accumulate_grad_hook(calls.append)
    ChunkedLoss(model, chunk_tokens=CHUNK)(*data()).backward()
    assert len(calls) == 1


def test_the_hooks_of_the_head_run_and_its_forward_is_put_back() -> None:
    model = gpt2()
    calls: list[str] = []
    model.lm_head.register_forward_pre_hook(lambda *_: calls.append("before"))
    model.lm_head.register_forward_hook(lambda *_: calls.append("after"))
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    chunked(*data())
    assert calls == ["before", "after"]
    with pytest.raises(ValueError, match="batch_size"):
        chunked(data()[0], data()[1][:1])
    assert "forward" not in vars(model.lm_head)
    assert type(model(input_ids=data()[0]).logits) is Tensor


# What models do with their logits


@pytest.mark.parametrize(
    "after",
    [
        lambda z: 0.5 * z,
        lambda z: z.div(torch.tensor(2.0)),
        lambda z: torch.tanh(z / 0.7).float() * 0.7,
        lambda z: z.to(torch.float64).float(),
        lambda z: torch.clamp(z, -0.2, 0.2) + 1.0,
        lambda z: z.reshape(66, VOCABULARY).view(3, 22, -1),
        lambda z: z.flatten(0, 1).view((3, 22, VOCABULARY)),
    ],
    ids=["scale", "constant", "cap", "dtype", "clamp", "reshape", "flatten"],
)
def test_what_treats_each_token_alone_is_done_in_chunks(after: Callable[[Any], Any]) -> None:
    torch.manual_seed(1)
    model = Small(after)
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    assert_same(model, chunked)
    with Largest(model.head.weight) as largest:
        chunked(*data()).backward()
    assert 0 < largest.rows <= CHUNK


def test_a_vocabulary_padded_for_speed_is_cut_in_chunks() -> None:
    torch.manual_seed(1)
    model = Small(lambda z: z[..., : VOCABULARY - 5])
    model.loss = lambda logits, labels: _shifted(logits, labels.clamp(max=VOCABULARY - 6))
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    chunked.check(data()[0])
    assert chunked.refusal is None
    assert_same(model, chunked)


def _forbidden(logits: Any) -> Any:
    logits[..., 3] = -50.0
    return logits


@pytest.mark.parametrize(
    ("after", "loss", "names"),
    [
        (_forbidden, None, "__setitem__"),
        (lambda z: z.mul_(2.0), None, "mul_"),
        (None, lambda z, y: _shifted(z, y) + 1e-3 * torch.logsumexp(z, -1).square().mean(), "logsumexp"),
        (None, lambda z, y: functional.cross_entropy(z.transpose(1, 2), y), "transpose"),
        (
            None,
            lambda z, y: functional.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").sum(),
            "cross",
        ),
        (lambda z: torch.softmax(z, -1), None, "softmax"),
    ],
)
def test_what_needs_whole_logits_gets_them_and_is_refused_by_name(after: Any, loss: Any, names: str) -> None:
    torch.manual_seed(1)
    model = Small(after, loss)
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    assert_same(model, chunked)
    chunked.check(data()[0])
    assert chunked.refusal is not None and names in chunked.refusal
    assert_same(model, chunked)


@pytest.mark.parametrize("chunk_tokens", [CHUNK, 10_000], ids=["in chunks", "whole"])
def test_smoothed_labels_are_torchs_in_training_alone(chunk_tokens: int) -> None:
    torch.manual_seed(1)
    model, (ids, labels) = Small(), data()[:2]
    loss = ChunkedLoss(model, chunk_tokens=chunk_tokens, label_smoothing=0.1)
    found = loss(ids, labels)
    gradients = torch.autograd.grad(found, list(model.parameters()), allow_unused=True)
    reference = Small(None, lambda z, y: _shifted(z, y, label_smoothing=0.1)).double()
    reference.load_state_dict(model.state_dict())
    expected = reference(input_ids=ids, labels=labels).loss
    for mine, theirs in zip(
        (found, *gradients),
        (expected, *torch.autograd.grad(expected, list(reference.parameters()), allow_unused=True)),
        strict=True,
    ):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-7)
    model.eval()
    assert torch.equal(loss(ids, labels), ChunkedLoss(model, chunk_tokens=chunk_tokens)(ids, labels))
    model.train()
    model.loss = lambda z, y: z.square().mean()
    with pytest.raises(ValueError, match="the loss of Small is not torch's cross entropy"):
        loss(ids, labels)
    assert functional.cross_entropy.__module__ == "torch.nn.functional"


def test_a_scale_that_is_learned_gets_its_gradient() -> None:
    torch.manual_seed(1)
    model = Small()
    model.after = lambda z: z * model.learned
    assert "learned" in assert_same(model, ChunkedLoss(model, chunk_tokens=CHUNK))


# Refusals


def _headless() -> Any:
    model = Small()
    model.get_output_embeddings = lambda: None  # type: ignore[assignment,method-assign,return-value]
    return model


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def _adapted() -> Any:
    model = Small()
    model.head = OwnLinear(16, VOCABULARY)
    return model


@pytest.mark.parametrize(("build", "reason"), [(_headless, "output embedding"), (_adapted, "OwnLinear")])
def test_a_model_that_does_not_fit_is_called_as_it_is_and_says_why(build: Any, reason: str) -> None:
    torch.manual_seed(1)
    model = build()
    chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
    chunked.check(data()[0])
    assert chunked.refusal is not None and reason in chunked.refusal and "\n" not in chunked.refusal
    found = gradients(model, chunked)
    expected = gradients(model, lambda *batch: own_loss(model, *batch))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_loss_that_is_none_of_the_heads_is_refused() -> None:
    model = Small(None, lambda logits, labels: model.learned * 1.0)
    chunked = ChunkedLoss(model)
    chunked.check(data()[0])
    assert chunked.refusal is not None and "is not the cross entropy" in chunked.refusal


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda loss: loss * 1.001, "in chunks"),
        (lambda loss: loss.detach() + 1.001 * (loss - loss.detach()), "gradients"),
    ],
    ids=["value", "gradients"],
)
def test_the_check_finds_a_loss_that_differs(
    change: Callable[[Tensor], Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = workbench.engine.loss.lazy_logits.chunked_cross_entropy
    monkeypatch.setattr(
        workbench.engine.loss.lazy_logits,
        "chunked_cross_entropy",
        lambda *args, **options: change(right(*args, **options)),
    )
    chunked = ChunkedLoss(gpt2(), chunk_tokens=CHUNK)
    chunked.check(data()[0])
    assert chunked.refusal is not None and reason in chunked.refusal


def test_a_model_whose_code_cannot_bear_it_is_refused_with_its_words() -> None:
    def after(logits: Any) -> Any:
        if type(logits) is not Tensor:
            raise TypeError("these are no logits")
        return logits

    chunked = ChunkedLoss(Small(after), chunk_tokens=CHUNK)
    chunked.check(data()[0])
    assert chunked.refusal is not None and "these are no logits" in chunked.refusal


# With an engine


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("weights", ["device", "host"])
def test_the_check_leaves_no_trace_in_training(weights: Any, precision: Any) -> None:
    def train(check: bool) -> list[Tensor]:
        model = gpt2(dropout=DROPOUT).train()
        torch.manual_seed(3)
        random.seed(3)
        device = SeparateMemory()
        options: dict[str, Any] = {"weights": weights, "precision": precision, "device": device, "threads": 1}
        with OffloadEngine(model, optimizer=AdamW(lr=1e-2), state="host", **options) as engine:
            chunked = ChunkedLoss(model, chunk_tokens=CHUNK)
            before = random.getstate(), torch.get_rng_state()
            if check:
                chunked.check(batches(1)[0], use_cache=False)
                assert chunked.refusal is None and model.training
                assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
                assert all(p.grad is None for p in model.parameters())
            for ids in batches(3):
                engine.backward(chunked(ids, ids, use_cache=False))
                engine.step()
            return [tensor.clone() for unit in engine.weights() for tensor in unit.values()]

    checked, unchecked = train(True), train(False)
    assert all(torch.equal(a, b) for a, b in zip(checked, unchecked, strict=True))
