"""`python -m benchmarks.tokenizing`: text to token files, ours beside `datasets.map`, in one run.

Both tokenise the same JSON lines with the same byte-level BPE tokenizer, each time in a fresh process without a cache,
by turns. Ours is the whole of `prepare`: reading, tokenising, splitting, writing and checksumming. `datasets` is timed
for `map` alone (batched, its own worker processes): its reading of the JSON lines beforehand is not counted. Memory is
the largest sum of the proportional set sizes of the process and its children while it works.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

OURS, THEIRS = "workbench", "datasets.map"
_POLL_S = 0.05


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tokenizing", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--megabytes", type=int, default=100, help="size of the text")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is run")
    parser.add_argument(
        "--processes", type=int, default=2, help="num_proc of datasets.map; ours uses what it may"
    )
    parser.add_argument("--vocabulary", type=int, default=16_384, help="size of the tokenizer")
    parser.add_argument("--child", choices=(OURS, THEIRS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        work = _ours if options.child == OURS else _theirs
        print(json.dumps(work(options.folder, options.processes)))
        return
    with tempfile.TemporaryDirectory(prefix="workbench-tokenizing-") as folder:
        _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    small, large = options.megabytes // 4, options.megabytes
    for size in (small, large):
        _write_text(folder / f"{size}" / "text.jsonl", size * 1_000_000)
    _train(folder / f"{small}" / "text.jsonl", folder / "tokenizer", options.vocabulary)
    rates: dict[str, list[float]] = {OURS: [], THEIRS: []}
    peaks: dict[tuple[str, int], list[float]] = {}
    for turn in range(options.rounds):
        for contender in (OURS, THEIRS) if turn % 2 == 0 else (THEIRS, OURS):
            for size in (small, large) if turn == 0 else (large,):
                result, peak = _run(contender, folder / f"{size}", options)
                peaks.setdefault((contender, size), []).append(peak)
                rate = size / result["seconds"]
                if size == large:
                    rates[contender].append(rate)
                print(
                    f"round {turn + 1}  {contender:<13} {size:>5} MB  {rate:6.2f} MB/s  "
                    f"{result['cpu_seconds']:6.1f} s of CPU  peak {peak / 1e6:7,.0f} MB  {result['tokens']:,} tokens",
                    flush=True,
                )
    for contender in (OURS, THEIRS):
        small_peak, large_peak = (statistics.median(peaks[contender, size]) / 1e6 for size in (small, large))
        print(
            f"median   {contender:<13} {large:>5} MB  {statistics.median(rates[contender]):6.2f} MB/s  "
            f"peak {large_peak:7,.0f} MB ({small_peak:,.0f} MB for {small} MB of text)"
        )
    print(f"{OURS} / {THEIRS}: {statistics.median(rates[OURS]) / statistics.median(rates[THEIRS]):.2f}")


def _run(contender: str, folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """What the child says, and the most memory it had, in bytes."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        environment = {
            **os.environ,
            "WORKBENCH_CACHE": f"{cache}/workbench",
            "HF_HOME": f"{cache}/hf",
            "HF_HUB_OFFLINE": "1",
        }
        words = ["--child", contender, "--folder", str(folder), "--processes", str(options.processes)]
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tokenizing", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, _memory(child.pid))
            time.sleep(_POLL_S)
        assert child.stdout is not None
        if child.returncode:
            sys.exit(f"{contender} failed with exit code {child.returncode}")
        result: dict[str, Any] = json.loads(child.stdout.read().splitlines()[-1])
        return result, peak


def _cpu_seconds() -> float:
    """Of this process and of those of its children that have ended, in user and kernel."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _memory(pid: int) -> float:
    """Bytes of a process and its children, shared pages in shares."""
    total = 0.0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    except psutil.Error:
        return total
    return total


def _ours(folder: Path, processes: int) -> dict[str, Any]:
    from workbench.config import DataConfig
    from workbench.data.prepare import prepare

    config = DataConfig(
        source=str(folder / "text.jsonl"), tokenizer=str(folder.parent / "tokenizer"), sequence_length=128
    )
    _load_libraries(folder)
    began, cpu = time.perf_counter(), _cpu_seconds()
    data = prepare(config)
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu_seconds() - cpu}
    return {**spent, "tokens": len(data.train) + len(data.validation)}


def _theirs(folder: Path, processes: int) -> dict[str, Any]:
    import datasets

    tokenizer = _load_libraries(folder)
    rows = datasets.load_dataset("json", data_files=str(folder / "text.jsonl"), split="train")
    end = tokenizer.eos_token_id

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*one, end] for one in ids]}

    began, cpu = time.perf_counter(), _cpu_seconds()
    encoded = rows.map(encode, batched=True, num_proc=processes, remove_columns=rows.column_names)
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu_seconds() - cpu}
    values = encoded.data.column("input_ids").combine_chunks().values
    return {**spent, "tokens": len(values)}


def _load_libraries(folder: Path) -> Any:
    """The tokenizer, as both need it; importing it and torch is not what is measured."""
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    return AutoTokenizer.from_pretrained(str(folder.parent / "tokenizer"))


def _train(text: Path, folder: Path, size: int) -> None:
    from workbench.config import DataConfig
    from workbench.data.bpe_training import trained_tokenizer
    from workbench.data.sources import find_source

    os.environ["WORKBENCH_CACHE"] = str(folder.parent / "training")
    config = DataConfig(source=str(text), tokenizer=f"bpe:{size}")
    trained_tokenizer(config, find_source(config)).save_pretrained(folder)


def _write_text(path: Path, size: int) -> None:
    """JSON lines of the standard library's source, over and over, with other names in it each time."""
    path.parent.mkdir()
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for text in _texts(random.Random(1)):
            written += file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            if written >= size:
                return


def _texts(choose: random.Random) -> Iterator[str]:
    from workbench.data.sources import find_documents

    texts = [document.path.read_text(encoding="utf-8") for document in find_documents("stdlib")]
    words = sorted({word for text in texts[:100] for word in text.split() if word.isidentifier()})
    while True:
        names = {word: choose.choice(words) for word in choose.sample(words, len(words) // 5)}
        for text in texts:
            for begin in range(0, len(text), 4000):
                page = text[begin : begin + 4000]
                yield " ".join(names.get(word, word) for word in page.split(" "))


if __name__ == "__main__":
    main(sys.argv[1:])
