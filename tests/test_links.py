"""Links between pages lead somewhere, on the site of `make docs` and where the files are read as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_FENCED = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks and code."""
    return re.sub(r"`[^`\n]*`", "code", _FENCED.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the anchors that headings get from GitHub and from Markdown's own `toc` alike."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text("utf-8")), flags=re.MULTILINE)
    return {re.sub(r" +", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip()) for heading in headings}


def wrong_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.is_file():
            yield f"{link}: there is no such file"
        elif DOCS in page.parents and DOCS not in path.parents:
            yield f"{link}: leads out of docs/, which is all that the site has"
        elif anchor and anchor not in anchors(path):
            yield f"{link}: has no such heading"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert len(PAGES) > 15
    wrong = {str(page.relative_to(ROOT)): list(wrong_links(page)) for page in PAGES}
    assert {page: links for page, links in wrong.items() if links} == {}


def test_the_sites_navigation_has_every_page_once() -> None:
    def leaves(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(inner)

    named = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
