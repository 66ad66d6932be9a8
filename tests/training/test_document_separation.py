"""Documents of a packed row do not see each other, whatever the model and however the engine runs it."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.data.batches import Batch, TokenStream
from workbench.data.batches.sampling import evaluation_batches
from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.errors import ConfigurationError
from workbench.plan.memory import mask_bytes
from workbench.plan.workload import Workload
from workbench.profiles.storage_tracker import StorageTracker
from workbench.training.evaluation import batch_loss, check_separation, validation_loss

CPU = CpuDevice()
LLAMA: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GPT2: dict[str, Any] = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "llama": ("llama", LLAMA),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 8}),
    "mistral-window": ("mistral", {**LLAMA, "sliding_window": 6}),
    "gemma2-window": ("gemma2", {**LLAMA, "head_dim": 8, "sliding_window": 6}),
    "mixtral": ("mixtral", {**LLAMA, "num_local_experts": 4}),
    "gpt_neox": ("gpt_neox", LLAMA),
    "phi": ("phi", LLAMA),
}
OTHERS = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LENGTHS = (7, 12, 3, 10)


@functools.cache
def _built(name: str, attention: str | None) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind, settings = MODELS.get(name, (name, OTHERS))
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**settings, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    options = {} if attention is None else {"attn_implementation": attention}
    return AutoModelForCausalLM.from_config(config, **options)


def build(name: str, attention: str | None = None) -> Any:
    return copy.deepcopy(_built(name, attention))


def packed() -> tuple[Batch, list[Tensor]]:
    """A row of four documents, and each of them."""
    documents = [torch.randint(99, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    starts = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0).view(torch.uint64)
    length = sum(LENGTHS)
    batches = evaluation_batches(TokenStream(torch.cat(documents), starts), length, 1, length, separate=True)
    return next(batches), documents


def alone(model: Any, documents: list[Tensor]) -> Tensor:
    """The mean loss over the documents' predicted tokens, each document by itself."""
    total = torch.zeros(())
    for document in documents:
        total = total + model(input_ids=document[None], labels=document[None]).loss * (len(document) - 1)
    return total / (sum(LENGTHS) - len(LENGTHS))


ATTENTIONS = [(name, kind) for name in MODELS for kind in ("sdpa", "eager")]
ATTENTIONS.remove(("gemma2-window", "sdpa"))  # transformers has none that caps logits


@pytest.mark.parametrize(("name", "attention"), ATTENTIONS)
def test_the_loss_of_a_packed_row_is_that_of_its_documents_alone(name: str, attention: str) -> None:
    model = build(name, attention)
    batch, documents = packed()
    check_separation(model, CPU.torch_device)
    loss = batch_loss(ChunkedLoss(model), batch, CPU)
    assert batch.loss_tokens == sum(LENGTHS) - len(LENGTHS)
    assert loss.item() == pytest.approx(alone(model, documents).item(), rel=1e-6)
    # They do see each other where nobody keeps them apart, or this would show nothing.
    plain = model(input_ids=batch.input_ids, labels=batch.labels).loss
    assert abs(plain.item() - loss.item()) > 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-window"])
@pytest.mark.parametrize("weights", ["device", "host"])
def test_the_engine_trains_on_packed_documents_as_on_each_alone(name: str, weights: str) -> None:
    model, reference = build(name), build(name)
    batch, documents = packed()
    engine = OffloadEngine(
        model, optimizer=AdamW(lr=1e-2), weights=weights, precision="fp32", device="cpu", threads=1
    )
    with engine:
        check_separation(model, CPU.torch_device)
        optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.0)
        # Chunks of a few tokens: the logits are deferred.
        chunked = ChunkedLoss(model, chunk_tokens=5)
        for _ in range(3):
            loss = batch_loss(chunked, batch, CPU)
            engine.backward(loss, tokens=batch.loss_tokens)
            engine.step()
            expected = alone(reference, documents)
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        engine.wait()
        evaluated = validation_loss(model, [batch], device=CPU, interrupted=lambda: False, loss=chunked)
    assert evaluated == pytest.approx(alone(reference.eval(), documents).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["bloom", "mamba", "opt"])
def test_a_model_that_cannot_keep_documents_apart_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"does not keep the documents .* apart .* set it to false"
    ) as error:
        check_separation(build(name), CPU.torch_device)
    assert "\n" not in str(error.value)


def test_the_trial_leaves_mode_random_numbers_and_gradients_alone() -> None:
    model = build("llama").train()
    before = torch.get_rng_state()
    check_separation(model, CPU.torch_device)
    assert model.training and torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_plan_counts_the_masks_that_keep_documents_apart(checkpointing: bool) -> None:
    length = 256
    planned = Workload(
        weights="device",
        state="device",
        shared_memory=True,
        precision="float32",
        gradient_accumulation=1,
        micro_batch_size=2,
        sequence_length=length,
        activation_checkpointing=checkpointing,
        checkpoints_kept=1,
        separate_documents=True,
    )
    ids = torch.randint(99, (2, length), generator=torch.Generator().manual_seed(8))
    positions = (torch.arange(length) % 70).expand(2, -1)

    def peak(separate: bool) -> int:
        """Bytes of one forward and backward."""
        options = {"precision": "fp32", "device": "cpu", "activation_checkpointing": checkpointing}
        with OffloadEngine(build("llama"), optimizer=AdamW(lr=1e-3), **options) as engine:
            with StorageTracker() as tracker:
                batch = Batch(ids, ids, positions if separate else None, ids.numel(), ids.numel())
                engine.backward(batch_loss(ChunkedLoss(engine.model), batch, CPU))
            engine.step().result()
        recording = tracker.recording
        alive = itertools.accumulate(
            recording.sizes[event - 1] if event > 0 else -recording.sizes[-event - 1]
            for event in recording.events
        )
        return max(alive)

    most = max(mask_bytes(planned, 2, item=4))
    assert peak(True) - peak(False) == pytest.approx(most, rel=0.25)
