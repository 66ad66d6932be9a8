"""One record of JSON lines or of a table to the token ids of one document, and which of them are learnt.

    {"text": "…"}                                    plain text: learnt whole; `text_field` may call it otherwise
    {"prompt": "…", "completion": "…"}               the completion is learnt; either may be a list of messages
    {"messages": [{"role": …, "content": …}, …]}     a chat: what the assistant says is learnt; "tools" may stand beside

"conversations" is read as "messages", with "from" and "value" for "role" and "content" too. Other fields do not matter.
A field that is null is not there.

Invariant: a record is read or refused with a sentence, never guessed at.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from workbench.data.records.chats import ASSISTANT, ChatEncoder
from workbench.data.records.record_error import RecordError, kind_of, names_of
from workbench.data.tokenizers import Tokenizer

__all__ = ["RecordEncoder", "RecordError"]

DEFAULT_TEXT_FIELD = "text"
CHAT_FIELDS = ("messages", "conversations")
_ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT}
"""Of chats with "from" and "value", which call the two sides otherwise."""
_ELSEWHERE = {
    "instruction": "prompt",
    "input": "prompt",
    "question": "prompt",
    "query": "prompt",
    "output": "completion",
    "response": "completion",
    "answer": "completion",
    "chosen": "completion",
    "conversation": "messages",
    "chat": "messages",
    "dialog": "messages",
    "content": "text",
}
"""What other collections call these fields."""


class RecordEncoder:
    """Encodes records with `tokenizer`.

    Args:
        tokenizer: gives the ids and, for chats, the template.
        text_field: the field of plain text. One that is named otherwise than "text" comes before any other field.
        loss_on: "answers" or "everything", as `data.loss_on`.
    """

    def __init__(self, tokenizer: Tokenizer, *, text_field: str, loss_on: str) -> None:
        if loss_on not in ("answers", "everything"):
            raise ValueError(f'loss_on = {loss_on!r}: expected "answers" or "everything"')
        self._tokenizer = tokenizer
        self._text_field = text_field
        self._answers_only = loss_on == "answers"
        self._chats = ChatEncoder(tokenizer, answers_only=self._answers_only)

    def encode(self, record: Mapping[str, Any]) -> tuple[list[int], list[bool] | None]:
        """Ids of the document, its end included, and whether each of them is learnt (None: all are).

        No ids for a text that is empty: such a record is to be passed over. With `loss_on` "answers" a prompt or a chat
        always has marks, all of them False where there is no answer.

        Raises RecordError for a record that cannot be read.
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
        """The text of a record that is plain text, so that many can be encoded at once; None for any other record."""
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
            return self._chats.encode([*before, *after], tools=tools, learnt_from=len(before))
        for name, value in (("prompt", prompt), ("completion", completion)):
            if not isinstance(value, str):
                raise RecordError(
                    f'"{name}" is {kind_of(value)}: expected a string, or both "prompt" and "completion" as lists of '
                    "messages"
                )
        encode = self._tokenizer.encode
        begin = [*self._prefix, *encode(prompt)] if prompt else [*self._prefix]
        whole = [*self._prefix, *encode(prompt + completion)]
        # The prompt's tokens are what stands there when the model is asked; the two may join in one token.
        if whole[: len(begin)] != begin:
            whole = [*begin, *encode(completion)]
        whole.append(self._tokenizer.end_of_text)
        if not self._answers_only:
            return whole, None
        return whole, [place >= len(begin) for place in range(len(whole))]

    @cached_property
    def _prefix(self) -> list[int]:
        """What the tokenizer by itself puts before a text: a prompt begins with it when the model is asked."""
        backend, some = self._tokenizer.backend, "a"
        bare = list(backend(some, add_special_tokens=False)["input_ids"])
        given = list(backend(some)["input_ids"])
        for at in range(len(given) - len(bare) + 1):
            if given[at : at + len(bare)] == bare:
                return given[:at]
        return []

    def _unknown(self, record: Mapping[str, Any]) -> str:
        wanted = [f'"{self._text_field}"', '"prompt" with "completion"', '"messages"']
        there = {name: value for name, value in record.items() if value is not None}
        message = f"a record needs {', '.join(wanted[:-1])} or {wanted[-1]}; this one has {names_of(there)}"
        known = (self._text_field, "prompt", "completion", *CHAT_FIELDS)
        advice = []
        for name in there:
            near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.75)
            meant = near[0] if near else _ELSEWHERE.get(str(name).lower())
            if meant is not None and meant not in there:
                advice.append(f'"{name}" as "{meant}"')
        if advice:
            return f"{message}; write {' and '.join(dict.fromkeys(advice))}"
        for one, other in (("prompt", "completion"), ("completion", "prompt")):
            if one in there:
                return f'{message}; "{other}" is missing'
        texts = [name for name, value in there.items() if isinstance(value, str)]
        return f'{message}; set data.text_field = "{texts[0]}"' if len(texts) == 1 else message


def _messages(chat: Any) -> Any:
    """A chat with "role" and "content", where it has "from" and "value"."""
    if not isinstance(chat, (list, tuple)):
        return chat
    return [
        {"role": _ROLES.get(m["from"], m["from"]), "content": m["value"]}
        if isinstance(m, Mapping) and "role" not in m and isinstance(m.get("from"), str) and "value" in m
        else m
        for m in chat
    ]
