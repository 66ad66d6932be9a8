"""An adapter under the engine: it trains as plain torch and peft do, and takes the memory that the plan foretells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import SETTINGS, differing, newest, save, weights_of

from workbench.config.schema import AdapterConfig
from workbench.engine import AdamW, OffloadEngine
from workbench.engine.blocks.discovery import find_units
from workbench.engine.devices.device import CpuDevice
from workbench.engine.precision import compute_dtypes, dtype_name
from workbench.model.adapter import AdapterUnits, add_adapter, store_base_as
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.plan.memory import EngineNeeds, checkpoint_bytes
from workbench.plan.workload import Workload
from workbench.profiles.block_costs import take_model_profile
from workbench.profiles.meta_model import count_parts
from workbench.profiles.obtain import essential
from workbench.training.checkpoints.load import load_state

MODERN = {
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "vocab_size": 257,
    "max_position_embeddings": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": SETTINGS,
    "llama": MODERN,
    "mixtral": {**MODERN, "num_local_experts": 4},
}
LORA = AdapterConfig(rank=4, alpha=8.0, dropout=0.1)
CHUNK_BYTES = 1 << 17
NUMBERS = AdamW(lr=1e-2, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)


def build(family: str, storage: torch.dtype = torch.float32, seed: int = 1) -> tuple[Any, AdapterUnits]:
    model: Any = build_on_meta(model_config(family, dict(FAMILIES[family])))
    plain = add_adapter(model, LORA)
    store_base_as(model, storage)
    return model, AdapterUnits(model, plain, UnitInitializer(plain, seed), seed)


def engine_of(model: Any, units: AdapterUnits, **options: Any) -> OffloadEngine:
    settings = {
        "state": "host",
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
        "chunk_bytes": CHUNK_BYTES,
    }
    return OffloadEngine(model, optimizer=NUMBERS, materialize=units, **{**settings, **options})


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(257, (2, 16), generator=generator) for _ in range(count)]


def train(model: Any, engine: OffloadEngine, given: list[torch.Tensor], first: int = 0) -> list[float]:
    losses = []
    for number, ids in enumerate(given, first):
        torch.manual_seed(number)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    engine.wait()
    return losses


def train_with_peft(family: str, given: list[torch.Tensor]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same by transformers, peft and torch's AdamW alone, from the same first values."""
    import peft

    mine, units = build(family)
    for unit in find_units(mine):
        units(unit)
    start = dict(mine.named_parameters())
    base: Any = build_on_meta(model_config(family, dict(FAMILIES[family])))
    initialize = UnitInitializer(base, 1)
    for unit in find_units(base):
        initialize(unit)
    described = mine.peft_config["default"]
    model = peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=LORA.rank,
            lora_alpha=LORA.alpha,
            lora_dropout=LORA.dropout,
            target_modules=sorted(described.target_modules),
        ),
    ).train()
    trained = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("base_model.model.")
        assert parameter.requires_grad == start[name].requires_grad, name
        if parameter.requires_grad:
            parameter.data.copy_(start[name])
            trained[name] = parameter
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=NUMBERS.lr,
        betas=NUMBERS.betas,
        eps=NUMBERS.eps,
        weight_decay=NUMBERS.weight_decay,
        foreach=False,
    )
    losses = []
    for number, ids in enumerate(given):
        torch.manual_seed(number)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, {name: parameter.detach() for name, parameter in trained.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_trains_as_with_peft_and_torch_wherever_its_weights_live(
    tmp_path: Path, family: str
) -> None:
    given = batches(3)
    expected, weights = train_with_peft(family, given)
    assert len(set(expected)) == 3
    for placement in ("device", "host", "disk"):
        model, units = build(family)
        options = {
            "weights": placement,
            "state": "disk" if placement == "disk" else "host",
            "disk_path": tmp_path,
        }
        with engine_of(model, units, **options) as engine:
            assert train(model, engine, given) == pytest.approx(expected, rel=1e-6)
            found = weights_of(engine)
            for name, value in weights.items():
                # Twice the parameter's own spacing, and a part of what it was moved by.
                assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-6), (placement, name)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("placement", ["device", "host", "disk"])
def test_the_plan_of_an_adapter_has_the_bytes_of_the_engines_memory_breakdown(
    tmp_path: Path, placement: str, storage: torch.dtype, shared_memory: bool
) -> None:
    model, units = build("llama", storage)
    state = "disk" if placement == "disk" else "host"
    device = CpuDevice(shared_memory=shared_memory)
    options: dict[str, Any] = {"weights": placement, "state": state, "gradient_clipping": 1.0}
    precision = "bf16" if storage == torch.bfloat16 else "fp32"
    with engine_of(model, units, precision=precision, device=device, disk_path=tmp_path, **options) as engine:
        train(model, engine, batches(2))
        memory_breakdown, layout = engine.memory(), engine.layout
    adapted: Any = build_on_meta(model_config("llama", dict(MODERN)))
    add_adapter(adapted, LORA)
    model_profile = count_parts(adapted, "llama")
    foretold = model_profile.layout(dtype_name(storage), CHUNK_BYTES)
    assert foretold == layout
    computed_in = {dtype_name(a): dtype_name(b) for a, b in compute_dtypes("auto", device).items()}
    work = Workload(
        **options,
        shared_memory=shared_memory,
        precision=dtype_name(storage),
        gradient_accumulation=1,
        micro_batch_size=2,
        sequence_length=16,
        activation_checkpointing=True,
        checkpoints_kept=2,
        chunk_bytes=CHUNK_BYTES,
        compute_dtypes=computed_in,
    )
    needs = EngineNeeds(foretold, work).memory_breakdown()
    for tier in ("device", "host", "disk"):
        for name in {*needs[tier], *memory_breakdown[tier]}:
            mine, theirs = needs[tier].get(name, 0), memory_breakdown[tier].get(name, 0)
            assert mine >= theirs if name in ("gradient slots", "staging") else mine == theirs, (tier, name)
    whole = checkpoint_bytes(foretold, work)
    frozen = sum(f.bytes for unit in foretold.units for f in unit.frozen)
    assert checkpoint_bytes(foretold, work, adapter=True) == whole - frozen


def test_blocks_with_an_adapter_keep_its_activations_and_none_for_gradients_of_frozen_matrices() -> None:
    table = {"architecture": "llama", "config": {**MODERN, "hidden_size": 64, "intermediate_size": 256}}
    lora = {"rank": 1, "alpha": 8.0, "dropout": 0.0, "targets": ["q_proj"]}
    whole, adapted = (
        take_model_profile(essential(table)),
        take_model_profile(essential({**table, "adapter": lora})),
    )
    assert adapted.adapter and not whole.adapter
    (kind,), (small,) = whole.kinds, adapted.kinds
    assert kind.costs is not None and small.costs is not None and not small.problem
    for width in ("32", "16"):
        assert small.costs[width].saved.at(1, 16) < kind.costs[width].saved.at(1, 16)
    assert 0.9 < small.frozen_share < 1 and kind.frozen_share == 0
    assert not adapted.trains_head and not adapted.trains_embedding
    assert whole.trains_head and whole.trains_embedding


def test_an_adapter_that_was_saved_goes_on_bit_for_bit(tmp_path: Path) -> None:
    given = batches(4)
    model, units = build("gpt2", torch.bfloat16)
    with engine_of(model, units, precision="bf16") as engine:
        expected = train(model, engine, given)
        final = weights_of(engine)
    model, units = build("gpt2", torch.bfloat16)
    with engine_of(model, units, precision="bf16") as engine:
        train(model, engine, given[:2])
        path = save(tmp_path, 2, model, engine)
    model, units = build("gpt2", torch.bfloat16)
    with engine_of(model, units, precision="bf16", weights="host") as engine:
        load_state(newest(tmp_path), engine)
        assert train(model, engine, given[2:], first=2) == expected[2:]
        assert differing(weights_of(engine), final) == []
    stored = {file.name for file in path.iterdir()}
    assert "adapter_model.safetensors" in stored and "model.safetensors" not in stored
