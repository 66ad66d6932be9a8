"""The names of all actions that have a key: what a user's keymap may change, and what help is generated from."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from textual.binding import Binding
from textual.dom import DOMNode

import workbench.tui


def bound_classes() -> Iterator[type[DOMNode]]:
    """Every class of the screen with bindings of its own."""
    for module in pkgutil.walk_packages(workbench.tui.__path__, "workbench.tui."):
        found = importlib.import_module(module.name)
        for value in vars(found).values():
            if isinstance(value, type) and issubclass(value, DOMNode) and value.__module__ == module.name:
                yield value


def binding_names() -> set[str]:
    """The ids of all bindings, such as "runs.stop"."""
    return {
        binding.id
        for each in bound_classes()
        for binding in each.BINDINGS
        if isinstance(binding, Binding) and binding.id
    }
