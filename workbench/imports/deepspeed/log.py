"""What is told while training: steps_per_print and TensorBoard become [log]."""

from __future__ import annotations

from workbench.imports.findings import AUTO, Auto, Findings

KEYS = ("steps_per_print", "tensorboard.enabled")


def read_logging(found: Findings) -> None:
    """Judge the keys and set [log]."""
    key = "steps_per_print"
    member = found.get(key)
    if member is not None and isinstance(member.value, float) and member.value == float("inf"):
        found.judge(
            key, "meaningless here", "never: a progress line for every step is the least that log.every says"
        )
    else:
        steps = found.whole(key)
        if steps is AUTO:
            found.auto("log.every", key)
        elif steps is not None and not isinstance(steps, Auto):
            found.put("log.every", steps, key, "steps between progress lines")
    if (
        isinstance(found.members.get(("tensorboard",), (0, 0))[1], dict)
        and found.switch("tensorboard.enabled") is True
    ):
        found.put(
            "log.tensorboard", True, "tensorboard.enabled", "metrics are also written as TensorBoard events"
        )
    else:
        found.judge(
            "tensorboard.enabled", "meaningless here", "no events are written, as nothing else is said"
        )
