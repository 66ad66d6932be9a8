"""Every reader of a file that somebody else may have written, with a right file to begin from.

A reader takes a file, or refuses it with an error of `REFUSALS`; anything else that leaves it is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from workbench.config import load_config
from workbench.data import RecordError
from workbench.data.chats import ChatEncoder
from workbench.data.records import RecordEncoder
from workbench.data.sources import SourceFiles, find_documents
from workbench.data.sources.reading import Record, SourceReader
from workbench.data.token_files import read_header
from workbench.data.tokenizers import ByteTokenizer, load_tokenizer
from workbench.errors import WorkbenchError
from workbench.imports import import_file
from workbench.model.hub import read_index
from workbench.model.pretrained import files_in, pretrained_config
from workbench.model.safetensors_files import SafetensorsFiles, mapped_files, stored_tensors
from workbench.presets import shipped_folder
from workbench.profiles.described import described_text
from workbench.profiles.named_machines import known_machines, load_profile
from workbench.runs import RunDirectory, read_run_metrics, read_status
from workbench.runs.checkpoints import DamagedFileError, open_checkpoint
from workbench.runs.comparing import config_differences
from workbench.runs.control import ControlReader
from workbench.runs.metrics import Column, MetricsReader, MetricsWriter, read_downsampled, read_last
from workbench.runs.records import read_events, read_lanes, read_plan
from workbench.system.files import crc32
from workbench.tui.keymap import places, read_keymap
from workbench.tui.run.reading import read_config

logging.set_verbosity_error()  # as the commands do

REFUSALS = (WorkbenchError, RecordError, DamagedFileError)

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A test."}]
SMALL_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
DEEPSPEED = {
    "train_batch_size": 15,
    "fp16": {"enabled": True, "initial_scale_power": 16},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 10}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "gradient_clipping": 1.0,
}
RECIPES = {
    "Axolotl": """base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
val_set_size: 0.1
sequence_len: 2048
micro_batch_size: 2
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
warmup_ratio: 0.1
bf16: auto
adapter: lora
lora_r: 16
lora_target_modules: [q_proj, v_proj]
deepspeed: zero2.json
fsdp_config:
  fsdp_offload_params: true
""",
    "LLaMA-Factory": """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
finetuning_type: lora
lora_target: all
cutoff_len: 2048
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
bf16: true
val_size: 0.1
""",
    "Accelerate": """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: cpu
  zero_stage: 3
mixed_precision: bf16
""",
    "torchtune": """model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_rank: 8
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/model
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
batch_size: 2
dtype: bf16
""",
}


@dataclass(frozen=True)
class Reader:
    """`make` writes the right files into an empty folder and returns the one to damage; `read` is given that file."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]


def _text(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    return make


def _read_model_config(path: Path) -> None:
    pretrained_config(files_in(path.parent, str(path.parent), weights=False))


def _make_safetensors(folder: Path) -> Path:
    tensors = {"a.weight": torch.ones(4, 3), "b": torch.zeros(5, dtype=torch.bfloat16)}
    with SafetensorsFiles(folder, {name: tuple(tensor.shape) for name, tensor in tensors.items()}) as files:
        files.add(tensors)
    path = folder / "model.safetensors"
    # Room for headers of other tensors is most of it: with the shortest header a change hits something that counts.
    header = path.read_bytes()[8:].split(b"   ", 1)[0].rstrip()
    data = path.read_bytes()[-sum(tensor.nbytes for tensor in tensors.values()) :]
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def _read_safetensors(path: Path) -> None:
    stored = stored_tensors(path)
    with mapped_files() as read:
        for tensor in stored.values():
            read(tensor).sum()


def _make_tokenizer(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        backend = ByteTokenizer().backend
        backend.chat_template = TEMPLATE
        backend.save_pretrained(folder)
        return folder / name

    return make


def _read_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(str(path.parent))
    tokenizer.encode("two words\n")
    ChatEncoder(tokenizer, answers_only=True).encode(CHAT)


def _read_documents(path: Path) -> None:
    documents = find_documents(str(path))
    tokenizer = ByteTokenizer()
    encoder = RecordEncoder(tokenizer, text_field="text", loss_on="answers")
    for items, _ in SourceReader(SourceFiles(documents, {}), tokenizer, 0.1).chunks():
        for item in items:
            if isinstance(item, Record):
                try:
                    encoder.encode(item.parsed())
                except RecordError:
                    continue


def _make_tokens(folder: Path) -> Path:
    np.save(folder / "tokens.npy", np.arange(200, dtype=np.uint16))
    return folder / "tokens.npy"


def _make_metrics(folder: Path) -> Path:
    writer = MetricsWriter(folder / "metrics.bin", [Column("step", ""), Column("loss", "nats")])
    for step in range(1, 40):
        writer.append(step=step, loss=1 / step)
    writer.close()
    return folder / "metrics.bin"


def _read_metrics(path: Path) -> None:
    run = RunDirectory(path.parent)
    read_run_metrics(run)
    read_last(path, "loss")
    read_downsampled(path, 10)
    MetricsReader(run).read()


def _make_checkpoint(folder: Path) -> Path:
    from stored_checkpoints import store_checkpoint

    state = {"0000-embedding/exp_avg": ("float32", 2, b"\0" * 8)}
    saved = store_checkpoint(RunDirectory(folder), 12, {"model.safetensors": b"weights"}, state)
    return saved / "state" / "manifest.json"


def _read_forged_checkpoint(path: Path) -> None:
    """A manifest that was forged has a checksum that fits."""
    done = {"step": 12, "manifest_crc32": crc32(path.read_bytes())}
    (path.parents[1] / "DONE").write_text(json.dumps(done))
    open_checkpoint(path.parents[1])


def _run_reader(read: Callable[[RunDirectory], Any]) -> Callable[[Path], Any]:
    return lambda path: read(RunDirectory(path.parent))


def _json(name: str, value: object) -> Callable[[Path], Path]:
    return _text(name, json.dumps(value, indent=1))


def _lines(name: str, *values: object) -> Callable[[Path], Path]:
    return _text(name, "".join(json.dumps(value) + "\n" for value in values))


STATUS = {"version": 1, "phase": "training", "pid": 1, "step": 3, "steps": 10, "message": "so far"}
EVENT = {"version": 1, "time": 1.0, "kind": "evaluation", "step": 2, "loss": 1.5}
COMMAND = {"version": 1, "time": 1.0, "id": "abc", "verb": "stop"}
LANES = {"version": 1, "step": 3, "spans": [["update", "update", 1, 0, 0.1, 0.2]]}
RECORDS = ({"text": "one two"}, {"prompt": "a", "completion": "b"}, {"messages": CHAT})
PRESET = (shipped_folder() / "gpt2-10b.toml").read_text(encoding="utf-8")

READERS = {
    "preset": Reader(_text("preset.toml", PRESET), load_config),
    "machine profile": Reader(
        _text("m.toml", described_text(known_machines()["desktop-24gb"])), load_profile
    ),
    "keymap": Reader(
        _text("keys.toml", '[keys]\n"runs.stop" = "S"\n'), lambda path: read_keymap(path, places())
    ),
    "DeepSpeed JSON": Reader(_json("ds.json", DEEPSPEED), import_file),
    **{f"{tool} YAML": Reader(_text("recipe.yaml", text), import_file) for tool, text in RECIPES.items()},
    "config.json": Reader(_json("config.json", SMALL_LLAMA), _read_model_config),
    "index": Reader(
        _json("model.safetensors.index.json", {"weight_map": {"a": "model-00001-of-00001.safetensors"}}),
        read_index,
    ),
    "safetensors": Reader(_make_safetensors, _read_safetensors),
    "tokenizer.json": Reader(_make_tokenizer("tokenizer.json"), _read_tokenizer),
    "tokenizer_config.json": Reader(_make_tokenizer("tokenizer_config.json"), _read_tokenizer),
    "chat template": Reader(_make_tokenizer("chat_template.jinja"), _read_tokenizer),
    "JSON lines": Reader(_lines("data.jsonl", *RECORDS), _read_documents),
    "JSON array": Reader(_json("data.json", RECORDS), _read_documents),
    "tokens": Reader(_make_tokens, _read_documents),
    "CSV": Reader(_text("data.csv", "text,other\none two,3\n'four',5\n"), _read_documents),
    "metrics.bin": Reader(_make_metrics, _read_metrics),
    "manifest": Reader(_make_checkpoint, _read_forged_checkpoint),
    "token cache": Reader(_json("tokens.json", {"version": 1}), lambda path: read_header(path.parent)),
    "status.json": Reader(_json("status.json", STATUS), _run_reader(read_status)),
    "events.jsonl": Reader(_lines("events.jsonl", EVENT, EVENT), _run_reader(read_events)),
    "control.jsonl": Reader(
        _lines("control.jsonl", COMMAND, COMMAND), _run_reader(lambda run: ControlReader(run).poll())
    ),
    "lanes.json": Reader(_json("lanes.json", LANES), _run_reader(read_lanes)),
    "plan.json": Reader(_json("plan.json", {"version": 1, "device": {"total": 1}}), _run_reader(read_plan)),
    "config.toml": Reader(
        _text("config.toml", PRESET), _run_reader(lambda run: (read_config(run), config_differences([run])))
    ),
}
