"""Texts that a user reads avoid words that are archaic or private to this project."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ODD = re.compile(
    r"\b(anew|borne|census|foretold|hold to|living|mend(s|ed)?|remarked|whomever)\b", re.IGNORECASE
)
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "presets/*.toml", "workbench/profiles/*.toml")
VAGUE = ("What ", "Whether ")


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every string that stands as a statement: of modules, classes, functions and names."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def test_messages_and_screen_texts_have_no_odd_words() -> None:
    found = []
    for path, tree in sources():
        documents = set(docstrings(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documents:
                found += [f"{path}:{node.lineno}: {match[0]}" for match in ODD.finditer(node.value)]
    assert found == []


def test_pages_and_presets_have_no_odd_words() -> None:
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    assert len(pages) > 20
    found = [
        f"{page.name}: {match[0]}"
        for page in pages
        for match in ODD.finditer(page.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [
        f"{path}:{text.lineno}: {str(text.value)[:40]}"
        for path, tree in sources()
        for text in docstrings(tree)
        if str(text.value).startswith(VAGUE)
    ]
    assert found == []
