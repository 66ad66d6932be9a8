"""A step of the shipped presets on planned machines, by the engine itself in virtual time (`workbench.virtual_cuda`).

    python -m benchmarks.virtual_gpu [--presets gpt2-10b ...] [--machines server-80gb ...] [--set KEY=VALUE ...]

Beside each: the plan's seconds, and those of a schedule as DeepSpeed's: all updates come after backward, all uploads
after them, and an update takes what `benchmarks.host_optimizer` measures of DeepSpeed. "by torch alone" is a
plain loop with fused AdamW: all in bf16 without masters, gradients summed by autograd, the model's own loss. No figure
is of a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MACHINES = ("server-v100-32gb", "server-80gb", "desktop-24gb", "desktop-32gb", "server-h200")
STEPS, CASE_LIMIT_S = 2, 900.0
DEEPSPEED_UPDATE = 2.38
"""Times as long as an update in `exact`, with its casts: docs/benchmarks.md, 100 M parameters, one thread."""
LLAMA2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
QWEN3_14B = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """`shape`: architecture and settings of a preset whose model is on the hub. `options`: of the configuration.
    `by_torch`: without the engine. `ahead`: updates come before the gradients' norm is known, as far as the plan says.
    """

    preset: str
    options: tuple[str, ...] = ()
    shape: tuple[str, dict[str, Any]] | None = None
    title: str = ""
    by_torch: bool = False
    ahead: bool = True


ALL_ON_DEVICE = ("offload.state=device", "train.activation_checkpointing=false")
HALF = ("offload.state_format=half",)
COMPACT = ("offload.state_format=compact",)
CASES = {
    case.title or case.preset: case
    for case in (
        Case("gpt2-124m"),
        Case("gpt2-124m", ALL_ON_DEVICE, title="gpt2-124m on the device"),
        Case("gpt2-124m", ALL_ON_DEVICE, title="gpt2-124m by torch alone", by_torch=True),
        Case("gpt2-10b"),
        Case("gpt2-10b", title="gpt2-10b, updates after the norm", ahead=False),
        Case("gpt2-10b", ("train.gradient_clipping=0.0",), title="gpt2-10b without clipping"),
        Case("gpt2-10b", HALF, title="gpt2-10b, half"),
        Case("gpt2-10b", HALF, title="gpt2-10b, half, updates after the norm", ahead=False),
        Case("gpt2-10b", COMPACT, title="gpt2-10b, compact"),
        Case("gpt2-10b", COMPACT, title="gpt2-10b, compact, updates after the norm", ahead=False),
        Case("llama2-7b", shape=("llama", LLAMA2_7B)),
        Case("qwen3-14b", shape=("qwen3", QWEN3_14B)),
    )
}


def measure(title: str, machine_name: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Train in virtual time up to the forward that follows `STEPS` steps, and return what the last of them took."""
    import torch

    from workbench.config import load_config
    from workbench.data.batches import Batch
    from workbench.engine import OffloadEngine
    from workbench.engine.devices.cuda_device import CudaDevice
    from workbench.engine.loss.chunked_loss import ChunkedLoss
    from workbench.model.build import build_on_meta, model_config
    from workbench.plan.machine import planned_machine
    from workbench.presets import find_preset
    from workbench.profiles.named_machines import load_profile
    from workbench.training.evaluation import batch_loss
    from workbench.training.prepare import engine_options
    from workbench.virtual_cuda import VirtualCuda

    case = CASES[title]
    machine = load_profile(Path(machine_name))
    config = load_config(find_preset(case.preset), ["train.device=cuda", *case.options, *sets])
    architecture, settings = case.shape or (config.model.architecture, config.model.config)
    shape = model_config(architecture, settings)
    shape.use_cache = False
    model = build_on_meta(shape).to_empty(device="cpu")
    model.tie_weights()
    storage = planned_machine(machine).precision(config).storage
    options = engine_options(config, device="cuda")
    plan = planned(title, machine_name, sets)
    for name in ("all_gradients_wait", "speculation"):
        if plan is not None:
            options[name] = plan[name]
    if not case.ahead:
        options["speculation"] = 0.0
    options.update(watchdog_s=0, threads=2, precision={"bfloat16": "bf16", "float16": "fp16"}[storage])
    with VirtualCuda(machine=machine, values=False, device_bytes=machine.device.memory_bytes) as cuda:
        clock = cuda.clock
        assert clock is not None
        trained: Any
        if case.by_torch:
            trained = TorchAlone(model.to(torch.bfloat16).to("cuda"), config.train.gradient_clipping)
            device, loss_of = CudaDevice(torch.device("cuda", 0)), trained.loss
        else:
            trained = OffloadEngine(model, **options)
            device, loss_of = trained.device, ChunkedLoss(model)
        rows, length = config.train.micro_batch_size, config.data.sequence_length
        ids = torch.zeros(rows, length, dtype=torch.long)
        batch = Batch(ids, ids, None, rows * (length - 1), ids.numel())
        marks = []
        for step in range(STEPS + 1):
            for micro_batch in range(config.train.gradient_accumulation):
                loss = batch_loss(loss_of, batch, device)
                if micro_batch == 0:
                    link = sum(clock.link_bytes.values())
                    marks.append((clock.mark(), clock.kernels, link, cuda.queues.host_waits))
                if step == STEPS:
                    break
                trained.backward(loss)
            else:
                trained.step()
        trained.close()
        (begin, *before), (end, *after) = marks[-2:]
        step_s, busy_s = end.ends_at - begin.ends_at, end.busy_s - begin.busy_s
        kernels, link, waits = (b - a for a, b in zip(before, after, strict=True))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        update_s = DEEPSPEED_UPDATE * clock.rates.update_s(parameters, storage, "exact")
        return {
            "step_s": step_s,
            "exposed": 1 - busy_s / step_s,
            "kernels": kernels,
            "host_waits": waits,
            "link_gb": link / 1e9,
            "device_gib": cuda.memory.most_allocated / 2**30,
            "deepspeed_s": busy_s + update_s + clock.rates.up_s(2 * parameters),
        }


class TorchAlone:
    """A plain loop, with the names of the engine's steps."""

    def __init__(self, model: Any, clipping: float) -> None:
        import torch

        self._model, self._clipping = model, clipping
        self._optimizer: Any = torch.optim.AdamW(model.parameters(), fused=True)

    def loss(self, ids: Any, labels: Any, **options: Any) -> Any:
        return self._model(input_ids=ids, labels=labels, **options).loss

    def backward(self, loss: Any) -> None:
        loss.backward()

    def step(self) -> None:
        import torch

        if self._clipping:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clipping)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def close(self) -> None:
        import torch

        torch.cuda.synchronize()


def planned(title: str, machine: str, sets: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the plan as `workbench plan --json` gives it; None where it has no time."""
    case = CASES[title]
    words = [word for option in (*case.options, *sets) for word in ("--set", option)]
    told = subprocess.run(
        [sys.executable, "-m", "workbench", "plan", case.preset, "--machine", machine, "--json", *words],
        capture_output=True,
        text=True,
    )
    plan: dict[str, Any] | None = json.loads(told.stdout) if told.stdout else None
    return plan if plan and plan["time"] else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of every configuration")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*arguments.case, arguments.set)))
        return
    print(
        "| preset | machine | step | plan | exposed | as DeepSpeed | kernels | host waits | link | device |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for title in arguments.presets:
        for machine in arguments.machines:
            print(f"| {title} | {machine} | {_cells(title, machine, arguments.set)} |", flush=True)


def _cells(title: str, machine: str, sets: Sequence[str]) -> str:
    told_plan = None if CASES[title].by_torch else planned(title, machine, sets)
    plan = None if told_plan is None or not CASES[title].ahead else float(told_plan["time"]["step_s"])
    short = [t["tier"] for t in told_plan["memory"]["tiers"] if not t["fits"]] if told_plan else []
    if "device" in short:
        return "does not fit the device, by the plan | | | | | | |"
    command = [
        sys.executable,
        "-m",
        "benchmarks.virtual_gpu",
        "--case",
        title,
        machine,
        *(["--set", *sets] if sets else []),
    ]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=CASE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"took longer than {CASE_LIMIT_S:.0f} s"
    if told.returncode:
        return told.stderr.strip().splitlines()[-1][:160]
    found = json.loads(told.stdout.splitlines()[-1])
    cells = (
        f"{found['step_s']:.3f} s" + " (memory of the host lacks)" * ("host" in short),
        "" if plan is None else f"{plan:.3f} s ({plan / found['step_s'] - 1:+.0%})",
        f"{found['exposed']:.1%}",
        ""
        if CASES[title].by_torch
        else f"{found['deepspeed_s']:.3f} s ({found['deepspeed_s'] / found['step_s']:.2f} x)",
        f"{found['kernels']:,}",
        f"{found['host_waits']:,}",
        f"{found['link_gb']:.1f} GB",
        f"{found['device_gib']:.1f} GiB",
    )
    return " | ".join(cells)


if __name__ == "__main__":
    main()
