"""What C is told of one parameter group of `HostAdamW`, and the step that it takes.

It holds no truth: parameters, settings and state are the optimizer's, and a table that no longer fits them is thrown
away. Invariant: C never gets an address that has not been compared with its tensor since the last step.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from workbench.layout import MOMENTS
from workbench.optimizer import AdamW
from workbench.optimizer.host import HostOptimizer
from workbench.optimizer.pieces import GRADIENT_TYPES, Piece, PieceTable
from workbench.optimizer.state_conversion import Entry, follow_parameter, format_of, state_key

Group = dict[str, Any]
ONE = torch.ones((), device="cpu")  # adding a Python number costs torch more


def place_of(group: int, index: int) -> str:
    """A parameter's place, for messages."""
    return f"parameter {index} of group {group}"


def settings_of(group: Group, coupled_decay: bool) -> AdamW:
    """A group's numbers, checked; `ValueError` names the one that is wrong or missing."""
    missing = {"lr", "betas", "eps", "weight_decay"} - group.keys()
    if missing:
        raise ValueError(f"a parameter group has no {sorted(missing)[0]}: it is not a group of AdamW")
    return AdamW(*_numbers(group), coupled_decay=coupled_decay)


class GroupTable:
    """The parameters of a group that have state, as pieces of one native call.

    `entries` maps a parameter's index in the group to its entry, fitted to it; their `step` becomes a view of one
    tensor for all. `first_stream` is the random stream of the group's first parameter.
    """

    def __init__(
        self, number: int, group: Group, entries: dict[int, Entry], first_stream: int, *, coupled_decay: bool
    ) -> None:
        parameters = group["params"]
        self._number = number
        self._coupled_decay = coupled_decay
        self._places = list(entries)
        self._waiting = [index for index in range(len(parameters)) if index not in entries]
        pieces = [_piece(parameters[index], entry, first_stream + index) for index, entry in entries.items()]
        self._table = PieceTable(pieces)
        self._counts = [piece.count for piece in pieces]
        self._steps = torch.stack([entry["step"] for entry in entries.values()])
        for entry, step in zip(entries.values(), self._steps, strict=True):
            entry["step"] = step
        self._addresses = [parameter.data_ptr() for parameter in parameters]
        self._dtypes = [parameter.dtype for parameter in parameters]
        self._narrow = [
            (parameters[index], entry)
            for index, entry in entries.items()
            if parameters[index].dtype is not torch.float32
        ]
        self._versions: list[int] = []  # of the narrow parameters, after the last step
        self._numbers: tuple[Any, ...] = ()
        self._settings = AdamW()

    def fits(self, parameters: list[Tensor], gradients: list[Tensor | None]) -> bool:
        """Whether the parameters lie where they lay, and those with a gradient are in the table."""
        # Lists, not generators: this is paid in every step for every parameter.
        return (
            self._addresses == [parameter.data_ptr() for parameter in parameters]
            and self._dtypes == [parameter.dtype for parameter in parameters]
            and False not in [parameter.is_contiguous() for parameter in parameters]
            and True not in [gradients[index] is not None for index in self._waiting]
        )

    def update(self, host: HostOptimizer, group: Group, gradients: list[Tensor | None]) -> None:
        """One step. `gradients` are those of all the group's parameters; None leaves one untouched."""
        numbers = _numbers(group)
        if numbers != self._numbers:
            self._settings = settings_of(group, self._coupled_decay)
            self._numbers = numbers
        self._follow_parameters()
        parameters = group["params"]
        if self._waiting:
            parameters = [parameters[index] for index in self._places]
            gradients = [gradients[index] for index in self._places]
        given = [gradient is not None for gradient in gradients]
        counted = ONE
        if False in given:
            counted = torch.tensor(given, dtype=torch.float32, device="cpu")
            parameters = list(itertools.compress(parameters, given))
        try:
            self._set_gradients(gradients)
            self._steps.add_(counted)
            self._table.steps.copy_(self._steps)
            try:
                host.update(self._table, self._settings)
            except BaseException:
                self._steps.sub_(counted)
                raise
        finally:
            self._table.release_gradients()
        # As torch's own operations do: otherwise a backward pass through the old values would not be refused.
        increment_version(parameters)
        self._versions = [parameter._version for parameter, _ in self._narrow]

    def _follow_parameters(self) -> None:
        if self._versions != [parameter._version for parameter, _ in self._narrow]:
            with torch.no_grad():
                for parameter, entry in self._narrow:
                    follow_parameter(parameter, entry)

    def _set_gradients(self, gradients: list[Tensor | None]) -> None:
        try:
            self._table.set_gradients(gradients)
        except ValueError:
            self._table.set_gradients([self._readable(i, gradient) for i, gradient in enumerate(gradients)])

    def _readable(self, piece: int, gradient: Tensor | None) -> Tensor | None:
        """The gradient as C can read it, or `ValueError`."""
        if gradient is None:
            return None
        place = place_of(self._number, self._places[piece])
        if gradient.layout is not torch.strided:
            raise ValueError(f"the gradient of {place} is sparse, which HostAdamW does not offer")
        if not gradient.is_cpu or gradient.dtype not in GRADIENT_TYPES:
            raise ValueError(
                f"the gradient of {place} must be float32, bfloat16 or float16 on the CPU, "
                f"not {gradient.dtype} on {gradient.device}"
            )
        if gradient.numel() != self._counts[piece]:
            raise ValueError(
                f"the gradient of {place} has {gradient.numel()} elements, the parameter {self._counts[piece]}"
            )
        return gradient.contiguous()


def _numbers(group: Group) -> tuple[float, tuple[float, float], float, float]:
    beta1, beta2 = group["betas"]
    return float(group["lr"]), (float(beta1), float(beta2)), float(group["eps"]), float(group["weight_decay"])


def _piece(parameter: Tensor, entry: Entry, random_stream: int) -> Piece:
    value = parameter.detach().view(-1)
    state_format = format_of(entry)
    assert state_format is not None, "the entry is fitted"
    tensors = {t.kind: entry[state_key(t.kind, state_format)].view(-1) for t in MOMENTS[state_format]}
    if value.dtype is torch.bfloat16:
        tensors |= {"high": value, "low": entry["low"].view(-1)}
    elif value.dtype is torch.float16:
        tensors |= {"master": entry["master"].view(-1), "emit": value}
    else:
        tensors["master"] = value
    return Piece(**tensors, state_format=state_format, random_stream=random_stream)
