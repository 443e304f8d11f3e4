"""What a vocabulary's report says."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.text.tokenizer import Tokenizer, normalise_for_pieces
from pipelines.train_vocab import VocabularyReport, describe_misfit, measure
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

PUBLISHED = Path("/work/shared/data/models/30k-clean.model")


def report_on(*sentences: str, tokenizer: Tokenizer | None = None) -> VocabularyReport:
    return measure(tokenizer or tiny_vocab(), [sentences], seen_in_training=False)


def test_on_its_own_text_all_is_known() -> None:
    report = report_on(*tiny_sentences(2000))
    assert report.known_character_share == 1
    assert report.unknown_piece_share == report.unknown_word_share == 0
    assert report.unknown_characters == []
    assert report.used_share > 0.9


def test_unknown_characters_are_counted_and_named() -> None:
    report = report_on("ba ☃☃ be☃ bi", "bo Ω")
    assert report.num_words == 6
    assert report.unknown_word_share == pytest.approx(3 / 6)
    assert report.known_character_share == pytest.approx(8 / 12)
    assert report.unknown_characters == [("☃", 3), ("Ω", 1)]


@pytest.mark.parametrize(
    ("pieces_per_word", "known_share", "told"),
    [
        (1.4, 0.9995, ""),
        (2.0, 0.9999, "2.00 pieces a word, 1.30 then"),
        (1.4, 0.98, "2.000% of the characters unknown, 0.010% then"),
    ],
)
def test_a_vocabulary_fits_until_words_fall_into_more_pieces_or_characters_are_unknown(
    pieces_per_word: float, known_share: float, told: str
) -> None:
    then = {"pieces_per_word": 1.3, "known_character_share": 0.9999}
    now = {"pieces_per_word": pieces_per_word, "known_character_share": known_share}
    assert describe_misfit(then, now) == told


def test_batches_and_documents_change_nothing_but_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentences = tiny_sentences(100)
    whole = measure(tiny_vocab(), [sentences], seen_in_training=False)
    monkeypatch.setattr("pipelines.train_vocab._LINES_PER_BATCH", 7)
    parts = measure(tiny_vocab(), [sentences[:30], [], sentences[30:]], seen_in_training=False)
    assert parts.num_documents == 3
    assert replace(parts, num_documents=1) == whole


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text()))
def test_any_text_has_a_report_with_shares_that_are_shares(texts: list[str]) -> None:
    report = report_on(*(normalise_for_pieces(text, True) for text in texts))
    values = asdict(report)
    assert all(0 <= values[name] <= 1 for name in values if name.endswith("_share"))
    assert json.loads(json.dumps(values))["num_pieces"] == report.num_pieces
    assert len(report.lines()) == 2


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published vocabulary is not here")
def test_the_published_vocabulary_needs_little_more_than_a_piece_a_word() -> None:
    report = report_on(
        "the river follows the old bridge in the morning, and nobody knows why.",
        tokenizer=Tokenizer(PUBLISHED.read_bytes()),
    )
    assert report.vocab_size == 30_000
    assert report.pieces_per_word == pytest.approx(15 / 13)
    assert report.unknown_piece_share == 0
