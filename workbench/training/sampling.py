"""Generated text, to be looked at: how the model continues a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

TEMPERATURE = 0.8
TOP_K = 40


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
    """Up to `tokens` ids that follow `prompt`, drawn from the `TOP_K` most likely at `TEMPERATURE`.

    The model sees the last `context` ids. Draws come from a generator of their own, so that training's random
    numbers are as they would be without the sample. Ends at `end_of_text`, when interrupted, or where the model
    gives no numbers.
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
            likelihoods = best.values.softmax(0)
            if likelihoods.isnan().any():
                break  # the model has diverged, which the training loop says
            choice = torch.multinomial(likelihoods, 1, generator=generator)
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
    """`text`, whose ids are `prompt`, followed by what `made` says.

    They are decoded together: some tokenizers leave out a space where a text begins.
    """
    head, whole = decode(prompt), decode([*prompt, *made])
    return text + (whole[len(head) :] if whole.startswith(head) else decode(made))
