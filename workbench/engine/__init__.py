"""The offload engine: executes layout and timeline on real memory. A library of its own.

It works on any `torch.nn.Module` and needs no configuration file, screen or run directory; see `OffloadEngine`.
"""

from workbench.engine.execution import LaneError, Span
from workbench.engine.non_finite import LossScaling
from workbench.engine.offload import OffloadEngine
from workbench.engine.report import NonFiniteGradientsError, StepReport, StepResult
from workbench.optimizer import AdamW

__all__ = [
    "AdamW",
    "LaneError",
    "LossScaling",
    "NonFiniteGradientsError",
    "OffloadEngine",
    "Span",
    "StepReport",
    "StepResult",
]
