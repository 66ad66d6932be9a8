"""`HostAdamW`: the native host optimizer where `torch.optim.AdamW` stands, for parameters on the CPU.

It is the face for programs that have a model and its gradients in tensors; the engine, which moves both, uses
`host.py` itself. What an entry of the state holds, and conversions of it, are in state_conversion.py.

Invariant: C keeps addresses. Before each step everything that may have been replaced since the last one (parameters,
their storage, dtype, state) is compared with what the table of a group was made of, and a table that does not fit is
made anew from `param_groups` and `state`, which are all the truth there is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.layout import MOMENTS, StateFormat
from workbench.optimizer.group_table import Group, GroupTable, place_of, settings_of
from workbench.optimizer.host import HostOptimizer
from workbench.optimizer.pieces import GRADIENT_TYPES
from workbench.optimizer.state_conversion import Entry, fitted_entry, fresh_entry, packed_entry

__all__ = ["HostAdamW"]

REFUSED = ("amsgrad", "maximize")


class HostAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019) on threads of its own, with `torch.optim.AdamW`'s arguments and behaviour.

    Parameters are contiguous float32, bfloat16 or float16 tensors on the CPU; gradients may be of any of these
    dtypes. A float32 parameter is its own master. 16-bit ones have a float32 master, so that small updates add up:
    in bfloat16 the parameter is the upper half of the master and the state keeps only the lower half (2 bytes a
    parameter instead of 4). float16 is not the upper half of a float32, so there the state keeps a whole master.

    With `state_format="exact"` the moments are float32 and have the bits of `torch.optim.AdamW(foreach=False)`; `half`
    and `compact` keep them in 4 and about 2 bytes a parameter (see layout.py). A parameter group may have a
    `state_format` of its own: "exact" is advisable for embeddings. With `coupled_decay`, `weight_decay` is that of
    `torch.optim.Adam`. `threads` is as in `HostOptimizer`.

    `state_dict()` in `exact` and `half` can be loaded into `torch.optim.AdamW`, `exact_state_dict()` in every format,
    and `load_state_dict` takes what either has saved, in any format, and converts it. The master of 16-bit parameters
    travels as `master`, in float32; torch ignores it. Loading copies.

    Whatever writes to a 16-bit parameter between steps is followed, except in place through `.data`, of which torch
    keeps no trace: then a float16 parameter returns to its master, and a bfloat16 one set to zero may become NaN.
    State tensors are replaced by `load_state_dict`, not one by one in `state`.

    Raises `ValueError` for settings out of range, for `amsgrad` and `maximize`, and for a parameter that does not fit,
    which it names by its place. Copies and pickles have threads of their own, and no hooks, as in torch.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        coupled_decay: bool = False,
        state_format: StateFormat = "exact",
        threads: int | Literal["auto"] = "auto",
    ) -> None:
        self._tables: dict[int, GroupTable] = {}
        self._host = HostOptimizer(threads)
        self._coupled_decay = coupled_decay
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": not coupled_decay,  # for torch's own optimizers, which read it when they load
            "state_format": state_format,
        }
        super().__init__(params, defaults)
        self._tables_of = self._state_identity()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient, and return what `closure`, called first, returns.

        Raises `ValueError` for a sparse gradient and for one that does not fit its parameter. Gradients are not
        checked for infinities and NaN.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._tables_of != self._state_identity():
            self._tables.clear()
        for number, group in enumerate(self.param_groups):
            parameters = group["params"]
            gradients = [parameter.grad for parameter in parameters]
            if True not in [gradient is not None for gradient in gradients]:
                continue
            table = self._tables.get(number)
            if table is None or not table.fits(parameters, gradients):
                table = self._tables[number] = self._table(number, group, gradients)
            table.update(self._host, group, gradients)
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """As in torch; raises `ValueError`, and adds nothing, where the group cannot be updated."""
        super().add_param_group(param_group)
        try:
            self._check_group(len(self.param_groups) - 1, self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with the state in its format. Moments are not copied, float32 masters may be."""
        return self._packed(exact=False)

    def exact_state_dict(self) -> dict[str, Any]:
        """`state_dict()` with float32 moments, whatever the format: `torch.optim.AdamW` can load it."""
        return self._packed(exact=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of this class, of `torch.optim.AdamW` or of `torch.optim.Adam`.

        It is converted to this optimizer's formats, to the nearest. What kind of decay there is and the formats
        are the optimizer's own. Parameters are not touched. Raises `ValueError`, and changes nothing, where the
        state does not fit or was made with `amsgrad` or `maximize`.
        """
        # torch would cast the state to the dtypes of the parameters.
        with self.register_load_state_dict_pre_hook(_hide_entries):
            super().load_state_dict(state_dict)

    def close(self) -> None:
        """End the threads. Another step raises `RuntimeError`; the state can still be read."""
        self._tables.clear()
        self._host.close()

    def __getstate__(self) -> dict[str, Any]:
        # The step counts of a group are views of one tensor, which pickle would save once for each.
        state = {
            parameter: {**entry, "step": entry["step"].clone()}
            for parameter, entry in self.state.items()
            if entry
        }
        return {
            **super().__getstate__(),
            "state": defaultdict(dict, state),
            "_coupled_decay": self._coupled_decay,
            "threads": self._host.threads,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by pickle and copy, and by torch's `load_state_dict`, there with `state` and `param_groups` only."""
        state = dict(state)
        if "defaults" in state:
            self._host = HostOptimizer(state.pop("threads"))
        else:
            self._adopt(state)
        super().__setstate__(state)
        self._tables = {}
        self._tables_of = self._state_identity()

    def _adopt(self, loaded: dict[str, Any]) -> None:
        """Fit a loaded state to this optimizer, in place."""
        state: defaultdict[Tensor, Entry] = defaultdict(dict)
        for number, (own, group) in enumerate(zip(self.param_groups, loaded["param_groups"], strict=True)):
            group["state_format"] = own["state_format"]
            group["decoupled_weight_decay"] = own["decoupled_weight_decay"]
            self._check_group(number, group)
            for index, parameter in enumerate(group["params"]):
                hidden = loaded["state"].get(parameter)
                if hidden is None or not hidden.entry:
                    continue
                copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in hidden.entry.items()}
                try:
                    state[parameter] = fitted_entry(parameter, copied, own["state_format"], self._host)
                except ValueError as error:
                    raise ValueError(
                        f"the state of {place_of(number, index)} does not fit: {error}"
                    ) from None
        loaded["state"] = state

    def _packed(self, *, exact: bool) -> dict[str, Any]:
        def pack(_: torch.optim.Optimizer, packed: dict[str, Any]) -> None:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            packed["state"] = {
                index: packed_entry(parameters[index], entry, self._host, exact=exact) if entry else {}
                for index, entry in packed["state"].items()
            }
            for group in packed["param_groups"]:
                del group["state_format"]  # the entries say it

        # Before the hooks of others, which shall see what is saved.
        with self.register_state_dict_post_hook(pack, prepend=True):
            packed: dict[str, Any] = super().state_dict()
        return packed

    def _table(self, number: int, group: Group, gradients: list[Tensor | None]) -> GroupTable:
        """The table of a group, and whatever state its parameters lack to be updated."""
        self._check_group(number, group)
        entries: dict[int, Entry] = {}
        for index, (parameter, gradient) in enumerate(zip(group["params"], gradients, strict=True)):
            entry = self.state.get(parameter)
            if not entry and gradient is None:
                continue
            try:
                if entry:
                    fitted = fitted_entry(parameter, entry, group["state_format"], self._host)
                else:
                    fitted = fresh_entry(parameter, group["state_format"], self._host)
            except ValueError as error:
                raise ValueError(f"the state of {place_of(number, index)} does not fit: {error}") from None
            entries[index] = self.state[parameter] = fitted
        self._tables_of = self._state_identity()
        before = sum(len(other["params"]) for other in self.param_groups[:number])
        return GroupTable(number, group, entries, before, coupled_decay=self._coupled_decay)

    def _state_identity(self) -> tuple[int, int]:
        """Changes where somebody replaced or emptied `state`."""
        return id(self.state), len(self.state)

    def _check_group(self, number: int, group: Group) -> None:
        """Raise `ValueError` where a group cannot be updated as it is."""
        for name in REFUSED:
            if group.get(name):
                raise ValueError(f"parameter group {number} has {name}=True, which HostAdamW does not offer")
        if group["state_format"] not in MOMENTS:
            raise ValueError(
                f"state_format must be one of {', '.join(MOMENTS)}, not {group['state_format']!r}"
            )
        settings_of(group, self._coupled_decay)
        places: dict[int, int] = {}
        for index, parameter in enumerate(group["params"]):
            place = place_of(number, index)
            if not parameter.is_cpu:
                raise ValueError(f"{place} must be on the CPU, not on {parameter.device}")
            if parameter.dtype not in GRADIENT_TYPES:
                raise ValueError(f"{place} must be float32, bfloat16 or float16, not {parameter.dtype}")
            if parameter.layout is not torch.strided or not parameter.is_contiguous():
                raise ValueError(f"{place} must be contiguous: give its parameter .contiguous() data")
            other = places.setdefault(parameter.data_ptr(), index)
            if other != index and parameter.numel():
                raise ValueError(f"{place} is in the same memory as parameter {other}: list it once")


class _Hidden:
    """An entry of a loaded state, which torch passes on as it is because it is neither tensor nor container."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry


def _hide_entries(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    return {**state_dict, "state": {key: _Hidden(entry) for key, entry in state_dict["state"].items()}}
