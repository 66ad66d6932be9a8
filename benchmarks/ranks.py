"""Ranks that share a training, on CPUs with gloo: ours beside torch's own ways, by tokens a second and memory a rank.

    python -m benchmarks.ranks [--ranks 2] [--rounds 3] [--steps 4] [--only VARIANT …] [--larger LAYERS]

Each round starts fresh processes for every variant in turn, so that peaks of memory are its own. All train one GPT-2 in
fp32 on the same tokens with the gradient clipped. `--larger`: instead the memory of a larger model by ours, on one rank
and on several.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.engine import AdamW, OffloadEngine

MIB = 1 << 20
SEQUENCES, TOKENS = 2, 128
CLIPPING = 1.0
SIZES = {"n_layer": 4, "n_embd": 512, "n_head": 8, "n_positions": TOKENS, "vocab_size": 8192}
LARGER = {"n_embd": 1024, "n_head": 16, "n_positions": 64, "vocab_size": 8192}

Step = Callable[[torch.Tensor], None]


def model_of(sizes: dict[str, int]) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    )


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


@contextlib.contextmanager
def ours(model: GPT2LMHeadModel) -> Iterator[Step]:
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=1e-4),
        gradient_clipping=CLIPPING,
        state="host",
        device="cpu",
        threads=1,
        activation_checkpointing=False,  # as the others
    ) as engine:

        def step(ids: torch.Tensor) -> None:
            engine.backward(loss_of(model, ids))
            engine.step()

        yield step
        engine.wait()


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(ids: torch.Tensor) -> None:
        loss_of(model, ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextlib.contextmanager
def ddp(model: GPT2LMHeadModel) -> Iterator[Step]:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    yield plain_step(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True))


@contextlib.contextmanager
def zero(model: GPT2LMHeadModel) -> Iterator[Step]:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4, fused=True
    )
    yield plain_step(wrapped, optimizer)


@contextlib.contextmanager
def fsdp(model: GPT2LMHeadModel, **options: Any) -> Iterator[Step]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    yield plain_step(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))


@contextlib.contextmanager
def fsdp_offload(model: GPT2LMHeadModel) -> Iterator[Step]:
    with fsdp(model, offload_policy=CPUOffloadPolicy(pin_memory=False)) as step:
        yield step


VARIANTS: dict[str, Callable[[GPT2LMHeadModel], contextlib.AbstractContextManager[Step]]] = {
    "ours": ours,
    "ddp_fused_adamw": ddp,
    "zero_redundancy": zero,
    "fsdp2": fsdp,
    "fsdp2_cpu_offload": fsdp_offload,
}


def train(
    rank: int, ranks: int, folder: str, name: str, sizes: dict[str, int], steps: int, answers: Any
) -> None:
    """Train as one rank; answer with the seconds of a step and the peak of memory, or with an error's words."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(folder) / 'rendezvous'}", rank=rank, world_size=ranks
        )
    generator = torch.Generator().manual_seed(rank)
    shape = (SEQUENCES, sizes["n_positions"])
    batches = [torch.randint(sizes["vocab_size"], shape, generator=generator) for _ in range(steps + 1)]
    try:
        with VARIANTS[name](model_of(sizes)) as step:
            step(batches[0])
            if ranks > 1:
                dist.barrier()
            began = time.perf_counter()
            for batch in batches[1:]:
                step(batch)
        if ranks > 1:
            dist.barrier()
        seconds = (time.perf_counter() - began) / steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        answers.put((rank, seconds, peak, ""))
    except Exception as error:
        answers.put((rank, 0.0, 0, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"))
    answers.close()
    answers.join_thread()
    time.sleep(0.5)  # the others may still be connected
    os._exit(0)


def measure(name: str, ranks: int, sizes: dict[str, int], steps: int) -> tuple[float, list[int], str]:
    """Return the seconds of a step, each rank's peak of memory in bytes, and an error."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=train, args=(rank, ranks, folder, name, sizes, steps, answers))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found = sorted(answers.get(timeout=600) for _ in range(ranks))
        for process in processes:
            process.join(10)
            process.kill()
    errors = [error for *_, error in found if error]
    return max(seconds for _, seconds, _, _ in found), [peak for _, _, peak, _ in found], (errors or [""])[0]


def compare(names: list[str], ranks: int, rounds: int, steps: int) -> None:
    measured: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for name in names:
            if name in failed:
                continue
            seconds, peaks, error = measure(name, ranks, SIZES, steps)
            if error:
                failed[name] = error
            else:
                measured[name].append((seconds, max(peaks)))
    tokens = ranks * SEQUENCES * TOKENS
    parameters = sum(p.numel() for p in model_of(SIZES).parameters())
    print(
        f"{parameters / 1e6:.1f} M parameters, fp32, {ranks} ranks, {tokens} tokens a step, {rounds} rounds"
    )
    print("| | tokens a second | least to most | peak MiB of a rank |\n|---|---:|---:|---:|")
    for name in names:
        if name in failed:
            print(f"| {name} | {failed[name]} | | |")
            continue
        rates = sorted(tokens / seconds for seconds, _ in measured[name])
        peak = statistics.median(peak for _, peak in measured[name])
        print(
            f"| {name} | {statistics.median(rates):,.0f} | {rates[0]:,.0f} to {rates[-1]:,.0f} | {peak / MIB:,.0f} |"
        )


def larger(layers: int, ranks: int) -> None:
    sizes = {**LARGER, "n_layer": layers}
    with torch.device("meta"):
        parameters = sum(p.numel() for p in GPT2LMHeadModel(GPT2Config(**sizes)).parameters())
    print(f"{parameters / 1e6:,.0f} M parameters, fp32, ours\n| ranks | peak MiB of each |\n|---|---|")
    for count in (1, ranks):
        _, peaks, error = measure("ours", count, sizes, 1)
        print(f"| {count} | {error or ', '.join(f'{peak / MIB:,.0f}' for peak in peaks)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--larger", type=int, metavar="LAYERS")
    options = parser.parse_args()
    if options.larger:
        larger(options.larger, options.ranks)
    else:
        compare(options.only, options.ranks, options.rounds, options.steps)


if __name__ == "__main__":
    main()
