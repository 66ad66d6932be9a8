"""Encode chats with the tokenizer's own chat template, and find the assistant's tokens for the loss mask.

A template with {% generation %} marks its assistant tokens itself, and transformers reads the marks. For any other
template the turns are found by prefix difference, as TRL does: the chat is rendered up to each assistant message and up
to its end, and the text in between is the turn. This needs a template that renders a message the same way whatever
follows it; a chat for which that does not hold is refused.

Invariant: the ids are those of `apply_chat_template` for the whole chat.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.config.tokenizers import is_made_here
from workbench.data.record_errors import RecordError, kind_of, names_of
from workbench.data.tokenizers import Tokenizer

ASSISTANT = "assistant"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class _Tokens:
    """A rendered chat as tokens."""

    text: str
    ids: list[int]
    spans: list[tuple[int, int]]
    """First character of each token, and the one after its last."""


class ChatEncoder:
    """Encodes chats with the template of `tokenizer`; with `answers_only` the mask selects the assistant's tokens."""

    def __init__(self, tokenizer: Tokenizer, *, answers_only: bool) -> None:
        self._tokenizer = tokenizer
        self._answers_only = answers_only

    def encode(
        self, messages: Sequence[Message], *, tools: Any = None, first_in_loss: int = 0
    ) -> tuple[list[int], list[bool] | None]:
        """Return the ids of a chat and, with `answers_only`, its loss mask, else None.

        The mask selects the assistant's turns from message `first_in_loss` on, each with the token that ends it. If the
        template does not end a chat with a special token, the end of text is added.

        Raises:
            RecordError: the messages are malformed, the template refuses them, or its turns cannot be told apart.
        """
        _check(messages)
        template = self._tokenizer.chat_template
        if template is None:
            raise RecordError(_no_template(self._tokenizer.spec))
        chat = _Chat(self._tokenizer.backend, messages, tools)
        tokens = chat.tokens()
        ids, mask = list(tokens.ids), None
        if self._answers_only:
            if _GENERATION.search(template):
                mask = chat.marked(tokens, first_in_loss)
            else:
                mask = self._turns(chat, tokens, first_in_loss)
        if not self._is_ended(tokens):
            ids.append(self._tokenizer.end_of_text)
            if mask is not None:
                mask.append(messages[-1]["role"] == ASSISTANT and len(messages) > first_in_loss)
        return ids, mask

    def _turns(self, chat: _Chat, tokens: _Tokens, first_in_loss: int) -> list[bool]:
        """Return the mask that selects the assistant's turns, found by prefix difference."""
        mask = [False] * len(tokens.ids)
        for index in range(first_in_loss, len(chat.messages)):
            if chat.messages[index]["role"] != ASSISTANT:
                continue
            begin, end = chat.turn(index, tokens.text)
            first = bisect_left(tokens.spans, begin, key=lambda span: span[0])
            while first and tokens.spans[first - 1][1] > begin:
                first -= 1  # this token begins before the turn and holds some of it
            stop = bisect_left(tokens.spans, end, key=lambda span: span[0])
            # White space that the template writes after the token that ends a turn is not in the loss.
            ends = [place for place in range(first, stop) if tokens.ids[place] in self._special_ids]
            if ends and not tokens.text[tokens.spans[ends[-1]][1] : end].strip():
                stop = ends[-1] + 1
            mask[first:stop] = [True] * (stop - first)
        return mask

    def _is_ended(self, tokens: _Tokens) -> bool:
        """Return whether the last token that is not white space is a special one."""
        for token, (start, stop) in zip(reversed(tokens.ids), reversed(tokens.spans), strict=True):
            if token in self._special_ids:
                return True
            if tokens.text[start:stop].strip():
                return False
        return False

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        backend = self._tokenizer.backend
        added = {i for i, token in backend.added_tokens_decoder.items() if token.special}
        return frozenset(added | {self._tokenizer.end_of_text, *backend.all_special_ids})


class _Chat:
    """One chat, rendered as a whole or up to a message."""

    def __init__(self, backend: Any, messages: Sequence[Message], tools: Any) -> None:
        self._backend = backend
        self._tools = tools or None
        self.messages = [dict(message) for message in messages]

    def tokens(self) -> _Tokens:
        """Return the tokens of the whole chat. Raises RecordError if the template or the tokenizer refuses it."""
        try:
            text = self._apply(len(self.messages), prompt=False)
            given = self._backend(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError:
            raise RecordError(
                "the tokenizer cannot tell which characters a token stands for (it has no tokenizer.json), and so not "
                "which tokens are the assistant's; use its fast version"
            ) from None
        except Exception as error:  # templates raise errors of every type
            raise _refused(error) from error
        return _Tokens(text, given["input_ids"], [tuple(span) for span in given["offset_mapping"]])

    def marked(self, tokens: _Tokens, first_in_loss: int) -> list[bool]:
        """Return the mask that the template's {% generation %} marks give, from message `first_in_loss` on."""
        try:
            given = self._backend.apply_chat_template(
                self.messages, tools=self._tools, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as error:  # as above
            raise _refused(error) from error
        if list(given["input_ids"]) != tokens.ids:
            raise RecordError(
                "the chat template of the tokenizer gives different tokens each time it is rendered"
            )
        before = self._rendered(first_in_loss) or "" if first_in_loss else ""
        begin = len(before) if tokens.text.startswith(before) else 0
        return [
            bool(marked) and start >= begin
            for marked, (start, _) in zip(given["assistant_masks"], tokens.spans, strict=True)
        ]

    def turn(self, index: int, text: str) -> tuple[int, int]:
        """Return the first character of message `index` in `text`, the whole chat, and the one after its last.

        The header that the template writes for an answer to come is not part of the turn.

        Raises:
            RecordError: the template renders the messages before or with this one differently when others follow.
        """
        before = self._rendered(index) if index else ""
        through = self._rendered(index + 1)
        if before is None or through is None or not (text.startswith(through) and through.startswith(before)):
            raise RecordError(
                f"message {index + 1}: the chat template of the tokenizer renders it differently when other messages "
                'follow, so that the answer cannot be told apart; write the last answer as "completion" and what is '
                'before it as "prompt", set data.loss_on = "everything", or mark the answers in the template with '
                "{% generation %}"
            )
        header = self._rendered(index, prompt=True) or before
        shared = next(
            (at for at, (a, b) in enumerate(zip(header, through, strict=False)) if a != b), len(header)
        )
        return max(len(before), min(shared, len(through))), len(through)

    def _rendered(self, stop: int, *, prompt: bool = False) -> str | None:
        """Return the chat before message `stop`, with the header of an answer if `prompt`; None if it is refused."""
        try:
            return self._apply(stop, prompt=prompt)
        except Exception:  # as above; a part of a chat need not be a chat
            return None

    def _apply(self, stop: int, *, prompt: bool) -> str:
        # As a batch of one: a single chat may not be empty.
        [text] = self._backend.apply_chat_template(
            [self.messages[:stop]], tools=self._tools, tokenize=False, add_generation_prompt=prompt
        )
        assert isinstance(text, str)
        return text


def _refused(error: Exception) -> RecordError:
    return RecordError(f"the chat template of the tokenizer refuses this chat: {error}")


def _no_template(spec: str) -> str:
    """Return the message for a tokenizer without a chat template, with the way to add one."""
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


def _check(messages: Any) -> None:
    """Raise RecordError unless `messages` is a list of messages with a role and some content."""
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
