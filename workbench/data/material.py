"""Everything that `data.source` names, files and datasets of the hub together, and how it is cut into parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workbench.config import DataConfig
from workbench.data.parts import TRAINING, VALIDATION, Part, parts_of_files
from workbench.data.sources import HUB, Document, find_documents
from workbench.data.sources.reading import unreadable
from workbench.data.split import Piece, Split, choose_sides, cut_text, document_share
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError
from workbench.system.folders import expanded


@dataclass(frozen=True)
class Material:
    config: DataConfig
    documents: list[Document]
    hub: dict[str, Any] = field(default_factory=dict)
    """The datasets of the hub by name, in the order in which the source names them."""
    prepared: Path | None = None
    """A prepared folder, which is then all of the source."""

    @property
    def is_text(self) -> bool:
        """Whether there are no records."""
        return not self.hub and all(document.kind in ("text", "tokens") for document in self.documents)

    @cached_property
    def split(self) -> Split | None:
        """The two sides of a source that is one text; None for any other."""
        if len(self.documents) != 1 or not self._is_plain:
            return None
        return cut_text(self.documents[0], self.config.validation_fraction)

    @property
    def _is_plain(self) -> bool:
        """Whether all of it is text whose size is known before it is read."""
        return not self.hub and all(d.kind == "text" and not d.compression for d in self.documents)

    def byte_counts(self, *, whole: bool) -> tuple[int, int] | None:
        """How many tokens either side becomes where a byte is a token; None where only reading tells.

        `whole`: no document of several is cut.
        """
        if not self._is_plain:
            return None
        if self.split is not None:
            return self.split.training.stop, self.split.validation.stop - self.split.validation.start
        # An end of text stands behind each document, and is taken away behind the last of a side.
        tokens = np.array([document.size + 1 for document in self.documents])
        shares = np.array([document_share(document.name) for document in self.documents])
        sides = choose_sides(shares, tokens, np.full(len(tokens), not whole), self.config.validation_fraction)
        held = int(tokens[sides.held].sum()) + sides.tail
        return int(tokens.sum()) - held - (sides.cut < 0), held - 1

    def identity(self) -> Iterator[str]:
        """What the tokens follow from, in lines. Raises ConfigurationError for a file that has gone."""
        for document in self.documents:
            try:
                modified = document.path.stat().st_mtime_ns
            except OSError as error:
                raise unreadable(document.path, error) from error
            place = [document.kind, document.name, str(document.path)]
            yield json.dumps([*place, document.size, modified])
        for name, dataset in self.hub.items():
            yield json.dumps([HUB, name, getattr(dataset, "_fingerprint", ""), len(dataset)])

    def parts(self, tokenizer: Tokenizer) -> list[Part]:
        """The parts in the order in which their documents come. Raises ConfigurationError for a damaged file."""
        parts = self.parts_with_text()
        for document in self.documents:
            if document.kind == "tokens":
                from workbench.data.sources.ready_tokens import tokens_parts

                parts += tokens_parts(document, tokenizer, self.config.validation_fraction)
        return parts

    def parts_with_text(self) -> list[Part]:
        """The parts that a tokenizer can be trained on."""
        files = [document for document in self.documents if document.kind != "tokens"]
        parts = parts_of_files(files, self._texts())
        for name, dataset in self.hub.items():
            from workbench.data.sources.tables import hub_parts

            parts += hub_parts(name, dataset)
        return parts

    def _texts(self) -> dict[Document, list[tuple[Piece, float]]]:
        """The pieces of every text with the share that decides its side."""
        if self.split is not None:
            both = [(self.split.training, TRAINING), (self.split.validation, VALIDATION)]
            return {self.documents[0]: both}
        return {
            document: [(Piece(document, 0, document.size), document_share(document.name))]
            for document in self.documents
            if document.kind == "text" and not document.compression
        }


def find_material(config: DataConfig) -> Material:
    """What `config.source` means. Raises ConfigurationError where a part of it is missing or cannot be read."""
    prepared = [source for source in config.sources if _is_prepared(source)]
    if prepared:
        if len(config.sources) > 1:
            raise ConfigurationError(
                f'data.source: "{prepared[0]}" is a prepared folder of tokens, which has its own split: it stands alone'
            )
        return Material(config, [], prepared=expanded(prepared[0], "data.source").absolute())
    paths = [source for source in config.sources if not source.startswith(HUB)]
    documents = find_documents(paths, config.text_field) if paths else []
    hub: dict[str, Any] = {}
    for source in config.sources:
        if source.startswith(HUB):
            from workbench.data.sources.tables import open_hub

            name = source.removeprefix(HUB).strip("/")
            hub[name] = open_hub(name, config.subset, config.split)
    return Material(config, documents, hub)


def _is_prepared(source: str) -> bool:
    if source == "stdlib" or source.startswith(HUB):
        return False
    folder = expanded(source, "data.source")
    return (folder / "tokens.json").is_file() and (folder / "train.tokens").is_file()
