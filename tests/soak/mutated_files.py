"""Right files with a few mistakes, some hostile: each is read or refused in a message, soon and in little memory."""

from __future__ import annotations

import json
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soak.readers import READERS, REFUSALS
from workbench.data import chats
from workbench.system.terminal import LONGEST_LINE, error_text

LONGEST_S = 2.0
MOST_BYTES = 500 << 20

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
NASTY: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**63, -(2**63) - 1, 10**400, 1e308, [], {}, [[]], {"a": None}, [1] * 50),
    *("", "x", "\x1b[2Jx\x07", "é\u202e\ud800", "../..", "/etc/passwd", "a" * 5000),
    *("{{ x", "{{ 'x' * 10**9 }}", ENDLESS),
)
PIECES: tuple[bytes, ...] = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\x1b[31m",
        b"\r",
        b"\xed\xa0\x80",
        b"\n[x]\n",
        b" = ",
        b",",
        b"}",
        b"]",
        b'"',
        b"'''",
    ),
    *(b"[" * 3000, b"{" * 3000, b"9" * 5000, b"0x" + b"f" * 9000, b"a." * 2000),
    *(b"-", b"1e400", b"NaN", b"Infinity", b"null"),
    *(b"{{ 'x' * 1000000000 }}", b"{{ [1] * 100000000 }}", b"{{ x.y.z }}", ENDLESS.encode()),
)


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 9)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def cut(data: bytes, chance: random.Random) -> bytes:
    start, stop = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return chance.choice((data[:stop], data[start:], data[:start] + data[stop:]))


def repeat(data: bytes, chance: random.Random) -> bytes:
    start, stop = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:stop] * chance.choice((1, 2, 50)) + data[stop:]


def insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(PIECES) + data[at:]


def replace_a_word(data: bytes, chance: random.Random) -> bytes:
    """Put something else in the place of a number, a word or a string."""
    places = [
        at for at in range(1, len(data)) if data[at - 1 : at] in b' ="[{:,\n' and data[at : at + 1].isalnum()
    ]
    if not places:
        return insert(data, chance)
    at = stop = chance.choice(places)
    while stop < len(data) and data[stop : stop + 1] not in b' =",]}:\n':
        stop += 1
    return data[:at] + chance.choice(PIECES) + data[stop:]


def change_a_value(data: bytes, chance: random.Random) -> bytes:
    """Of JSON, or of JSON lines: any value, name or place in it."""
    try:
        lines = data.splitlines() if data.count(b"\n{") else [data]
        at = chance.randrange(len(lines))
        lines[at] = json.dumps(_changed(json.loads(lines[at]), chance)).encode()
        return b"\n".join(lines)
    except (ValueError, RecursionError):
        return replace_a_word(data, chance)


def _changed(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, (dict, list)) or not value or chance.random() < 0.15:
        return chance.choice(NASTY)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return chance.choice(
            (
                [*value[:at], _changed(value[at], chance), *value[at + 1 :]],
                value[:at],
                [*value, chance.choice(NASTY)],
            )
        )
    name = chance.choice(sorted(value))
    others = {key: held for key, held in value.items() if key != name}
    how = chance.randrange(5)
    if how == 0:
        return others
    if how == 1:
        return {**others, str(chance.choice(NASTY)): value[name]}
    return {**value, name: _changed(value[name], chance)}


MUTATIONS: Sequence[Callable[[bytes, random.Random], bytes]] = (
    change_bytes, cut, repeat, insert, replace_a_word, replace_a_word, change_a_value, change_a_value, change_a_value,
)  # fmt: skip


class TooLongError(BaseException):
    """A reader took longer than LONGEST_S."""


@contextmanager
def limited() -> Iterator[None]:
    """Whatever is done here ends after LONGEST_S of this process's time, and gets MOST_BYTES of memory."""

    def stop(*_: object) -> None:
        raise TooLongError

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def outcome(read: Callable[[Path], Any], path: Path) -> str:
    """Return "taken", "refused", or what is wrong."""
    start = time.process_time()
    try:
        with limited():
            read(path)
        found = "taken"
    except REFUSALS as error:
        message = error_text(str(error))
        found = "refused"
        if max(map(len, message.split("\n"))) > LONGEST_LINE:
            found = f"a message of {len(message):,} characters: {message[:80]}..."
        elif any(not letter.isprintable() and letter != "\n" for letter in message):
            found = f"a control character in {message!r}"
    except TooLongError:
        return f"took longer than {LONGEST_S:g} s"
    except MemoryError:
        return f"took more than {MOST_BYTES >> 20} MiB"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - start
    return found if seconds < LONGEST_S else f"took {seconds:.1f} s"


def damaged(name: str, seed: int, folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    """Make the files of reader `name`, one of them with one to three mistakes."""
    chance = random.Random(f"{name} {seed}")
    reader = READERS[name]
    path = reader.make(folder)
    data = path.read_bytes()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(MUTATIONS)(data, chance) or b"\n"
    path.write_bytes(data)
    return path, reader.read


def try_files(
    seeds: Iterator[int], until: float, report: Callable[[str], None], names: Sequence[str] = ()
) -> Counter[str]:
    """Damage files until `until` (on the monotonic clock); return how many were tried, refused, taken and wrong."""
    counts: Counter[str] = Counter()
    chats.TEMPLATE_S = 1.0
    for reader in READERS.values():  # what a first reading imports is not its file's fault
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            reader.read(reader.make(Path(folder)))
    while time.monotonic() < until:
        seed = next(seeds)
        for name in names or READERS:
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                found = outcome(*reversed(damaged(name, seed, Path(folder))))
            counts["tried"] += 1
            counts[found if found in ("taken", "refused") else "wrong"] += 1
            if found not in ("taken", "refused"):
                report(f"{name}, seed {seed}: {found}")
    return counts
