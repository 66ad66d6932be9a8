"""A small tokenizer with the chat template of one's choice, and templates as they are about, written anew."""

from __future__ import annotations

import functools
from typing import Any

from workbench.data.tokenizers import PretrainedTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (  # no header of an answer: it follows the question
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant take turns') }}{% endif %}{% endfor %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|stop|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}"
)
THINKING = (  # takes the thinking out of all answers but the last, where it puts an empty one if there is none
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% set words = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% if loop.last %}"
    "{% if '</think>' in m.content %}{{ m.content }}{% else %}<think>\n\n</think>\n\n{{ words }}{% endif %}"
    "{% else %}{{ words }}{% endif %}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (  # as Qwen3's: thoughts stand in answers after the last question only, an empty one in the last answer
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set thought = m.reasoning_content or '' %}{% set words = m.content or '' %}"
    "{% if '</think>' in words %}"
    "{% set thought = words.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ words }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
DROPPING = (  # opens a thought in the header of an answer, and drops the thoughts of all answers but the last
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|stop|>"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].strip() }}"
    "{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|stop|><think>\n{% endif %}"
)
LAST_SYSTEM = (  # as Mistral's: the system message stands in a question that is the last message, and nowhere else
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}"
    "[/INST]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
RETURNING = (  # ends the last answer otherwise than those before it
    "{% for m in messages %}<|start|>{{ m.role }}<|stop|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
WITHOUT_PROMPT = "{% for m in messages %}<|start|>{{ m.role }}<|stop|>{{ m.content }}<|eot|>\n{% endfor %}"
OPENING_THOUGHT = (  # opens a thought in the header of an answer, which no answer has
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}\n"
    "{% else %}Assistant: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant: <think>\n{% endif %}"
)
PLAIN = (  # without a special token anywhere
    "{% for m in messages %}{{ 'Q: ' if m.role == 'user' else 'A: ' }}{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUMBERED = (  # cannot be told apart: each message says how many there are, and shouts
    "{% for m in messages %}{{ messages | length }}/{{ loop.index }} {{ m.content | upper }}<|eot|>{% endfor %}"
)

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|stop|>", "<|eot|>", "<|return|>", "<s>", "</s>")


@functools.cache
def _backend() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    words = "what is the answer and who asks it; nothing but a question, hello there, good bye, user assistant system\n"
    backend.train_from_iterator([words] * 4, trainer)
    backend.add_tokens([AddedToken("<think>"), AddedToken("</think>"), AddedToken("<tool_call>")])
    return backend


def chat_tokenizer(template: str | None, *, adds_front: bool = False) -> PretrainedTokenizer:
    """A byte-level BPE of some 400 ids. With `adds_front` it puts <s> before a text by itself."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    rust = Tokenizer.from_str(_backend().to_str())
    if adds_front:
        bos = rust.token_to_id("<s>")
        rust.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    make: Any = PreTrainedTokenizerFast
    backend = make(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    backend.chat_template = template
    return PretrainedTokenizer("a folder", backend)
