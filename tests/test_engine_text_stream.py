"""The text of a stream: with any tokenizer, the joined pieces equal the text of the whole answer."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from sparring.core.chat_tokens import decoded
from sparring.engine.answer_stream import TextStream
from tiny_models import tiny_policy

WORDS = ["a", "b", "▁", "▁a", "▁the", "▁▁", "é", "\n", ".", "▁'"]


@functools.cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of byte-level tokens (``bytes``), or one like Llama's (``spaces``).

    Llama's strips a leading space and has bytes besides words.
    """
    if kind == "bytes":
        return tiny_policy().tokenizer
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=True
    )


def pieces_of(kind: str, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer_of(kind))
    return [*(stream.add(token) for token in ids), stream.finish()]


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_the_joined_pieces_equal_the_decoded_text(kind, data):
    tokenizer = tokenizer_of(kind)
    token = st.integers(0, len(tokenizer) - 1)
    if kind == "spaces":
        token = st.one_of(
            token, st.integers(len(tokenizer) - len(WORDS), len(tokenizer) - 1), st.sampled_from([1, 2])
        )
        letters = st.characters(exclude_categories=["Cs"]).map(lambda c: [3 + b for b in c.encode()])
    else:
        letters = st.characters(exclude_categories=["Cs"]).map(
            lambda c: tokenizer(c, add_special_tokens=False).input_ids
        )
    parts = data.draw(st.lists(st.one_of(token.map(lambda one: [one]), letters), max_size=40))
    ids = [one for part in parts for one in part]
    assert "".join(pieces_of(kind, ids)) == decoded(tokenizer, ids)


@pytest.mark.parametrize("tokens", [["<0x04>", "<s>", "<0xDE>"], ["<0xC3>", "</s>", "<s>", "▁", "<0xA9>"]])
def test_a_special_token_between_bytes_does_not_end_their_row(tokens):
    tokenizer = tokenizer_of("spaces")
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert "".join(pieces_of("spaces", ids)) == decoded(tokenizer, ids)


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_a_character_of_several_tokens_comes_whole_and_others_immediately(kind):
    tokenizer = tokenizer_of(kind)

    def ids(letter: str) -> list[int]:
        if kind == "bytes" or letter == "a":
            return tokenizer(letter, add_special_tokens=False).input_ids
        return [3 + byte for byte in letter.encode()]

    found = pieces_of(kind, [*ids("a"), *ids("€"), *ids("a"), *ids("a")])
    expected = ["a", "", "", "€", "a", "a", ""] if kind == "bytes" else ["a", "", "", "", "€a", "a", ""]
    assert found == expected


class CountingTokenizer:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, kind: str) -> None:
        self.tokenizer = tokenizer_of(kind)
        self.decoded = 0

    def decode(self, ids: list[int], **options) -> str:
        self.decoded += len(ids)
        return self.tokenizer.decode(ids, **options)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.tokenizer.convert_ids_to_tokens(token)


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("bytes", "a"),
        ("bytes", "é"),
        ("bytes", b"\xff"),
        ("bytes", "<|im_start|>"),
        ("spaces", "▁"),
        ("spaces", b"\xe2"),
    ],
)
def test_the_work_is_linear_in_the_length(kind, unit):
    tokenizer = tokenizer_of(kind)
    if kind == "bytes":
        letter = tokenizer_of("bytes").convert_tokens_to_ids(["ÿ"]) if isinstance(unit, bytes) else None
        ids = letter or tokenizer(unit, add_special_tokens=False).input_ids
    else:
        ids = [3 + unit[0]] if isinstance(unit, bytes) else [tokenizer.convert_tokens_to_ids(unit)]
    counts = []
    for length in (1000, 4000):
        counting = CountingTokenizer(kind)
        stream = TextStream(counting)
        for token in (ids * length)[:length]:
            stream.add(token)
        stream.finish()
        counts.append(counting.decoded)
    assert counts[1] < 8 * 4000
    assert counts[1] < 5 * counts[0]
