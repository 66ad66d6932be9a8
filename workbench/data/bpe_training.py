"""A byte-level BPE tokenizer (GPT-2, Radford et al. 2019) trained on the source: `data.tokenizer = "bpe:SIZE"`.

The tokenizers library trains it. Invariant: the same text and size give the same tokenizer, which is made once and then
found in the cache.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import DataConfig
from workbench.config.tokenizers import bpe_size
from workbench.data import RecordError
from workbench.data.sources import SourceFiles
from workbench.data.sources.reading import Item, Record, SourceReader, TextBlock
from workbench.data.tokenizers import END_OF_TEXT, PretrainedTokenizer, made_backend, without_surrogates
from workbench.errors import ConfigurationError
from workbench.system.folders import cache_folder

SAMPLE_BYTES = 1 << 29
"""Of a larger source, about this much is used, evenly spread."""
_VERSION = 2
_FIELDS = ("prompt", "completion", "messages", "conversations", "instruction", "input", "output")
_TEXT_CHARACTERS = 1 << 16
"""Characters in each text that is handed to the library, which holds some hundred of them."""


def trained_tokenizer(
    config: DataConfig, source: SourceFiles, progress: Callable[[str, int, int], None] | None = None
) -> PretrainedTokenizer:
    """Return the tokenizer of `config.tokenizer`, from the cache if it is there.

    Raises:
        ConfigurationError: the source cannot be read or has no text.
    """
    found = cached_tokenizer(config, source)
    if found is not None:
        return found
    size, folder = _place(config, source)
    backend = _train(config, source, size, progress)
    tokenizer = PretrainedTokenizer(config.tokenizer, backend)
    with contextlib.suppress(OSError):  # without a cache it is trained again each time
        _keep(tokenizer, folder)
    return _with_warning(tokenizer, size)


def cached_tokenizer(config: DataConfig, source: SourceFiles) -> PretrainedTokenizer | None:
    """Return the tokenizer of `config.tokenizer` where it was trained before, else None."""
    size, folder = _place(config, source)
    try:
        return _open(config.tokenizer, folder, size)
    except (OSError, ValueError):
        return None


def _place(config: DataConfig, source: SourceFiles) -> tuple[int, Path]:
    """Return the size of the tokenizer, and its folder in the cache."""
    size = bpe_size(config.tokenizer)
    assert size is not None, "a configuration with another size is refused"
    options = [_VERSION, size, *(config.text_fields if source.has_records else ())]
    return size, cache_folder() / "tokenizers" / source.key(*options)


def _open(spec: str, folder: Path, size: int) -> PretrainedTokenizer:
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(folder)
    try:
        backend = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises errors of every type
        raise ValueError(str(error)) from error
    return _with_warning(PretrainedTokenizer(spec, backend), size)


def _with_warning(tokenizer: PretrainedTokenizer, size: int) -> PretrainedTokenizer:
    if tokenizer.vocabulary_size < size:
        tokenizer.warnings += (
            f'data.tokenizer = "{tokenizer.spec}": the source has so little text that there are only '
            f"{tokenizer.vocabulary_size:,} tokens to learn from it",
        )
    return tokenizer


def _train(
    config: DataConfig, source: SourceFiles, size: int, progress: Callable[[str, int, int], None] | None
) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    end = AddedToken(END_OF_TEXT, special=True, normalized=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    seen = False

    def texts() -> Iterator[str]:
        nonlocal seen
        for text in _sample(source, config.text_fields, progress):
            seen = True
            for begin in range(0, len(text), _TEXT_CHARACTERS):
                yield without_surrogates(text[begin : begin + _TEXT_CHARACTERS])

    backend.train_from_iterator(texts(), trainer)
    if not seen:
        raise ConfigurationError(
            f'data.tokenizer = "{config.tokenizer}" is trained on the text of data.source, which has none'
        )
    return made_backend(backend)


def _sample(
    source: SourceFiles, text_fields: Sequence[str], progress: Callable[[str, int, int], None] | None
) -> Iterator[str]:
    """Yield the texts of the source; of one larger than `SAMPLE_BYTES`, those of every n-th chunk."""
    reader = SourceReader(source)
    every = max(1, -(-reader.total // SAMPLE_BYTES))
    done = 0
    for number, (items, size) in enumerate(reader.chunks()):
        if number % every == 0:
            for item in items:
                yield from _texts_of(item, text_fields)
        done += size
        if progress is not None:
            progress("training the tokenizer", done, reader.total)


def _texts_of(item: Item, text_fields: Sequence[str]) -> Iterator[str]:
    if isinstance(item, TextBlock):
        assert isinstance(item.text, str)
        yield item.text
    elif isinstance(item, Record):
        try:
            value = item.parsed()
        except RecordError as error:
            raise ConfigurationError(f"data.source: {item.place}: {error}") from error
        for field in dict.fromkeys((*text_fields, *_FIELDS)):
            yield from _strings(value.get(field))


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in a field's value; of a chat's messages the contents, not the roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, Mapping):
        for key in ("content", "value", "text"):
            yield from _strings(value.get(key))


def _keep(tokenizer: PretrainedTokenizer, folder: Path) -> None:
    """Put the tokenizer into the cache, whole or not at all. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tokenizer.save_pretrained(working)
        if folder.exists():  # damaged, or made by another process meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        working.rename(folder)
    finally:
        shutil.rmtree(working, ignore_errors=True)
