"""Load what was exported as anybody would, and compare its logits on a few tokens with the run's own weights.

Both are computed in fp32 on the CPU, one model after the other. Where only the dtype has changed, the run's weights are
rounded to it by transformers, and the logits must be equal bit for bit; a merged adapter comes as near as its dtype.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.engine.precision import PRECISIONS, dtype_name
from workbench.errors import WorkbenchError, brief
from workbench.export.weights import (
    bytes_in,
    checkpoint_tensors,
    is_adapter,
    open_adapted,
    quiet_transformers,
    run_config,
    tensors_in,
)
from workbench.formatting import GIB
from workbench.model.adapter import CONFIG_FILE
from workbench.model.hub import Log
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep
from workbench.system.free_space import free_host_bytes

BESIDE = 1.2
"""The memory needed, in times of the weights in fp32: activations, and what loading takes."""
SEQUENCES, TOKENS = 2, 12
NEAR = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""The largest norm of the difference of logits over theirs at which a merged model is what the run has."""


def check_export(
    run: RunDirectory, saved: SavedStep, working: Path, *, to: str | None, merge: bool, log: Log
) -> str:
    """Compare the model in `working` with that of `saved`; return the result as a sentence.

    `to`: the dtype that the weights were rounded to, a value of `--dtype`; None where they were not.

    Where that cannot be done, for memory or for a base that no folder holds, the sentence says so.

    Raises:
        DamagedFileError: the checkpoint's own model cannot be loaded.
        WorkbenchError: what was written cannot be loaded, or is not what the run has.
    """
    config = run_config(run)
    adapter = is_adapter(saved)
    dtype = None if to is None else PRECISIONS[to]
    if adapter and not config.model.pretrained and not merge:
        return "not checked: its base has random weights, and no folder holds it for from_pretrained"
    files = sorted(working.glob("*.safetensors"))
    needed = int(BESIDE * bytes_in(tensors_in(files) or checkpoint_tensors(saved), torch.float32))
    free = free_host_bytes()
    if needed > free:
        return (
            f"not checked: loading it takes {needed / GIB:,.1f} GiB of host memory, "
            f"and {free / GIB:,.1f} GiB are free"
        )
    log("loading what was written, to compare its logits with the run's")
    with quiet_transformers():
        try:
            model = (
                open_adapted(config, saved, log).whole()
                if adapter
                else _load(saved.path, dtype, config.model.trust_remote_code)
            )
        except WorkbenchError:
            raise
        except Exception as error:
            raise DamagedFileError(f"its model cannot be loaded: {brief(error)}") from error
        ids = _token_ids(model)
        expected = _logits(model, ids)
        del model
        gc.collect()
        try:
            model = _load(working, None, config.model.trust_remote_code)
        except Exception as error:
            raise WorkbenchError(
                f"export: the written files cannot be loaded, and were deleted: {brief(error)}"
            ) from error
        stored = model.config.dtype or torch.float32
        found = _logits(model, ids)
    if torch.equal(expected, found):
        return "loaded: its logits are the run's"
    merged_in = dtype or stored
    distance = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    if not adapter or not distance <= NEAR.get(merged_in, 1e-4):
        raise WorkbenchError(
            f"export: the logits of what was written are not the run's (they differ by {distance:.1e} of their norm); "
            "they were deleted"
        )
    return f"loaded: its logits are the run's to {distance:.1e}, in {dtype_name(merged_in)}"


def _load(folder: Path, dtype: torch.dtype | None, trust_remote_code: bool) -> Any:
    """Return the model in `folder`, its weights rounded to `dtype`, then in fp32.

    Raises:
        Exception: whatever transformers raises; ValueError where weights are missing or nobody knows them.
    """
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    model, report = load(
        folder, dtype=dtype or "auto", trust_remote_code=trust_remote_code, output_loading_info=True
    )
    for what, wrong in (("missing", report["missing_keys"]), ("of no use", report["unexpected_keys"])):
        if wrong and not (folder / CONFIG_FILE).is_file():
            raise ValueError(f"{len(wrong)} tensors are {what}, one of them {min(wrong)}")
    stored = model.config.dtype
    model.float().eval()
    model.config.dtype = stored
    return model


def _token_ids(model: Any) -> Tensor:
    text = model.config.get_text_config()
    length = min(TOKENS, getattr(text, "max_position_embeddings", None) or TOKENS)
    ids: Tensor = torch.arange(SEQUENCES * length) * 7919 % int(text.vocab_size)
    return ids.view(SEQUENCES, length)


@torch.no_grad()
def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model.eval()(input_ids=ids, use_cache=False).logits.float().clone()
    return logits
