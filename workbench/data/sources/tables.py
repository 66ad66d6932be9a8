"""Tables as records: parquet files, and datasets of the hub through the datasets library.

Both libraries come with the extra [data] and are imported when a table is met. Invariant: nothing is unpickled: of the
formats that the datasets library reads, those that are programs or pickles are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.data.parts import HubPart, ParquetPart, part_bytes
from workbench.data.quiet_hub import quiet_hub
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub

_ROWS_AT_ONCE = 256
_READERS = ("arrow", "csv", "json", "parquet", "text", "xml")
"""The formats of a hub dataset that are data and nothing else."""


def parquet_parts(path: Path) -> Iterator[ParquetPart]:
    """A part for each row group of a parquet file. Raises ConfigurationError where it cannot be read."""
    metadata = _parquet(path).metadata
    first = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows:
            yield ParquetPart(path, index, first, max(1, group.total_byte_size))
        first += group.num_rows


def parquet_rows(part: ParquetPart) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a row group, each with its place in words."""
    import pyarrow

    row = part.first_row
    try:
        batches = _parquet(part.path).iter_batches(
            _ROWS_AT_ONCE, row_groups=[part.row_group], use_threads=False
        )
        for batch in batches:
            for record in batch.to_pylist():
                row += 1
                yield f"{part.path}: row {row}", record
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigurationError(
            f"data.source: {part.path} cannot be read after row {row}: {error}"
        ) from error


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise _missing_extra(str(path), "a parquet table") from error
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigurationError(f"data.source: {path} cannot be read as parquet: {error}") from error


def open_hub(name: str, subset: str, split: str) -> Any:
    """The dataset `name` of the hub, from its cache or fetched, as the datasets library maps it.

    Raises ConfigurationError where there is no such dataset, subset or split, and where its files are programs or
    pickles; WorkbenchError where the hub is out of reach.
    """
    try:
        import datasets
    except ImportError as error:
        raise _missing_extra(f"hub:{name}", "a dataset of the hub") from error
    called = f'data.source = "hub:{name}"'
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    unreachable = hub.why_unreachable()
    try:
        with quiet_hub(), hub.hub_offline(bool(unreachable)):
            builder = datasets.load_dataset_builder(name, subset or None)
            _check_format(called, builder)
            found = datasets.load_dataset(name, subset or None, split=split)
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the network, the hub and the readers of a dozen formats raise
        raise _explained(called, error, subset, split, unreachable) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    if not len(found):
        raise ConfigurationError(f'{called}: the split "{split}" has no rows')
    return found


def hub_parts(name: str, dataset: Any) -> Iterator[HubPart]:
    """Rows of a hub dataset in parts of about the same size."""
    rows, size = len(dataset), max(1, int(dataset.data.nbytes))
    count = max(1, min(rows, size // part_bytes(size)))
    for index in range(count):
        begin, end = index * rows // count, (index + 1) * rows // count
        yield HubPart(name, begin, end, max(1, size // count))


def hub_rows(part: HubPart, dataset: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a part, each with its place in words."""
    for begin in range(part.begin, part.end, _ROWS_AT_ONCE):
        columns = dataset[begin : min(begin + _ROWS_AT_ONCE, part.end)]
        for index, values in enumerate(zip(*columns.values(), strict=True)):
            yield f"hub:{part.name}: row {begin + index + 1}", dict(zip(columns, values, strict=True))


def _check_format(called: str, builder: Any) -> None:
    module = type(builder).__module__
    package, _, reader = module.rpartition("packaged_modules.")
    reader = reader.split(".")[0]
    if not package or reader not in _READERS:
        raise ConfigurationError(
            f"{called}: its files are of the kind {reader or module!r}, which may hold programs or pickles or no text "
            f"at all; expected {', '.join(_READERS[:-1])} or {_READERS[-1]} files"
        )


_UNREACHABLE = {"ConnectionError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout", "ReadTimeout"}


def _explained(called: str, error: Exception, subset: str, split: str, unreachable: str) -> WorkbenchError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    words = " ".join(str(error).split())
    words = words if len(words) < 300 else words[:297] + "..."
    if "DatasetNotFoundError" in kinds:
        return ConfigurationError(
            f"{called}: no such dataset, or it is gated or private: log in (hf auth login or HF_TOKEN); {words}"
        )
    if unreachable or kinds & _UNREACHABLE:
        return WorkbenchError(
            f"{called}: it is not in the cache of the datasets library, and "
            f"{unreachable or f'the hub cannot be reached ({words})'}; run it once where there is a network, or name "
            "files that you have"
        )
    if kinds & {"ValueError", "KeyError"}:
        return ConfigurationError(f'{called}: data.subset = "{subset}", data.split = "{split}": {words}')
    return ConfigurationError(f"{called}: it cannot be loaded: {words}")


def _missing_extra(name: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"data.source: {name} is {what}, which needs the extra [data]: pip install 'workbench[data]'"
    )
