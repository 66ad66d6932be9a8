"""The machine profile: what a machine has and how fast it is, measured by `workbench probe` or written by hand.

A TOML file, the same for a measured machine (in the cache) and for a planned one (`described.py`).
Invariant: every rate is one that a machine may have, so that a plan's seconds are finite; and a profile says itself
whether it was measured or planned.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workbench.errors import ConfigurationError
from workbench.layout import MOMENTS, StateFormat
from workbench.system.foreign import parse_toml

Rate = Annotated[float, Field(ge=1, le=1e21)]
"""Bytes or operations a second."""
Nanoseconds = Annotated[float, Field(ge=1e-6, le=1e9)]
Ratio = Annotated[float, Field(ge=1, le=100)]
Bytes = Annotated[int, Field(ge=0, le=1 << 62)]
Dtype = Literal["float32", "bfloat16", "float16"]
Product = Literal[Dtype, "tf32"]
"""The dtypes of matrix products."""
ByThreads = tuple[Rate, ...]
"""One figure for each entry of `host.threads`."""
UPDATES = tuple(f"{dtype}-{state_format}" for dtype in get_args(Dtype) for state_format in MOMENTS)
"""Updates by the dtype of working weights and the format of the state."""
ATTENTION_BACKWARD = 2.5
"""Operations of fused attention's backward by those of its forward: five products of matrices, which were two."""
LONGEST_SHOWN = 60
"""Characters of a wrong value."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HostProfile(_Part):
    """The host: its cores, its memory (bytes), and rates by the number of threads.

    `free_bytes`: free for a run. `read`, `write` and `copy` are bytes a second (a copy of n bytes counts n).
    `optimizer_ns`: nanoseconds a parameter of an update, by "DTYPE-FORMAT" of working weights and state.
    `ahead_ratio`, `redo_ratio`: by format of the state, an update ahead of the verdict, and one that is undone and done
    again, of a plain one; without them the plan takes its own (see `plan/rates.py`).
    `norm`: bytes of gradients a second, by dtype. `accumulate`: bytes of fp32 sums a second, by the gradient's dtype.
    """

    cpu: str
    cores: Annotated[int, Field(ge=1)]
    memory_bytes: Bytes
    free_bytes: Bytes
    threads: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    read_bytes_per_s: ByThreads
    write_bytes_per_s: ByThreads
    copy_bytes_per_s: ByThreads
    optimizer_ns: Annotated[dict[str, tuple[Nanoseconds, ...]], Field(min_length=1)]
    ahead_ratio: dict[StateFormat, tuple[Ratio, ...]] = {}
    redo_ratio: dict[StateFormat, tuple[Ratio, ...]] = {}
    norm_bytes_per_s: dict[Dtype, ByThreads]
    accumulate_bytes_per_s: dict[Dtype, ByThreads]

    @model_validator(mode="after")
    def _as_many_as_threads(self) -> HostProfile:
        if list(self.threads) != sorted(set(self.threads)):
            raise ValueError("threads must rise")
        rows: dict[str, Sequence[float]] = {}
        for name, value in self:
            if name == "optimizer_ns" or name.endswith(("per_s", "ratio")):
                rows |= (
                    {f"{name}.{key}": r for key, r in value.items()}
                    if isinstance(value, dict)
                    else {name: value}
                )
        for name, row in rows.items():
            if len(row) != len(self.threads):
                raise ValueError(f"{name} has {len(row)} figures for {len(self.threads)} numbers of threads")
        return self

    @model_validator(mode="after")
    def _is_of_updates(self) -> HostProfile:
        for name in self.optimizer_ns:
            if name not in UPDATES:
                near = difflib.get_close_matches(name, UPDATES, n=1)
                raise ValueError(f"optimizer_ns.{name}: unknown update; {_did_you_mean(near, UPDATES)}")
        return self


class DeviceProfile(_Part):
    """The device that the model computes on. `shared_memory`: in the host's memory; then it has none of its own.

    `matrix_flops_per_s`: by dtype, of large products (a multiplication and an addition are two operations); "tf32"
    where the device can round fp32 to it.
    `attention_flops_per_s`: by dtype, of causal attention, forward and backward together, of the pairs of tokens that
    it looks at (Dao, FlashAttention-2, 2023, section 4); empty where it is not known.
    `memory_bytes_per_s`: what operations on elements read and write. `launch_s`: the least time of one operation.
    `has_bfloat16`: bf16 arithmetic runs in hardware; None: the matrix speeds decide.
    """

    name: str
    shared_memory: bool
    memory_bytes: Bytes = 0
    free_bytes: Bytes = 0
    matrix_flops_per_s: Annotated[dict[Product, Rate], Field(min_length=1)]
    attention_flops_per_s: dict[Dtype, Rate] = {}
    memory_bytes_per_s: Rate
    launch_s: Annotated[float, Field(gt=0, le=1)]
    has_bfloat16: bool | None = None

    @model_validator(mode="after")
    def _has_memory(self) -> DeviceProfile:
        if not self.shared_memory and not self.memory_bytes:
            raise ValueError("a device with memory of its own needs memory_bytes and free_bytes")
        return self


class LinkProfile(_Part):
    """Host to device (`up`) and back (`down`), bytes a second: one way alone, and each while the other runs too."""

    up_bytes_per_s: Rate
    down_bytes_per_s: Rate
    both_up_bytes_per_s: Rate
    both_down_bytes_per_s: Rate
    unpinned_up_bytes_per_s: Rate
    unpinned_down_bytes_per_s: Rate


class PeersProfile(_Part):
    """The GPUs that train together, at most `gpus` on a machine.

    `gpu_bytes_per_s`: what a GPU sends the others of its machine while it receives as much. `network_bytes_per_s`: what
    a machine sends others while it receives as much. `exchange_s`: the time of an exchange of a few bytes.
    """

    gpus: Annotated[int, Field(ge=1, le=4096)]
    gpu_bytes_per_s: Rate
    network_bytes_per_s: Rate
    exchange_s: Annotated[float, Field(gt=0, le=1)]


class DiskProfile(_Part):
    """A folder's disk with direct I/O, bytes a second.

    `checked_read` and `checked_write` are those of the disk tier, with its checksums; `both_read` and `both_write` too,
    each while the other runs, None where that is not known. `direct`: the page cache has no part in it.
    """

    path: str
    free_bytes: Bytes
    direct: bool
    read_bytes_per_s: Rate
    write_bytes_per_s: Rate
    checked_read_bytes_per_s: Rate
    checked_write_bytes_per_s: Rate
    both_read_bytes_per_s: Rate | None = None
    both_write_bytes_per_s: Rate | None = None


class MachineProfile(_Part):
    """A machine. `fingerprint`: equal as long as it is the machine that was measured. `measured_at`: a date, ISO 8601.

    `busy_cores`: cores that other programs kept busy while it was measured; 0 where that did not matter.
    """

    name: str
    source: Literal["measured", "planned"]
    measured_at: str = ""
    fingerprint: str = ""
    note: str = ""
    busy_cores: Annotated[float, Field(ge=0)] = 0.0
    host: HostProfile
    device: DeviceProfile
    link: LinkProfile | None = None
    disk: DiskProfile | None = None
    peers: PeersProfile | None = None

    @property
    def busy_warning(self) -> str:
        """A warning where the machine was measured while other programs kept it busy, else empty."""
        if not self.busy_cores:
            return ""
        return (
            f"Speeds were measured while other programs used {self.busy_cores:.1f} of {os.cpu_count()} cores. Run "
            "`workbench probe` when the machine is idle."
        )

    @model_validator(mode="after")
    def _has_a_link(self) -> MachineProfile:
        if not self.device.shared_memory and self.link is None:
            raise ValueError("a device with memory of its own needs a [link] table")
        return self


def parse_profile(text: str, source: str) -> MachineProfile:
    """Return the profile in the TOML `text`, which came from `source`.

    Raises:
        ConfigurationError: `text` is no TOML, or no profile; names the key, the value and what would be right.
    """
    try:
        document = parse_toml(text)
    except ValueError as error:  # also a number of more digits than Python converts
        raise ConfigurationError(f"{source}: is not TOML: {error}") from error
    try:
        return MachineProfile.model_validate(document)
    except ValidationError as error:
        problems = "\n".join(_sentences(error))
        raise ConfigurationError(f"{source}: is not a machine profile:\n{problems}") from error


def profile_text(profile: MachineProfile) -> str:
    """Return the profile as TOML; `parse_profile` reads it back."""
    import tomlkit

    text: str = tomlkit.dumps(_without_none(profile.model_dump(mode="json")))
    return text


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_none(each) for key, each in value.items() if each is not None}
    return value


def _sentences(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"] if part != "[key]"]
        right = problem["msg"].removeprefix("Value error, ")
        right = right[0].lower() + right[1:]
        shown = ""
        if problem["type"] == "missing":
            right = "is missing"
        elif not isinstance(problem["input"], dict):
            text = repr(problem["input"])
            shown = f" = {text}" if len(text) <= LONGEST_SHOWN else f" = {text[: LONGEST_SHOWN - 3]}..."
        if problem["type"] == "extra_forbidden":
            keys = list(_TABLES.get(path[0] if path[1:] else "", MachineProfile).model_fields)
            near = difflib.get_close_matches(path[-1], keys, n=1)
            right = f"there is no such key; {_did_you_mean(near, keys)}"
        yield f"  {'.'.join(path) or 'the profile'}{shown}: {right}"


def _did_you_mean(near: Sequence[str], names: Sequence[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


_TABLES: dict[str, type[_Part]] = {
    "host": HostProfile,
    "device": DeviceProfile,
    "link": LinkProfile,
    "disk": DiskProfile,
    "peers": PeersProfile,
}
