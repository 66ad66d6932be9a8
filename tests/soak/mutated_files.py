"""Right files with a few mistakes, drawn by Hypothesis: each is read or refused in words, soon, in little memory."""

from __future__ import annotations

import json
import re
import resource
import signal
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from soak.readers import READERS, REFUSALS
from workbench.data import chats
from workbench.system.terminal import LONGEST_LINE, error_text

LONGEST_S = 2.0
MOST_BYTES = 500 << 20
EXAMPLES = 50

Draw = Callable[[st.SearchStrategy[Any]], Any]

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
PIECE = (
    st.sampled_from(PIECES)
    | st.binary(max_size=9)
    | st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass"))
)


VALUES = st.sampled_from(NASTY) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
"""What stands in the place of a value of JSON."""


def change_bytes(draw: Draw, data: bytes) -> bytes:
    changed = bytearray(data)
    for at in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=8)):
        changed[at] = draw(st.integers(0, 255))
    return bytes(changed)


def cut(draw: Draw, data: bytes) -> bytes:
    start, stop = _stretch(draw, data)
    return draw(st.sampled_from((data[:stop], data[start:], data[:start] + data[stop:])))


def repeat(draw: Draw, data: bytes) -> bytes:
    start, stop = _stretch(draw, data)
    return data[:stop] + data[start:stop] * draw(st.sampled_from((1, 2, 50))) + data[stop:]


def insert(draw: Draw, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(PIECE) + data[at:]


def replace_a_word(draw: Draw, data: bytes) -> bytes:
    """Put something else in the place of a number, a word or a string."""
    words = [word.span() for word in re.finditer(rb"(?<=[ =\"[{:,\n])[^\W_][^ =\",\]}:\n]*", data)]
    if not words:
        return insert(draw, data)
    start, stop = draw(st.sampled_from(words))
    return data[:start] + draw(PIECE) + data[stop:]


def change_a_value(draw: Draw, data: bytes) -> bytes:
    """Of JSON, or of JSON lines: any value, name or place in it."""
    lines = data.splitlines() if data.count(b"\n{") else [data]
    at = draw(st.integers(0, len(lines) - 1))
    try:
        lines[at] = json.dumps(_changed(draw, json.loads(lines[at]))).encode()
    except (ValueError, RecursionError):
        return replace_a_word(draw, data)
    return b"\n".join(lines)


def _stretch(draw: Draw, data: bytes) -> tuple[int, int]:
    start, stop = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
    return start, stop


def _changed(draw: Draw, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 6)) == 6:
        return draw(VALUES)
    how = draw(st.sampled_from(("within", "within", "within", "without", "more")))
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        if how == "within":
            return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
        return value[:at] if how == "without" else [*value, draw(VALUES)]
    name = draw(st.sampled_from(sorted(value)))
    if how == "within":
        return {**value, name: _changed(draw, value[name])}
    others = {key: held for key, held in value.items() if key != name}
    return others if how == "without" else {**others, str(draw(VALUES)): value[name]}


MISTAKES: Sequence[Callable[[Draw, bytes], bytes]] = (
    change_a_value, change_a_value, change_a_value, replace_a_word, replace_a_word, change_bytes, cut, repeat, insert,
)  # fmt: skip


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """Draw `data` with one to three mistakes."""
    for mistake in draw(st.lists(st.sampled_from(MISTAKES), min_size=1, max_size=3)):
        data = mistake(draw, data) or b"\n"
    return data


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
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def acts(letter: str) -> bool:
    """True for what a terminal acts on, and for what reorders the letters after it."""
    category, order = unicodedata.category(letter), unicodedata.bidirectional(letter)
    return letter != "\n" and (category in ("Cc", "Cs", "Zl", "Zp") or order[:2] in ("LR", "RL", "PD", "FS"))


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
        elif any(acts(letter) for letter in message):
            found = f"a control character in {message!r}"
    except TooLongError:
        return f"took longer than {LONGEST_S:g} s"
    except MemoryError:
        return f"took more than {MOST_BYTES >> 20} MiB"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - start
    return found if seconds < LONGEST_S else f"took {seconds:.1f} s"


def try_reader(name: str, first: int, examples: int) -> Counter[str]:
    """Give reader `name` so many damaged files, the same for the same `first`.

    An AssertionError has the smallest fault that was found; Flaky is raised for one that did not come again.
    """
    counts: Counter[str] = Counter()
    reader = READERS[name]
    with tempfile.TemporaryDirectory(prefix="soak-") as right:
        data = reader.make(Path(right)).read_bytes()

    @seed(first)
    @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(data))
    def attempt(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            path = reader.make(Path(folder))
            path.write_bytes(data)
            found = outcome(reader.read, path)
        counts[found] += 1
        assert found in ("taken", "refused"), f"{found}: {data[:500]!r}"

    attempt()
    return counts


def try_files(seeds: Iterator[int], until: float, report: Callable[[str], None]) -> Counter[str]:
    """Damage files until `until` (on the monotonic clock); return how many were tried, refused, taken and wrong."""
    counts: Counter[str] = Counter()
    chats.TEMPLATE_S = 1.0
    for reader in READERS.values():  # what a first reading imports is not its file's fault
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            reader.read(reader.make(Path(folder)))
    while time.monotonic() < until:
        first = next(seeds)
        for name in READERS:
            try:
                counts += try_reader(name, first, EXAMPLES)
            except AssertionError as error:
                counts["wrong"] += 1
                report(f"{name}, seed {first}: {error}")
            except Flaky:
                report(f"{name}, seed {first}: wrong once, and not when it was tried again")
    counts["tried"] = counts.total()
    return counts
