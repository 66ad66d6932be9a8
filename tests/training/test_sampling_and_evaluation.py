"""Looking at the model changes nothing about its training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_training import SETTINGS
from torch import Tensor, nn

from workbench.data.batches import TokenStream
from workbench.data.batches.sampling import evaluation_batches
from workbench.engine.devices.device import CpuDevice
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.model.build import model_config
from workbench.training.evaluation import TEMPERATURE, TOP_K, continued, generate, validation_loss


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    settings = {**SETTINGS, "resid_pdrop": 0.5, "attn_pdrop": 0.5}
    return AutoModelForCausalLM.from_config(model_config("gpt2", settings)).train()


def sample(model: Any, prompt: Sequence[int] = (), **changes: Any) -> list[int]:
    options: dict[str, Any] = {
        "tokens": 20,
        "context": 16,
        "vocabulary_size": 257,
        "end_of_text": 256,
        "seed": 1,
        "device": torch.device("cpu"),
        "interrupted": lambda: False,
    }
    return generate(model, prompt, **{**options, **changes})


def evaluate(model: Any, tokens: Tensor, interrupted: Callable[[], bool] = lambda: False) -> float | None:
    batches = evaluation_batches(TokenStream(tokens), 16, 3, 112)
    return validation_loss(
        model, batches, device=CpuDevice(), interrupted=interrupted, loss=ChunkedLoss(model)
    )


TOKENS = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(3)).to(torch.uint16)


class Fixed(nn.Module):
    """Gives the same logits whatever it sees, and remembers how much that was."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.lengths: list[int] = []

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        self.lengths.append(input_ids.shape[1])
        return SimpleNamespace(logits=self.logits.expand(1, input_ids.shape[1], -1))


@pytest.mark.parametrize(
    "look", [sample, lambda model: evaluate(model, TOKENS)], ids=["sampling", "evaluation"]
)
def test_no_generator_of_training_moves_and_the_mode_is_as_before(
    model: Any, look: Callable[[Any], object]
) -> None:
    before = (torch.get_rng_state(), random.getstate())
    look(model)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert model.training
    model.eval()
    look(model)
    assert not model.training
    model.train()


def test_a_seed_gives_the_same_sample_each_time_and_another_one_another(model: Any) -> None:
    assert sample(model) == sample(model)
    assert sample(model) != sample(model, seed=2)


@pytest.mark.parametrize("prompt", [(), tuple(range(5)), tuple(range(100))])
def test_the_model_never_sees_more_than_its_context(prompt: tuple[int, ...]) -> None:
    logits = torch.zeros(300)
    logits[256:] = -100.0
    fixed = Fixed(logits)
    assert len(sample(fixed, prompt, tokens=40)) == 40
    assert set(fixed.lengths) == {16}


def test_the_model_is_given_few_lengths() -> None:
    logits = torch.zeros(300)
    logits[256:] = -100.0
    fixed = Fixed(logits)
    sample(fixed, range(10), tokens=200, context=150)
    assert sorted(set(fixed.lengths)) == [64, 128, 150]


def test_a_token_is_drawn_from_the_logits_of_the_last_one(model: Any) -> None:
    model.eval()
    ids, draws = list(range(5)), torch.Generator().manual_seed(1)
    for _ in range(8):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1, :257]
        best = torch.topk(logits / TEMPERATURE, TOP_K)
        ids.append(int(best.indices[torch.multinomial(best.values.softmax(0), 1, generator=draws)]))
    model.train()
    assert sample(model, range(5), tokens=8) == ids[5:]


@pytest.mark.parametrize(
    ("first", "logit"), [(256, 1000.0), (0, float("nan")), (0, float("inf"))], ids=["end", "nan", "inf"]
)
def test_a_sample_ends_at_the_end_of_the_text_and_where_a_model_gives_no_numbers(
    first: int, logit: float
) -> None:
    logits = torch.zeros(300)
    logits[first:] = logit  # 257 and more are no tokens of the tokenizer
    assert sample(Fixed(logits)) == []


def test_an_interrupted_sample_has_what_was_made(model: Any) -> None:
    answers = iter([False, False, True])
    assert len(sample(model, interrupted=lambda: next(answers))) <= 2


def test_the_validation_loss_is_the_mean_over_predicted_tokens(model: Any) -> None:
    # 7 windows in batches of 3, 3 and 1: a mean of the batches' means would weigh the last one threefold.
    model.eval()
    starts = [index * 18 // 7 * 16 for index in range(7)]
    windows = torch.stack([TOKENS[start : start + 16].long() for start in starts])
    with torch.no_grad():
        logits = model(input_ids=windows).logits.double()
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten())
    model.train()
    assert evaluate(model, TOKENS) == pytest.approx(float(expected), rel=1e-6)


def test_an_interrupted_evaluation_gives_no_number(model: Any) -> None:
    answers = iter([False, True])
    assert evaluate(model, TOKENS, interrupted=lambda: next(answers)) is None
    assert model.training


def test_a_text_goes_on_with_the_space_that_a_tokenizer_leaves_out_where_a_text_begins() -> None:
    words = {1: " once", 2: " upon", 3: " a"}

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    assert continued(decode, "once upon", [1, 2], [3]) == "once upon a"
    assert continued(decode, "", [], [1, 2]) == "once upon"
