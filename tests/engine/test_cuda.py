"""The same promises on a CUDA device: run by hand where there is one, `pytest -m gpu`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from small_models import CHUNK_BYTES, MODELS, batches, clone, loss_of, torch_adamw

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.cuda_device import CudaDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _train(start: torch.nn.Module, **options: object) -> list[torch.Tensor]:
    model = clone(start)
    accumulation = int(options.get("gradient_accumulation", 1))  # type: ignore[call-overload]
    outcome = []
    torch.manual_seed(0)
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=1e-2, weight_decay=0.1),
        device="cuda",
        chunk_bytes=CHUNK_BYTES,
        **options,  # type: ignore[arg-type]
    ) as engine:
        data = iter(batches(5 * accumulation))
        for _ in range(5):
            for _ in range(accumulation):
                loss = loss_of(model, next(data).cuda())
                outcome.append(loss.detach().cpu())
                engine.backward(loss)
            engine.step()
        outcome += [tensor.cpu().clone() for _, tensor in engine.state()]
    return outcome + [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("state", ["host", "device"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_exact_has_the_bits_of_serial(name: str, precision: str, state: str) -> None:
    start = MODELS[name](dropout=0.1)
    for accumulation, clipping in itertools.product((1, 3), (0.0, 0.5)):
        options = {
            "precision": precision,
            "state": state,
            "gradient_accumulation": accumulation,
            "gradient_clipping": clipping,
        }
        serial = _train(start, overlap="serial", **options)
        exact = _train(start, overlap="exact", **options)
        assert all(torch.equal(a, b) for a, b in zip(serial, exact, strict=True)), options


@pytest.mark.parametrize("state", ["host", "device"])
def test_fp32_follows_torchs_adamw_on_the_device(state: str) -> None:
    reference = MODELS["llama"]().cuda()
    model = clone(reference)
    optimizer = torch_adamw(reference, 1e-3, 0.1, foreach=False)
    options = {"device": "cuda", "precision": "fp32", "state": state}
    with OffloadEngine(model, optimizer=AdamW(lr=1e-3, weight_decay=0.1), **options) as engine:  # type: ignore[arg-type]
        for ids in batches(20):
            theirs = loss_of(reference, ids.cuda())
            theirs.backward()
            optimizer.step()
            optimizer.zero_grad()
            ours = loss_of(model, ids.cuda())
            engine.backward(ours)
            engine.step()
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_host_memory_is_pageable_where_registration_fails_and_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing:
        @staticmethod
        def cudaHostRegister(address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Refusing)
    device = CudaDevice(torch.device("cuda"))
    with pytest.warns(RuntimeWarning, match="pageable"):
        memory = device.empty_host(1000, torch.float32)
    assert memory.fill_(1.0).sum() == 1000
