"""Load what was exported as anybody would, and hold its logits on a few tokens to the run's own weights.

Both are computed in fp32 on the CPU, one model after the other. Where only the dtype has changed, the run's weights are
rounded to it by transformers, and the logits must be equal bit for bit; a merged adapter comes as near as its dtype.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic.precision import dtype_name
from workbench.errors import WorkbenchError
from workbench.export.conversion import stored_bytes, stored_tensors, weight_files
from workbench.export.export import DTYPES, Tell, Wish
from workbench.export.quiet import quiet_transformers
from workbench.export.run_model import is_adapter, open_adapted, run_config
from workbench.export.writing import torch_dtype
from workbench.formatting import GIB
from workbench.model.adapter import CONFIG_FILE
from workbench.plan.memory.free import free_host_bytes
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep

BESIDE = 1.2
"""Times the weights in fp32: activations, and what loading takes."""
SEQUENCES, TOKENS = 2, 12
NEAR = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""The norm of the difference of logits over theirs, beyond which a merged model is not what the run has."""


def check_export(run: RunDirectory, saved: SavedStep, working: Path, wish: Wish, tell: Tell) -> str:
    """Compare the model in `working` with that of `saved`; what was found, as a sentence.

    Where that cannot be done, for memory or for a base that no folder holds, the sentence says so.

    Raises:
        DamagedFileError: the checkpoint's own model cannot be loaded.
        WorkbenchError: what was written cannot be loaded, or is not what the run has.
    """
    config = run_config(run)
    adapter = is_adapter(saved)
    if adapter and not config.model.pretrained and not wish.merge:
        return "not looked at: its base has random weights, which no folder holds that from_pretrained could load"
    refusal = _no_room(working, saved)
    if refusal is not None:
        return refusal
    tell("loading what was written, to compare its logits with the run's")
    with quiet_transformers():
        if adapter:
            model = open_adapted(config, saved, tell).whole()
            expected, ids = _logits(model, None)
            del model
        else:
            dtype = torch_dtype(DTYPES[wish.dtype]) if wish.dtype is not None else None
            try:
                model = _load(saved.path, dtype, config.model.trust_remote_code)
            except Exception as error:
                raise DamagedFileError(f"its model cannot be loaded: {_first_line(error)}") from error
            expected, ids = _logits(model, None)
            del model
        gc.collect()
        try:
            model = _load(working, None, config.model.trust_remote_code)
        except Exception as error:
            raise WorkbenchError(
                f"export: what was written cannot be loaded, so nothing is left of it: {_first_line(error)}"
            ) from error
        stored = model.config.dtype or torch.float32
        found, _ = _logits(model, ids)
    rounded_to = torch_dtype(DTYPES[wish.dtype]) if wish.dtype is not None else stored
    return _verdict(expected, found, rounded_to if adapter else None)


def _verdict(expected: Tensor, found: Tensor, stored_in: torch.dtype | None) -> str:
    """Raises WorkbenchError where the logits are too far apart."""
    if torch.equal(expected, found):
        return "loaded: its logits are the run's"
    distance = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    if stored_in is None or not distance <= NEAR.get(stored_in, 1e-4):
        raise WorkbenchError(
            f"export: the logits of what was written are not the run's (they differ by {distance:.1e} of their norm); "
            "nothing is left of it"
        )
    name = dtype_name(stored_in)
    return f"loaded: its logits are the run's to {distance:.1e}, in {name}"


def _load(folder: Path, dtype: torch.dtype | None, trust_remote_code: bool) -> Any:
    """The model in `folder`, its weights rounded to `dtype`, then in fp32.

    Raises:
        Exception: whatever transformers raises; ValueError where weights are missing or nobody knows them.
    """
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    loaded = load(
        folder, dtype=dtype or "auto", trust_remote_code=trust_remote_code, output_loading_info=True
    )
    model, report = loaded
    for what, wrong in (("missing", report["missing_keys"]), ("of no use", report["unexpected_keys"])):
        if wrong and not (folder / CONFIG_FILE).is_file():
            raise ValueError(f"{len(wrong)} tensors are {what}, one of them {min(wrong)}")
    stored = model.config.dtype
    model.float().eval()
    model.config.dtype = stored
    return model


@torch.no_grad()
def _logits(model: nn.Module, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    run: Any = model.eval()
    if ids is None:
        text = run.config.get_text_config()
        length = min(TOKENS, getattr(text, "max_position_embeddings", None) or TOKENS)
        ids = (torch.arange(SEQUENCES * length) * 7919 % text.vocab_size).view(SEQUENCES, length)
    return run(input_ids=ids, use_cache=False).logits.float().clone(), ids


def _no_room(working: Path, saved: SavedStep) -> str | None:
    entries = stored_tensors(sorted(working.glob("*.safetensors")) or weight_files(saved))
    needed = int(BESIDE * stored_bytes(entries, torch.float32))
    free = free_host_bytes()
    if needed <= free:
        return None
    return f"not looked at: loading it takes {needed / GIB:,.1f} GiB of host memory, and {free / GIB:,.1f} GiB are free"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
