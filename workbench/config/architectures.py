"""What transformers says of its architectures, read from its source: importing it takes seconds and torch with it.

Invariant: what cannot be read for sure is unknown, and nothing is refused for being unknown here; the run, which asks
transformers itself, has the last word.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_WORD = re.compile(r"[A-Za-z_]\w*")
_SHARED_SOURCES = ("configuration_utils.py", "modeling_rope_utils.py")
"""What every configuration class has beside its own settings is written there."""


class Settings(NamedTuple):
    """The settings of an architecture. `defaults`: of those that its class lists, where they are plain, else None.

    `own_names`: what a setting that all architectures have is called here. `words`: every name in the sources of the
    class; a setting that is not even there cannot be one.
    """

    defaults: dict[str, Any]
    own_names: dict[str, str]
    words: frozenset[str]

    @property
    def names(self) -> list[str]:
        """What a setting can be called."""
        return [*self.defaults, *self.own_names]

    def number(self, name: str, written: Mapping[str, Any]) -> int | None:
        """The setting `name` of a model whose configuration is `written`; None where that is no whole number, or not
        known."""
        own = self.own_names.get(name, name)
        value = written.get(own, written.get(name, self.defaults.get(own)))
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@cache
def causal_models() -> frozenset[str]:
    """The architectures that have a causal language model; empty where transformers cannot be read."""
    return frozenset(_mapping("modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"))


@cache
def settings_of(architecture: str) -> Settings | None:
    """The settings of `architecture`; None where its source is not found or not understood."""
    root = _root()
    if root is None or architecture not in causal_models():
        return None
    module = _module_names().get(architecture, architecture.replace("-", "_"))
    source = _Source.read(root / "models" / module / f"configuration_{module}.py")
    found = None if source is None else source.class_of(architecture)
    if source is None or found is None:
        return None
    defaults: dict[str, Any] = {}
    own_names: dict[str, str] = {}
    words: set[str] = set()
    for each, described in _with_bases(source, found):
        defaults = {**_defaults(described), **defaults}
        own_names = {**_own_names(described), **own_names}
        words |= each.words
    for name in _SHARED_SOURCES:
        try:
            words.update(_WORD.findall((root / name).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
    return Settings(defaults, own_names, frozenset(words))


@cache
def _root() -> Path | None:
    """The folder of the installed package, found without importing it."""
    try:
        found = importlib.util.find_spec("transformers")
    except (ImportError, ValueError):
        return None
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]) if places else None


@cache
def _module_names() -> dict[str, str]:
    """The modules of architectures that are called otherwise."""
    name = "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"
    return _mapping("auto_mappings.py", name) or _mapping("configuration_auto.py", name)


def _mapping(file: str, name: str) -> dict[str, str]:
    """The texts of `name = OrderedDict([("a", "b"), ...])` in a module of transformers' auto classes."""
    root = _root()
    if root is None:
        return {}
    try:
        text = (root / "models" / "auto" / file).read_text(encoding="utf-8")
        # The whole file would take ten times as long.
        _, _, found = text.partition(f"\n{name} = ")
        tree = ast.parse(found[: found.find("\n)") + 2], mode="eval")
    except (OSError, ValueError, SyntaxError):
        return {}
    pairs = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple)]
    texts = [[_text(element) for element in pair.elts] for pair in pairs]
    return {pair[0]: pair[-1] for pair in texts if len(pair) == 2 and pair[0]}


class _Source(NamedTuple):
    """A module's source. `words`: every name in it, those in strings and comments too."""

    path: Path
    tree: ast.Module
    words: frozenset[str]

    @classmethod
    @cache
    def read(cls, path: Path) -> _Source | None:
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, ast.parse(text), frozenset(_WORD.findall(text)))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None

    def class_of(self, architecture: str) -> ast.ClassDef | None:
        """The class whose `model_type` is `architecture`."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    value = getattr(statement, "value", None)
                    if _names_of(statement) == ["model_type"] and _text(value) == architecture:
                        return node
        return None

    def find(self, name: str) -> tuple[_Source, ast.ClassDef] | None:
        """The class called `name` here, here or in the module that it is imported from."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
            if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
                folder = self.path.parents[max(node.level - 1, 0)]
                other = _Source.read(folder.joinpath(*(node.module or "").split(".")).with_suffix(".py"))
                return None if other is None or other.path == self.path else other.find(name)
        return None


def _with_bases(source: _Source, found: ast.ClassDef) -> Iterator[tuple[_Source, ast.ClassDef]]:
    """A class and those that it is made of, the nearest first."""
    yield source, found
    for base in found.bases:
        place = source.find(base.id) if isinstance(base, ast.Name) else None
        if place is not None:
            yield from _with_bases(*place)


def _defaults(described: ast.ClassDef) -> dict[str, Any]:
    """The annotated fields of a class."""
    defaults: dict[str, Any] = {}
    for statement in described.body:
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.dump(statement.annotation):
            value = statement.value
            plain = value.value if isinstance(value, ast.Constant) else None
            defaults |= dict.fromkeys(_names_of(statement), plain)
    return defaults


def _own_names(described: ast.ClassDef) -> dict[str, str]:
    """The `attribute_map` of a class."""
    for statement in described.body:
        value = getattr(statement, "value", None)
        if _names_of(statement) == ["attribute_map"] and isinstance(value, ast.Dict):
            return {
                _text(key): _text(own)
                for key, own in zip(value.keys, value.values, strict=True)
                if _text(own)
            }
    return {}


def _names_of(statement: ast.stmt) -> list[str]:
    """What an assignment gives a value to."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
