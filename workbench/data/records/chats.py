"""Chats to token ids through a tokenizer's own chat template, and which of the tokens are the assistant's.

A template is a program of somebody else's. Where it marks what the assistant says ({% generation %}), its marks are
taken. Elsewhere the assistant's turns are found by rendering the chat up to each of them; a template that renders a
turn otherwise once others follow it (thinking is taken out of earlier turns) is asked where the turn's words come to
lie in the whole, with a word of ours in their place.

Invariant: the ids are those of `apply_chat_template` for the whole chat, whatever was rendered to find the turns.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config.tokenizers import is_made_here
from workbench.data.records.record_error import RecordError, kind_of, names_of
from workbench.data.tokenizers import Tokenizer

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
ASSISTANT = "assistant"

Message = Mapping[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True)
class _Tokens:
    """A rendered chat as tokens, each with its first character and the one after its last."""

    text: str
    ids: list[int]
    spans: list[Span]
    marked: list[bool] | None
    """Which the template marks as generated; None where it marks nothing."""


class ChatEncoder:
    """Encodes chats of `tokenizer`; with `answers_only` tells which tokens are the assistant's."""

    def __init__(self, tokenizer: Tokenizer, *, answers_only: bool) -> None:
        self._tokenizer = tokenizer
        self._answers_only = answers_only
        self._special: frozenset[int] | None = None

    def encode(
        self, messages: Sequence[Message], *, tools: Any = None, learnt_from: int = 0
    ) -> tuple[list[int], list[bool] | None]:
        """Ids of the chat and, with `answers_only`, whether each is learnt.

        What is learnt is what the assistant says from message `learnt_from` on, with the token that ends its turn. A
        text that the template does not end with a special token gets the end of text.

        Raises RecordError for messages that are none, that the template refuses, or whose turns cannot be found.
        """
        _check(messages)
        template = self._tokenizer.chat_template
        if template is None:
            raise RecordError(_no_template(self._tokenizer.spec))
        chat = _Chat(self._tokenizer.backend, messages, tools)
        tokens = chat.tokens(marks=self._answers_only and _MARKS.search(template) is not None)
        ids = list(tokens.ids)
        counted: list[bool] | None = None
        if self._answers_only:
            counted = self._counted(chat, tokens, learnt_from, "add_generation_prompt" in template)
        if not self._is_ended(tokens):
            ids.append(self._tokenizer.end_of_text)
            if counted is not None:
                counted.append(messages[-1]["role"] == ASSISTANT and len(messages) > learnt_from)
        return ids, counted

    def _counted(self, chat: _Chat, tokens: _Tokens, learnt_from: int, has_prompt: bool) -> list[bool]:
        if tokens.marked is not None:
            # Turns before `learnt_from` are marked as well.
            before = chat.render(learnt_from, prompt=False) if learnt_from else ""
            begin = len(before) if before is not None and tokens.text.startswith(before) else 0
            return [
                marked and start >= begin
                for marked, (start, _) in zip(tokens.marked, tokens.spans, strict=True)
            ]
        special = self._special_ids()
        counted = [False] * len(tokens.ids)
        starts = [start for start, _ in tokens.spans]
        for index, message in enumerate(chat.messages):
            if index < learnt_from or message["role"] != ASSISTANT:
                continue
            begin, end = chat.turn(index, tokens, special, has_prompt)
            first = bisect_left(starts, begin)
            while first and tokens.spans[first - 1][1] > begin:
                first -= 1  # a token that begins before the answer and holds some of it
            inside = range(first, bisect_left(starts, end))
            # What a template writes after the token that ends a turn is not the assistant's.
            ends = [place for place in inside if tokens.ids[place] in special]
            if ends and not tokens.text[tokens.spans[ends[-1]][1] : end].strip():
                inside = range(first, ends[-1] + 1)
            for place in inside:
                counted[place] = True
        return counted

    def _is_ended(self, tokens: _Tokens) -> bool:
        """Whether nothing but white space follows a special token."""
        special = self._special_ids()
        for token, (start, stop) in zip(reversed(tokens.ids), reversed(tokens.spans), strict=True):
            if token in special:
                return True
            if tokens.text[start:stop].strip():
                return False
        return False

    def _special_ids(self) -> frozenset[int]:
        if self._special is None:
            backend = self._tokenizer.backend
            added = {i for i, token in backend.added_tokens_decoder.items() if token.special}
            self._special = frozenset(added | {self._tokenizer.end_of_text, *backend.all_special_ids})
        return self._special


class _Chat:
    """One chat, rendered in whole or in part."""

    def __init__(self, backend: Any, messages: Sequence[Message], tools: Any) -> None:
        self._backend = backend
        self._tools = tools or None
        self.messages = [dict(message) for message in messages]

    def tokens(self, *, marks: bool) -> _Tokens:
        try:
            text = self._apply(self.messages, prompt=False)
            given = self._backend(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            marked = self._marked(given["input_ids"]) if marks else None
        except RecordError:
            raise
        except NotImplementedError:
            raise RecordError(
                "the tokenizer cannot tell which characters a token stands for (it has no tokenizer.json), and so not "
                "which tokens are the assistant's; use its fast version"
            ) from None
        except Exception as error:  # whatever the template's author raises, or runs into
            raise RecordError(f"the chat template of the tokenizer refuses this chat: {error}") from error
        return _Tokens(text, given["input_ids"], [tuple(s) for s in given["offset_mapping"]], marked)

    def render(self, stop: int, *, prompt: bool, messages: Sequence[Message] | None = None) -> str | None:
        """The chat before message `stop`, with the header of an answer if `prompt`; None where the template refuses."""
        try:
            return self._apply((messages or self.messages)[:stop], prompt=prompt)
        except Exception:  # as above; not every part of a chat is a chat
            return None

    def turn(self, index: int, tokens: _Tokens, special: frozenset[int], has_prompt: bool) -> Span:
        """The characters of the whole that the assistant says in message `index`, what ends its turn included."""
        text = tokens.text
        header = self.render(index, prompt=True) if index else None
        known = header is not None and text.startswith(header)
        upto = self.render(index + 1, prompt=False)
        stable = upto is not None and text.startswith(upto)
        if known and stable and has_prompt:
            assert header is not None and upto is not None
            if len(header) < len(upto):
                return len(header), len(upto)
        words = self._words(index, text)
        if words is None:
            raise RecordError(
                f"message {index + 1}: the chat template of the tokenizer renders it otherwise when others follow it, "
                'so that the assistant\'s words cannot be told apart; set data.loss_on = "everything", or mark them in '
                "the template with {% generation %}"
            )
        begin, end = words
        # Without a header of its own, only white space between what is asked and the answer is the assistant's.
        if header is not None and known and (has_prompt or not text[len(header) : begin].strip()):
            begin = min(begin, len(header))
        if upto is not None and stable and len(upto) >= end:
            return begin, len(upto)
        return begin, self._end_of_turn(index, end, tokens, special)

    def _words(self, index: int, text: str) -> Span | None:
        """Where the content of message `index` lies in the whole."""
        word = _unused(text)
        replaced = self._with(index, word)
        whole = self.render(len(self.messages), prompt=False, messages=replaced)
        if whole is None or whole.count(word) != 1:
            return None
        before, after = whole.split(word)
        if not text.startswith(before) or not text.endswith(after) or len(before) + len(after) > len(text):
            return None
        return len(before), len(text) - len(after)

    def _end_of_turn(self, index: int, end: int, tokens: _Tokens, special: frozenset[int]) -> int:
        """After what the template ends a turn with whose words go to `end`."""
        text = tokens.text
        word = _unused(text)
        alone = self.render(index + 1, prompt=False, messages=self._with(index, word))
        if alone is not None and word in alone:
            ending = alone.rsplit(word, 1)[1]
            if text.startswith(ending, end):
                return end + len(ending)
        for token, (start, stop) in zip(tokens.ids, tokens.spans, strict=True):
            if start >= end and token in special:
                return stop if not text[end:start].strip() else end
        return end

    def _with(self, index: int, content: str) -> list[Message]:
        return [
            {**message, "content": content} if place == index else message
            for place, message in enumerate(self.messages)
        ]

    def _marked(self, ids: list[int]) -> list[bool]:
        given = self._backend.apply_chat_template(
            self.messages, tools=self._tools, return_dict=True, return_assistant_tokens_mask=True
        )
        if list(given["input_ids"]) != list(ids):
            raise RecordError(
                "the chat template of the tokenizer gives other tokens each time it is asked for this chat"
            )
        return [bool(mark) for mark in given["assistant_masks"]]

    def _apply(self, messages: Sequence[Message], *, prompt: bool) -> str:
        text = self._backend.apply_chat_template(
            list(messages), tools=self._tools, tokenize=False, add_generation_prompt=prompt
        )
        assert isinstance(text, str)
        return text


def _no_template(spec: str) -> str:
    """What is said of a tokenizer without a template, and how it gets one."""
    path = None if is_made_here(spec) else Path(spec).expanduser()
    if path is not None and path.is_dir():
        add = f'put one into {path / "chat_template.jinja"}, or under "chat_template" in its tokenizer_config.json'
    elif path is None or path.is_file():
        add = 'name the folder of one with a "chat_template.jinja", such as a chat model\'s'
    else:
        add = (
            f"name that of a chat model, or a folder with its files (hf download {spec} --local-dir DIR) and a "
            '"chat_template.jinja"'
        )
    return (
        f'a chat needs a tokenizer with a chat template, and data.tokenizer = "{spec}" has none; {add}; or write '
        '"prompt" and "completion" instead of "messages"'
    )


def _unused(text: str) -> str:
    """A word that no template has a reason to change and that `text` does not have."""
    number = 0
    while (word := f"Wq{number}zX") in text:
        number += 1
    return word


def _check(messages: Any) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RecordError(
            'a chat must be a list of messages such as {"role": "user", "content": "…"}, not '
            + ("an empty one" if isinstance(messages, (list, tuple)) else kind_of(messages))
        )
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise RecordError(
                f'message {number} is {kind_of(message)}: expected an object with "role" and "content"'
            )
        if not isinstance(message.get("role"), str):
            raise RecordError(
                f'message {number} has no "role": expected "system", "user", "assistant" or another that the chat '
                f"template knows; it has {names_of(message)}"
            )
        has_more = any(value for key, value in message.items() if key not in ("role", "content"))
        if message.get("content") is None and not has_more:
            raise RecordError(f'message {number} ("{message["role"]}") has no "content"')
        if not isinstance(message.get("content"), (str, list, type(None))):
            raise RecordError(
                f'message {number} ("{message["role"]}"): "content" is {kind_of(message["content"])}: expected a string'
            )
