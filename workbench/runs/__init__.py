"""The run directory: the one interface between the trainer, the command line and the screen.

Every schema in it is owned here. It imports neither torch nor the configuration. Invariant: a reader at any moment,
also after a crash, sees whole things; it gets what is there and a sentence about what is wrong, never an exception.
"""

from workbench.runs.control import Command, ControlReader, send_control
from workbench.runs.directory import RunDirectory
from workbench.runs.finding import find_run
from workbench.runs.log import LogTee
from workbench.runs.metrics import (
    METRIC_COLUMNS,
    Column,
    Metrics,
    MetricsReader,
    MetricsWriter,
    read_metrics,
    read_run_metrics,
    record_resume,
)
from workbench.runs.records import (
    Event,
    Lanes,
    LaneSpan,
    append_event,
    read_events,
    read_lanes,
    read_plan,
    write_config,
    write_lanes,
    write_plan,
    write_sample,
)
from workbench.runs.status import ACTIVE, RESUMABLE, Liveness, Status, liveness, read_status, write_status
from workbench.system.folders import runs_root

__all__ = [
    "ACTIVE",
    "METRIC_COLUMNS",
    "RESUMABLE",
    "Column",
    "Command",
    "ControlReader",
    "Event",
    "LaneSpan",
    "Lanes",
    "Liveness",
    "LogTee",
    "Metrics",
    "MetricsReader",
    "MetricsWriter",
    "RunDirectory",
    "Status",
    "append_event",
    "find_run",
    "liveness",
    "read_events",
    "read_lanes",
    "read_metrics",
    "read_plan",
    "read_run_metrics",
    "read_status",
    "record_resume",
    "runs_root",
    "send_control",
    "write_config",
    "write_lanes",
    "write_plan",
    "write_sample",
    "write_status",
]
