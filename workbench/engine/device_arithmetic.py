"""Norm, check and AdamW of state on a device of its own, in few calls of torch's functions over lists of tensors.

A whole model takes thirteen of them a step, however many parameters it has; four more for every further
`UPDATE_SCRATCH_BYTES` of 16-bit gradients in fp32, and one or two for every further learning rate. Nothing here waits
for the device: that a step is left out, and how far it is clipped, are decided there (`Verdict`), and the host reads
the norm later.

16-bit weights are copies of fp32 masters. torch's fused kernel takes gradients in the dtype of what it updates, so that
16-bit ones are made wide for it, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.engine.arithmetic import StateViews, TorchCopies
from workbench.engine.devices.device import Device
from workbench.optimizer import AdamW
from workbench.sizes import UPDATE_SCRATCH_BYTES

NORM_EPSILON = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6."""
STEP_NUMBERS = 4096


@dataclass(frozen=True)
class Verdict:
    """How an update on the device scales or skips its gradients, decided there: 0-D fp32 tensors.

    `left_out`: 1 where the step is, None where that was known before. `divisor`: what gradients are divided by, None
    for 1.
    """

    left_out: Tensor | None
    divisor: Tensor | None


class DeviceTable:
    """Pieces of state that are measured and updated together, with what changes from step to step.

    `norm`: of all gradients, 0-D; None where there are none. `read_norm` waits for it, once it was judged.
    """

    def __init__(self, views: Sequence[StateViews]) -> None:
        self.views = list(views)
        self.gradients: list[Tensor | None] = [None] * len(views)
        self.steps = [0] * len(views)
        self.norms: dict[int, Tensor] = {}
        self.norm: Tensor | None = None
        self.read_norm: Callable[[], float] = lambda: 0.0

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        self.gradients = [None if g is None else g.view(-1) for g in gradients]

    def release_gradients(self) -> None:
        self.gradients = [None] * len(self.views)

    def set_steps(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)

    def piece_partials(self, index: int) -> Tensor:
        return self.norms[index].view(1) if index in self.norms else torch.zeros(0)


class DeviceArithmetic(TorchCopies):
    """Works on the compute stream of `device`. Scratch memory is allocated while an update runs. `exact` only."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._numbers = torch.empty(0)
        self._first_number = 0

    def table(self, views: Sequence[StateViews]) -> DeviceTable:
        return DeviceTable(views)

    def move(self, table: DeviceTable, views: Sequence[StateViews]) -> None:
        table.views = list(views)

    @torch.no_grad()
    def sum_up(self, sums: list[Tensor], gradients: list[Tensor], *, overwrite: bool) -> None:
        """Add gradients to fp32 sums, or begin them."""
        if sums:
            (torch._foreach_copy_ if overwrite else torch._foreach_add_)(sums, gradients)

    # The check

    @torch.no_grad()
    def sum_of_squares(self, table: DeviceTable) -> None:
        """Find the norm of each gradient and of all, summed in float64.

        A CPU's sum of millions of squares in fp32 is wrong in the sixth digit, and infinite for gradients of 1e20.
        """
        table.norms, table.norm = {}, None
        dtypes = dict.fromkeys(g.dtype for g in table.gradients if g is not None)
        for dtype in dtypes:
            alike = {i: g for i, g in enumerate(table.gradients) if g is not None and g.dtype == dtype}
            norms = torch._foreach_norm(list(alike.values()), 2, torch.float64)
            table.norms.update(zip(alike, norms, strict=True))
        if table.norms:
            table.norm = torch.linalg.vector_norm(torch.stack(list(table.norms.values()))).float()

    @torch.no_grad()
    def judge(self, table: DeviceTable, unscale: float, clipping: float) -> Verdict:
        """Decide over all gradients by those of `table`: their mean is their sum times `unscale`, and is clipped to a
        norm of `clipping` where that is not 0."""
        norm = table.norm
        if norm is None:
            table.read_norm = lambda: 0.0
            return Verdict(None, None)
        table.read_norm = self._device.fetch(norm)
        left_out = torch.ne(norm - norm, 0, out=torch.empty_like(norm))  # inf - inf is not 0, nor is nan
        if not clipping:
            return Verdict(left_out, self._divisor(unscale))
        # max(1, (norm * unscale + epsilon) / clipping) / unscale
        over = torch.rsub(norm, NORM_EPSILON / (clipping * unscale), alpha=-1 / clipping)
        return Verdict(left_out, over.clamp_(min=1 / unscale))

    def _divisor(self, scale: float) -> Tensor | None:
        if scale == 1:
            return None
        return torch.full((), 1 / scale, dtype=torch.float32, device=self._device.torch_device)

    def read_partials(self, tables: Iterable[DeviceTable]) -> list[float]:
        """Return the square of each table's norm; waits for the device."""
        norms = [table.norm for table in tables if table.norm is not None]
        return [norm * norm for norm in torch.stack(norms).tolist()] if norms else []

    # The update

    def update(self, table: DeviceTable, settings: AdamW, gradient_scale: float) -> None:
        self.apply(table, settings, Verdict(None, self._divisor(gradient_scale)))

    def measure_and_update(self, table: DeviceTable, settings: AdamW, gradient_scale: float) -> bool:
        """Return False: nothing is written where a gradient is not finite, and the host does not know yet."""
        self.sum_of_squares(table)
        self.apply(table, settings, self.judge(table, gradient_scale, 0.0))
        return False

    @torch.no_grad()
    def apply(self, table: DeviceTable, settings: AdamW, verdict: Verdict) -> None:
        """Apply AdamW as `verdict` says, to all pieces that have a gradient."""
        for pieces in _groups(table):
            views = [table.views[i] for i in pieces]
            gradients = _in_fp32([g for i in pieces if (g := table.gradients[i]) is not None])
            steps = self._step_tensors([table.steps[i] for i in pieces])
            alike: dict[tuple[bool, float], list[int]] = {}
            for n, view in enumerate(views):
                decays = view.decay and settings.weight_decay != 0
                alike.setdefault((decays, view.learning_rate_scale), []).append(n)
            for (decays, factor), chosen in alike.items():
                _fused(
                    [views[n] for n in chosen],
                    [gradients[n] for n in chosen],
                    [steps[n] for n in chosen],
                    replace(
                        settings,
                        lr=settings.lr * factor,
                        weight_decay=settings.weight_decay if decays else 0.0,
                    ),
                    verdict,
                )
            working = [v.working for v in views if v.working is not None]
            if working:
                torch._foreach_copy_(working, [_master(v) for v in views if v.working is not None])

    def _step_tensors(self, steps: list[int]) -> list[Tensor]:
        """Return step counts on the device, where they lie for many steps to come: none has to be sent."""
        lowest, highest = min(steps), max(steps)
        if not self._first_number <= lowest <= highest < self._first_number + self._numbers.numel():
            count = max(STEP_NUMBERS, highest - lowest + 1)
            self._first_number = lowest
            self._numbers = torch.arange(
                lowest, lowest + count, dtype=torch.float32, device=self._device.torch_device
            )
        found = {step: self._numbers[step - self._first_number] for step in set(steps)}
        return [found[step] for step in steps]


def _groups(table: DeviceTable) -> Iterator[list[int]]:
    """Return the pieces that have a gradient, so many at a time as `UPDATE_SCRATCH_BYTES` allow."""
    group: list[int] = []
    used = 0
    for index, gradient in enumerate(table.gradients):
        if gradient is None:
            continue
        scratch = 0 if gradient.dtype == torch.float32 else 4 * gradient.numel()
        if group and used + scratch > UPDATE_SCRATCH_BYTES:
            yield group
            group, used = [], 0
        group.append(index)
        used += scratch
    if group:
        yield group


def _in_fp32(gradients: list[Tensor]) -> list[Tensor]:
    narrow = [n for n, gradient in enumerate(gradients) if gradient.dtype != torch.float32]
    if not narrow:
        return gradients
    sizes = [gradients[n].numel() for n in narrow]
    scratch = torch.empty(sum(sizes), dtype=torch.float32, device=gradients[0].device).split(sizes)
    torch._foreach_copy_(scratch, [gradients[n] for n in narrow])
    wide = list(gradients)
    for n, tensor in zip(narrow, scratch, strict=True):
        wide[n] = tensor
    return wide


def _fused(
    views: list[StateViews],
    gradients: list[Tensor],
    steps: list[Tensor],
    settings: AdamW,
    verdict: Verdict,
) -> None:
    """One call of the kernel behind torch.optim.AdamW(fused=True), or Adam: it overwrites gradients that it scales."""
    function = torch._fused_adam_ if settings.coupled_decay else torch._fused_adamw_
    function(
        [_master(view) for view in views],
        gradients,
        [view.exp_avg for view in views],
        [view.exp_avg_sq for view in views],
        [],
        steps,
        lr=settings.lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
        grad_scale=verdict.divisor,
        found_inf=verdict.left_out,
    )


def _master(view: StateViews) -> Tensor:
    assert view.master is not None, "state on a device of its own has whole masters"
    return view.master
