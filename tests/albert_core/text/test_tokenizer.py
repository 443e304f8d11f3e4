import io
import json
import pickle
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import IntegrityError
from albert_core.text import tokenizer
from albert_core.text.records import CLS, MASK, NUM_SPECIAL, SEP, UNK
from albert_core.text.tokenizer import (
    SPIECE_MODEL,
    Tokenizer,
    WordTable,
    normalise_for_pieces,
    num_needed_marks,
    starts_word,
)
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab
from tests.threads import in_threads

MODELS = Path(__file__).parents[4] / "shared/data/models"
PUBLISHED = MODELS / "30k-clean.model"
GOLDEN = MODELS / "golden/spiece_tokenization.share.jsonl"
WORDS_OF_THEIR_OWN = '!"#$%&()*+,-./:;?@[\\]^_`{|}~'

needs_the_published_model = pytest.mark.skipif(
    not PUBLISHED.exists(), reason=f"{PUBLISHED} is absent"
)


@cache
def published(**options: bool) -> Tokenizer:
    return Tokenizer(PUBLISHED.read_bytes(), **options)


@cache
def golden() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


SPECIAL = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}


def train(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_sentences(500)),
        model_writer=model,
        num_threads=1,
        minloglevel=2,
        **{"vocab_size": 120, **options},
    )
    return model.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello   world\t\n  again", "hello world again"),
        ("  both ends \u3000", "both ends"),
        ("café naïve Ångström", "cafe naive angstrom"),
        ("e\u0301 already apart", "e already apart"),
        ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}stanbul", "istanbul"),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER F}ull ﬁ ½ x²", "full fi 1\N{FRACTION SLASH}2 x2"),
        ("Straße “quoted” \N{EM DASH} \u200b", "straße “quoted” \N{EM DASH} \u200b"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_text_is_normalised_as_the_reference_does_it(text: str, expected: str) -> None:
    assert normalise_for_pieces(text, lower_case=True) == expected
    assert normalise_for_pieces("Émile ZOLA", lower_case=False) == "Emile ZOLA"


def test_accents_and_the_marks_of_other_scripts_stay_where_they_are_to() -> None:
    text = "Cafe\u0301 か\u3099 हिन्दी ไม่\u2028ﬁ"
    assert normalise_for_pieces(text, lower_case=True, keep_accents=True) == "café が हिन्दी ไม่ fi"
    assert (num_needed_marks(text), num_needed_marks("Café, ÉTÉ, عَ")) == (3, 0)


@needs_the_published_model
def test_the_published_vocabulary_splits_texts_as_the_reference_does() -> None:
    texts = [row["text"] for row in golden()]
    assert len(texts) == 124
    normalised = [normalise_for_pieces(text, lower_case=True) for text in texts]
    assert normalised == [row["google_preprocessed_lower"] for row in golden()]
    assert published().encode(texts) == [row["sp_ids"] for row in golden()]
    splitting = published(split_digit_commas=True)
    assert splitting.encode(texts) == [row["google_ids"] for row in golden()]
    assert sum(row["google_ids"] != row["sp_ids"] for row in golden()) >= 4
    cased = published(lower_case=False)
    plain = [row for row in golden() if row["text"].isascii()]
    assert len(plain) > 20
    assert cased.encode([row["text"] for row in plain]) == [
        row["cased_nolower_ids"] for row in plain
    ]


@needs_the_published_model
def test_each_published_piece_starts_a_word_or_continues_one() -> None:
    assert published().pieces[:6] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "("]
    start = published().starts_word
    assert start.shape == (published().vocab_size,) == (30_000,)
    for piece in ("▁the", "1", "'", ".", "é"):
        assert start[published().processor.piece_to_id(piece)], piece
    for piece in ("ing", "s", "ed"):
        assert not start[published().processor.piece_to_id(piece)], piece


@pytest.mark.parametrize(
    ("starts", "pieces"),
    [
        (True, ["▁", "▁the", "▁.", "▁1", "<pad>", "<unk>", "<s", "<", *WORDS_OF_THEIR_OWN]),
        (True, ["'", "'s", "=", ">", "1", "2a", "x1", "é", "caf\u00e9", "字", "£", "€", "–"]),
        (False, ["a", "Z", "ing", "ED", ".com", "...", "s,", "[CLS]", "[MASK]"]),
    ],
)
def test_a_piece_starts_a_word_by_its_first_mark_or_by_what_is_no_letter(
    starts: bool, pieces: list[str]
) -> None:
    assert [piece for piece in pieces if starts_word(piece) != starts] == []


def test_texts_are_encoded_in_order_and_decode_to_what_the_vocabulary_sees() -> None:
    sentences = [*tiny_sentences(20, seed=3), "", " \n "]
    together = tiny_vocab().encode(sentences)
    assert together == [tiny_vocab().encode([sentence])[0] for sentence in sentences]
    assert together[-2:] == [[], []]
    assert tiny_vocab().encode([]) == []
    for sentence, ids in zip(sentences, together, strict=True):
        assert min(ids, default=NUM_SPECIAL) >= NUM_SPECIAL
        assert tiny_vocab().decode(ids) == normalise_for_pieces(sentence, lower_case=True)


def test_special_pieces_written_out_are_ordinary_text_and_unknown_characters_unknown() -> None:
    written_out = tiny_vocab().encode(["[CLS] [SEP] [MASK] <pad>"])[0]
    assert not {0, CLS, SEP, MASK} & set(written_out)
    assert UNK in tiny_vocab().encode(["字"])[0]


def test_capitals_matter_only_to_a_cased_vocabulary() -> None:
    assert tiny_vocab().encode(["BADI"]) == tiny_vocab().encode(["badi"])
    cased = tiny_vocab(lower_case=False)
    assert cased.encode(["BADI"]) != cased.encode(["badi"])


@pytest.mark.parametrize("lower_case", [True, False])
def test_a_tokenizer_is_loaded_from_its_folder_and_travels_to_worker_processes(
    lower_case: bool, tmp_path: Path
) -> None:
    original = tiny_vocab(lower_case=lower_case)
    (tmp_path / SPIECE_MODEL).write_bytes(original.model)
    assert Tokenizer.load(str(tmp_path)).lower_case
    loaded = Tokenizer.load(str(tmp_path), lower_case)
    assert loaded.pieces == original.pieces
    sentences = [*tiny_sentences(5), "BADI"]
    for each in (loaded, pickle.loads(pickle.dumps(loaded))):
        assert each.encode(sentences) == original.encode(sentences)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"begins with .*<s>.*, expected .*\[CLS\].*Train it"),
        ({**SPECIAL, "control_symbols": ["[SEP]"]}, "the vocabulary begins with"),
    ],
)
def test_a_vocabulary_without_the_special_pieces_in_order_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(IntegrityError, match=message):
        Tokenizer(train(**options))


def test_a_file_that_is_no_vocabulary_is_refused() -> None:
    damaged = tiny_vocab().model.replace("\N{POUND SIGN}".encode(), b"\xa3\xa3")
    for content in (b"not a model", b"", damaged):
        with pytest.raises(IntegrityError):
            Tokenizer(content)


@pytest.mark.parametrize(
    ("piece", "parts"), [("▁1,", ["▁1", ","]), ("1,", ["▁1", ","]), ("a,", None), (",", None)]
)
def test_a_digit_comma_inside_a_word_gets_the_spurious_word_start_of_the_reference(
    piece: str, parts: list[str] | None
) -> None:
    model = train(**SPECIAL, user_defined_symbols=["▁1,", "1,", "a,", ",", "▁1"])
    splitting = Tokenizer(model, split_digit_commas=True)
    split = splitting.digit_commas.get(splitting.processor.piece_to_id(piece))
    assert (None if split is None else [splitting.pieces[part] for part, _ in split]) == parts


@pytest.mark.parametrize("keep_accents", [False, True])
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=5))
def test_documents_are_encoded_line_by_line(keep_accents: bool, texts: list[str]) -> None:
    tokenizer = tiny_vocab(keep_accents=keep_accents)
    pieces, lengths, lines = tokenizer.encode_lines([text.encode() for text in texts])
    expected = [ids for text in texts for ids in tokenizer.encode(text.split("\n"))]
    assert pieces.tolist() == [piece for ids in expected for piece in ids]
    assert lengths.tolist() == list(map(len, expected))
    assert lines.tolist() == [text.count("\n") + 1 for text in texts]


@needs_the_published_model
@given(st.text(st.sampled_from(" \n\tabcdek1,.'-éß字\u200b▁"), max_size=60))
def test_words_one_by_one_are_split_as_sentencepiece_splits_the_line(text: str) -> None:
    processor = published().processor
    ours = published().encode([text])[0]
    whole = processor.encode(normalise_for_pieces(text, lower_case=True))
    assert processor.decode(ours) == processor.decode(whole)
    if ours != whole:  # one of several splits that are equally probable
        ours_score, score = (sum(map(processor.get_score, ids)) for ids in (ours, whole))
        assert ours_score == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"split_by_whitespace": False, "vocab_size": 400},
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
    ],
)
def test_a_model_whose_pieces_reach_over_blanks_splits_whole_lines(
    options: dict[str, Any],
) -> None:
    tokenizer = Tokenizer(train(**SPECIAL, **options))
    lines = tiny_sentences(50, seed=5)
    assert not tokenizer.words_are_apart
    assert tokenizer.encode(lines) == tokenizer.processor.encode(lines)


@needs_the_published_model
def test_documents_in_many_scripts_are_encoded_line_by_line() -> None:
    texts = [row["text"] for row in golden()]
    pieces, lengths, _ = published().encode_lines(["\n".join(texts).encode()])
    lines = "\n".join(texts).split("\n")
    expected = published().encode(lines)
    assert pieces.tolist() == [piece for ids in expected for piece in ids]
    assert lengths.tolist() == list(map(len, expected))


def codes(words: Iterable[str | bytes]) -> list[list[int]]:
    return [list(word.encode() if isinstance(word, str) else word) for word in words]


def look_up(table: WordTable, words: list[str]) -> list[list[int]]:
    pieces, lengths = table.pieces_of(pa.array(words, pa.large_string()))
    return [part.tolist() for part in np.split(pieces, np.cumsum(lengths)[:-1])] if words else []


@given(st.lists(st.lists(st.text("abé", max_size=3))))
def test_each_call_gives_the_pieces_of_its_words(calls: list[list[str]]) -> None:
    table = WordTable(codes)
    for words in calls:
        assert look_up(table, words) == codes(words)


def test_a_word_is_split_once() -> None:
    met: list[bytes] = []

    def encode(words: list[bytes]) -> list[list[int]]:
        met.extend(words)
        return codes(words)

    table = WordTable(encode)
    for words in (["a", "b", "a"], ["b", "", "c"], ["", "a"]):
        look_up(table, words)
    assert met == [b"a", b"b", b"", b"c"]


def test_a_full_table_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "MAX_PIECES", 3)
    table = WordTable(codes)
    for words in (["ab", "cde"], ["ab", "f"], ["cde", "f", "ab"]):
        assert look_up(table, words) == codes(words)


@pytest.mark.parametrize("max_pieces", [tokenizer.MAX_PIECES, 60])
def test_threads_that_share_a_table_get_the_pieces_of_their_words(
    max_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that all of them meet, in different order, and a table that begins anew."""
    monkeypatch.setattr(tokenizer, "MAX_PIECES", max_pieces)
    table = WordTable(codes)
    calls = [[f"{(start * size) % 97}" for size in range(1, 9)] for start in range(1, 400)]
    said = in_threads(lambda words: look_up(table, words), calls)
    assert said == [codes(words) for words in calls]
