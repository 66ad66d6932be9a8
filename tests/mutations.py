"""Texts with a few mistakes made at random, for whatever has to read any text without a traceback, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LONGEST_S = 2.0

Mutation = Callable[[str, random.Random], str]
"""A text that is not empty, with one more mistake."""


def mutilated(texts: Sequence[str], mutations: Sequence[Mutation], seed: int) -> str:
    """One of the texts with one to three mistakes of these kinds; never empty."""
    chance = random.Random(seed)
    text = chance.choice(texts)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = chance.choice(mutations)(text, chance) or "\n"
    return text


@contextmanager
def soon() -> Iterator[None]:
    """What is done here takes no longer than LONGEST_S of this process's time."""
    start = time.process_time()
    yield
    assert time.process_time() - start < LONGEST_S


def change_characters(text: str, chance: random.Random) -> str:
    letters = list(text)
    for _ in range(chance.randrange(1, 8)):
        letters[chance.randrange(len(letters))] = chance.choice(
            "\0\n\r\t \"'#=[]{},.:;\\/é\u2028😀“019azAZ_-+*"
        )
    return "".join(letters)


def cut(text: str, chance: random.Random) -> str:
    """Only the begin is left, or the end, or both, or what is between them."""
    start, end = sorted(chance.randrange(len(text)) for _ in range(2))
    return chance.choice((text[:end], text[start:], text[:start] + text[end:], text[start:end]))


def shuffle_lines(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    chance.shuffle(lines)
    return "\n".join(lines)


def random_bytes(seed: int) -> bytes:
    """Of a file that is no text at all."""
    return random.Random(seed).randbytes(200)
