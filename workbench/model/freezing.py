"""Freeze parameters by patterns of their names. A frozen parameter has weights and no gradient and no state."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from workbench.errors import ConfigurationError


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze each parameter of `model` with a name that one of `patterns` matches, as a shell would match it.

    A tied parameter is frozen by any of its names.
    """
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)


def check_patterns(model: nn.Module, field: str, patterns: Sequence[str]) -> None:
    """Refuse a pattern that matches no parameter of `model`.

    Raises:
        ConfigurationError: naming `field`, the pattern, and a name that is there.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigurationError(
                f'{field}: no parameter has a name like "{pattern}"; names are such as "{names[0]}" and "{names[-1]}"'
            )


def check_something_trains(model: nn.Module) -> None:
    """Raise ConfigurationError where every parameter of `model` is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError("model.freeze: every parameter is frozen, and nothing is left to train")
