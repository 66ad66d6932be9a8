"""Encode chats with the tokenizer's own chat template, and find the assistant's tokens for the loss mask.

A template with {% generation %} marks its assistant tokens itself, and transformers reads the marks. For any other
template the whole chat is rendered once, and each answer is found in it: it begins where the chat before it ends, when
rendered with the header of an answer to come, and it ends with its content and what closes the turn. Templates may
render a message differently when others follow, as those do that drop earlier thoughts (Qwen3, gpt-oss).

Invariant: the ids are those of `apply_chat_template` for the whole chat.
"""

from __future__ import annotations

import re
import signal
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.config.tokenizers import is_made_here
from workbench.data import RecordError, kind_of, names_of
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError, brief

ASSISTANT = "assistant"
TEMPLATE_S = 5.0
LONGEST_OF_THREE_WORDS = 1 << 20
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Message = Mapping[str, Any]


class ChatEncoder:
    """Encodes chats with the template of `tokenizer`; with `answers_only` the mask selects the assistant's tokens."""

    def __init__(self, tokenizer: Tokenizer, *, answers_only: bool) -> None:
        self._tokenizer = tokenizer
        self._answers_only = answers_only
        if tokenizer.chat_template is not None:
            _try_template(tokenizer)

    def encode(
        self, messages: Sequence[Message], *, tools: Any = None, first_in_loss: int = 0
    ) -> tuple[list[int], list[bool] | None]:
        """Return the ids of a chat and, with `answers_only`, its loss mask, else None.

        The mask selects the assistant's turns from message `first_in_loss` on, each with the token that ends it. If the
        template does not end a chat with a special token, the end of text is added.

        Raises:
            RecordError: the messages are malformed, the template refuses them, or an answer cannot be found.
        """
        _check(messages)
        template = self._tokenizer.chat_template
        if template is None:
            raise RecordError(_no_template(self._tokenizer.spec))
        chat = _Chat(self._tokenizer.backend, messages, tools, self._special_ids)
        ids, mask = list(chat.ids), None
        if self._answers_only and _GENERATION.search(template):
            mask = chat.marked(first_in_loss)
        elif self._answers_only:
            mask = chat.answers(first_in_loss)
        if not chat.is_ended():
            ids.append(self._tokenizer.end_of_text)
            if mask is not None:
                mask.append(messages[-1]["role"] == ASSISTANT and len(messages) > first_in_loss)
        return ids, mask

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        backend = self._tokenizer.backend
        added = {i for i, token in backend.added_tokens_decoder.items() if token.special}
        return frozenset(added | {self._tokenizer.end_of_text, *backend.all_special_ids})


def _try_template(tokenizer: Tokenizer) -> None:
    """Render a chat of three words, with and without the header of an answer: an endless template is refused here.

    A thread that waited for one later could not be interrupted.

    Only the main thread can be interrupted; elsewhere nothing is tried.

    Raises:
        ConfigurationError: the template takes longer than TEMPLATE_S, or makes pages of three words.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    chat = [{"role": "user", "content": "one two"}, {"role": ASSISTANT, "content": "three"}]

    def stop(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    longest = 0
    try:
        # More than once: Python drops what is raised within a finalizer.
        signal.setitimer(signal.ITIMER_REAL, TEMPLATE_S, 0.1)
        try:
            for messages, header in ((chat, False), (chat[:1], True)):
                try:
                    text = tokenizer.backend.apply_chat_template(
                        messages, tokenize=False, add_generation_prompt=header
                    )
                except (MemoryError, OverflowError):
                    raise
                except Exception:  # it may want another chat; each record gets its own message
                    continue
                longest = max(longest, len(text))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (_TooLongError, MemoryError, OverflowError) as error:
        raise _endless(tokenizer.spec) from error
    finally:
        signal.signal(signal.SIGALRM, before)
    if longest > LONGEST_OF_THREE_WORDS:
        raise _endless(tokenizer.spec)


class _TooLongError(BaseException):
    """The template has had its time. No Exception: templates catch those."""


def _endless(spec: str) -> ConfigurationError:
    return ConfigurationError(
        f'data.tokenizer = "{spec}": its chat template takes more than {TEMPLATE_S:g} s, or more than '
        f"{LONGEST_OF_THREE_WORDS:,} characters, for a chat of three words; fix the template"
    )


class _Chat:
    """One chat as text and tokens. Raises RecordError if the template or the tokenizer refuses it."""

    def __init__(
        self, backend: Any, messages: Sequence[Message], tools: Any, special_ids: frozenset[int]
    ) -> None:
        self._backend = backend
        self._messages = [dict(message) for message in messages]
        self._tools = tools or None
        self._special_ids = special_ids
        try:
            self._text = self._apply(len(messages), header=False)
            given = backend(self._text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError:
            raise RecordError(
                "the tokenizer cannot tell which characters a token stands for (it has no tokenizer.json), and so not "
                "which tokens are the assistant's; use its fast version"
            ) from None
        except Exception as error:  # templates raise errors of every type
            raise _refused(error) from error
        self.ids: list[int] = given["input_ids"]
        self._spans: list[tuple[int, int]] = [tuple(span) for span in given["offset_mapping"]]
        """First character of each token, and the one after its last."""

    def is_ended(self) -> bool:
        """Return whether the last token that is not white space is a special one."""
        for token, (start, stop) in zip(reversed(self.ids), reversed(self._spans), strict=True):
            if token in self._special_ids:
                return True
            if self._text[start:stop].strip():
                return False
        return False

    def marked(self, first_in_loss: int) -> list[bool]:
        """Return the mask that the template's {% generation %} marks give, from message `first_in_loss` on."""
        try:
            given = self._backend.apply_chat_template(
                self._messages, tools=self._tools, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as error:  # as above
            raise _refused(error) from error
        if list(given["input_ids"]) != self.ids:
            raise RecordError(
                "the chat template of the tokenizer gives different tokens each time it is rendered"
            )
        mask = [bool(marked) for marked in given["assistant_masks"]]
        if first_in_loss:
            wanted = self.answers(first_in_loss)
            mask = [marked and answer for marked, answer in zip(mask, wanted, strict=True)]
        return mask

    def answers(self, first_in_loss: int) -> list[bool]:
        """Return the mask that selects the assistant's turns from message `first_in_loss` on."""
        mask = [False] * len(self.ids)
        end = 0
        for index, message in enumerate(self._messages):
            if message["role"] != ASSISTANT:
                # The words of an answer may be in the question too. A system message may be moved anywhere.
                words = _words(message) if message["role"] != "system" else ""
                place = self._text.find(words, end)
                end = end if place < 0 else place + len(words)
                continue
            begin = self._begin_of(index, end)
            end = self._end_of(index, begin)
            if index < first_in_loss:
                continue
            first = bisect_left(self._spans, begin, key=lambda span: span[0])
            while first and self._spans[first - 1][1] > begin:
                first -= 1  # this token begins before the turn and holds some of it
            stop = bisect_left(self._spans, end, key=lambda span: span[0])
            # White space that the template writes after the token that ends a turn is not in the loss.
            ends = [place for place in range(first, stop) if self.ids[place] in self._special_ids]
            if ends and not self._text[self._spans[ends[-1]][1] : end].strip():
                stop = ends[-1] + 1
            mask[first:stop] = [True] * (stop - first)
        return mask

    def _begin_of(self, index: int, after: int) -> int:
        """Return the first character of answer `index`, behind its header; the message before it ends at `after`."""
        before = self._rendered(index) if index else ""
        header = self._rendered(index, header=True) or before
        if header is not None and self._text.startswith(header):
            return max(len(header), after)
        if before is not None and header is not None and header.startswith(before):
            if self._text.startswith(before):  # the header opens a thought that this answer does not have
                pairs = enumerate(zip(header, self._text, strict=False))
                shared = next((at for at, (a, b) in pairs if a != b), len(self._text))
                return max(shared, len(before), after)
            opening = header[len(before) :]
            place = self._text.find(opening, after) if opening else -1
            if place >= 0:
                return place + len(opening)
        words = _words(self._messages[index])
        place = self._text.find(words, after) if words else -1
        if place < 0:
            raise _not_found(index)
        return place

    def _end_of(self, index: int, begin: int) -> int:
        """Return the character after answer `index`, which begins at `begin`, and after what closes its turn."""
        alone = self._rendered(index + 1)
        if alone is not None and len(alone) >= begin and self._text.startswith(alone):
            return len(alone)
        words = _words(self._messages[index])
        # As the last message of a chat it may have a thought that it does not have here: the rest of it is the same.
        alone = alone or ""
        for at in range(min(alone.rfind(words) + 1, len(alone.rstrip()))):
            if alone[at] == self._text[begin : begin + 1] and self._text.startswith(alone[at:], begin):
                return begin + len(alone) - at
        # Or it is closed by another token there.
        place = self._text.find(words, begin) if words else -1
        if place >= 0:
            for token, (start, stop) in zip(self.ids, self._spans, strict=True):
                if start >= place + len(words) and token in self._special_ids:
                    return stop
        raise _not_found(index)

    def _rendered(self, stop: int, *, header: bool = False) -> str | None:
        """Return the chat before message `stop`, with the header of an answer if asked; None if it is refused."""
        try:
            return self._apply(stop, header=header)
        except Exception:  # as above; a part of a chat need not be a chat
            return None

    def _apply(self, stop: int, *, header: bool) -> str:
        # As a batch of one: a single chat may not be empty.
        [text] = self._backend.apply_chat_template(
            [self._messages[:stop]], tools=self._tools, tokenize=False, add_generation_prompt=header
        )
        assert isinstance(text, str)
        return text


def _words(message: Message) -> str:
    """Return the text of a message without an answer's thoughts, which a template may drop."""
    content = message.get("content")
    return content.rpartition("</think>")[2].strip() if isinstance(content, str) else ""


def _not_found(index: int) -> RecordError:
    return RecordError(
        f"message {index + 1}: the answer cannot be found in the output of the tokenizer's chat template; write the "
        'last answer as "completion" and the text before it as "prompt", set data.loss_on = '
        '"everything", or mark the answers in the template with {% generation %}'
    )


def _refused(error: Exception) -> RecordError:
    return RecordError(f"the chat template of the tokenizer refuses this chat: {brief(error)}")


def _no_template(spec: str) -> str:
    """Return the message for a tokenizer without a chat template, with the way to add one."""
    path = Path(spec).expanduser()
    if not is_made_here(spec) and path.is_dir():
        add = f'put one into {path / "chat_template.jinja"}, or under "chat_template" in its tokenizer_config.json'
    else:
        add = 'name the folder of one with a "chat_template.jinja", such as a chat model\'s (of a hub id: hf download)'
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
