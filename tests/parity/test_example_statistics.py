"""Against what google-research/albert made of the same text, where that is at hand."""

from functools import cache

import numpy as np
import pytest

from albert_core.text.records import CLS, SEP
from albert_core.text.tokenizer import Tokenizer
from tests.parity.reference_statistics import (
    REFERENCE,
    Row,
    compare,
    google_settings,
    our_statistics,
    read_text,
    reference_records,
)

FIXTURES = ("ref_small.txt", "spm.model", "ref_small_p77.jsonl", "ref_small_p77.stats.json")
pytestmark = pytest.mark.skipif(
    not all((REFERENCE / name).exists() for name in FIXTURES), reason=f"{REFERENCE} is not here"
)
EXACT = ["examples", "real pieces", "pieces lost", "masked in all", "share truncated"]
"""Without short targets these do not depend on any draw."""
NAMES = [
    *EXACT,
    *["mean length", "pad fraction", "share shorter than 512", "share at most predictions"],
    *["label 1", "random document", "mean length of a", "mean length of b", "pieces per word"],
    *["masked / real pieces", "mean masked", "[MASK]", "random piece", "kept piece"],
    *["runs of 1 word", "runs of 2 words", "runs of 3 words", "runs of 4 words"],
    *["runs of 5 words or more", "1 word drawn", "2 words drawn", "3 words drawn"],
    *["1 word accepted", "2 words accepted", "3 words accepted", "pieces per n-gram"],
    *["n-grams across [SEP]", "overlapping / accepted", "lost to truncation / kept"],
]


@cache
def rows() -> dict[str, Row]:
    return {row.name: row for row in compare(REFERENCE, google_settings(), num_seeds=20)}


def test_no_statistic_is_left_out() -> None:
    assert set(NAMES) == set(rows())


@pytest.mark.parametrize("name", NAMES)
def test_a_statistic_of_google_fidelity_is_within_the_sampling_error(name: str) -> None:
    row = rows()[name]
    assert row.within, row


@pytest.mark.parametrize("name", EXACT)
def test_what_no_draw_decides_is_exactly_the_reference(name: str) -> None:
    row = rows()[name]
    assert row.mean == pytest.approx(row.reference, abs=1e-4)
    assert row.deviation == pytest.approx(0, abs=1e-12)


def test_the_pieces_are_those_of_the_reference() -> None:
    model = (REFERENCE / "spm.model").read_bytes()
    ours = read_text(REFERENCE, Tokenizer(model, split_digit_commas=True)).sentences.pieces
    theirs = np.zeros(30_000, np.int64)
    for record in reference_records(REFERENCE):
        pieces = record.input_ids.copy()
        pieces[record.positions] = record.labels
        theirs += np.bincount(pieces, minlength=30_000)
    have = np.bincount(ours, minlength=30_000)
    theirs[[CLS, SEP]] = 0
    assert (theirs <= have).all()
    assert (have - theirs).sum() == 2231  # what the reference cut off


def test_short_targets_are_as_frequent_as_the_reference_has_them() -> None:
    """Of its documents' examples with 10 % short targets, B.9 has 21 to 31 % of short ones."""
    tokenizer = Tokenizer((REFERENCE / "spm.model").read_bytes(), split_digit_commas=True)
    text = read_text(REFERENCE, tokenizer)
    counts = [
        our_statistics(text, google_settings().model_copy(update=update), tokenizer)["examples"]
        for update in ({"short_seq_prob": 0.1, "seed": seed} for seed in range(8))
    ]
    assert np.mean(counts) > 109
