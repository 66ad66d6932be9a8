"""The offload engine: executes layout and timeline on real memory. A library of its own.

It works on any `torch.nn.Module` and needs no configuration file, screen or run directory; see `OffloadEngine`.
"""

from workbench.engine.lanes.execution import LaneError, Span
from workbench.engine.offload import OffloadEngine
from workbench.engine.steps.loss_scale import LossScaling
from workbench.engine.steps.report import NonFiniteGradientsError, StepReport, StepResult
from workbench.optimizer.settings import AdamW

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
