"""Generate text from a checkpoint by transformers' own `generate`, printed as it comes.

Imports no torch until a model is loaded: options are checked first. Invariant: stdout gets text and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import GIB
from workbench.model.hub import Log
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep
from workbench.system.free_space import free_host_bytes

if TYPE_CHECKING:
    from torch import Tensor

BESIDE = 1.1
"""The memory needed, in times of the weights: what computing takes beside them."""


@dataclass(frozen=True)
class SamplingParams:
    """Up to `tokens` tokens at `temperature` (0 takes the likeliest), drawn from `seed` among the `top_k` likeliest (0:
    all), of these among the fewest that together have at least `top_p`."""

    tokens: int = 200
    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 40
    seed: int = 0

    def check(self) -> None:
        """Raise ConfigurationError where a number is out of range."""
        for option, value, right, holds in (
            ("--tokens", self.tokens, "at least 1", self.tokens >= 1),
            ("--temperature", self.temperature, "0 or more", 0 <= self.temperature < float("inf")),
            ("--top-p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1),
            ("--top-k", self.top_k, "0 (all) or more", self.top_k >= 0),
            ("--seed", self.seed, "from 0 to 2^63 - 1", 0 <= self.seed < 1 << 63),
        ):
            if not holds:
                raise ConfigurationError(f"{option} {value}: expected {right}")


def generate(
    run: RunDirectory,
    saved: SavedStep,
    prompt: str | None,
    params: SamplingParams,
    *,
    chat: bool,
    device: str,
    log: Log,
) -> None:
    """Print how the model of `saved` continues `prompt` (None: the run's own), or with `chat` its answer alone.

    Raises:
        ConfigurationError: it has no tokenizer, or no chat template, or the device is not there.
        DamagedFileError: the model cannot be loaded.
        WorkbenchError: it does not fit in memory.
    """
    from workbench.export.weights import quiet_transformers, run_config

    with quiet_transformers():
        prompt = run_config(run).sample.prompt if prompt is None else prompt
        tokenizer = _tokenizer(saved)
        ids = _token_ids(tokenizer, prompt, chat=chat)
        model = _model(run, saved, device, log)
        ids, tokens = _fitted(model, ids, params.tokens, log)
        log(f"the model of step {saved.step:,} on {model.device}")
        _generate(model, tokenizer, ids, tokens, params, chat=chat)


def _generate(
    model: Any, tokenizer: Any, ids: Tensor, tokens: int, params: SamplingParams, *, chat: bool
) -> None:
    import torch
    from transformers import TextStreamer

    options: dict[str, Any] = {"do_sample": params.temperature > 0}
    if params.temperature > 0:
        options |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    # Rows of a vocabulary that is larger than the tokenizer's are no text.
    unknown = list(range(len(tokenizer), model.config.get_text_config().vocab_size))
    torch.manual_seed(params.seed)
    ids = ids.to(model.device)
    with torch.no_grad():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            pad_token_id=padding or 0,  # any id will do: nothing is padded
            suppress_tokens=unknown or None,
            # The prompt is decoded with what follows: alone, some tokenizers drop the space between the two.
            streamer=TextStreamer(tokenizer, skip_prompt=chat, skip_special_tokens=True),
            **options,
        )


def _tokenizer(saved: SavedStep) -> Any:
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    if not any(name.startswith("tokenizer") for name in saved.manifest.model_files):
        raise ConfigurationError(
            f"sample: {saved.path} has no tokenizer; the run was trained on ready tokens"
        )
    try:
        return load(saved.path)
    except Exception as error:
        raise DamagedFileError(f"its tokenizer cannot be loaded: {error}") from error


def _token_ids(tokenizer: Any, prompt: str, *, chat: bool) -> Tensor:
    """Return the prompt's ids, int64 [1, n]; the token that begins a text where there are none."""
    import torch

    if chat:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "sample: --chat: the run's tokenizer has no chat template; leave --chat out to continue the text"
            )
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(prompt)["input_ids"]
    if not ids:
        begins = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if begins is None:
            raise ConfigurationError("sample: the tokenizer has no token that begins a text; give a --prompt")
        ids = [begins]
    return torch.tensor([ids])


def _fitted(model: Any, ids: Tensor, tokens: int, log: Log) -> tuple[Tensor, int]:
    """Return prompt and number of tokens cut to the positions of the model.

    Raises:
        ConfigurationError: the prompt has a token that the model does not know.
    """
    text = model.config.get_text_config()
    if int(ids.max()) >= text.vocab_size:
        raise ConfigurationError(
            f"sample: the prompt has the token {int(ids.max()):,} of the tokenizer, and the model knows "
            f"{text.vocab_size:,}, those of the text that it was trained on; give another --prompt"
        )
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 0 or ids.shape[1] + tokens <= longest:
        return ids, tokens
    if ids.shape[1] >= longest:
        kept = max(1, longest - min(tokens, longest // 2))
        log(
            f"warning: the prompt has {ids.shape[1]:,} tokens and the model {longest:,} positions: "
            f"its last {kept:,} count"
        )
        ids = ids[:, -kept:]
    fewer = min(tokens, longest - ids.shape[1])
    if fewer < tokens:
        log(
            f"warning: the model has {longest:,} positions, so that {fewer:,} tokens come instead of {tokens:,}"
        )
    return ids, fewer


def _model(run: RunDirectory, saved: SavedStep, device: str, log: Log) -> Any:
    """Return the checkpoint's model with its weights on `device`."""
    from transformers import AutoModelForCausalLM

    from workbench.engine.devices.device import open_device
    from workbench.engine.precision import DTYPES, compute_dtypes
    from workbench.export.weights import (
        bytes_in,
        checkpoint_tensors,
        is_adapter,
        open_adapted,
        run_config,
    )

    config = run_config(run)
    try:
        where = open_device(device)
    except ValueError as error:
        raise ConfigurationError(f"--device {device}: {error}") from error
    stored = DTYPES[saved.manifest.weights_dtype]
    dtype = compute_dtypes("auto", where).get(stored, stored)
    log("loading the model")
    if is_adapter(saved):
        adapted = open_adapted(config, saved, log)
        _check_room(sum(p.numel() for p in adapted.model.parameters()) * dtype.itemsize)
        return adapted.whole(dtype).to(where.torch_device)
    _check_room(bytes_in(checkpoint_tensors(saved), dtype))
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model = load(saved.path, dtype=dtype, trust_remote_code=config.model.trust_remote_code)
    except Exception as error:
        raise DamagedFileError(f"its model cannot be loaded: {error}") from error
    return model.to(where.torch_device).eval()


def _check_room(weight_bytes: int) -> None:
    needed, free = int(BESIDE * weight_bytes), free_host_bytes()
    if needed > free:
        raise WorkbenchError(
            f"sample: the model takes {needed / GIB:,.1f} GiB of host memory, and {free / GIB:,.1f} GiB are free"
        )
