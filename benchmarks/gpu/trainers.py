"""The contenders of one model on one device: each gives a loss and then makes a step of it.

The engine trains with the chunked loss of `workbench run`, the alternatives with the model's own; all with activation
checkpointing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.engine.contenders import LEARNING_RATE, WEIGHT_DECAY, decayed
from benchmarks.engine.processes import tell
from benchmarks.engine.shapes import Shape, quiet_transformers
from benchmarks.gpu.cases import Case
from benchmarks.gpu.filling import DeviceFilling
from workbench.data.batches import Batch
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.training.evaluation import batch_loss

DELAY_WARMUP = 1
"""Steps of `delayed` before it delays: fewer than are warmed up."""


class Trained(Protocol):
    """A model in training. `take` keeps token ids of the host where `forward` wants them, which gives their mean loss;
    `finish` makes a step of it."""

    def take(self, ids: Tensor) -> Tensor: ...
    def forward(self, ids: Tensor) -> Tensor: ...
    def finish(self, loss: Tensor) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...


def make_trained(
    case: Case, device: torch.device, *, all_gradients_wait: bool = False, speculation: float = 0.0
) -> Trained:
    """Build the case's model and optimizer. Whatever a package raises comes through.

    `all_gradients_wait`, `speculation`: as the engine has them; the alternatives know no such things.
    """
    makers: dict[str, Callable[[Shape, torch.device], Trained]] = {
        "torch": PlainTorch,
        "torchao": TorchAO,
        "deepspeed": DeepSpeed,
    }
    if case.contender == "engine":
        return Engine(case, device, all_gradients_wait, speculation)
    return makers[case.contender](case.shape, device)


class Engine:
    """`reports` holds each step's, in order."""

    def __init__(
        self, case: Case, device: torch.device, all_gradients_wait: bool, speculation: float
    ) -> None:
        from workbench.engine import OffloadEngine, StepReport
        from workbench.optimizer import AdamW

        model = _meta_model(case.shape)
        self.engine = OffloadEngine(
            model,
            optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            weights=case.weights,  # type: ignore[arg-type]
            state=case.state,  # type: ignore[arg-type]
            state_format=case.state_format,
            gradient_clipping=1.0 if case.clipping else 0.0,
            activations=case.activations,  # type: ignore[arg-type]
            overlap=case.overlap,  # type: ignore[arg-type]
            delay_warmup=DELAY_WARMUP,
            all_gradients_wait=all_gradients_wait,
            speculation=speculation,
            device=device,
            materialize=DeviceFilling(device, torch.device("cpu")),
        )
        self.reports: list[StepReport] = []
        self._loss = ChunkedLoss(model)
        self._loss.check(torch.zeros((1, 8), dtype=torch.int64, device=device), use_cache=False)
        if self._loss.refusal is not None:
            tell(f"the model's own loss is used: {self._loss.refusal}")

    def take(self, ids: Tensor) -> Tensor:
        return ids

    def forward(self, ids: Tensor) -> Tensor:
        rows, length = ids.shape
        batch = Batch(ids, ids, None, rows * (length - 1), ids.numel())
        return batch_loss(self._loss, batch, self.engine.device)

    def finish(self, loss: Tensor) -> None:
        self.engine.backward(loss)
        self.reports.append(self.engine.step())

    def settle(self) -> None:
        self.engine.wait()

    def close(self) -> None:
        self.engine.close()


class PlainTorch:
    """Everything on the device; bf16 weights and moments (fp32 on a CPU) without a master copy."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._device = device
        self._model: Any = _whole_model(shape, device)
        self._optimizer: Any = self._make_optimizer(self._model)

    def _make_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.AdamW(decayed(model), lr=LEARNING_RATE, fused=True)

    def take(self, ids: Tensor) -> Tensor:
        return ids.to(self._device)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self._model(input_ids=ids, labels=ids).loss
        return loss

    def finish(self, loss: Tensor) -> None:
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


class TorchAO(PlainTorch):
    """torchao's CPUOffloadOptimizer; gradients leave the device as they come, which forbids accumulation."""

    def _make_optimizer(self, model: nn.Module) -> Any:
        from torchao.optim import CPUOffloadOptimizer  # type: ignore[import-not-found]

        return CPUOffloadOptimizer(
            decayed(model), torch.optim.AdamW, offload_gradients=True, fused=True, lr=LEARNING_RATE
        )


class DeepSpeed:
    """ZeRO-Offload: ZeRO-2 with the optimizer on the CPU, one process."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in alone.items()})
        import deepspeed  # type: ignore[import-not-found]

        self._device = device
        model = _whole_model(shape, device)
        self._engine: Any = deepspeed.initialize(
            model=model,
            model_parameters=decayed(model),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,
                "gradient_clipping": 0.0,
                "steps_per_print": 1 << 30,
                "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}},
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "cpu", "pin_memory": True},
                    "overlap_comm": True,
                    "contiguous_gradients": True,
                },
            },
        )[0]

    def take(self, ids: Tensor) -> Tensor:
        return ids.to(self._device)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self._engine(input_ids=ids, labels=ids).loss
        return loss

    def finish(self, loss: Tensor) -> None:
        self._engine.backward(loss)
        self._engine.step()

    def settle(self) -> None:
        pass

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def _meta_model(shape: Shape) -> nn.Module:
    from workbench.model.build import build_on_meta, model_config

    quiet_transformers()
    return build_on_meta(model_config("gpt2", shape.settings()))


def _whole_model(shape: Shape, device: torch.device) -> Any:
    """The model on `device`, in bf16 on a GPU and fp32 on a CPU, with non-reentrant activation checkpointing."""
    from workbench.engine.blocks.discovery import find_units

    model: Any = _meta_model(shape)
    fill = DeviceFilling(device, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    for unit in find_units(model):
        fill(unit)
    # transformers has renamed it; older ones know the second name only.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    enable({"use_reentrant": False})
    return model
