"""Generated text from a checkpoint, as it comes: transformers' `generate` with its cache of keys and values.

Invariant: stdout is given text and nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from workbench.engine.arithmetic.precision import compute_dtypes
from workbench.engine.devices.device import open_device
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.export.conversion import stored_tensors, weight_files
from workbench.export.export import Tell
from workbench.export.manner import Manner
from workbench.export.quiet import quiet_transformers
from workbench.export.run_model import is_adapter, open_adapted, run_config
from workbench.export.spoken_text import SpokenText
from workbench.export.writing import run_dtype
from workbench.formatting import GIB
from workbench.plan.memory.free import free_host_bytes
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep

BESIDE = 1.1
"""Times the weights: what computing takes beside them."""


def speak(
    run: RunDirectory,
    saved: SavedStep,
    prompt: str | None,
    manner: Manner,
    *,
    chat: bool,
    device: str,
    tell: Tell,
) -> None:
    """Print how the model of `saved` continues `prompt` (None: the run's own), or with `chat` what it answers.

    Raises:
        ConfigurationError: it has no tokenizer, or no chat template, or the device is not there.
        DamagedFileError: the model cannot be loaded.
        WorkbenchError: it does not fit in memory.
    """
    with quiet_transformers():
        config = run_config(run)
        prompt = config.sample.prompt if prompt is None else prompt
        tokenizer = _tokenizer(saved)
        ids = _ids(tokenizer, prompt, chat=chat)
        model = _model(run, saved, device, tell)
        ids, tokens = _fitted(model, ids, manner.tokens, tell)
        tell(f"the model of step {saved.step:,} on {model.device}")
        if not chat:
            _print(prompt)
        _generate(model, tokenizer, ids, tokens, manner)


def _generate(model: Any, tokenizer: Any, ids: Tensor, tokens: int, manner: Manner) -> None:
    from transformers import LogitsProcessorList

    draws = manner.temperature > 0
    options: dict[str, Any] = {"do_sample": draws}
    if draws:
        options |= {"temperature": manner.temperature, "top_p": manner.top_p, "top_k": manner.top_k}
    torch.manual_seed(manner.seed)
    ids = ids.to(model.device)
    with torch.no_grad():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            pad_token_id=_pad(model, tokenizer),
            logits_processor=LogitsProcessorList([_KnownTokens(len(tokenizer))]),
            streamer=SpokenText(tokenizer, _print),
            **options,
        )


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _KnownTokens:
    """Leaves out rows of a vocabulary that is larger than the tokenizer's."""

    def __init__(self, known: int) -> None:
        self._known = known

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if scores.shape[-1] <= self._known:
            return scores
        return scores.index_fill(
            -1, torch.arange(self._known, scores.shape[-1], device=scores.device), -torch.inf
        )


def _tokenizer(saved: SavedStep) -> Any:
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    if not any(name.startswith("tokenizer") for name in saved.manifest["model_files"]):
        raise ConfigurationError(
            f"sample: {saved.path} has no tokenizer; the run was trained on ready tokens"
        )
    try:
        return load(saved.path)
    except Exception as error:
        raise DamagedFileError(f"its tokenizer cannot be loaded: {error}") from error


def _ids(tokenizer: Any, prompt: str, *, chat: bool) -> Tensor:
    """The prompt's ids, int64 [1, n]; the end of a text where there are none."""
    if chat:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "sample: --chat: the run's tokenizer has no chat template; leave --chat out to continue the text"
            )
        said = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(prompt)["input_ids"]
    if not ids:
        begins = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if begins is None:
            raise ConfigurationError("sample: the tokenizer has no token that begins a text; give a --prompt")
        ids = [begins]
    return torch.tensor([ids])


def _fitted(model: Any, ids: Tensor, tokens: int, tell: Tell) -> tuple[Tensor, int]:
    """Prompt and number of tokens within the positions that the model has learnt.

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
        tell(
            f"warning: the prompt has {ids.shape[1]:,} tokens and the model {longest:,} positions: "
            f"its last {kept:,} count"
        )
        ids = ids[:, -kept:]
    fewer = min(tokens, longest - ids.shape[1])
    if fewer < tokens:
        tell(
            f"warning: the model has {longest:,} positions, so that {fewer:,} tokens come instead of {tokens:,}"
        )
    return ids, fewer


def _pad(model: Any, tokenizer: Any) -> int | None:
    """Any id will do: there is one sequence, and nothing is padded."""
    found = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return 0 if found is None else int(found)


def _model(run: RunDirectory, saved: SavedStep, device: str, tell: Tell) -> Any:
    """The checkpoint's model with its weights where it computes."""
    config = run_config(run)
    try:
        where = open_device(device)
    except ValueError as error:
        raise ConfigurationError(f"--device {device}: {error}") from error
    stored = run_dtype(config, saved)
    dtype = compute_dtypes("auto", where).get(stored, stored)
    tell("loading the model")
    if is_adapter(saved):
        adapted = open_adapted(config, saved, tell)
        _check_room(sum(p.numel() for p in adapted.model.parameters()) * dtype.itemsize)
        return adapted.whole(dtype).to(where.torch_device)
    from transformers import AutoModelForCausalLM

    entries = stored_tensors(weight_files(saved))
    _check_room(sum(e.nbytes // e.dtype.itemsize * dtype.itemsize for e in entries.values()))
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
