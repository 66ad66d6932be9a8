"""The reference trainer: plain torch, which the engine is held to. It knows nothing of units, chunks, lanes or tiers.

Weights are kept in full precision and updated by `torch.optim.AdamW` (or `Adam`), one tensor at a time; the model
reads them rounded to the precision that they are stored in. With a `delay_warmup` it is the AdamW of the one-step
delayed parameter update (Ren et al., ZeRO-Offload, 2021, §5.2): after so many steps, gradient t is applied only when
backward t+1, on the weights from before it, is over.

The same code runs in three ways: as the reference, in the engine's own precision; in float64, which tells how far
rounding alone carries the reference from the truth; and with moments rounded as a short state format rounds them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine import AdamW, LossScaling
from workbench.engine.blocks.discovery import SIXTEEN_BITS
from workbench.engine.non_finite import LARGEST_SCALE
from workbench.layout import BLOCK, StateFormat
from workbench.optimizer.reference import split_float32

SHAKEN_LOSS = 1.3


@dataclass(frozen=True)
class Recipe:
    """`steps`: for each its micro-batches, token ids int64 [batch, length]. `learning_rates`: of the updates,
    in order; a step that is left out takes none, as where torch's scheduler is not stepped after an overflow.

    `accumulation`: the most micro-batches a step has. `loss_factor`: every loss is multiplied by it. `delay_warmup`:
    None where updates are not delayed. `poisoned`: the steps (from 0) in which an infinity is put into a gradient,
    that of `poison` in the last micro-batch. `loss_scaling`: of fp16 weights.
    """

    steps: tuple[tuple[Tensor, ...], ...]
    settings: AdamW
    learning_rates: tuple[float, ...]
    accumulation: int
    gradient_clipping: float
    delay_warmup: int | None = None
    loss_factor: float = 1.0
    poison: str = ""
    poisoned: frozenset[int] = frozenset()
    loss_scaling: LossScaling = field(default_factory=LossScaling)

    def first(self, count: int) -> Recipe:
        """Return the recipe of the first `count` steps."""
        return replace(self, steps=self.steps[:count], learning_rates=self.learning_rates[:count])


@dataclass
class Outcome:
    """The result of a training; tensors are on the CPU, by parameter, in the parameter's shape.

    `losses`: of every micro-batch, before `loss_factor`. `norms`: of every step's mean gradient, before clipping.
    `skipped`, `loss_scales`: of every step. `masters`: weights in full precision. `counts`: updates by parameter.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    loss_scales: list[float] = field(default_factory=list)
    masters: dict[str, Tensor] = field(default_factory=dict)
    exp_avg: dict[str, Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Numbers:
    """The precisions of a plain training.

    `storage`: what the model's weights are rounded to. `compute`: what forward and backward run in. `state`: of
    full-precision weights and moments. `rounds_gradients`: a micro-batch's gradient passes through `storage`.
    `shake`: the relative error, drawn at random, of every weight that the model reads; backward then runs on a
    multiple of the loss, so that all its roundings are others. `noise_seed`: of what is drawn here.
    """

    storage: torch.dtype
    compute: torch.dtype
    state: torch.dtype = torch.float32
    rounds_gradients: bool = True
    shake: float = 0.0
    noise_seed: int = 7

    def exact(self) -> Numbers:
        """Return the truth beside it: float64, of weights rounded all the same."""
        return Numbers(self.storage, torch.float64, torch.float64, rounds_gradients=False)

    def shaken(self, seed: int = 1) -> Numbers:
        """Return the same with other rounding errors of the same size."""
        return replace(self, shake=torch.finfo(self.compute).eps / 2, noise_seed=seed)


def train_plain(
    start: nn.Module,
    recipe: Recipe,
    numbers: Numbers,
    device: torch.device,
    formats: dict[str, StateFormat] | None = None,
) -> Outcome:
    """Train a copy of `start`. `formats`: how each parameter's moments are kept, where not exact."""
    return _PlainTraining(start, recipe, numbers, device, formats or {}).run()


class _PlainTraining:
    def __init__(
        self,
        start: nn.Module,
        recipe: Recipe,
        numbers: Numbers,
        device: torch.device,
        formats: dict[str, StateFormat],
    ) -> None:
        self._recipe = recipe
        self._numbers = numbers
        self._device = device
        self._formats = formats
        self._model: Any = copy.deepcopy(start).to(device)
        self._read = dict(self._model.named_parameters())
        self._masters = {
            name: nn.Parameter(parameter.detach().to(device, numbers.state))
            for name, parameter in self._read.items()
            if parameter.requires_grad
        }
        # Beside a frozen base that is stored narrow, what is trained (an adapter) stays and computes in fp32.
        narrow = any(p.dtype in SIXTEEN_BITS for p in self._read.values())
        self._storage = torch.float32 if narrow else numbers.storage
        fewest = torch.float32 if narrow else numbers.compute
        self._compute = max(numbers.compute, fewest, key=lambda dtype: dtype.itemsize)
        for parameter in self._read.values():
            compute = self._compute if parameter.requires_grad else numbers.compute
            parameter.data = parameter.data.to(device, compute)
        self._optimizer = _optimizer(self._masters, recipe)
        scaling = recipe.loss_scaling
        self._scale = (scaling.fixed or scaling.initial) if numbers.storage == torch.float16 else 1.0
        self._patience = scaling.hysteresis
        self._step = self._last_overflow = 0
        self._outcome = Outcome()
        self._noise = torch.Generator().manual_seed(numbers.noise_seed)

    def run(self) -> Outcome:
        recipe, outcome = self._recipe, self._outcome
        pending: tuple[dict[str, Tensor], float] | None = None
        learning_rates = iter(recipe.learning_rates)
        for number, micro_batches in enumerate(recipe.steps):
            self._publish()
            gradients = self._gradients(number, micro_batches)
            norm = self._norm(gradients)
            finite = math.isfinite(norm)
            outcome.norms.append(norm)
            outcome.skipped.append(not finite)
            outcome.loss_scales.append(self._scale)
            if pending is not None:
                self._apply(*pending)
                pending = None
            if finite:
                fresh = self._clipped(gradients), next(learning_rates)
                if recipe.delay_warmup is None or number < recipe.delay_warmup:
                    self._apply(*fresh)
                else:
                    pending = fresh
            self._after(finite)
        if pending is not None:
            self._apply(*pending)
        self._conclude()
        return outcome

    def _publish(self) -> None:
        """Let the model read the newest weights, rounded."""
        for name, master in self._masters.items():
            weights = rounded(master.detach(), self._storage).to(self._compute)
            if self._numbers.shake:
                error = torch.randn(weights.shape, generator=self._noise).to(self._device)
                weights = (weights * (1 + self._numbers.shake * error)).to(weights.dtype)
            self._read[name].data = weights

    def _gradients(self, number: int, micro_batches: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the gradient of the mean loss over the step's tokens."""
        recipe, numbers = self._recipe, self._numbers
        sums: dict[str, Tensor] = {}
        scale = self._scale * (SHAKEN_LOSS if numbers.shake else 1.0)
        total = sum(map(counted_tokens, micro_batches))
        for micro, ids in enumerate(micro_batches):
            weight = counted_tokens(ids) / total
            spoils = number in recipe.poisoned and micro == len(micro_batches) - 1
            hook = self._read[recipe.poison].register_hook(infinite) if spoils else None
            seed_micro_batch(number, micro)
            loss = loss_of(self._model, ids.to(self._device))
            (loss * (recipe.loss_factor * weight * scale)).backward()
            if hook is not None:
                hook.remove()
            self._outcome.losses.append(float(loss.detach()))
            for name in self._masters:
                gradient = self._read[name].grad
                if gradient is None:
                    continue
                self._read[name].grad = None
                if numbers.rounds_gradients:
                    gradient = gradient.to(self._storage)
                gradient = gradient.to(numbers.state)
                sums[name] = gradient if name not in sums else sums[name] + gradient
        return {name: gradient / scale for name, gradient in sums.items()}

    @staticmethod
    def _norm(gradients: dict[str, Tensor]) -> float:
        return math.sqrt(math.fsum(float(g.double().square().sum()) for g in gradients.values()))

    def _clipped(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._recipe.gradient_clipping:
            for name, gradient in gradients.items():
                self._masters[name].grad = gradient
            named = [self._masters[name] for name in gradients]
            torch.nn.utils.clip_grad_norm_(named, self._recipe.gradient_clipping, foreach=False)
            self._optimizer.zero_grad()
        return gradients

    def _apply(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        for name, gradient in gradients.items():
            self._masters[name].grad = gradient
            self._outcome.counts[name] = self._outcome.counts.get(name, 0) + 1
        self._optimizer.step()
        self._optimizer.zero_grad()
        for name, kept in self._formats.items():
            state = self._optimizer.state.get(self._masters[name])
            if state and kept != "exact":
                for kind in ("exp_avg", "exp_avg_sq"):
                    state[kind].copy_(as_kept(kind, state[kind], kept, self._noise))

    def _after(self, finite: bool) -> None:
        """Lower or raise fp16's loss scale as `LossScaling` describes, counted as DeepSpeed's scaler counts."""
        scaling = self._recipe.loss_scaling
        self._step += 1
        if self._numbers.storage != torch.float16 or scaling.fixed:
            return
        if not finite:
            self._last_overflow = self._step
            if self._patience == 1:
                self._scale = max(scaling.minimum, self._scale / 2)
            else:
                self._patience -= 1
        elif (self._step - self._last_overflow) % scaling.window == 0:
            self._patience = scaling.hysteresis
            self._scale = min(LARGEST_SCALE, 2 * self._scale)

    def _conclude(self) -> None:
        outcome = self._outcome
        for name, master in self._masters.items():
            state = self._optimizer.state.get(master, {})
            outcome.masters[name] = master.detach().cpu()
            for kind, into in (("exp_avg", outcome.exp_avg), ("exp_avg_sq", outcome.exp_avg_sq)):
                into[name] = state[kind].cpu() if state else torch.zeros_like(outcome.masters[name])
            outcome.counts.setdefault(name, 0)


def seed_micro_batch(step: int, micro_batch: int) -> None:
    """Let dropout draw the same numbers in every training of a recipe."""
    torch.manual_seed(100_000 * (step + 1) + micro_batch)


def infinite(gradient: Tensor) -> Tensor:
    """Return the gradient with an infinity in it: a tensor hook."""
    spoilt = gradient.clone()
    spoilt.view(-1)[0] = float("inf")
    return spoilt


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Return the model's own mean loss of [batch, length] token ids; all but the first of each row count."""
    loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def counted_tokens(ids: Tensor) -> int:
    """Return the number of tokens that `loss_of` is the mean of."""
    return int(ids.shape[0] * (ids.shape[1] - 1))


def rounded(values: Tensor, storage: torch.dtype) -> Tensor:
    """Return full-precision weights as they are stored: bf16 by the split that loses nothing, see `split_float32`."""
    if storage == torch.bfloat16:
        return split_float32(values.float())[0].view(values.shape)
    return values.to(storage)


def as_kept(kind: str, moment: Tensor, state_format: StateFormat, noise: torch.Generator) -> Tensor:
    """Return a moment as a short format keeps it, rounded at random; see `workbench.layout`."""
    if state_format == "half":
        random = torch.randint(1 << 16, moment.shape, generator=noise).to(moment.device)
        bits = moment.float().contiguous().view(torch.int32).long() + random
        return (bits & ~0xFFFF).to(torch.int32).view(torch.float32).to(moment.dtype)
    largest = 127 if kind == "exp_avg" else 255
    flat = moment.reshape(-1)
    blocks = nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / largest**2
    roots = (blocks.abs() / scales).sqrt().nan_to_num(0.0)
    random = torch.rand(roots.shape, generator=noise, dtype=torch.float32).to(roots)
    codes = (roots + random).floor().clamp(0 if kind == "exp_avg" else 1, largest)
    return (codes.square() * scales).copysign(blocks).view(-1)[: flat.numel()].view(moment.shape)


def _optimizer(masters: dict[str, nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """Return torch's own, with a group for each weight decay and scale of the learning rate."""
    settings = recipe.settings
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in masters.items():
        decay = settings.weight_decay if settings.decays(name, parameter.dim()) else 0.0
        members.setdefault((decay, settings.learning_rate_scale(name)), []).append(parameter)
    groups = [
        {"params": each, "weight_decay": decay, "scale": scale} for (decay, scale), each in members.items()
    ]
    make: Callable[..., torch.optim.Optimizer]
    make = torch.optim.Adam if settings.coupled_decay else torch.optim.AdamW
    return make(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, foreach=False)
