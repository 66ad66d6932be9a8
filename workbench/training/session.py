"""One training session in this process: allocate, resume if asked, train, and record how it ended.

Invariant: however it ends, the run directory says so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from workbench.config import RunConfig, to_toml
from workbench.config.schema import TrainConfig
from workbench.engine import OffloadEngine
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.errors import EXIT_DONE, EXIT_ERROR, DivergedError, WorkbenchError
from workbench.formatting import decimal_bytes
from workbench.monitor.recording import SystemRecording
from workbench.optimizer import MissingExtensionWarning, missing_extension
from workbench.plan.outcome import compare
from workbench.runs import RunDirectory, read_run_metrics, record_resume, write_config, write_plan
from workbench.runs.checkpoints import (
    Damage,
    DamagedFileError,
    NotResumableError,
    open_checkpoint,
    step_folders,
)
from workbench.sizes import Breakdown
from workbench.system.numa import cores_beside, node_of_device
from workbench.system.processor import usable_cpus
from workbench.training.checkpoints.load import load_state
from workbench.training.checkpoints.save import Removal, remove_leftovers, set_aside_after
from workbench.training.failures import EngineFailedError, explain
from workbench.training.journal import Journal
from workbench.training.measurements import SKIPPED_FIRST_STEPS, forget_peak, peak_host_bytes
from workbench.training.prepare import Prepared, check_extension, engine_options
from workbench.training.ranks import ONE_RANK, RunRanks, lost_rank
from workbench.training.resume_check import changed_settings, resume_line
from workbench.training.signals import Requests, StopBeforeTraining
from workbench.training.trainer import Trainer, seed_everything


def train_session(
    run: RunDirectory,
    prepared: Prepared,
    requests: Requests,
    *,
    resuming: bool,
    ranks: RunRanks = ONE_RANK,
) -> int:
    """Train `run`, which this process has acquired, and return the exit code. A rank other than the first has a folder
    of its own for `run`.

    Raises:
        WorkbenchError: the run could not go on; the run directory already says why.
        StopBeforeTraining: it was stopped before its first step; likewise.
    """
    config = prepared.config
    with Journal(run, config.train.steps, trackers=() if ranks.rank else config.log.tracker) as journal:
        plan: dict[str, Any] = prepared.plan.as_dict()
        try:
            if not resuming:
                write_plan(run, plan)
            forget_peak()
            recorded = contextlib.nullcontext() if ranks.rank else _recorded(run, prepared, journal)
            with recorded:
                code, steps, memory, early = _train(
                    run, config, prepared, requests, journal, ranks, resuming=resuming
                )
            plan["measured"] = {**_measured(run, prepared), "engine": memory}
            write_plan(run, plan)
            for row in compare(plan):
                print(row.text(), flush=True)
        except StopBeforeTraining as stop:
            journal.end("stopped", stop.exit_code, str(stop))
            raise
        except WorkbenchError as error:
            phase = "diverged" if isinstance(error, DivergedError) else "failed"
            journal.end(phase, error.exit_code, str(error))
            if isinstance(error, EngineFailedError):
                _log_traceback(run, error)
            raise
        except BaseException as error:
            journal.end("failed", EXIT_ERROR, f"{type(error).__name__}: {error}")
            _log_traceback(run, error)
            raise
        if code == EXIT_DONE and early:
            why = f"no lower validation loss in {config.evaluate.patience} evaluations (evaluate.patience)"
            print(f"ended after step {steps}: {why}", flush=True)
            journal.end("finished", code, f"ended after step {steps} of {config.train.steps}: {why}")
        elif code == EXIT_DONE:
            journal.end("finished", code, f"{config.train.steps} steps")
        else:
            journal.end("stopped", code, f"stopped after step {steps} of {config.train.steps} and saved")
        return code


def _recorded(run: RunDirectory, prepared: Prepared, journal: Journal) -> SystemRecording:
    """Return the recording of this machine into `system.bin`."""
    where = prepared.device.torch_device
    # CUDA counts the GPUs that it may see, the driver all of them: only the UUID means the same to both.
    gpu = str(torch.cuda.get_device_properties(where).uuid) if where.type == "cuda" else None
    disk_path = prepared.config.offload.disk_path
    folders = (run.path, Path(disk_path)) if disk_path else (run.path,)
    return SystemRecording(run, gpu=gpu, folders=folders, warn=journal.warn)


def _train(
    run: RunDirectory,
    config: RunConfig,
    prepared: Prepared,
    requests: Requests,
    journal: Journal,
    ranks: RunRanks,
    *,
    resuming: bool,
) -> tuple[int, int, Breakdown, bool]:
    """Return the exit code, the steps done, what the engine held at the end, and whether it ended early."""
    choose_kernels(config.train)
    if not ranks.rank:
        remove_leftovers(run.checkpoints)
    journal.phase("allocating")
    seed_everything(config.train.seed + ranks.rank)
    check_extension(config)
    missing = missing_extension()
    if missing is not None:
        journal.warn(f"{missing}; until then torch's fused AdamW is used, which is slower")
        warnings.simplefilter("ignore", MissingExtensionWarning)
    engine: OffloadEngine | None = None
    try:
        with _engine(config, prepared, journal, ranks) as engine, Removal() as removal:
            trainer = Trainer(
                config, prepared.model, engine, prepared.data, journal, requests, removal, ranks=ranks
            )
            if resuming:
                resume_from_checkpoint(run, engine, trainer, journal, ranks)
                # Only now: settings that do not fit the saved state must not hinder a later attempt.
                write_config(run, to_toml(config))
                write_plan(run, prepared.plan.as_dict())
            code = trainer.train()
            _report_disk_wear(engine, journal)
            return code, trainer.step, engine.memory(), trainer.ended_early
    except Exception as error:
        ranks.leave(error)
        lost = lost_rank(error, run, ranks)
        if isinstance(error, WorkbenchError) and not lost:
            raise
        failure = explain(error, None if engine is None else engine.memory(), run.checkpoints, lost)
        if failure is None:
            raise
        raise failure from error


def choose_kernels(train: TrainConfig) -> None:
    """Set what torch multiplies with on a GPU, before its first product."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if train.tf32 else "ieee"
    if train.deterministic:
        # cuBLAS is deterministic only with a workspace of fixed size, which it reads before its first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _report_disk_wear(engine: OffloadEngine, journal: Journal) -> None:
    """Report how much a day the disk tier is written, for comparison with the drive's rated endurance."""
    per_day = engine.disk_written_per_day()
    if per_day:
        journal.event("disk", written_per_day=per_day)
        print(
            f"disk tier: {decimal_bytes(per_day)} written a day at this rate; a drive lasts its rated TB written "
            f"divided by this, in days",
            flush=True,
        )


def _log_traceback(run: RunDirectory, error: BaseException) -> None:
    with contextlib.suppress(OSError), run.log.open("a", encoding="utf-8") as log:
        traceback.print_exception(error, file=log)


def _engine(config: RunConfig, prepared: Prepared, journal: Journal, ranks: RunRanks) -> OffloadEngine:
    units = len(find_units(prepared.model))
    done = 0

    def materialize(unit: FoundUnit) -> None:
        nonlocal done
        done += 1
        journal.progress(f"unit {done} of {units}")
        prepared.weights(unit)

    plan = prepared.plan
    options = engine_options(
        config,
        device=prepared.device,
        all_gradients_wait=plan.all_gradients_wait,
        speculation=plan.speculation,
    )
    if ranks.local_size > 1:
        bound = _bind_to_node(prepared, ranks)
        if options["threads"] == "auto":
            options["threads"] = max(1, usable_cpus() // (1 if bound else ranks.local_size))
    # The most that a micro-batch can have: weights above 1 could overflow in fp16.
    tokens = config.train.micro_batch_size * (config.data.sequence_length - 1)
    return OffloadEngine(prepared.model, **options, micro_batch_tokens=tokens, materialize=materialize)


def _bind_to_node(prepared: Prepared, ranks: RunRanks) -> bool:
    """Let this process run on its part of the cores beside its GPU, and return whether it does: not where a node has
    no rank, so that its cores would be idle.

    Its memory comes from there as well: Linux takes it from the node of who touches it first.
    """
    where, node = prepared.device.torch_device, None
    if where.type == "cuda":
        gpu: Any = torch.cuda.get_device_properties(where)
        node = node_of_device(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0")
    told = ranks.tell([socket.gethostname(), node])
    here = [rank for rank, (host, _) in enumerate(told) if host == told[ranks.rank][0]]
    cores = cores_beside([told[rank][1] for rank in here], here.index(ranks.rank), os.sched_getaffinity(0))
    if cores:
        os.sched_setaffinity(0, cores)
    return bool(cores)


def resume_from_checkpoint(
    run: RunDirectory,
    engine: OffloadEngine,
    trainer: Trainer,
    journal: Journal,
    ranks: RunRanks = ONE_RANK,
) -> None:
    """Load the newest checkpoint that is whole; without any, the run begins again at its first step."""
    journal.phase("loading")
    damaged: list[Damage] = []
    for path in reversed(step_folders(run.checkpoints)):
        saved = None
        try:
            saved = open_checkpoint(path)
            converted = load_state(saved, engine, ranks)
        except DamagedFileError as error:
            damaged.append(Damage(path, error, saved))
            continue
        for damage in damaged:
            journal.warn(f"a damaged checkpoint is skipped: {damage.line()}")
        progress = saved.manifest.progress
        trainer.restore(progress)
        if not ranks.rank:
            set_aside_after(run.checkpoints, saved.step)
        changed = changed_settings(progress.settings, trainer.settings())
        fields: dict[str, Any] = {"changed": changed, "converted": converted} if changed or converted else {}
        record_resume(run, journal.metrics, from_step=saved.step + 1, checkpoint=saved.path.name, **fields)
        print(resume_line(saved.path.name, changed, converted), flush=True)
        return
    if damaged:
        raise NotResumableError(run, damaged)
    record_resume(run, journal.metrics, from_step=1, checkpoint=None)
    print("no checkpoint was saved yet: starting again at the first step", flush=True)


def _measured(run: RunDirectory, prepared: Prepared) -> dict[str, Any]:
    """Return the measured figures for comparison with the plan: peaks in bytes, the median of the steps' seconds."""
    measured: dict[str, Any] = {"host_peak_bytes": peak_host_bytes()}
    device = prepared.device.memory_bytes()
    if device is not None:
        measured["device_peak_bytes"] = device[0]
    metrics = read_run_metrics(run)
    seconds, tokens = list(metrics.column("step_s")), list(metrics.column("tokens"))
    if seconds:
        # The first steps of a run touch memory for the first time.
        steady = seconds[SKIPPED_FIRST_STEPS:] or seconds
        measured["step_s"] = statistics.median(steady)
        measured["tokens_per_s"] = statistics.median(tokens) / measured["step_s"]
    return measured
