"""Messages for a command line that no command takes: what is wrong with it, and the nearest right thing.

argparse names neither. Invariant: a line that argparse takes gets no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.commands.table import COMMANDS, Command

_ALONE = ("-h", "--help", "--version")
"""Options that may stand before a command; `--ascii` may stand alone."""


def unknown_command(words: Sequence[str]) -> str | None:
    """Return the message for a first word (or two) that is no command; None where it is one."""
    first = words[0]
    if first in _ALONE:
        return None
    names = list(dict.fromkeys(command.name.split()[0] for command in COMMANDS))
    if first.startswith("-"):
        option = first.split("=")[0]
        if any(option in _options(command) for command in COMMANDS):
            return f"{option} belongs behind a command: workbench COMMAND {option} ..."
        near = _nearest(option, (*_ALONE, "--ascii"))
        hint = (
            f'did you mean "{near}"?' if near else "`workbench --help` lists the commands, which come first"
        )
        return f'there is no option "{option}"; {hint}'
    if first not in names:
        near = _nearest(first, names)
        hint = f'did you mean "{near}"?' if near else f"the commands are {', '.join(names)}"
        if first.endswith(".toml"):
            hint = f"to train this preset: workbench run {first}"
        return f'there is no command "{first}"; {hint}'
    inner = [command.name.split()[1] for command in COMMANDS if command.name.startswith(f"{first} ")]
    second = words[1] if len(words) > 1 else ""
    if not inner or second in inner or second in _ALONE:
        return None
    near = _nearest(second, inner)
    hint = (
        f'did you mean "{first} {near}"?'
        if near
        else f"the commands are {', '.join(f'{first} {w}' for w in inner)}"
    )
    return f'there is no command "{f"{first} {second}".strip()}"; {hint}'


def unknown_argument(command: Command, words: Sequence[str]) -> str:
    """Return the message for the words of a line that `command` does not take."""
    word = next((word for word in words if word.startswith("-")), words[0])
    more = f"`workbench {command.name} --help` lists its options"
    if not word.startswith("-") or word == "-":
        return f"{command.name}: {word!r} is one word too many; {more}"
    option = word.split("=")[0]
    options = _options(command)
    if "--set" in options:
        from workbench.config import fields  # imports pydantic: only for a line that is wrong

        wanted = option.strip("-").replace("-", "_")
        named = [field.name for field in fields() if wanted in (field.name, field.key)]
        if named:
            ways = " or ".join(f"--set {name}=VALUE" for name in named)
            return f'{command.name}: there is no option "{option}"; a field is set by {ways}'
    near = _nearest(option, options)
    return f'{command.name}: there is no option "{option}"; ' + (f'did you mean "{near}"?' if near else more)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` begins or nearly is."""
    import difflib

    known = list(known)
    whole = [name for name in known if len(word) > 2 and name.startswith(word)]
    return next(iter(whole or difflib.get_close_matches(word, known, n=1)), None)


def _options(command: Command) -> list[str]:
    return [name for argument in command.arguments for name in argument.names if name.startswith("-")]
