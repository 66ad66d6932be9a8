"""Records to ids: the answers of prompts and chats are in the loss, each with the token that ends it, nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import chat_tokenizers as templates
import pytest
from chat_tokenizers import chat_tokenizer

from workbench.data import RecordError, chats
from workbench.data.records import RecordEncoder
from workbench.data.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer
from workbench.errors import ConfigurationError

CHAT = [
    {"role": "user", "content": "what is it?"},
    {"role": "assistant", "content": "nothing but the answer"},
    {"role": "user", "content": "who asks"},
    {"role": "assistant", "content": "good bye"},
]


def encoder(tokenizer: Tokenizer, text_field: str = "text", loss_on: str = "answers") -> RecordEncoder:
    return RecordEncoder(tokenizer, text_field=text_field, loss_on=loss_on)


def in_loss(template: str, record: dict[str, Any], **options: Any) -> list[str]:
    """The spans in the loss, as text; the ids are checked to be the template's own and what ends them."""
    tokenizer = chat_tokenizer(template)
    ids, mask = encoder(tokenizer, **options).encode(record)
    assert mask is not None and len(mask) == len(ids)
    if "messages" in record:
        whole = tokenizer.backend.apply_chat_template(record["messages"], return_dict=False)
        assert ids in (whole, [*whole, tokenizer.end_of_text])
    runs: list[list[int]] = []
    for place, (token, counts) in enumerate(zip(ids, mask, strict=True)):
        if counts:
            if place == 0 or not mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("CHATML", ["nothing but the answer<|im_end|>", "good bye<|im_end|>"]),
        ("HEADERS", ["nothing but the answer<|eot|>", "good bye<|eot|>"]),
        ("INST", [" nothing but the answer</s>", " good bye</s>"]),
        (  # at inference the model writes the header as well
            "WITHOUT_PROMPT",
            [f"<|start|>assistant<|stop|>{words}<|eot|>" for words in ("nothing but the answer", "good bye")],
        ),
        ("PLAIN", [" nothing but the answer\n\n", " good bye\n\n</s>"]),
        ("MARKED", ["nothing but the answer<|im_end|>", "good bye<|im_end|>"]),
        ("OPENING_THOUGHT", [" nothing but the answer</s>", " good bye</s>"]),
        ("THINKING", ["nothing but the answer<|im_end|>", "<think>\n\n</think>\n\ngood bye<|im_end|>"]),
        ("QWEN3", ["nothing but the answer<|im_end|>", "<think>\n\n</think>\n\ngood bye<|im_end|>"]),
        ("RETURNING", ["<|stop|>nothing but the answer<|eot|>", "<|stop|>good bye<|return|>"]),
        ("DROPPING", ["nothing but the answer<|eot|>", "good bye<|eot|>"]),
    ],
)
def test_of_a_chat_the_assistants_words_are_in_the_loss_with_what_ends_each_turn(
    template: str, expected: list[str]
) -> None:
    assert in_loss(getattr(templates, template), {"messages": CHAT}) == expected


THOUGHTFUL = [
    {"role": "user", "content": "what is it?"},
    {"role": "assistant", "content": "<think>\nwho asks\n</think>\n\nnothing"},
    {"role": "user", "content": "nothing but a question"},
    {"role": "assistant", "content": "<think>\nhello there\n</think>\n\nnothing"},
]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("CHATML", [f"{THOUGHTFUL[1]['content']}<|im_end|>", f"{THOUGHTFUL[3]['content']}<|im_end|>"]),
        ("QWEN3", ["nothing<|im_end|>", f"{THOUGHTFUL[3]['content']}<|im_end|>"]),
        ("THINKING", ["nothing<|im_end|>", f"{THOUGHTFUL[3]['content']}<|im_end|>"]),
        # Its header of an answer opens the thought.
        ("DROPPING", ["nothing<|eot|>", "hello there\n</think>\n\nnothing<|eot|>"]),
    ],
)
def test_a_thought_is_in_the_loss_where_the_template_keeps_it(template: str, expected: list[str]) -> None:
    assert in_loss(getattr(templates, template), {"messages": THOUGHTFUL}) == expected


def test_answers_around_a_tool_are_found_though_their_thoughts_go_when_a_question_follows() -> None:
    call = {"type": "function", "function": {"name": "ask", "arguments": {"who": "you"}}}
    messages = [
        CHAT[0],
        {"role": "assistant", "content": "", "reasoning_content": "who asks", "tool_calls": [call]},
        {"role": "tool", "content": "nothing"},
        {"role": "assistant", "content": "the answer", "reasoning_content": "hello there"},
    ]
    ask = '<tool_call>\n{"name": "ask", "arguments": {"who": "you"}}\n</tool_call><|im_end|>'
    assert in_loss(templates.QWEN3, {"messages": messages}) == [
        "<think>\nwho asks\n</think>\n\n" + ask,
        "<think>\nhello there\n</think>\n\nthe answer<|im_end|>",
    ]
    assert in_loss(templates.QWEN3, {"messages": [*messages, *CHAT[2:]]}) == [
        ask,
        "the answer<|im_end|>",
        "<think>\n\n</think>\n\ngood bye<|im_end|>",
    ]
    # Only the completion: the answers before it are found, and left out.
    record = {"prompt": [*messages, CHAT[2]], "completion": CHAT[3:]}
    assert in_loss(templates.QWEN3, record) == ["<think>\n\n</think>\n\ngood bye<|im_end|>"]


def test_a_system_message_that_moves_hides_no_answer_even_where_a_question_has_its_words() -> None:
    system = {"role": "system", "content": "be brief"}
    repeated = [CHAT[0], {**CHAT[0], "role": "assistant"}, *CHAT[2:]]
    assert in_loss(templates.LAST_SYSTEM, {"messages": [system, *repeated]}) == [
        " what is it?</s>",
        " good bye</s>",
    ]


def test_an_answer_that_cannot_be_found_is_refused_with_the_ways_out() -> None:
    with pytest.raises(RecordError, match=r"message 2: .*cannot be found.*data\.loss_on") as error:
        encoder(chat_tokenizer(templates.NUMBERED)).encode({"messages": CHAT})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("template", ["CHATML", "PLAIN", "MARKED"])
def test_what_is_not_the_assistants_is_never_in_loss(template: str) -> None:
    source = getattr(templates, template)
    assert in_loss(source, {"messages": CHAT[:3]}) == in_loss(source, {"messages": CHAT})[:1]
    assert in_loss(source, {"messages": CHAT[:1]}) == []
    system = [{"role": "system", "content": "good bye"}, *CHAT]
    assert in_loss(templates.CHATML, {"messages": system}) == in_loss(templates.CHATML, {"messages": CHAT})


def test_an_answer_may_come_first_be_empty_or_repeat_what_was_asked() -> None:
    chats = {
        "first": ([CHAT[1]], ["nothing but the answer<|im_end|>"]),
        "empty": ([CHAT[0], {"role": "assistant", "content": ""}], ["<|im_end|>"]),
        "same": ([CHAT[0], {**CHAT[0], "role": "assistant"}], ["what is it?<|im_end|>"]),
        "odd": ([CHAT[0], {"role": "assistant", "content": "Wq0zX 🙂 é"}], ["Wq0zX 🙂 é<|im_end|>"]),
    }
    for chat, expected in chats.values():
        for template in (templates.CHATML, templates.MARKED):
            assert in_loss(template, {"messages": chat}) == expected


def test_with_loss_on_everything_nothing_is_marked() -> None:
    for record in ({"messages": CHAT}, {"prompt": "what is it?", "completion": " nothing"}):
        assert encoder(chat_tokenizer(templates.NUMBERED), loss_on="everything").encode(record)[1] is None


def test_a_chat_ends_with_one_token_that_ends_a_text() -> None:
    for template, ends in ((templates.CHATML, 0), (templates.PLAIN, 1), (templates.INST, 1)):
        tokenizer = chat_tokenizer(template)
        ids, _ = encoder(tokenizer).encode({"messages": CHAT[:2]})
        assert ids.count(tokenizer.end_of_text) == ends


def test_of_a_prompt_the_completion_is_in_the_loss_and_the_end_of_text() -> None:
    tokenizer = chat_tokenizer(None, adds_front=True)
    ids, mask = encoder(tokenizer).encode({"prompt": "who asks", "completion": " the answer"})
    assert tokenizer.decode(ids) == "<s>who asks the answer</s>" and mask is not None
    assert tokenizer.decode([i for i, counts in zip(ids, mask, strict=True) if counts]) == " the answer</s>"
    # What the model is asked with later: the tokens of the prompt alone, though "what" is one token.
    ids, mask = encoder(tokenizer).encode({"prompt": "wh", "completion": "at"})
    assert mask is not None
    assert ids[: mask.index(True)] == list(tokenizer.backend("wh")["input_ids"])


def test_prompt_and_completion_may_be_messages_and_only_the_completion_is_in_loss() -> None:
    record = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    for template in (templates.CHATML, templates.MARKED):
        assert in_loss(template, record) == ["good bye<|im_end|>"]
    assert in_loss(templates.PLAIN, record) == [" good bye\n\n</s>"]


def test_conversations_with_from_and_value_are_chats() -> None:
    chat = [{"from": "human", "value": "what is it?"}, {"from": "gpt", "value": "good bye"}]
    assert in_loss(templates.CHATML, {"id": 3, "conversations": chat}) == ["good bye<|im_end|>"]


def test_plain_text_is_in_the_loss_whole_and_ends_with_the_end_of_text() -> None:
    tokenizer = ByteTokenizer()
    assert encoder(tokenizer).encode({"text": "hé"}) == ([*"hé".encode(), 256], None)
    assert encoder(tokenizer).encode({"text": ""}) == ([], None)
    record = {"body": "a", "text": "b", "prompt": "c", "completion": "d"}
    assert encoder(tokenizer, text_field="body").encode(record) == ([97, 256], None)
    assert encoder(tokenizer).encode(record)[0] == [99, 100, 256]
    assert encoder(tokenizer).encode({"text": "b", "prompt": "c", "messages": None})[0] == [98, 256]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"txt": "a"}, 'the nearest are "text" (set data.text_field = "txt"); '),
        (
            {"question": "a", "answer": "b", "id": 3},
            'a record with "question", "answer", "id" has none of the known shapes; the nearest are "prompt" with '
            '"completion" (set data.columns = {prompt = "question", completion = "answer"}); "instruction" with '
            '"output" (set data.columns = {instruction = "question", output = "answer"}); "messages"',
        ),
        ({"prompt": "a", "Response": "b"}, '(set data.columns = {completion = "Response"})'),
        ({"prompt": "a"}, '"prompt" with "completion" ("completion" is missing)'),
        ({"body": "a", "id": 3}, 'set data.text_field = "body"'),
        ({}, "a record with no field has none of the known shapes"),
        ({"instruction": "a", "output": 3}, '"output" is a number: expected a string'),
        ({"instruction": "a", "output": "b", "history": ["c"]}, '"history": expected a list of pairs'),
        ({"instruction": "a", "output": "b", "history": 3}, '"history": expected a list of pairs'),
        ({"instruction": "a", "output": "b", "input": 0}, '"input" is a number: expected a string'),
        ({"instruction": "a", "chosen": "b", "rejected": "c"}, 'set data.columns = {output = "chosen"}'),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, 'set data.columns = {completion = "chosen"}'),
        ({"chosen": CHAT, "rejected": CHAT}, "preference pair, which no training here compares yet"),
        ({"chosen": CHAT, "rejected": CHAT}, 'set data.columns = {messages = "chosen"}'),
        ({"chosen": "a", "rejected": "b"}, 'set data.text_field = "chosen"'),
        ([1], "must be an object with fields, not a list"),
        ("a", "not a string"),
        ({"text": 3}, '"text" is a number: expected a string'),
        ({"prompt": "a", "completion": True}, '"completion" is true or false'),
        ({"prompt": "a", "completion": CHAT}, '"completion" is a list'),
        ({"messages": "hello"}, "a list of messages"),
        ({"messages": []}, "not an empty one"),
        ({"messages": ["hello"]}, 'message 1 is a string: expected an object with "role" and "content"'),
        ({"messages": [{"content": "a"}]}, 'message 1 has no "role"'),
        ({"messages": [*CHAT, {"role": "user"}]}, 'message 5 ("user") has no "content"'),
        ({"messages": [{"role": "user", "content": 3}]}, '"content" is a number'),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_with_what_would_be_right(record: Any, words: str) -> None:
    with pytest.raises(RecordError) as error:
        encoder(chat_tokenizer(templates.CHATML)).encode(record)
    assert words in str(error.value) and "\n" not in str(error.value)


ALPACA = {"instruction": "name it", "input": "a cat", "output": "Tom", "text": "Below is an instruction …"}


def test_alpacas_records_are_chats_where_the_tokenizer_has_a_template() -> None:
    as_chat = [{"role": "user", "content": "name it\na cat"}, {"role": "assistant", "content": "Tom"}]
    with_template = encoder(chat_tokenizer(templates.CHATML))
    assert with_template.encode(ALPACA) == with_template.encode({"messages": as_chat})
    assert with_template.plain_text(ALPACA) is None
    earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    system = {"role": "system", "content": "be brief"}
    more = {"instruction": "b", "output": "c", "system": "be brief", "history": [["hi", "ho"]]}
    last = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    assert with_template.encode(more) == with_template.encode({"messages": [system, *earlier, *last]})


def test_alpacas_records_get_alpacas_own_prompt_where_there_is_no_template() -> None:
    tokenizer = ByteTokenizer()
    ids, mask = encoder(tokenizer).encode({**ALPACA, "instruction": "name {input}"})
    assert mask is not None
    text = tokenizer.decode(ids[: mask.index(True)])
    assert text.startswith(
        "Below is an instruction that describes a task, paired with an input that provides"
    )
    assert text.endswith("### Instruction:\nname {input}\n\n### Input:\na cat\n\n### Response:\n")
    assert tokenizer.decode(ids[mask.index(True) : -1]) == "Tom" and ids[-1] == tokenizer.end_of_text
    without, _ = encoder(tokenizer).encode({"instruction": "name it", "output": "Tom"})
    assert tokenizer.decode(without[:-1]).endswith(
        "completes the request.\n\n### Instruction:\nname it\n\n### Response:\nTom"
    )
    with pytest.raises(RecordError, match="needs a tokenizer with a chat template"):
        encoder(tokenizer).encode({**ALPACA, "history": [["hi", "ho"]]})


def test_fields_may_have_other_names() -> None:
    renamed = RecordEncoder(
        ByteTokenizer(),
        text_field="text",
        loss_on="answers",
        columns={"prompt": "question", "completion": "chosen"},
    )
    usual = encoder(ByteTokenizer())
    pair = {"question": "a", "chosen": "b", "rejected": "c", "text": "d"}
    assert renamed.encode(pair) == usual.encode({"prompt": "a", "completion": "b"})
    assert renamed.plain_text(pair) is None
    assert renamed.encode({"prompt": "a", "completion": "b"}) == usual.encode(
        {"prompt": "a", "completion": "b"}
    )
    assert renamed.encode({"text": "d"}) == usual.encode({"text": "d"})


def test_a_chat_that_the_tokenizer_cannot_take_is_refused_with_the_reason() -> None:
    for tokenizer in (ByteTokenizer(), chat_tokenizer(None)):
        with pytest.raises(RecordError, match="needs a tokenizer with a chat template"):
            encoder(tokenizer).encode({"messages": CHAT})
    system = [{"role": "system", "content": "be brief"}, *CHAT]
    with pytest.raises(RecordError, match="refuses this chat: only user and assistant take turns"):
        encoder(chat_tokenizer(templates.INST)).encode({"messages": system})


def test_what_is_said_of_a_folder_without_a_chat_template_mends_it(tmp_path: Path) -> None:
    chat_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(RecordError) as error:
        encoder(load_tokenizer(str(tmp_path))).encode({"messages": CHAT})
    assert '"chat_template" in its tokenizer_config.json' in str(error.value)
    found = re.search(r"put one into (\S+),", str(error.value))
    assert found is not None
    Path(found[1]).write_text(templates.CHATML)
    expected = encoder(chat_tokenizer(templates.CHATML)).encode({"messages": CHAT})
    assert encoder(load_tokenizer(str(tmp_path))).encode({"messages": CHAT}) == expected


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        ENDLESS,
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
        + ENDLESS
        + "{% endif %}",
        "{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}" + ENDLESS,
        "{% for i in range(99999) %}{{ 'twenty characters or more' }}{% endfor %}",
    ],
    ids=["always", "in the header of an answer", "for one message", "long"],
)
def test_an_endless_template_is_refused_when_it_is_loaded(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "TEMPLATE_S", 0.2)
    with pytest.raises(ConfigurationError, match="for a chat of three words; fix the template"):
        encoder(chat_tokenizer(template))
