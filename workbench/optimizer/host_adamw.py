"""`HostAdamW`: the native host optimizer in the place of `torch.optim.AdamW`, for parameters on the CPU.

It is for programs that have a model and its gradients in tensors; the engine, which moves both, uses `host.py` itself.

Invariant: C keeps addresses. Before each step the parameters' addresses and dtypes and the identity of their entries in
`state` are compared with those that a group's table was made of, and a table that does not fit is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from workbench.layout import MOMENTS, StateFormat
from workbench.optimizer import AdamW
from workbench.optimizer.host import GRADIENT_TYPES, HostOptimizer, Piece, PieceTable
from workbench.optimizer.state_conversion import (
    CODES,
    SCALES,
    Entry,
    expanded_moments,
    fitted_moments,
    format_of,
    state_key,
)

__all__ = ["HostAdamW"]

Group = dict[str, Any]
OWN_KEYS = {"step", *CODES, *CODES.values(), *SCALES, "low", "master"}


class HostAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019) on threads of its own, with `torch.optim.AdamW`'s arguments and behaviour.

    Parameters are contiguous float32, bfloat16 or float16 tensors on the CPU; gradients may be of any of these
    dtypes. A float32 parameter is its own master. 16-bit ones have a float32 master, so that small updates add up:
    in bfloat16 the parameter is the upper half of the master and the state keeps only the lower half (2 bytes a
    parameter instead of 4). float16 is not the upper half of a float32, so there the state keeps a whole master.

    With `state_format="exact"` the moments are float32 and have the bits of `torch.optim.AdamW(foreach=False)`; `half`
    and `compact` keep them in 4 and about 2 bytes a parameter. A parameter group may have a `state_format` of its own:
    "exact" is advisable for embeddings. With `coupled_decay`, `weight_decay` is that of `torch.optim.Adam`. `threads`
    is as in `HostOptimizer`.

    `state_dict()` in `exact` and `half` can be loaded into `torch.optim.AdamW`, `exact_state_dict()` in every format,
    and `load_state_dict` takes either, in any format, and converts it. The master of 16-bit parameters travels as
    `master`, in float32; torch ignores it. Loading copies.

    A 16-bit parameter that something else writes to between steps is followed, except in place through `.data`, of
    which torch keeps no trace.

    Raises `ValueError` for settings out of range, for `amsgrad` and `maximize`, and for a parameter that does not fit,
    which it names by its place.
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
        self._tables: dict[int, _GroupTable] = {}
        self._tables_of = (0, 0)
        self._host = HostOptimizer(threads)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": not coupled_decay,  # for torch's own optimizers, which read it when they load
            "state_format": state_format,
        }
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient, and return what `closure`, called first, returns.

        Raises `ValueError` for a sparse gradient, for one that does not fit its parameter, and for a group whose
        `amsgrad` or `maximize` was set since. Gradients are not
        checked for infinities and NaN.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = 0
        if self._tables_of != (id(self.state), len(self.state)):  # somebody replaced or emptied the state
            self._tables.clear()
        for number, group in enumerate(self.param_groups):
            _check_is_offered(number, group)
            gradients = [parameter.grad for parameter in group["params"]]
            indices = [index for index, gradient in enumerate(gradients) if gradient is not None]
            if indices:
                table = self._tables.get(number)
                if table is None or not table.fits(group, indices):
                    table = self._tables[number] = self._table(number, group, indices, first)
                table.update(self._host, _settings(group), [g for g in gradients if g is not None])
            first += len(group["params"])
        self._tables_of = (id(self.state), len(self.state))
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does; raise `ValueError`, and add nothing, where the group cannot be updated."""
        super().add_param_group(param_group)
        try:
            _check_group(len(self.param_groups) - 1, self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, in its own format. Moments are not copied, float32 masters may be."""
        return self._packed(exact=False)

    def exact_state_dict(self) -> dict[str, Any]:
        """Return `state_dict()` with float32 moments in every format: `torch.optim.AdamW` can load it."""
        return self._packed(exact=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of this class, of `torch.optim.AdamW` or of `torch.optim.Adam`.

        It is converted to this optimizer's formats, to the nearest. The kind of decay and the formats are the
        optimizer's own. Parameters are not touched. Raises `ValueError`, and changes nothing, where the state does not
        fit or was made with `amsgrad` or `maximize`. Hooks on loading see the groups alone.
        """
        state: dict[Tensor, Entry] = {}
        own = [(g["state_format"], g["decoupled_weight_decay"]) for g in self.param_groups]
        for number, (group, saved) in enumerate(
            zip(self.param_groups, state_dict["param_groups"], strict=False)
        ):
            _check_group(number, {**saved, "params": group["params"], "state_format": group["state_format"]})
            for index, (parameter, key) in enumerate(zip(group["params"], saved["params"], strict=False)):
                entry = state_dict["state"].get(key)
                if entry:
                    copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in entry.items()}
                    with _named(f"the state of {_place(number, index)} does not fit"):
                        state[parameter] = self._fitted(parameter, copied, group["state_format"])
        self._tables.clear()
        # Without the state, which torch would cast to the dtypes of the parameters.
        super().load_state_dict({**state_dict, "state": {}})
        for group, (state_format, decoupled) in zip(self.param_groups, own, strict=True):
            group.update(state_format=state_format, decoupled_weight_decay=decoupled)
        self.state.update(state)

    def close(self) -> None:
        """End the threads. Another step raises `RuntimeError`; the state can still be read."""
        self._tables.clear()
        self._host.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a HostAdamW has threads and cannot be copied or pickled: save its state_dict()")

    def _packed(self, *, exact: bool) -> dict[str, Any]:
        packed: dict[str, Any] = super().state_dict()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, entry in packed["state"].items():
            copied: Entry = {**entry, "step": entry["step"].clone()}
            if exact:
                copied = {k: v for k, v in copied.items() if k not in (*CODES.values(), *SCALES)}
                copied |= expanded_moments(entry)
            low = copied.pop("low", None)
            if low is not None:
                # The low half means nothing without the very parameter that it was split from.
                copied["master"] = torch.empty(low.shape, dtype=torch.float32, device="cpu")
                self._host.join(parameters[index].detach(), low, copied["master"])
            packed["state"][index] = copied
        return packed

    def _table(self, number: int, group: Group, indices: list[int], first_stream: int) -> _GroupTable:
        """Return the table of a group's parameters with gradients, whose state is made or fitted."""
        _check_group(number, group)
        places = {}
        for index in indices:
            parameter, entry = group["params"][index], self.state.get(group["params"][index])
            with _named(f"the state of {_place(number, index)} does not fit"):
                fitted = self._fitted(
                    parameter, entry or _fresh_entry(parameter, group), group["state_format"]
                )
            self.state[parameter] = fitted
            places[index] = (first_stream + index, parameter, fitted)
        return _GroupTable(number, places)

    def _fitted(self, parameter: Tensor, entry: Entry, state_format: StateFormat) -> Entry:
        """Return the entry as a parameter of this dtype needs it in this format. Tensors that fit are not copied.

        A master is used for 16-bit parameters, and only in float32: `torch.optim.AdamW` carries it along rounded, and
        does not update it. Where there is none, the parameter's value is its master.
        """
        fitted: Entry = {key: value for key, value in entry.items() if key not in OWN_KEYS}
        if "step" not in entry:
            raise ValueError("it has no step: it is not an AdamW state")
        fitted["step"] = torch.as_tensor(entry["step"], dtype=torch.float32, device="cpu").reshape(())
        fitted.update(fitted_moments(parameter, entry, state_format))
        master = entry.get("master")
        if not isinstance(master, Tensor) or master.dtype is not torch.float32:
            master = parameter.detach().float()
        elif master.shape != parameter.shape:
            raise ValueError(
                f"master has the shape {tuple(master.shape)}, the parameter {tuple(parameter.shape)}"
            )
        if parameter.dtype is torch.float16:
            fitted["master"] = master.to(device="cpu").contiguous()
        elif parameter.dtype is torch.bfloat16 and "low" in entry:
            fitted["low"] = entry["low"]
        elif parameter.dtype is torch.bfloat16:
            fitted["low"] = torch.empty(parameter.shape, dtype=torch.int16, device="cpu")
            high = torch.empty(parameter.shape, dtype=torch.bfloat16, device="cpu")
            self._host.split(master.to(device="cpu").contiguous(), high, fitted["low"])
        return fitted


class _GroupTable:
    """The parameters of a group that have a gradient, as pieces of one native call.

    `places`: by index in the group, each parameter with its random stream and its entry in the state.
    """

    def __init__(self, number: int, places: dict[int, tuple[int, Tensor, Entry]]) -> None:
        self._number = number
        self._indices = list(places)
        self._parameters = [parameter for _, parameter, _ in places.values()]
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]
        self._dtypes = [parameter.dtype for parameter in self._parameters]
        self._table = PieceTable([_piece(*place) for place in places.values()])
        entries = [entry for _, _, entry in places.values()]
        self._steps = torch.stack([entry["step"] for entry in entries])
        for entry, step in zip(entries, self._steps, strict=True):
            entry["step"] = (
                step  # views of one tensor: adding to each on its own takes longer than small updates
            )
        self._narrow = [(p, entry) for _, p, entry in places.values() if p.dtype is not torch.float32]
        self._versions: list[int] = []  # of the narrow parameters, after the last step

    def fits(self, group: Group, indices: list[int]) -> bool:
        """Return whether these are the table's parameters, and lie where they lay."""
        # Lists, not generators: this is paid in every step for every parameter.
        if indices != self._indices:
            return False
        listed = group["params"]
        parameters = listed if len(indices) == len(listed) else [listed[index] for index in indices]
        return (
            self._addresses == [parameter.data_ptr() for parameter in parameters]
            and self._dtypes == [parameter.dtype for parameter in parameters]
            and False not in [parameter.is_contiguous() for parameter in parameters]
        )

    def update(self, host: HostOptimizer, settings: AdamW, gradients: list[Tensor]) -> None:
        """Take one step by `gradients`, one for each parameter."""
        if self._versions != [parameter._version for parameter, _ in self._narrow]:
            with torch.no_grad():
                for parameter, entry in self._narrow:
                    _follow(parameter, entry)
        try:
            self._set_gradients(gradients)
            self._table.steps.copy_(self._steps + 1)
            host.update(self._table, settings)
        finally:
            self._table.release_gradients()
        self._steps.add_(1)
        # As torch's own operations do: otherwise a backward pass through the old values would not be refused.
        increment_version(self._parameters)
        self._versions = [parameter._version for parameter, _ in self._narrow]

    def _set_gradients(self, gradients: list[Tensor]) -> None:
        try:
            self._table.set_gradients(gradients)
        except ValueError:  # look at each, to bring it in order or to name it
            for piece, (index, gradient) in enumerate(zip(self._indices, gradients, strict=True)):
                with _named(f"the gradient of {_place(self._number, index)} does not fit"):
                    self._table.set_gradient(piece, gradient if gradient.is_sparse else gradient.contiguous())


@contextmanager
def _named(words: str) -> Iterator[None]:
    """Put `words` before the message of a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{words}: {error}") from None


def _place(group: int, index: int) -> str:
    return f"parameter {index} of group {group}"


def _settings(group: Group) -> AdamW:
    """Return a group's numbers; raise `ValueError` naming one that is wrong or missing."""
    missing = {"lr", "betas", "eps", "weight_decay"} - group.keys()
    if missing:
        raise ValueError(f"a parameter group has no {min(missing)}: it is not a group of AdamW")
    beta1, beta2 = group["betas"]
    coupled = not group.get("decoupled_weight_decay", True)
    numbers = (
        float(group["lr"]),
        (float(beta1), float(beta2)),
        float(group["eps"]),
        float(group["weight_decay"]),
    )
    return AdamW(*numbers, coupled_decay=coupled)


def _check_is_offered(number: int, group: Group) -> None:
    for name in ("amsgrad", "maximize"):
        if group.get(name):
            raise ValueError(f"parameter group {number} has {name}=True, which HostAdamW does not support")


def _check_group(number: int, group: Group) -> None:
    """Raise `ValueError` where a group cannot be updated as it is."""
    _check_is_offered(number, group)
    if group["state_format"] not in MOMENTS:
        raise ValueError(f"state_format must be one of {', '.join(MOMENTS)}, not {group['state_format']!r}")
    _settings(group)
    seen: dict[int, int] = {}
    for index, parameter in enumerate(group["params"]):
        place = _place(number, index)
        if not parameter.is_cpu:
            raise ValueError(f"{place} must be on the CPU, not on {parameter.device}")
        if parameter.dtype not in GRADIENT_TYPES:
            raise ValueError(f"{place} must be float32, bfloat16 or float16, not {parameter.dtype}")
        if parameter.layout is not torch.strided or not parameter.is_contiguous():
            raise ValueError(f"{place} must be contiguous: give its parameter .contiguous() data")
        other = seen.setdefault(parameter.data_ptr(), index)
        if other != index and parameter.numel():
            raise ValueError(f"{place} shares memory with parameter {other}: list it once")


def _fresh_entry(parameter: Tensor, group: Group) -> Entry:
    """Return the entry before a parameter's first step."""
    entry: Entry = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
    for tensor in MOMENTS[group["state_format"]]:
        shape = parameter.shape if tensor.elements == 1 else (tensor.count(parameter.numel()),)
        dtype = getattr(torch, tensor.dtype)
        entry[state_key(tensor.kind, group["state_format"])] = torch.zeros(shape, dtype=dtype, device="cpu")
    return entry


def _piece(random_stream: int, parameter: Tensor, entry: Entry) -> Piece:
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


def _follow(parameter: Tensor, entry: Entry) -> None:
    """Make a 16-bit parameter's master agree with it, after something else than an update may have written to it.

    A float16 parameter's elements that are not their master rounded replace it. A bfloat16 parameter is its master's
    upper half, so the master follows by itself, within the rounding; only where the lower half of a former value
    would make something else of a zero or an infinity is it dropped.
    """
    value = parameter.detach()
    if value.dtype is torch.bfloat16:
        low: Tensor = entry["low"]
        low.masked_fill_(((value == 0) & (low < 0)) | value.isinf(), 0)
    else:
        master: Tensor = entry["master"]
        torch.where(master.to(value.dtype) == value, master, value.float(), out=master)
