"""Finds every place where the engine orders something, in its source, and takes one of them away.

A place is a call that records an event or waits, or the event that a copy is given. Its name is the function and the
method that is called, so that it moves with the code, and a new one is seen.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import workbench.engine

ENGINE = Path(workbench.engine.__file__).parent
WITHOUT_ORDER = {"report.py", "device.py"}
"""Files that take times, and the devices whose events are None."""
COPIES = {"copy": 4, "begin_copy": 4, "copy_async": 4, "copy_all": 3, "communicating": 2}
"""A device's copies and work between ranks, and how many arguments each has: the last one is the event."""
TIMES = {"CudaTimes", "Watchdog", "record_moment"}
"""They order nothing: what they wait for is a moment on the clock."""


def _nothing(call: ast.Call) -> ast.expr:
    return ast.Constant(None)


def _receiver(call: ast.Call) -> ast.expr:
    """What the method is called on: its own value is still made."""
    return call.func.value if isinstance(call.func, ast.Attribute) else ast.Constant(None)


def _at_once(call: ast.Call) -> ast.expr:
    """What was to be called later is called now."""
    return ast.Call(call.args[-1], [], [])


def _no_context(call: ast.Call) -> ast.expr:
    return ast.parse("__import__('contextlib').nullcontext()", mode="eval").body


def _no_event(call: ast.Call) -> ast.expr:
    return ast.Call(call.func, [*call.args[:-1], ast.Constant(None)], call.keywords)


INSTEAD: dict[str, Callable[[ast.Call], ast.expr]] = {
    "record_event": _nothing,
    "record": _receiver,
    "wait_event": _nothing,
    "wait": _nothing,
    "wait_for": _nothing,
    "wait_all": _nothing,
    "synchronize": _receiver,
    "when_done": _at_once,
    "_when_ready": _at_once,
    "computing": _no_context,
    "stream": _no_context,
    **dict.fromkeys(COPIES, _no_event),
}
"""By a method's name: what a call of it becomes when it is taken away."""


def _ordering(node: ast.Call) -> str | None:
    """Return the name of the method that is called; None where it orders nothing."""
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
    return name if name in INSTEAD and len(node.args) == COPIES.get(name, len(node.args)) else None


class _Places(ast.NodeTransformer):
    """Names each place of a module; `remove` is taken away."""

    def __init__(self, remove: str | None = None) -> None:
        self.found: dict[str, str] = {}
        """The qualified name of the function or method, by the place's name."""
        self._remove = remove
        self._within: list[str] = []

    def _enter(self, node: Any) -> Any:
        if node.name in TIMES:
            return node
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()
        return node

    visit_FunctionDef = visit_ClassDef = _enter  # noqa: N815 - ast's names

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        method = _ordering(node)
        if method is None:
            return node
        key = f"{'.'.join(self._within)}: {method}"
        while key in self.found:
            key += " again"
        self.found[key] = ".".join(self._within)
        if key != self._remove:
            return node
        return ast.copy_location(INSTEAD[method](node), node)


@functools.cache
def places() -> dict[str, tuple[str, str]]:
    """Return the module's file and the qualified name of the function, by key."""
    found = {}
    for path in sorted(ENGINE.rglob("*.py")):
        if path.name in WITHOUT_ORDER:
            continue
        module = path.relative_to(ENGINE).with_suffix("").as_posix()
        visitor = _Places()
        visitor.visit(ast.parse(path.read_text()))
        found.update({key: (module, name) for key, name in visitor.found.items()})
    return found


@contextlib.contextmanager
def without(key: str) -> Iterator[None]:
    """Within it the engine does without the place `key`."""
    module, name = places()[key]
    path = ENGINE / f"{module}.py"
    tree = _Places(key).visit(ast.parse(path.read_text()))
    code = compile(ast.fix_missing_locations(tree), str(path), "exec")
    function, changed = _function(module, name, code)
    before = function.__code__
    function.__code__ = changed
    try:
        yield
    finally:
        function.__code__ = before


def _function(module: str, name: str, code: CodeType) -> tuple[FunctionType, CodeType]:
    """Return the function or method around a place, and its code within that of the whole module."""
    holder: Any = importlib.import_module("workbench.engine." + module.replace("/", "."))
    for part in name.split("."):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == part)
        holder = inspect.getattr_static(holder, part)
        if isinstance(holder, property):
            holder = holder.fget
        holder = inspect.unwrap(getattr(holder, "__func__", holder))
        if isinstance(holder, FunctionType):
            break  # a function within it is made by its code
    return holder, code
