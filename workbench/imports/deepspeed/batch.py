"""The batch sizes: DeepSpeed's rule of the three, on one GPU.

`train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x GPUs`; two give the third by floor
division, and the product is checked. A file that was written for more GPUs breaks the rule on one: it is refused with
the numbers that would hold, for which batch is meant is for its owner to say.
"""

from __future__ import annotations

from workbench.imports.findings import AUTO, Findings

TOTAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
_KEYS = (TOTAL, MICRO, ACCUMULATION)
_FIELDS = {MICRO: "train.micro_batch_size", ACCUMULATION: "train.gradient_accumulation"}
_WORDS = {MICRO: "sequences that go through the model at once", ACCUMULATION: "micro-batches before one step"}


def read_batch(found: Findings) -> None:
    """Judge the three keys and set the two fields."""
    given = {key: found.whole(key) for key in _KEYS}
    sizes = {key: value for key, value in given.items() if isinstance(value, int)}
    for key, size in sizes.items():
        if size < 1:
            found.refuse(key, "must be at least 1")
    if any(found.is_refused(key) and sizes.get(key, 0) < 1 for key in _KEYS):
        for key in _KEYS:
            found.judge(key, "meaningless here", "the sizes of the batch are not worked out: one is refused")
        return
    total, micro, accumulation = (sizes.get(key) for key in _KEYS)
    autos = [key for key in _KEYS if given[key] is AUTO]
    if list(sizes) == [ACCUMULATION] and not autos:
        found.refuse(ACCUMULATION, f"says nothing without {TOTAL} or {MICRO}; add one of them")
        return
    for key in (MICRO, ACCUMULATION):
        if key in sizes:
            found.put(_FIELDS[key], sizes[key], key, _WORDS[key], "used")
    if total is not None and micro is not None and accumulation is not None:
        if micro * accumulation == total:
            found.judge(TOTAL, "used", f"{micro} x {accumulation}, as it must be on one GPU")
        else:
            found.refuse(TOTAL, _why_broken(total, micro, accumulation))
        return
    if accumulation is None and (total is None or micro is None):
        accumulation = 1
        why = f"{', '.join(sizes)} alone is given" if sizes else "no batch size is given"
        _derive(found, ACCUMULATION, 1, why, autos)
    if total is not None:
        _divide(found, total, micro, accumulation, autos)
        return
    if micro is None:
        _derive(found, MICRO, None, "Workbench's default", autos)
        micro = found.settings[_FIELDS[MICRO]].value
    if TOTAL in autos:
        product = micro * (accumulation or 1)
        found.judge(TOTAL, "mapped", f'"auto" becomes {product}, micro-batch x accumulation on one GPU')


def _derive(found: Findings, key: str, value: int | None, why: str, autos: list[str]) -> None:
    """Set the field of a key that is not given, or is "auto"."""
    if key in autos:
        found.auto(_FIELDS[key], key, why, value)
    else:
        found.fill(_FIELDS[key], key, why, value)


def _divide(
    found: Findings, total: int, micro: int | None, accumulation: int | None, autos: list[str]
) -> None:
    """Set the one of the two sizes that is not given from the total and the other."""
    key, part = (MICRO, accumulation) if micro is None else (ACCUMULATION, micro)
    assert part is not None
    quotient, rest = divmod(total, part)
    if rest:
        parts = f"in {part} micro-batches" if micro is None else f"of micro-batches of {part}"
        near = f"{total - rest} or {total - rest + part}" if quotient else str(part)
        found.refuse(TOTAL, f"cannot be made {parts}; {near} can")
        found.judge(key, "meaningless here", f"{TOTAL} is refused")
        return
    found.put(_FIELDS[key], quotient, TOTAL, f"{total} / {part}: {_WORDS[key]}")
    if key in autos and not found.is_refused(TOTAL):
        found.auto(_FIELDS[key], key, f"{total} / {part}", quotient)


def _why_broken(total: int, micro: int, accumulation: int) -> str:
    product = micro * accumulation
    gpus, rest = divmod(total, product)
    if rest or gpus < 2:
        return f"is not {micro} x {accumulation} = {product}; leave one of the three out"
    keep = f"leave {TOTAL} out"
    if not total % micro:
        keep = f"leave {ACCUMULATION} out to keep this total, or {TOTAL} to keep {product} sequences a step"
    return (
        f"was written for {gpus} GPUs ({total} = {micro} x {accumulation} x {gpus}), and here is one; {keep}; to "
        f"train on as many, leave {TOTAL} out and add --set parallel.gpus={gpus}"
    )
