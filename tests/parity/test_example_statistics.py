"""Statistics of our examples beside those that google-research/albert made of the same text.

The README beside the reference's files describes them. No document of its run drew a short target,
so its chunks have no randomness: ours draw none either.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from albert_core.text.masking import span_length_weights
from albert_core.text.records import CLS, MASK, SEP
from albert_core.text.tokenizer import Tokenizer
from pipelines.config import ExampleSettings
from pipelines.examples.pairs import SegmentPairs, try_ngrams, words_of
from pipelines.examples.part import TRAIN, Text, encode_documents, make_rows, record_batches

REFERENCE = Path(__file__).parents[3] / "shared/reference"
FIXTURES = ("ref_small.txt", "spm.model", "ref_small_p77.jsonl", "ref_small_p77.stats.json")
pytestmark = pytest.mark.skipif(
    not all((REFERENCE / name).exists() for name in FIXTURES), reason=f"{REFERENCE} is not here"
)
GOOGLE = ExampleSettings(
    fidelity="google", max_predictions_per_seq=77, short_seq_prob=0.0, dupe_factor=1
)
NUM_SEEDS = 20
SIGMAS = 3.0
"""Of 30 rows, one in ten tables has one outside by chance."""
EXACT = ["examples", "real pieces", "pieces lost", "masked in all", "share truncated"]
"""Without short targets these do not depend on any draw."""
Statistics = dict[str, float]


Record = dict[str, Any]
"""One example, by the columns of EXAMPLE_SCHEMA."""


def unmasked(record: Record) -> NDArray[Any]:
    pieces = np.array(record["input_ids"])
    pieces[np.array(record["masked_lm_positions"], np.int64)] = record["masked_lm_labels"]
    return pieces


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer((REFERENCE / "spm.model").read_bytes(), split_digit_commas=True)


@cache
def reference_text() -> Text:
    """The reference's text, in pieces."""
    content = (REFERENCE / "ref_small.txt").read_text(encoding="utf-8")
    texts = [text.strip("\n") for text in content.split("\n\n") if text.strip()]
    ids = [f"d{number}" for number in range(len(texts))]
    return encode_documents(
        pa.table({"id": ids, "text": pa.array(texts, pa.large_string())}), tokenizer()
    )


@cache
def reference_records() -> list[Record]:
    """The reference's own examples."""
    lines = (REFERENCE / "ref_small_p77.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        row
        | {
            "segment_b_start": row["segment_ids"].index(1),
            "masked_lm_labels": row["masked_lm_ids"],
            "sentence_order_label": int(row["is_random_next"]),
        }
        for row in map(json.loads, lines)
    ]


def reference_statistics() -> Statistics:
    """Return what the reference's records show, and what it counted while it made them."""
    counted = json.loads((REFERENCE / "ref_small_p77.stats.json").read_text())
    accepted, drawn = counted["ngram_accepted"], counted["ngram_drawn"]
    number, lost = counted["ngram_accepted_count"], counted["tokens_dropped_by_truncation"]
    return {
        **record_statistics(reference_records()),
        "share truncated": counted["share_truncated"],
        "pieces lost": lost,
        "lost to truncation / kept": lost / counted["tokens_kept_ab"],
        "random document": counted["random_doc_share"],
        **{f"{words(n)} drawn": drawn[str(n)] for n in (1, 2, 3)},
        **{f"{words(n)} accepted": accepted[str(n)] for n in (1, 2, 3)},
        "pieces per n-gram": counted["pieces_per_ngram"],
        "n-grams across [SEP]": counted["ngrams_crossing_SEP"] / number,
        "overlapping / accepted": sum(counted["overlap_rejects"].values()) / number,
    }


def words(number: int) -> str:
    """Return "1 word", "2 words", ..."""
    return f"{number} word{'s' * (number > 1)}"


def record_statistics(records: Sequence[Record]) -> Statistics:
    """Return what the records alone show."""
    lengths = np.array([len(record["input_ids"]) for record in records])
    length_a = np.array([record["segment_b_start"] - 2 for record in records])
    masked = np.array([len(record["masked_lm_positions"]) for record in records])
    kinds: Counter[str] = Counter()
    runs: Counter[int] = Counter()
    num_words = 0
    for record in records:
        made = np.array(record["input_ids"])[record["masked_lm_positions"]]
        kinds["[MASK]"] += int((made == MASK).sum())
        kinds["kept piece"] += int((made == np.array(record["masked_lm_labels"])).sum())
        of_words = words_of(unmasked(record), tokenizer().starts_word)
        num_words += len(of_words)
        runs.update(runs_of(of_words, set(record["masked_lm_positions"])))
    total, num_runs = int(masked.sum()), runs.total()
    kinds["random piece"] = total - kinds.total()
    longer = sum(count for length, count in runs.items() if length >= 5)
    return {
        "examples": len(records),
        "real pieces": int(lengths.sum()),
        "mean length": float(lengths.mean()),
        "pad fraction": 1 - lengths.sum() / (len(records) * 512),
        "share shorter than 512": float((lengths < 512).mean()),
        "label 1": float(np.mean([record["sentence_order_label"] for record in records])),
        "mean length of a": float(length_a.mean()),
        "mean length of b": float((lengths - length_a - 3).mean()),
        "masked in all": total,
        "masked / real pieces": total / lengths.sum(),
        "mean masked": float(masked.mean()),
        "share at most predictions": float((masked == 77).mean()),
        **{kind: kinds[kind] / total for kind in ("[MASK]", "random piece", "kept piece")},
        **{f"runs of {words(n)}": runs[n] / num_runs for n in (1, 2, 3, 4)},
        "runs of 5 words or more": longer / num_runs,
        "pieces per word": (lengths.sum() - 3 * len(records)) / num_words,
    }


def runs_of(of_words: list[list[int]], predicted: set[int]) -> Iterable[int]:
    """Yield the lengths, in words, of runs of words that are predicted."""
    for covered, run in groupby(of_words, key=lambda word: word[0] in predicted):
        if covered:
            yield len(list(run))


def our_statistics(settings: ExampleSettings) -> Statistics:
    """Return the same of our examples with one seed."""
    text = reference_text()
    rows, counts = make_rows(text, np.zeros(len(text.ids), bool), settings)
    pairs = rows[TRAIN].pairs
    batches = record_batches(text, rows[TRAIN], settings, tokenizer().starts_word)
    records = [row for batch in batches for row in batch.to_pylist()]
    return {
        **record_statistics(records),
        "share truncated": share_truncated(text, pairs),
        "pieces lost": counts["truncated"] + counts["alone"],
        "lost to truncation / kept": counts["truncated"] / pairs.num_pieces,
        "random document": float((pairs.other_document >= 0).mean()),
        **ngram_statistics(records, settings.seed),
    }


def share_truncated(text: Text, pairs: SegmentPairs) -> float:
    bounds = text.sentences.bounds
    whole = bounds[pairs.last_sentence + 1] - bounds[pairs.first_sentence]
    borrowed = pairs.other_document >= 0
    other = bounds[pairs.other_last_sentence + 1] - bounds[pairs.other_first_sentence]
    kept = pairs.end_a - pairs.start_a + pairs.end_b - pairs.start_b
    return float((kept < whole + np.where(borrowed, other, 0)).mean())


def ngram_statistics(records: Sequence[Record], seed: int) -> Statistics:
    """Mask the same examples again, counting n-grams, which the records do not show."""
    drawn, accepted, others = (Counter[Any]() for _ in range(3))
    cumulative = np.cumsum(span_length_weights(3)).tolist()
    for number, record in enumerate(records):
        of_words = words_of(unmasked(record), tokenizer().starts_word)
        first_pieces = {word[0] for word in of_words}
        budget = min(77, max(1, round(0.15 * len(record["input_ids"]))))
        tried = try_ngrams(of_words, budget, cumulative, Random(f"{seed} {number}"))
        for num_drawn, span, is_taken in tried:
            drawn[num_drawn] += 1
            others["overlapping"] += bool(span) and not is_taken
            if is_taken:
                accepted[len(first_pieces.intersection(span))] += 1
                others["pieces"] += len(span)
                others["crossing"] += span[-1] - span[0] >= len(span)
    total = accepted.total()
    return {
        **{f"{words(n)} drawn": drawn[n] / drawn.total() for n in (1, 2, 3)},
        **{f"{words(n)} accepted": accepted[n] / total for n in (1, 2, 3)},
        "pieces per n-gram": others["pieces"] / total,
        "n-grams across [SEP]": others["crossing"] / total,
        "overlapping / accepted": others["overlapping"] / total,
    }


def test_the_statistics_are_the_reference_s_within_the_sampling_error() -> None:
    runs = [our_statistics(GOOGLE.model_copy(update={"seed": n})) for n in range(NUM_SEEDS)]
    reference = reference_statistics()
    assert runs[0].keys() == reference.keys()
    outside = {}
    for name, wanted in reference.items():
        values = [run[name] for run in runs]
        mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
        if name in EXACT:
            assert mean == pytest.approx(wanted, abs=1e-4)
            assert deviation == pytest.approx(0, abs=1e-12)
        # The reference's value is of one run too; its rounded values count as equal.
        elif abs(wanted - mean) > SIGMAS * deviation + 1e-4:
            outside[name] = (wanted, mean, deviation)
    assert outside == {}


def test_the_pieces_are_those_of_the_reference() -> None:
    theirs = np.zeros(30_000, np.int64)
    for record in reference_records():
        theirs += np.bincount(unmasked(record), minlength=30_000)
    have = np.bincount(reference_text().sentences.pieces, minlength=30_000)
    theirs[[CLS, SEP]] = 0
    assert (theirs <= have).all()
    assert (have - theirs).sum() == 2231  # what the reference cut off


def test_short_targets_are_as_frequent_as_the_reference_has_them() -> None:
    """Of its documents' examples with 10 % short targets, B.9 has 21 to 31 % of short ones."""
    short = [{"short_seq_prob": 0.1, "seed": seed} for seed in range(8)]
    counts = [our_statistics(GOOGLE.model_copy(update=each))["examples"] for each in short]
    assert np.mean(counts) > 109
