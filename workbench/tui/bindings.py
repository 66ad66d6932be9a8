"""The names of all actions that have a key: what a user's keymap may change, and what help is generated from."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from textual.binding import Binding
from textual.dom import DOMNode

import workbench.tui


def bound_classes() -> Iterator[type[DOMNode]]:
    """Every class of the screen."""
    for module in pkgutil.walk_packages(workbench.tui.__path__, "workbench.tui."):
        found = importlib.import_module(module.name)
        for value in vars(found).values():
            if isinstance(value, type) and issubclass(value, DOMNode) and value.__module__ == module.name:
                yield value


def bindings_of(owner: type[DOMNode]) -> dict[str, str]:
    """The keys of all bindings with an id that hold in one class, those of its base classes among them, by that id."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if issubclass(each, DOMNode) and not each._inherit_bindings:
            found.clear()
        for binding in vars(each).get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id:
                found[binding.id] = binding.key
    return found


def places() -> list[dict[str, str]]:
    """`bindings_of` every class that has some."""
    return [found for each in bound_classes() if (found := bindings_of(each))]


def binding_names() -> set[str]:
    """The ids of all bindings, such as "runs.stop"."""
    return {name for place in places() for name in place}
