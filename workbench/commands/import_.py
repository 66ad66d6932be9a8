"""`workbench import`: another tool's configuration becomes a preset, with a verdict on each of its keys.

Without --out the whole output is the preset, and the verdicts are comments in it, so that it can be redirected to a
file. What is refused goes to stderr alone, each once. A file that is there is written over only when that is asked
for, or when it is as an import left it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from workbench.commands import report
from workbench.config import parse_config
from workbench.config.references import model_positions
from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.imports import Imported, Verdict, import_file
from workbench.imports.findings import JUDGEMENTS, shown
from workbench.imports.preset_text import is_unedited, sealed
from workbench.presets import is_shipped
from workbench.system.files import write_atomically
from workbench.system.terminal import on_one_line

_WIDTH = 110


def import_(
    *,
    file: Path,
    out: Path | None,
    architecture: str,
    pretrained: str,
    overrides: Sequence[str],
    force: bool,
    as_json: bool,
) -> int:
    """Print what becomes of the file's keys and the preset, or write the preset to `out`; the exit code.

    Raises:
        ConfigurationError: the file cannot be read or repaired, a key of it is refused, or `out` cannot be written.
    """
    if force and out is None:
        raise ConfigurationError("--force: needs --out")
    wrong = [] if out is None else list(_wrong_with_target(out, force))
    try:
        made = import_file(file, architecture=architecture, pretrained=pretrained, overrides=overrides)
    except ConfigurationError as error:
        raise ConfigurationError("\n".join([str(error), *wrong])) from error
    wrong[:0] = made.refused
    if as_json:
        print(json.dumps(_as_dict(made, None if wrong else out), indent=2))
    elif made.refused or not wrong:
        text = "\n".join(_as_text(made))
        if out is None:
            text = "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
        print(text)
        if out is None and made.preset:
            print("", made.preset, sep="\n", end="")
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    if out is not None:
        try:
            write_atomically(out, sealed(made.preset))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"--out {out}: cannot be written: {reason}") from error
    for line in _closing(made, out):
        report(line)
    return EXIT_DONE


def _closing(made: Imported, out: Path | None) -> Iterator[str]:
    """Yield what to know and to do next; the commands work as they are printed."""
    unknown = [verdict for verdict in made.verdicts if verdict.judgement == "unknown" and not verdict.within]
    if unknown:
        keys = "1 key is" if len(unknown) == 1 else f"{len(unknown)} keys are"
        lines = sorted({verdict.line for verdict in unknown})
        at = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        yield f"{keys} unknown here, and left out ({at})"
    if out is None:
        if not made.names_model:
            yield f"a file of {made.tool} names no model; add one with --set model.pretrained=NAME"
        if not made.names_data:
            yield "no data is named; add it with --set data.source=NAME"
        return
    yield f"written: {out}"
    if not made.names_data:
        yield (
            f"no data is named, and nothing trains before: write data.source in {out}, or import again with "
            "--set data.source=NAME"
        )
    named = shlex.quote(str(out) if not str(out).startswith("-") else f"./{out}")
    if made.names_model:
        config = parse_config(made.preset, made.name)
        positions = model_positions(config)
        short = positions is not None and positions < config.data.sequence_length
        shorter = f" --set data.sequence_length={positions}" if short else ""
        yield f"next, for its memory and time: workbench plan {named}{shorter}"
        return
    yield (
        f"a file of {made.tool} names no model: add one in [model], "
        "or import again with --set model.pretrained=NAME"
    )
    yield f"next, with GPT-2 for a model: workbench plan {named} --set model.architecture=gpt2"


def _as_text(made: Imported) -> Iterator[str]:
    """Yield counts, repairs and verdicts, without what is refused; a section that is judged as one counts once."""
    judged = [verdict for verdict in made.verdicts if not verdict.within]
    counts = ", ".join(
        f"{sum(verdict.judgement == judgement for verdict in judged)} {judgement}" for judgement in JUDGEMENTS
    )
    yield on_one_line(f"{made.name}: {len(judged)} keys: {counts}")
    if made.repairs:
        yield ""
        yield "Repaired:"
        for repair in made.repairs:
            yield from _wrapped(f"  line {repair.line}: ", repair.what)
    shown_here = [verdict for verdict in made.verdicts if verdict.judgement != "refused"]
    if shown_here:
        yield ""
        yield f"{'line':>6}  {'verdict':<16}  key"
    for verdict in shown_here:
        yield on_one_line(
            f"{verdict.line:>6}  {verdict.judgement:<16}  {verdict.key} = {shown(verdict.value)}"
        )
        fields = f" ({', '.join(verdict.fields)})" if verdict.fields else ""
        yield from _wrapped(" " * 26, verdict.reason + fields)
    if made.assumed and not made.refused:
        yield ""
        yield "Not in the file:"
        for assumed in made.assumed:
            yield from _wrapped(f"  {assumed.key}: ", assumed.reason)


def _wrapped(start: str, text: str) -> list[str]:
    return wrap(
        on_one_line(text),
        width=_WIDTH,
        initial_indent=start,
        subsequent_indent=" " * (len(start) if not start.strip() else 6),
        break_on_hyphens=False,
    )


def _as_dict(made: Imported, out: Path | None) -> dict[str, Any]:
    return {
        "file": made.name,
        "repairs": [repair._asdict() for repair in made.repairs],
        "keys": [_key_as_dict(verdict) for verdict in made.verdicts],
        "assumed": [assumed._asdict() for assumed in made.assumed],
        "refused": list(made.refused),
        "preset": made.preset,
        "out": None if out is None or made.refused else str(out),
    }


def _key_as_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "key": verdict.key,
        "line": verdict.line,
        "value": _json_value(verdict.value),
        "verdict": verdict.judgement,
        "reason": verdict.reason,
        "fields": list(verdict.fields),
    }


def _json_value(value: Any) -> Any:
    """Return a value that strict JSON can hold: what is not finite, or too large for a reader, as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shown(value) if isinstance(value, (dict, list)) else value
    return value if abs(value) < 1e300 else shown(value)


# Writing


def _wrong_with_target(out: Path, force: bool) -> Iterator[str]:
    """Yield why nothing can be written to this file; reported together with what is wrong with the other one."""
    if out.is_dir():
        yield f"--out {out}: is a folder; name a file"
    elif not out.parent.is_dir():
        yield f"--out {out}: there is no folder {out.parent}; create it, or name another"
    elif os.path.lexists(out) and is_shipped(out):
        yield f"--out {out}: is shipped with workbench and is never changed; name another file"
    elif os.path.lexists(out) and not force and not _is_as_imported(out):
        yield (
            f"--out {out}: exists and is not an unedited import; name another file, or add --force to overwrite it"
        )


def _is_as_imported(out: Path) -> bool:
    """Return True where an import wrote the file, and nobody has edited it."""
    try:
        return out.is_file() and is_unedited(out.read_bytes().decode("utf-8"))
    except (OSError, ValueError):
        return False
