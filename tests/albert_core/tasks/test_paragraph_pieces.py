"""Pieces know the characters of the text that they stand for."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.errors import IntegrityError
from albert_core.tasks.paragraph_pieces import ParagraphPieces
from albert_core.text.tokenizer import WORD_MARK, Tokenizer, normalise_for_pieces
from tests.albert_core.text.test_tokenizer import (
    SPECIAL,
    needs_the_published_model,
    published,
    train,
)
from tests.albert_core.tiny_vocab import tiny_vocab

NASTY = [
    *"aBcxyz 1,2. \t\n\u00a0\u3000\u200b\u2028\u0085\x00\x01\x1c▁",
    *"éÅİßΣσςﬁ½²①…´¨ªﷺ한국字の\u1112\u1161\u11ab",
    *"かกิ่न्ि\u0327\u0301\u0308\u0345\u3099\U0001f600\u202e\ufeff\u00ad",
    "1,234 ",
    "x1,",
    " e\u0301\u0308 ",
    "bade ",
    "K\u0301",
]
TEXTS = st.lists(st.sampled_from(NASTY), max_size=25).map("".join) | st.text(max_size=20)


@cache
def vocabulary(symbols: tuple[str, ...] = (), **options: Any) -> Tokenizer:
    """Return a tokenizer whose model was trained with these options of SentencePiece."""
    return Tokenizer(train(**SPECIAL, user_defined_symbols=list(symbols), **options))


TOKENIZERS: list[Callable[[], Tokenizer]] = [
    tiny_vocab,
    lambda: tiny_vocab(lower_case=False),
    lambda: tiny_vocab(keep_accents=True),
    lambda: tiny_vocab(lower_case=False, keep_accents=True),
    lambda: vocabulary(split_by_whitespace=False, vocab_size=400),
    lambda: vocabulary(remove_extra_whitespaces=False),
    lambda: vocabulary(add_dummy_prefix=False),
    lambda: vocabulary(treat_whitespace_as_suffix=True),
    lambda: vocabulary(model_type="bpe"),
    lambda: vocabulary(normalization_rule_name="nfkc"),
    lambda: Tokenizer(vocabulary(("▁1,", "1,", ",", "▁1")).model, split_digit_commas=True),
]
PUBLISHED_TOKENIZERS: list[Callable[[], Tokenizer]] = [
    published,
    lambda: published(lower_case=False),
    lambda: published(split_digit_commas=True),
]


def pieces_in(tokenizer: Tokenizer, text: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of each piece."""
    found = ParagraphPieces(tokenizer, [text])
    return list(zip(found.ids.tolist(), found.begins.tolist(), found.ends.tolist(), strict=True))


def visible(tokenizer: Tokenizer, text: str) -> str:
    """Return what the vocabulary sees of ``text``, blanks left out."""
    how = (tokenizer.lower_case, tokenizer.keep_accents)
    seen = tokenizer.processor.normalize(normalise_for_pieces(text, *how))
    # Which of the two small sigmas a capital becomes, the letters after it say.
    return str(seen).replace(WORD_MARK, "").replace(" ", "").replace("ς", "σ")


@pytest.mark.parametrize(
    "make",
    [
        *TOKENIZERS,
        *(pytest.param(each, marks=needs_the_published_model) for each in PUBLISHED_TOKENIZERS),
    ],
)
@settings(max_examples=40)
@given(texts=st.lists(TEXTS, max_size=3))
def test_the_pieces_are_those_of_the_tokenizer_and_know_their_characters(
    make: Callable[[], Tokenizer], texts: list[str]
) -> None:
    tokenizer = make()
    found = ParagraphPieces(tokenizer, texts)
    expected = tokenizer.encode(texts)
    assert found.ids.tolist() == [piece for ids in expected for piece in ids]
    assert found.lengths.tolist() == list(map(len, expected))
    for text in texts:
        pieces = pieces_in(tokenizer, text)
        assert_spans_ascend_within(text, pieces)
        assert_what_is_left_over_is_nothing_to_the_vocabulary(tokenizer, text, pieces)
        assert_characters_are_normalised_to_their_pieces(tokenizer, text, pieces)


def assert_spans_ascend_within(text: str, pieces: list[tuple[int, int, int]]) -> None:
    """Check also that none begins or ends with a blank."""
    spans = [(begin, end) for _, begin, end in pieces]
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(spans))
    assert all(text[begin:end] == text[begin:end].strip() for begin, end in spans)


def assert_what_is_left_over_is_nothing_to_the_vocabulary(
    tokenizer: Tokenizer, text: str, pieces: list[tuple[int, int, int]]
) -> None:
    covered = {at for _, begin, end in pieces for at in range(begin, end)}
    left = "".join(c if at not in covered else " " for at, c in enumerate(text))
    assert visible(tokenizer, left) == ""


def assert_characters_are_normalised_to_their_pieces(
    tokenizer: Tokenizer, text: str, pieces: list[tuple[int, int, int]]
) -> None:
    groups: list[tuple[str, int, int]] = []
    unknown = tokenizer.processor.unk_id()
    for piece, begin, end in pieces:
        letters = tokenizer.pieces[piece].replace(WORD_MARK, "").replace("ς", "σ")
        seen = "\0" if piece == unknown else letters
        if groups and begin < groups[-1][2]:  # both stand for one character
            before = groups.pop()
            groups.append((before[0] + seen, before[1], end))
        else:
            groups.append((seen, begin, end))
    for seen, begin, end in groups:
        assert bool(seen) == (end > begin)
        if "\0" not in seen:
            assert visible(tokenizer, text[begin:end]) == seen


@needs_the_published_model
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Full\u3000ﬁne", [("▁full", "Full"), ("▁fine", "ﬁne")]),
        ("½", [("▁1", "½"), ("<unk>", "½"), ("2", "½")]),
        ("e\u0301a b", [("▁ea", "e\u0301a"), ("▁b", "b")]),
        ("de\u0301 b", [("▁de", "de\u0301"), ("▁b", "b")]),
        ("\u0301 a", [("▁a", "a")]),
        ("a\u200bb", [("▁a", "a"), ("▁b", "b")]),
        ("İstanbul", [("▁istanbul", "İstanbul")]),
        ("£1,2", [("▁", ""), ("£", "£"), ("1,2", "1,2")]),
        ("a\x01b", [("▁ab", "a\x01b")]),
        ("of 字の", [("▁of", "of"), ("▁", ""), ("<unk>", "字の")]),
    ],
)
def test_a_piece_knows_its_characters(text: str, expected: list[tuple[str, str]]) -> None:
    tokenizer = published()
    found = pieces_in(tokenizer, text)
    assert [(tokenizer.pieces[i], text[begin:end]) for i, begin, end in found] == expected


@needs_the_published_model
def test_the_comma_of_a_digit_knows_its_place() -> None:
    tokenizer = published(split_digit_commas=True)
    text = "In 1948, x1, 2"
    found = pieces_in(tokenizer, text)
    assert [text[begin:end] for _, begin, end in found if end > begin][1:3] == ["1948", ","]
    assert [span for _, *span in found[-4:-1]] == [[9, 10], [10, 11], [11, 12]]


def test_a_vocabulary_with_pieces_for_bytes_is_refused() -> None:
    tokenizer = vocabulary(byte_fallback=True, vocab_size=400)
    with pytest.raises(IntegrityError, match="byte_fallback"):
        ParagraphPieces(tokenizer, ["字"])
