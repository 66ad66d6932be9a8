"""Weights in another dtype are rounded once, and a value that does not fit stops the export."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.export import weights
from workbench.export.weights import checkpoint_tensors, convert


def converted(folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """`tensors`, through files."""
    source, target = folder / "saved", folder / "out"
    for place in (source, target):
        place.mkdir()
    save_file(tensors, source / "model.safetensors")
    for place in (source, target):
        (place / "config.json").write_text("{}")
    manifest = SimpleNamespace(model_files=["config.json", "model.safetensors"])
    saved: Any = SimpleNamespace(path=source, manifest=manifest)
    convert(saved, checkpoint_tensors(saved), target, dtype=dtype)
    return load_file(target / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_every_tensor_is_rounded_as_torch_rounds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: torch.dtype, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "matrix": (torch.randn(37, 29, generator=generator) * 100).to(source),
        "empty": torch.empty(0, 4, dtype=source),
        "scalar": torch.tensor(3.0, dtype=source),
        "not finite": torch.tensor([float("inf"), float("nan"), -1.0], dtype=source),
        "whole numbers": torch.arange(50),
    }
    monkeypatch.setattr(weights, "MAPPED_BYTES", 100)
    found = converted(tmp_path, tensors, dtype)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        wanted = tensor.to(dtype) if tensor.is_floating_point() else tensor
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [70_000.0, -70_000.0])
def test_a_value_that_fp16_does_not_hold_is_named_and_bf16_offered(tmp_path: Path, value: float) -> None:
    tensors = {"fine": torch.full((9,), 65_504.0), "large": torch.tensor([1.0, value, float("nan")])}
    words = "large holds 70,000, and fp16 ends at 65,504; --dtype bf16 holds it"
    with pytest.raises(WorkbenchError, match=re.escape(words)):
        converted(tmp_path, tensors, torch.float16)
