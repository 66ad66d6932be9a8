"""Whether the native extension is there, and what to say where it is not. No torch."""

from __future__ import annotations

from typing import Any


class MissingExtensionWarning(UserWarning):
    """The native host optimizer is missing: torch's fused AdamW does its work, slower."""


def missing_extension() -> str | None:
    """Why `workbench._native` cannot be used and how to mend it; `None` where it can."""
    try:
        import workbench._native  # noqa: F401
    except ImportError as error:
        return (
            f"the native extension workbench._native is missing or does not load ({error}); "
            "build it with a C compiler by `python -m pip install --editable .` in the checkout"
        )
    return None


def load_extension() -> tuple[Any, Any]:
    """cffi's `ffi` and `lib`; `ImportError` says what `missing_extension` says."""
    missing = missing_extension()
    if missing is not None:
        raise ImportError(missing)
    from workbench._native import ffi, lib

    return ffi, lib
