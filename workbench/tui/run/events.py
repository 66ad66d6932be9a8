"""What has happened in a run, in words: its events, and what the screen itself has noticed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workbench.formatting import known
from workbench.runs import Event

Band = Literal["", "good", "warning", "bad"]


@dataclass(frozen=True)
class RunEvent:
    """One line of the list of events."""

    time: float
    """Unix seconds."""
    kind: str
    text: str
    band: Band = ""


def run_event_of(event: Event) -> RunEvent | None:
    """The event in words; None for what the status line tells already, and for kinds that are not known."""
    said = _SAID.get(event.kind)
    if said is None:
        return None
    text, band = said(event.fields)
    return RunEvent(event.time, event.kind.replace("_", " "), text, band)


def clock(at: float) -> str:
    """Local date and time; "-" for what no calendar has."""
    try:
        return time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "-"


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return known(float(value)) if isinstance(value, (int, float)) else None


def _step(fields: Mapping[str, Any]) -> str:
    step = _number(fields, "step")
    return "" if step is None else f"step {step:,.0f}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _evaluation(fields: Mapping[str, Any]) -> tuple[str, Band]:
    loss, perplexity = _number(fields, "loss"), _number(fields, "perplexity")
    took = _number(fields, "seconds")
    return (
        _joined(
            _step(fields),
            "validation loss N/A" if loss is None else f"validation loss {loss:.4f}",
            "" if perplexity is None else f"perplexity {perplexity:.4g}",
            "" if took is None else f"in {took:.1f} s",
        ),
        "",
    )


def _checkpoint(fields: Mapping[str, Any]) -> tuple[str, Band]:
    took = _number(fields, "seconds")
    return _joined(
        _step(fields), f"saved {fields.get('path', '')}", "" if took is None else f"in {took:.1f} s"
    ), "good"


def _sample(fields: Mapping[str, Any]) -> tuple[str, Band]:
    return _joined(_step(fields), f"text in {fields.get('path', 'samples')}"), ""


def _warning(fields: Mapping[str, Any]) -> tuple[str, Band]:
    return str(fields.get("message", "")), "warning"


def _loss_scale(fields: Mapping[str, Any]) -> tuple[str, Band]:
    scale = _number(fields, "scale")
    return _joined(_step(fields), "loss scale N/A" if scale is None else f"loss scale {scale:g}"), ""


def _disk(fields: Mapping[str, Any]) -> tuple[str, Band]:
    written = _number(fields, "written_per_day")
    rate = "N/A" if written is None else f"{written / 1e12:,.2f} TB"
    return f"the disk tier is written {rate} a day at this rate", ""


def _control(fields: Mapping[str, Any]) -> tuple[str, Band]:
    return _joined(str(fields.get("verb", "")), str(fields.get("message", ""))), ""


def _resume(fields: Mapping[str, Any]) -> tuple[str, Band]:
    step = _number(fields, "from_step")
    return f"goes on from step {'N/A' if step is None else f'{step:,.0f}'}", "good"


def _finished(fields: Mapping[str, Any]) -> tuple[str, Band]:
    code = _number(fields, "exit_code")
    phase = str(fields.get("phase", "ended"))
    band: Band = "good" if code == 0 else "warning" if phase == "stopped" else "bad"
    return _joined(
        phase, str(fields.get("message", "")), "" if code is None else f"exit code {code:.0f}"
    ), band


_SAID = {
    "evaluation": _evaluation,
    "checkpoint": _checkpoint,
    "sample": _sample,
    "warning": _warning,
    "loss_scale": _loss_scale,
    "disk": _disk,
    "control": _control,
    "resume": _resume,
    "finished": _finished,
}
