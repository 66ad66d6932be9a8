"""Tables as records: parquet files, and hub datasets through the `datasets` library.

Both libraries come with the extra [data] and are imported only for a table. Invariant: nothing is unpickled and no
program is run: `datasets` may only load formats that are plain data.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError, WorkbenchError, brief
from workbench.model import hub

_ROWS_AT_ONCE = 256
_READERS = ("arrow", "csv", "json", "parquet", "text", "xml")
"""The formats of `datasets` that are plain data."""


def parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place (file and row) and the fields of each row of a parquet file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    table = _parquet(path)
    import pyarrow

    row = 0
    try:
        for batch in table.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            for record in batch.to_pylist():
                row += 1
                yield f"{path}: row {row}", record
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigurationError(f"data.source: {path} cannot be read after row {row}: {error}") from error


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
    """Return the hub dataset `name` as a `datasets.Dataset`, from the cache or fetched.

    Raises:
        ConfigurationError: there is no such dataset, subset or split, or its files are programs or pickles.
        WorkbenchError: the hub cannot be reached and the cache does not have the dataset.
    """
    try:
        import datasets
    except ImportError as error:
        raise _missing_extra(f"hub:{name}", "a dataset of the hub") from error
    called = f'data.source = "hub:{name}"'
    unreachable = hub.why_unreachable()
    try:
        with _no_progress_bars(), hub.hub_offline(bool(unreachable)):
            builder = datasets.load_dataset_builder(name, subset or None)
            _check_format(called, builder)
            found = datasets.load_dataset(name, subset or None, split=split)
    except ConfigurationError:
        raise
    except Exception as error:  # the network and the readers of a dozen formats raise errors of every type
        raise _explained(called, error, subset, split, unreachable) from error
    if not len(found):
        raise ConfigurationError(f'{called}: the split "{split}" has no rows')
    return found


def hub_rows(name: str, dataset: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place (dataset and row) and the fields of each row of a hub dataset."""
    for begin in range(0, len(dataset), _ROWS_AT_ONCE):
        columns = dataset[begin : begin + _ROWS_AT_ONCE]
        for index, values in enumerate(zip(*columns.values(), strict=True)):
            yield f"hub:{name}: row {begin + index + 1}", dict(zip(columns, values, strict=True))


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep the bars of `datasets` and `huggingface_hub` off the terminal."""
    libraries: list[Any] = [importlib.import_module(name) for name in ("datasets", "huggingface_hub.utils")]
    shown = [library for library in libraries if not library.are_progress_bars_disabled()]
    for library in shown:
        library.disable_progress_bars()
    try:
        yield
    finally:
        for library in shown:
            library.enable_progress_bars()


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
    """Return the error for what went wrong while the dataset was loaded."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    words = brief(error)
    if "DatasetNotFoundError" in kinds:
        return ConfigurationError(
            f"{called}: no such dataset, or it is gated or private: log in (hf auth login or HF_TOKEN); {words}"
        )
    if unreachable or kinds & _UNREACHABLE:
        return WorkbenchError(
            f"{called}: it is not in the cache of the datasets library, and "
            f"{unreachable or f'the hub cannot be reached ({words})'}; run it once with network access, or name local "
            "files"
        )
    if kinds & {"ValueError", "KeyError"}:
        return ConfigurationError(f'{called}: data.subset = "{subset}", data.split = "{split}": {words}')
    return ConfigurationError(f"{called}: it cannot be loaded: {words}")


def _missing_extra(name: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"data.source: {name} is {what}, which needs the extra [data]: pip install 'workbench[data]'"
    )
