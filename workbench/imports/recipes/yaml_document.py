"""Read the YAML of a stranger within bounds: size, depth, no aliases, plain values only; with the line of every key."""

from __future__ import annotations

import re
from typing import Any

import yaml

from workbench.errors import ConfigurationError
from workbench.imports.lenient_json import DEEPEST, LONGEST_TEXT, Document, KeyPath
from workbench.system.terminal import on_one_line

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""A number to everybody but YAML 1.1, which wants a dot and a sign: 1e-5."""


_YAML_KEY = re.compile(
    r"^(model_name_or_path|base_model|compute_environment|distributed_type|mixed_precision|  _component_):",
    re.MULTILINE,
)


def looks_like_yaml(text: str) -> bool:
    """Return True for a text with a line that only a trainer's YAML has."""
    return _YAML_KEY.search(text[:LONGEST_TEXT]) is not None


def read_yaml(text: str, name: str) -> Document:
    """Return the mapping that `text` holds; `name` stands for the file in messages.

    Raises:
        ConfigurationError: it is no YAML, no mapping, or far from any configuration in size or depth.
    """
    name = on_one_line(name)
    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(f"{name}: is too large for a configuration ({len(text):,} characters)")
    lines: dict[KeyPath, int] = {}
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels")
            if isinstance(event, yaml.AliasEvent):
                at = event.start_mark.line + 1
                raise ConfigurationError(f"{name}:{at}: refers to *{event.anchor}; write the value out")
        node = yaml.compose(text, yaml.SafeLoader)
        values = _value(node, (), lines) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
        raise ConfigurationError(
            f"{name}{at}: is not YAML: {on_one_line(str(error.problem))[:200]}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: is not YAML: {on_one_line(str(error))[:200]}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{name}: expected a mapping, lines of `key: value`")
    return Document(values, lines, ())


def _value(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, (*path, "[]"), {}) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        values = {}
        for key, inner in node.value:
            place = (*path, str(key.value))
            lines[place] = key.start_mark.line + 1
            values[place[-1]] = _value(inner, place, lines)
        return values
    if node.tag.endswith(":str") and node.style is None and _NUMBER.fullmatch(node.value):
        return float(node.value)
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    finally:
        loader.dispose()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it has a number of more than 64 bits")
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(node.value)
