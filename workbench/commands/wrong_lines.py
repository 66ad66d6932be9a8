"""What is said of a command line that no verb takes as it stands: what is wrong with it, and what would be right.

argparse's own words name neither. Invariant: of a line that argparse takes nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.commands.arguments import Argument, Verb

ALONE = ("-h", "--help", "--version")
"""What may stand before a verb; `--ascii` may stand alone."""


def wrong_beginning(words: Sequence[str], verbs: Sequence[Verb]) -> str | None:
    """What is wrong with the word that should be a verb; None where it is one, or an option of workbench itself."""
    first = words[0]
    if first.startswith("-"):
        return None if first in ALONE else _option_before_verb(words, verbs)
    if first not in _first_words(verbs):
        return _unknown_verb(first, verbs)
    inner = [verb.name.split()[1] for verb in verbs if verb.name.startswith(f"{first} ")]
    second = words[1] if len(words) > 1 else ""
    if not inner or second in inner or second in ALONE:
        return None
    near = _nearest(second, inner)
    hint = (
        f'did you mean "{first} {near}"?'
        if near
        else f"the verbs are {_one_of([f'{first} {v}' for v in inner])}"
    )
    return f'there is no verb "{f"{first} {second}".strip()}"; {hint}'


def left_over(verb: Verb, words: Sequence[str]) -> str:
    """What is said of the words of a line that `verb` has no use for."""
    word = next((word for word in words if word.startswith("-")), words[0])
    more = f"`workbench {verb.name} --help` lists what it takes"
    if not word.startswith("-") or word == "-":
        return f"{verb.name}: {word!r} is one word too many; {more}"
    name = word.split("=")[0]
    fields = _fields_called(name) if "--set" in _options(verb) else []
    near = _nearest(name, _options(verb))
    if fields:
        hint = f"a field is set by {_one_of([f'--set {field}=VALUE' for field in fields])}"
    else:
        hint = f'did you mean "{near}"?' if near else more
    return f'{verb.name}: there is no option "{name}"; {hint}'


def _option_before_verb(words: Sequence[str], verbs: Sequence[Verb]) -> str:
    """Options that a verb takes stand behind it: the line is given as it should be, where that can be told."""
    options = {name: argument for verb in verbs for name, argument in _options(verb).items()}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        argument = options.get(words[at])
        at += 2 if argument is not None and _takes_a_value(argument) else 1
    moved, rest = words[:at], words[at:]
    verb = next((verb for verb in verbs if verb.name.split() == list(rest[: len(verb.name.split())])), None)
    first = words[0].split("=")[0]
    if verb is None:
        if first in options:
            takers = [f"`{verb.name}`" for verb in verbs if first in _options(verb)]
            return f"{first} stands behind a verb that takes it, and there is none: {_one_of(takers)}"
        near = _nearest(first, (*ALONE, "--ascii"))
        hint = f'did you mean "{near}"?' if near else "`workbench --help` lists the verbs, which come first"
        return f'there is no option "{first}"; {hint}'
    odd = next((word.split("=")[0] for word in moved if word.startswith("-") and not _has(verb, word)), None)
    if odd is not None:
        return left_over(verb, [odd])
    import shlex

    return f"options stand behind the verb: {shlex.join(['workbench', *rest, *moved])}"


def _unknown_verb(word: str, verbs: Sequence[Verb]) -> str:
    names = _first_words(verbs)
    near = _nearest(word, names)
    if near:
        return f'there is no verb "{word}"; did you mean "{near}"?'
    if word.endswith(".toml"):
        return f'there is no verb "{word}"; to train this preset: workbench run {word}'
    return f'there is no verb "{word}"; the verbs are {", ".join(names)}'


def _fields_called(option: str) -> list[str]:
    """The dotted names of the configuration's fields that an option of this name was probably meant to set."""
    from workbench.config import fields  # imports pydantic: only for a line that is wrong

    wanted = option.strip("-").replace("-", "_")
    return [field.name for field in fields() if wanted in (field.name, field.key)]


def _nearest(word: str, known: Iterable[str]) -> str | None:
    """What `word` begins or is nearly."""
    known = list(known)
    whole = [name for name in known if len(word) > 2 and name.startswith(word)]
    if whole:
        return whole[0]
    import difflib  # takes its time, which no line that is right should wait for

    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def _first_words(verbs: Iterable[Verb]) -> list[str]:
    return list(dict.fromkeys(verb.name.split()[0] for verb in verbs))


def _options(verb: Verb) -> dict[str, Argument]:
    return {name: argument for argument in verb.arguments for name in argument.names if name.startswith("-")}


def _has(verb: Verb, word: str) -> bool:
    return word.split("=")[0] in _options(verb)


def _takes_a_value(argument: Argument) -> bool:
    return argument.options.get("action", "append") in ("append", "store") and "nargs" not in argument.options


def _one_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
