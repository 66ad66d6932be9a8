"""Encode one record of JSON lines or of a table as one document: token ids and a loss mask.

    {"text": "…"}                                    plain text, all in the loss; `text_field` renames the field
    {"prompt": "…", "completion": "…"}               the completion is in the loss; both may be lists of messages
    {"messages": [{"role": …, "content": …}, …]}     a chat; the assistant's turns are in the loss; "tools" is passed on
    {"instruction": "…", "input": "…", "output": "…"}    alpaca's: a chat where the tokenizer has a template, else
                                                     alpaca's own prompt; "input", "system" and "history" may be missing

ShareGPT's "conversations" with "from" and "value" is read as "messages". `columns` renames fields. Other fields and
null fields are ignored. Preference pairs ("chosen", "rejected") are refused until a training compares them.

Invariant: a record is read or refused with one sentence, never guessed at.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from workbench.data import RecordError, kind_of, names_of
from workbench.data.chats import ASSISTANT, ChatEncoder
from workbench.data.tokenizers import Tokenizer

DEFAULT_TEXT_FIELD = "text"
CHAT_FIELDS = ("messages", "conversations")
_ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT}
"""ShareGPT's names of the roles."""
_OTHER_NAMES = {
    "prompt": ("question", "query", "instruction", "problem"),
    "completion": ("answer", "response", "output", "solution", "chosen"),
    "messages": ("conversation", "chat", "dialog", "dialogue"),
    "instruction": ("question", "query", "prompt", "problem"),
    "output": ("answer", "response", "completion", "solution"),
    "text": ("content", "body", "document"),
}
"""Names of these fields in other collections."""
_SHAPES = (("prompt", "completion"), ("messages",), ("instruction", "output"), ("text",))
RECORD_FIELDS = ("prompt", *CHAT_FIELDS, "instruction", "chosen")
"""The field that tells a record of each shape from other JSON, beside that of plain text."""

# Taori et al., Stanford Alpaca, 2023: the prompts that its records are made for.
_ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
_ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


class RecordEncoder:
    """Encodes records with `tokenizer`. Several threads may use one encoder.

    Args:
        tokenizer: the tokenizer and, for chats, its template.
        text_field: the field of plain text. If it is not "text", it takes precedence over all other fields.
        loss_on: "answers" or "everything", the value of `data.loss_on`.
        columns: the names that fields have in these records, by the names that they have here.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, text_field: str, loss_on: str, columns: Mapping[str, str] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._columns = dict(columns or {})
        self._text_field = text_field
        self._answers_only = loss_on == "answers"
        self._chats = ChatEncoder(tokenizer, answers_only=self._answers_only)

    def encode(self, record: Mapping[str, Any]) -> tuple[list[int], list[bool] | None]:
        """Return the ids of the document with its end of text, and its loss mask (None: every token is in the loss).

        An empty text gives no ids. With `loss_on` "answers", a prompt or a chat always has a mask; without an answer
        all of it is False.

        Raises:
            RecordError: the record cannot be read.
        """
        if not isinstance(record, Mapping):
            raise RecordError(f"a record must be an object with fields, not {kind_of(record)}")
        record, field = self._renamed(record), self._text_field
        if field != DEFAULT_TEXT_FIELD and record.get(field) is not None:
            return self._text(record[field]), None
        for name in CHAT_FIELDS:
            if record.get(name) is not None:
                return self._chats.encode(_messages(record[name]), tools=record.get("tools"))
        if record.get("prompt") is not None and record.get("completion") is not None:
            return self._prompt(record["prompt"], record["completion"], record.get("tools"))
        if record.get("instruction") is not None and record.get("output") is not None:
            return self._instruction(record)
        if record.get("chosen") is not None and record.get("rejected") is not None:
            raise RecordError(_preference(record))
        if record.get(field) is not None:
            return self._text(record[field]), None
        raise RecordError(self._unknown(record))

    def plain_text(self, record: Any) -> str | None:
        """Return the text of a plain text record, so that many can be encoded in one call; None for other records."""
        if not isinstance(record, Mapping):
            return None
        record, text = self._renamed(record), record.get(self._text_field)
        others = () if self._text_field != DEFAULT_TEXT_FIELD else RECORD_FIELDS
        if not isinstance(text, str) or any(record.get(name) is not None for name in others):
            return None
        return text

    def _renamed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._columns:
            return record
        given = {name: record[at] for name, at in self._columns.items() if record.get(at) is not None}
        return {**record, **given}

    def _text(self, text: Any) -> list[int]:
        if not isinstance(text, str):
            raise RecordError(f'"{self._text_field}" is {kind_of(text)}: expected a string')
        return [*self._tokenizer.encode(text), self._tokenizer.end_of_text] if text else []

    def _prompt(self, prompt: Any, completion: Any, tools: Any) -> tuple[list[int], list[bool] | None]:
        if isinstance(prompt, (list, tuple)) and isinstance(completion, (list, tuple)):
            before, after = _messages(prompt), _messages(completion)
            return self._chats.encode([*before, *after], tools=tools, first_in_loss=len(before))
        for name, value in (("prompt", prompt), ("completion", completion)):
            if not isinstance(value, str):
                raise RecordError(
                    f'"{name}" is {kind_of(value)}: expected a string, or both "prompt" and "completion" as lists of '
                    "messages"
                )
        encode = self._tokenizer.encode
        begin = [*self._prefix, *encode(prompt)] if prompt else [*self._prefix]
        whole = [*self._prefix, *encode(prompt + completion)]
        # At inference the prompt is tokenized alone, so that a token may not span prompt and completion here either.
        if whole[: len(begin)] != begin:
            whole = [*begin, *encode(completion)]
        whole.append(self._tokenizer.end_of_text)
        if not self._answers_only:
            return whole, None
        return whole, [place >= len(begin) for place in range(len(whole))]

    def _instruction(self, record: Mapping[str, Any]) -> tuple[list[int], list[bool] | None]:
        fields = ("instruction", "input", "output", "system")
        texts = {name: "" if record.get(name) is None else record[name] for name in fields}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise RecordError(f'"{name}" is {kind_of(value)}: expected a string')
        earlier = [] if record.get("history") is None else record["history"]
        pairs = isinstance(earlier, (list, tuple))
        if not pairs or not all(isinstance(turn, (list, tuple)) and len(turn) == 2 for turn in earlier):
            raise RecordError('"history": expected a list of pairs, each of an instruction and its answer')
        turns = [*earlier, [texts["instruction"], texts["output"]]]
        if self._tokenizer.chat_template is None and not texts["system"] and len(turns) == 1:
            words = _ALPACA_WITH_INPUT if texts["input"] else _ALPACA
            return self._prompt(words.format(**texts), texts["output"], None)
        if texts["input"]:
            turns[-1] = [f"{texts['instruction']}\n{texts['input']}", texts["output"]]
        chat = [{"role": "system", "content": texts["system"]}] if texts["system"] else []
        for asked, answer in turns:
            chat += [{"role": "user", "content": asked}, {"role": ASSISTANT, "content": answer}]
        return self._chats.encode(chat)

    @cached_property
    def _prefix(self) -> list[int]:
        """The special tokens that the tokenizer puts before a text; at inference a prompt begins with them."""
        backend, some = self._tokenizer.backend, "a"
        bare = list(backend(some, add_special_tokens=False)["input_ids"])
        given = list(backend(some)["input_ids"])
        for at in range(len(given) - len(bare) + 1):
            if given[at : at + len(bare)] == bare:
                return given[:at]
        return []

    def _unknown(self, record: Mapping[str, Any]) -> str:
        """Return the message for a record of no known shape: the three nearest, with what to write."""
        present = [name for name, value in record.items() if value is not None and isinstance(name, str)]
        ways = sorted((self._way(shape, present) for shape in _SHAPES), key=lambda way: -way[0])
        near = "; ".join(words for _, words in ways[:3])
        return f"a record with {names_of(dict.fromkeys(present))} has none of the known shapes; the nearest are {near}"

    def _way(self, shape: tuple[str, ...], present: list[str]) -> tuple[float, str]:
        """Return how much of `shape` is there, and what to write to have it."""
        named = " with ".join(f'"{field}"' for field in shape)
        found: dict[str, str] = {}
        for field in shape:
            names = (field, *_OTHER_NAMES[field])
            like = [name for name in present if name.lower() in names]
            like += difflib.get_close_matches(field, present, n=1, cutoff=0.75)
            if field == "text" and len(present) == 1:
                like += present
            if like:
                found[field] = like[0]
        share = len(found) / len(shape)
        if not found:
            return share, named
        if share < 1:
            missing = next(field for field in shape if field not in found)
            return share, f'{named} ("{missing}" is missing)'
        if shape == ("text",):
            return share, f"{named} (set data.text_field = {json.dumps(found['text'], ensure_ascii=False)})"
        columns = ", ".join(
            f"{field} = {json.dumps(name, ensure_ascii=False)}"
            for field, name in found.items()
            if name != field
        )
        return share, f"{named} (set data.columns = {{{columns}}})"


def _preference(record: Mapping[str, Any]) -> str:
    """Return the message for a pair of answers."""
    prompt = record.get("prompt")
    if record.get("instruction") is not None and prompt is None:
        write = 'data.columns = {output = "chosen"}'
    elif isinstance(record["chosen"], (list, tuple)) and not isinstance(prompt, (list, tuple)):
        write = 'data.columns = {messages = "chosen"}'
    elif prompt is not None:
        write = 'data.columns = {completion = "chosen"}'
    else:
        write = 'data.text_field = "chosen", which has all of its text in the loss'
    return (
        '"chosen" with "rejected" is a preference pair, which no training here compares yet; to train on the chosen '
        f"answers alone, set {write}"
    )


def _messages(chat: Any) -> Any:
    """Return `chat` with "role" and "content" in place of ShareGPT's "from" and "value"."""
    if not isinstance(chat, (list, tuple)):
        return chat
    return [
        {"role": _ROLES.get(m["from"], m["from"]), "content": m["value"]}
        if isinstance(m, Mapping) and "role" not in m and isinstance(m.get("from"), str) and "value" in m
        else m
        for m in chat
    ]
