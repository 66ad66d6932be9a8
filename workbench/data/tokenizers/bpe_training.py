"""A byte-level BPE tokenizer trained on the source: `data.tokenizer = "bpe:SIZE"`.

Byte-level BPE as of GPT-2 (Radford et al. 2019), trained by the tokenizers library. Invariant: the same text and size
give the same tokenizer, so that it is made once and found again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench.config import DataConfig, tokenizers
from workbench.config.tokenizers import BPE, LARGEST, SMALLEST
from workbench.data.material import Material
from workbench.data.parts import CompressedTextPart, Part, TextPart, TokensPart
from workbench.data.sources.reading import READ_BYTES, opened, read_bytes, read_compressed, records_of
from workbench.data.tokenizers.byte_tokenizer import END_OF_TEXT, sound
from workbench.data.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from workbench.errors import ConfigurationError
from workbench.system.folders import cache_folder

SAMPLE_BYTES = 1 << 29
"""A larger source is trained on parts of it, evenly spread, of so many bytes together."""
_VERSION = 1
_FIELDS = ("prompt", "completion", "messages", "conversations")
_TEXT_BYTES = 1 << 16


def bpe_size(spec: str) -> int:
    """The vocabulary that "bpe:SIZE" asks for. Raises ConfigurationError where it is no number or out of range."""
    size = tokenizers.bpe_size(spec)
    if size is None:
        raise ConfigurationError(
            f'data.tokenizer = "{spec}": expected "{BPE}SIZE" with a vocabulary of {SMALLEST} to {LARGEST:,} tokens, '
            f'for example "{BPE}32000"'
        )
    return size


def trained_tokenizer(
    config: DataConfig, material: Material, progress: Callable[[str, int, int], None] | None = None
) -> PretrainedTokenizer:
    """The tokenizer of `config.tokenizer`, from the cache where it is there.

    Raises ConfigurationError for a size out of range, a source that cannot be read or has no text.
    """
    size = bpe_size(config.tokenizer)
    folder = cache_folder() / "tokenizers" / _key(config, material, size)
    try:
        return _open(config.tokenizer, folder, size)
    except (OSError, ValueError):
        pass
    backend = _train(config, material, size, progress)
    tokenizer = PretrainedTokenizer(config.tokenizer, backend)
    with contextlib.suppress(OSError):  # without a cache it is trained anew each time
        _keep(tokenizer, folder)
    return _said(tokenizer, size)


def _open(spec: str, folder: Path, size: int) -> PretrainedTokenizer:
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(folder)
    try:
        backend = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise ValueError(str(error)) from error
    return _said(PretrainedTokenizer(spec, backend), size)


def _said(tokenizer: PretrainedTokenizer, size: int) -> PretrainedTokenizer:
    if tokenizer.vocabulary_size < size:
        tokenizer.warnings += (
            f'data.tokenizer = "{tokenizer.spec}": the source has so little text that there are only '
            f"{tokenizer.vocabulary_size:,} tokens to learn from it",
        )
    return tokenizer


def _key(config: DataConfig, material: Material, size: int) -> str:
    options: list[Any] = [_VERSION, size]
    if not material.is_text:
        options.append(config.text_field)
    digest = hashlib.sha256(json.dumps(options).encode())
    for line in material.identity():
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()[:32]


def _train(
    config: DataConfig,
    material: Material,
    size: int,
    progress: Callable[[str, int, int], None] | None,
) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

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
    parts = _sample(material.parts_with_text())
    total = sum(part.size for part in parts)
    hear = partial(progress, "training the tokenizer") if progress else None
    seen = False

    def texts() -> Iterator[str]:
        nonlocal seen
        done = 0
        for part in parts:
            for text in _texts_of(part, config, material.hub):
                seen = True
                yield sound(text)
            done += part.size
            if hear is not None:
                hear(done, total)

    backend.train_from_iterator(texts(), trainer)
    if not seen:
        raise ConfigurationError(
            f'data.tokenizer = "{config.tokenizer}" is trained on the text of data.source, which has none'
        )
    make: Any = PreTrainedTokenizerFast  # has no annotations
    return make(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def _sample(parts: Sequence[Part]) -> list[Part]:
    """Parts of at most about SAMPLE_BYTES together, evenly spread."""
    total = sum(part.size for part in parts)
    every = max(1, -(-total // SAMPLE_BYTES))
    return list(parts[::every])


def _texts_of(part: Part, config: DataConfig, hub: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(part, TextPart):
        for span in part.spans:
            for begin in range(span.begin, span.end, READ_BYTES):
                data = read_bytes(span.path, begin, min(begin + READ_BYTES, span.end))
                yield from _some_lines(data.decode(errors="replace"))
    elif isinstance(part, CompressedTextPart):
        with opened(part.path, part.compression) as file:
            while data := read_compressed(file, part.path):
                yield from _some_lines(data.decode(errors="replace"))
    elif not isinstance(part, TokensPart):
        for record, _ in records_of(part, hub):
            for field in (config.text_field, *_FIELDS):
                yield from _strings(record.value.get(field))


def _some_lines(text: str) -> Iterator[str]:
    """`text` in pieces: the library holds some hundreds of them."""
    for begin in range(0, len(text), _TEXT_BYTES):
        yield text[begin : begin + _TEXT_BYTES]


def _strings(value: Any) -> Iterator[str]:
    """Every text in a field: the messages of a chat as well, not what they are called."""
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
        for path in working.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if folder.exists():  # damaged, or another process's
            shutil.rmtree(folder, ignore_errors=True)
        working.rename(folder)
    finally:
        shutil.rmtree(working, ignore_errors=True)
