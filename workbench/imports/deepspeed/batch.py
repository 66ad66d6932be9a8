"""The batch sizes: DeepSpeed's rule of the three, on one GPU.

`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x GPUs`; two give the third by floor
division, and the product is checked. Where there is one GPU, a file that was written for more breaks the rule: it is
refused with the numbers that would hold, for which batch is meant is for its owner to say.
"""

from __future__ import annotations

from workbench.imports.findings import AUTO, Findings

TOTAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
KEYS = (TOTAL, MICRO, ACCUMULATION)

_MICRO_FIELD = "train.micro_batch_size"
_ACCUMULATION_FIELD = "train.gradient_accumulation"


def read_batch(found: Findings) -> None:
    """Judge the three keys and set the two fields."""
    said = {key: found.whole(key) for key in KEYS}
    autos = [key for key in KEYS if said[key] is AUTO]
    sizes = {key: value for key, value in said.items() if isinstance(value, int)}
    for key, size in sizes.items():
        if size < 1:
            found.refuse(key, "must be at least 1")
    if any(found.is_refused(key) and sizes.get(key, 0) < 1 for key in KEYS):
        for key in KEYS:
            if not found.is_refused(key):
                found.judge(
                    key, "meaningless here", "the sizes of the batch are not worked out: one is refused"
                )
        return
    total, micro, accumulation = (sizes.get(key) for key in KEYS)
    if total is not None:
        _with_total(found, total, micro, accumulation, autos)
    elif micro is not None:
        _take(found, micro=micro)
        if accumulation is not None:
            _take(found, accumulation=accumulation)
        else:
            _one_accumulation(found, autos, f"{MICRO} alone is given")
        _auto_total(found, autos, micro * (accumulation or 1))
    elif autos or accumulation is None:
        _without_sizes(found, accumulation, autos)
    else:
        found.refuse(ACCUMULATION, f"says nothing without {TOTAL} or {MICRO}; add one of them")


def _with_total(
    found: Findings, total: int, micro: int | None, accumulation: int | None, autos: list[str]
) -> None:
    if micro is not None and accumulation is not None:
        if micro * accumulation != total:
            found.refuse(TOTAL, _broken(total, micro, accumulation))
            _take(found, micro=micro, accumulation=accumulation)
            return
        _take(found, micro=micro, accumulation=accumulation)
        found.judge(TOTAL, "used", f"{micro} x {accumulation}, as it must be on one GPU")
    elif micro is not None:
        steps = total // micro
        _take(found, micro=micro)
        if steps * micro != total:
            found.refuse(TOTAL, f"cannot be made of micro-batches of {micro}; {_near(total, micro)} can")
            found.judge(ACCUMULATION, "meaningless here", f"{TOTAL} is refused")
            return
        reason = f"{total} / {micro} micro-batches a step"
        found.put(_ACCUMULATION_FIELD, steps, TOTAL, reason)
        if ACCUMULATION in autos:
            found.auto(_ACCUMULATION_FIELD, ACCUMULATION, f"{TOTAL} / {MICRO}", steps)
    else:
        sequences = total // (accumulation or 1)
        if accumulation is None:
            _one_accumulation(found, autos, f"of the sizes, {TOTAL} alone is given")
        else:
            _take(found, accumulation=accumulation)
        if sequences * (accumulation or 1) != total:
            found.refuse(
                TOTAL,
                f"cannot be made in {accumulation} micro-batches; {_near(total, accumulation or 1)} can",
            )
            found.judge(MICRO, "meaningless here", f"{TOTAL} is refused")
            return
        found.put(
            _MICRO_FIELD, sequences, TOTAL, f"{total} / {accumulation or 1} sequences at once, on one GPU"
        )
        if MICRO in autos and not found.is_refused(TOTAL):
            found.auto(_MICRO_FIELD, MICRO, f"{TOTAL} / {ACCUMULATION}", sequences)


def _without_sizes(found: Findings, accumulation: int | None, autos: list[str]) -> None:
    """Neither the whole batch nor the micro-batch is a number."""
    if MICRO in autos:
        found.auto(_MICRO_FIELD, MICRO)
    else:
        found.fill(_MICRO_FIELD, MICRO, "no batch size is given, so it is Workbench's default")
    if accumulation is None:
        _one_accumulation(found, autos, "no batch size is given")
    else:
        _take(found, accumulation=accumulation)
    micro = found.settings[_MICRO_FIELD].value
    _auto_total(found, autos, micro * (accumulation or 1))


def _take(found: Findings, micro: int | None = None, accumulation: int | None = None) -> None:
    if micro is not None:
        found.put(_MICRO_FIELD, micro, MICRO, "sequences that go through the model at once", "used")
    if accumulation is not None:
        found.put(_ACCUMULATION_FIELD, accumulation, ACCUMULATION, "micro-batches before one step", "used")


def _one_accumulation(found: Findings, autos: list[str], why: str) -> None:
    if ACCUMULATION in autos:
        found.auto(_ACCUMULATION_FIELD, ACCUMULATION, why, 1)
    else:
        found.fill(_ACCUMULATION_FIELD, ACCUMULATION, why, 1)


def _auto_total(found: Findings, autos: list[str], total: int) -> None:
    if TOTAL in autos:
        found.judge(TOTAL, "mapped", f'"auto" becomes {total}, micro-batch x accumulation on one GPU')


def _broken(total: int, micro: int, accumulation: int) -> str:
    product = micro * accumulation
    gpus, rest = divmod(total, product)
    if not rest and gpus > 1:
        keep = (
            f"leave {ACCUMULATION} out to keep this total, or {TOTAL} to keep {product} sequences a step"
            if not total % micro
            else f"leave {TOTAL} out"
        )
        return f"was written for {gpus} GPUs ({total} = {micro} x {accumulation} x {gpus}), and here is one; {keep}"
    return f"is not {micro} x {accumulation} = {product}; leave one of the three out"


def _near(total: int, part: int) -> str:
    """The multiples of `part` around `total`, in words."""
    below = total // part * part
    return f"{below} or {below + part}" if below else str(part)
