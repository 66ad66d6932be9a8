"""Long texts encoded in pieces: the ids of the whole."""

import random
import string
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workbench.data.tokenizers import pretrained_tokenizer
from workbench.data.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from workbench.data.tokenizers.seams import pieces

END = "<|endoftext|>"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FRAGMENTS = (
    *(
        "naïve façade ",
        "日本語の文章には空白がない。",
        "🎉👩‍👩‍👧 ",
        "\n\n\n   \t  ",
        END,
        "e\u0301\u0301 ",
        "x" * 40,
    ),
    *(
        "1234567890" * 5,
        "); \n",
        "don't we'll ",
        "    return self.value\n",
        "\r\n",
        " ",
        "\u00a0",
        "a_b_c(d, e)[f]\n",
    ),
)


def text(seed: int, fragments: int) -> str:
    choose = random.Random(seed)
    words = ["".join(choose.choices(string.ascii_lowercase, k=choose.randint(1, 9))) for _ in range(200)]
    return "".join(choose.choice([*FRAGMENTS, choose.choice(words) + " "]) for _ in range(fragments))


def rust(kind: str) -> tuple[Any, Any]:
    """A tokenizer of a well-known kind, untrained, and what trains it."""
    if kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        return made, trainers.WordPieceTrainer(
            vocab_size=600, special_tokens=["[UNK]", END], show_progress=False
        )
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        return made, trainers.UnigramTrainer(
            vocab_size=500, special_tokens=["<unk>", END], unk_token="<unk>", show_progress=False
        )
    if kind == "sentencepiece":
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        return made, trainers.BpeTrainer(vocab_size=800, special_tokens=["<unk>", END], show_progress=False)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if kind == "llama 3":
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.normalizer = normalizers.NFC()
    return made, trainers.BpeTrainer(
        vocab_size=600, special_tokens=[END], initial_alphabet=ALPHABET, show_progress=False
    )


def trained(kind: str) -> PretrainedTokenizer:
    made, trainer = rust(kind)
    sample = text(7, 1500)
    made.train_from_iterator([sample[at : at + 500] for at in range(0, len(sample), 500)], trainer)
    if kind == "sentencepiece":  # as Llama 2 is converted: no word ends, and a space in front of the whole
        made.pre_tokenizer = None
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PretrainedTokenizer(kind, PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END))


def in_pieces(tokenizer: PretrainedTokenizer, whole: str, length: int) -> list[int]:
    def read(first: int, last: int) -> str:
        return whole[first:last]

    ids: list[int] = []
    for piece in pieces(tokenizer, read, 0, len(whole), length):
        ids += tokenizer.encode_piece(read, piece)
    return ids


@pytest.mark.parametrize("kind", ["gpt2", "llama 3", "sentencepiece", "wordpiece", "unigram"])
def test_pieces_have_the_ids_of_the_whole(kind: str) -> None:
    tokenizer = trained(kind)
    for seed in range(2):
        whole = text(seed, 2500)
        expected = tokenizer.backend(whole, add_special_tokens=False)["input_ids"]
        assert in_pieces(tokenizer, whole, 1200 + 977 * seed) == expected


def test_pieces_that_are_worked_on_apart_have_the_ids_of_the_whole() -> None:
    tokenizer, whole, length = trained("gpt2"), text(5, 3000), 2000

    def read(first: int, last: int) -> str:
        return whole[first:last]

    ids: list[int] = []
    for begin in range(0, len(whole), 3 * length):
        end = min(begin + 3 * length, len(whole))
        for piece in pieces(tokenizer, read, 0, len(whole), length, begin=begin, end=end):
            ids += tokenizer.encode_piece(read, piece)
    assert ids == tokenizer.backend(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["gpt2", "llama 3"])
@pytest.mark.parametrize("word", ["x" * 30_011, " " * 30_011, "ab" * 15_001 + "."])
def test_of_an_endless_word_nothing_is_lost_or_doubled(kind: str, word: str) -> None:
    tokenizer = trained(kind)
    for length in (3001, 7000):
        assert tokenizer.decode(in_pieces(tokenizer, word, length)) == word


def test_where_pieces_disagree_with_their_seams_nothing_is_lost_or_doubled() -> None:
    class Moody(PretrainedTokenizer):
        """Takes a text letter by letter, and a probe by words."""

        def _encode_whole(self, texts: list[str]) -> list[list[int]]:
            return [
                [i for letter in one for i in super(Moody, self)._encode_whole([letter])[0]] for one in texts
            ]

    whole = text(2, 900).replace(END, "")
    tokenizer = Moody("moody", trained("gpt2").backend)
    ids = in_pieces(tokenizer, whole, 3000)
    assert tokenizer.decode(ids) == whole


def test_long_texts_are_encoded_in_pieces_by_the_tokenizer_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, texts = trained("gpt2"), [text(seed, 200) for seed in range(5)]
    expected = [tokenizer.backend(one, add_special_tokens=False)["input_ids"] for one in texts]
    monkeypatch.setattr(pretrained_tokenizer, "WHOLE", 1500)
    lengths: list[int] = []
    whole = tokenizer._encode_whole

    def watched(some: list[str]) -> list[list[int]]:
        lengths.extend(map(len, some))
        return whole(some)

    monkeypatch.setattr(tokenizer, "_encode_whole", watched)
    assert tokenizer.encode_batch(texts) == expected
    assert max(map(len, texts)) > 2500 > max(lengths)
