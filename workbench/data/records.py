"""Encode one record of JSON lines or of a table as one document: token ids and a loss mask.

    {"text": "…"}                                    plain text, all in the loss; `text_field` renames the field
    {"prompt": "…", "completion": "…"}               the completion is in the loss; both may be lists of messages
    {"messages": [{"role": …, "content": …}, …]}     a chat; the assistant's turns are in the loss; "tools" is passed on

ShareGPT's "conversations" with "from" and "value" is read as "messages". Other fields and null fields are ignored.

Invariant: a record is read or refused with one sentence, never guessed at.
"""

from __future__ import annotations

import difflib
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
    "instruction": "prompt",
    "question": "prompt",
    "query": "prompt",
    "output": "completion",
    "response": "completion",
    "answer": "completion",
    "conversation": "messages",
    "chat": "messages",
    "dialog": "messages",
    "content": "text",
}
"""Names of these fields in other collections."""


class RecordEncoder:
    """Encodes records with `tokenizer`. Several threads may use one encoder.

    Args:
        tokenizer: the tokenizer and, for chats, its template.
        text_field: the field of plain text. If it is not "text", it takes precedence over all other fields.
        loss_on: "answers" or "everything", the value of `data.loss_on`.
    """

    def __init__(self, tokenizer: Tokenizer, *, text_field: str, loss_on: str) -> None:
        self._tokenizer = tokenizer
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
        field = self._text_field
        if field != DEFAULT_TEXT_FIELD and record.get(field) is not None:
            return self._text(record[field]), None
        for name in CHAT_FIELDS:
            if record.get(name) is not None:
                return self._chats.encode(_messages(record[name]), tools=record.get("tools"))
        if record.get("prompt") is not None and record.get("completion") is not None:
            return self._prompt(record["prompt"], record["completion"], record.get("tools"))
        if record.get(field) is not None:
            return self._text(record[field]), None
        raise RecordError(self._unknown(record))

    def plain_text(self, record: Any) -> str | None:
        """Return the text of a plain text record, so that many can be encoded in one call; None for other records."""
        if not isinstance(record, Mapping):
            return None
        text = record.get(self._text_field)
        others = () if self._text_field != DEFAULT_TEXT_FIELD else (*CHAT_FIELDS, "prompt")
        if not isinstance(text, str) or any(record.get(name) is not None for name in others):
            return None
        return text

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
        """Return the message for a record without any known field."""
        wanted = [f'"{self._text_field}"', '"prompt" with "completion"', '"messages"']
        present = {name: value for name, value in record.items() if value is not None}
        message = f"a record needs {', '.join(wanted[:-1])} or {wanted[-1]}; this one has {names_of(present)}"
        known = (self._text_field, "prompt", "completion", *CHAT_FIELDS)
        advice = []
        for name in present:
            near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.75)
            meant = near[0] if near else _OTHER_NAMES.get(str(name).lower())
            if meant is not None and meant not in present:
                advice.append(f'"{name}" as "{meant}"')
        if advice:
            return f"{message}; write {' and '.join(dict.fromkeys(advice))}"
        for one, other in (("prompt", "completion"), ("completion", "prompt")):
            if one in present:
                return f'{message}; "{other}" is missing'
        texts = [name for name, value in present.items() if isinstance(value, str)]
        return f'{message}; set data.text_field = "{texts[0]}"' if len(texts) == 1 else message


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
