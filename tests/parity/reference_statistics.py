"""Statistics of our examples beside those that google-research/albert made of the same text.

The reference's folder has ref_small.txt, spm.model, ref_small_p77.jsonl and
ref_small_p77.stats.json, described in the README beside them. No document of its
run drew a short target, so its chunks have no randomness: ours draw none either.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.text.records import MASK
from albert_core.text.tokenizer import Tokenizer
from pipelines.config import ExampleSettings
from pipelines.examples.google_fidelity import NgramCounts, google_masks, words_of
from pipelines.examples.pairs import SegmentPairs
from pipelines.examples.part import TRAIN, Text, encode_documents, make_rows, record_batches

REFERENCE = Path(__file__).parents[3] / "shared/reference"
NUM_SEEDS = 40
SIGMAS = 3.0
"""Of 30 rows, one in ten tables has one outside by chance."""
Statistics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Record:
    """One example, as a record shows it."""

    input_ids: NDArray[Any]
    segment_b_start: int
    positions: NDArray[Any]
    labels: NDArray[Any]
    label: int


def reference_records(folder: Path) -> list[Record]:
    """Return the reference's own examples."""
    lines = (folder / "ref_small_p77.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        Record(
            np.array(row["input_ids"]),
            row["segment_ids"].index(1),
            np.array(row["masked_lm_positions"]),
            np.array(row["masked_lm_ids"]),
            int(row["is_random_next"]),
        )
        for row in rows
    ]


def reference_statistics(folder: Path, opens_word: NDArray[np.bool_]) -> Statistics:
    """Return what the reference's records show, and what it counted while it made them."""
    counted = json.loads((folder / "ref_small_p77.stats.json").read_text())
    accepted, drawn = counted["ngram_accepted"], counted["ngram_drawn"]
    number = counted["ngram_accepted_count"]
    return {
        **record_statistics(reference_records(folder), opens_word, 512, counted["max_pred"]),
        "share truncated": counted["share_truncated"],
        "pieces lost": counted["tokens_dropped_by_truncation"],
        "lost to truncation / kept": counted["tokens_dropped_by_truncation"]
        / counted["tokens_kept_ab"],
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


def record_statistics(
    records: Sequence[Record], opens_word: NDArray[np.bool_], max_seq_length: int, most: int
) -> Statistics:
    """Return what the records alone show."""
    lengths = np.array([len(record.input_ids) for record in records])
    length_a = np.array([record.segment_b_start - 2 for record in records])
    masked = np.array([len(record.positions) for record in records])
    kinds: Counter[str] = Counter()
    runs: Counter[int] = Counter()
    num_words = 0
    for record in records:
        made = record.input_ids[record.positions]
        kinds["[MASK]"] += int((made == MASK).sum())
        kinds["kept piece"] += int((made == record.labels).sum())
        pieces = record.input_ids.copy()
        pieces[record.positions] = record.labels
        of_words = words_of(pieces, opens_word)
        num_words += len(of_words)
        runs.update(_runs(of_words, set(record.positions.tolist())))
    total, num_runs = int(masked.sum()), runs.total()
    kinds["random piece"] = total - kinds.total()
    longer = sum(count for length, count in runs.items() if length >= 5)
    return {
        "examples": len(records),
        "real pieces": int(lengths.sum()),
        "mean length": float(lengths.mean()),
        "pad fraction": 1 - lengths.sum() / (len(records) * max_seq_length),
        f"share shorter than {max_seq_length}": float((lengths < max_seq_length).mean()),
        "label 1": float(np.mean([record.label for record in records])),
        "mean length of a": float(length_a.mean()),
        "mean length of b": float((lengths - length_a - 3).mean()),
        "masked in all": total,
        "masked / real pieces": total / lengths.sum(),
        "mean masked": float(masked.mean()),
        "share at most predictions": float((masked == most).mean()),
        **{kind: kinds[kind] / total for kind in ("[MASK]", "random piece", "kept piece")},
        **{f"runs of {words(n)}": runs[n] / num_runs for n in (1, 2, 3, 4)},
        "runs of 5 words or more": longer / num_runs,
        "pieces per word": (lengths.sum() - 3 * len(records)) / num_words,
    }


def _runs(of_words: list[list[int]], predicted: set[int]) -> Iterable[int]:
    """Yield the lengths, in words, of runs of words that are predicted."""
    for covered, run in groupby(of_words, key=lambda word: word[0] in predicted):
        if covered:
            yield len(list(run))


def read_text(folder: Path, tokenizer: Tokenizer) -> Text:
    """Return the reference's text, in pieces."""
    content = (folder / "ref_small.txt").read_text(encoding="utf-8")
    texts = [text for text in content.split("\n\n") if text.strip()]
    table = pa.table(
        {
            "id": [f"d{number}" for number in range(len(texts))],
            "text": pa.array([text.strip("\n") for text in texts], pa.large_string()),
        }
    )
    return encode_documents(table, tokenizer)


def our_statistics(text: Text, settings: ExampleSettings, tokenizer: Tokenizer) -> Statistics:
    """Return the same of our examples with one seed."""
    opens_word = tokenizer.starts_word
    rows, counts = make_rows(text, np.zeros(len(text.ids), bool), settings)
    pairs = rows[TRAIN].pairs
    records = [
        Record(
            np.array(row["input_ids"]),
            row["segment_b_start"],
            np.array(row["masked_lm_positions"], np.int64),
            np.array(row["masked_lm_labels"]),
            row["sentence_order_label"],
        )
        for batch in record_batches(text, rows[TRAIN], settings, opens_word)
        for row in batch.to_pylist()
    ]
    most = settings.max_predictions
    return {
        **record_statistics(records, opens_word, settings.max_seq_length, most),
        "share truncated": _share_truncated(text, pairs),
        "pieces lost": counts["truncated"] + counts["alone"],
        "lost to truncation / kept": counts["truncated"] / pairs.num_pieces,
        "random document": float((pairs.other_document >= 0).mean()),
        **(
            _ngram_statistics(records, opens_word, settings)
            if settings.fidelity == "google"
            else {}
        ),
    }


def _share_truncated(text: Text, pairs: SegmentPairs) -> float:
    bounds = text.sentences.bounds
    whole = bounds[pairs.last_sentence + 1] - bounds[pairs.first_sentence]
    borrowed = pairs.other_document >= 0
    other = bounds[pairs.other_last_sentence + 1] - bounds[pairs.other_first_sentence]
    kept = pairs.end_a - pairs.start_a + pairs.end_b - pairs.start_b
    return float((kept < whole + np.where(borrowed, other, 0)).mean())


def _ngram_statistics(
    records: Sequence[Record], opens_word: NDArray[np.bool_], settings: ExampleSettings
) -> Statistics:
    """Mask the same examples again, counting n-grams, which the records do not show."""
    originals = []
    for record in records:
        pieces = record.input_ids.copy()
        pieces[record.positions] = record.labels
        originals.append(pieces)
    counts = NgramCounts(Counter(), Counter())
    google_masks(
        np.concatenate(originals),
        np.array([len(pieces) for pieces in originals]),
        opens_word,
        np.arange(len(originals)).astype(np.uint64) + np.uint64(settings.seed << 32),
        settings.masked_lm_prob,
        settings.max_ngram,
        settings.max_predictions,
        counts,
    )
    accepted = counts.accepted.total()
    return {
        **{f"{words(n)} drawn": counts.drawn[n] / counts.drawn.total() for n in (1, 2, 3)},
        **{f"{words(n)} accepted": counts.accepted[n] / accepted for n in (1, 2, 3)},
        "pieces per n-gram": counts.accepted_pieces / accepted,
        "n-grams across [SEP]": counts.crossing_sep / accepted,
        "overlapping / accepted": counts.overlapping / accepted,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """One statistic: the reference's value, and ours over several seeds."""

    name: str
    reference: float
    mean: float
    deviation: float
    """Of one run; the reference's value is of one run too."""

    @property
    def within(self) -> bool:
        """Whether the reference's run could be one of ours; rounded values count as equal."""
        return abs(self.reference - self.mean) <= SIGMAS * self.deviation + 1e-4


def compare(folder: Path, settings: ExampleSettings, num_seeds: int = NUM_SEEDS) -> list[Row]:
    """Return each statistic of the reference beside ours."""
    model = (folder / "spm.model").read_bytes()
    tokenizer = Tokenizer(model, split_digit_commas=settings.fidelity == "google")
    text = read_text(folder, tokenizer)
    runs = [
        our_statistics(text, settings.model_copy(update={"seed": seed}), tokenizer)
        for seed in range(num_seeds)
    ]
    reference = reference_statistics(folder, tokenizer.starts_word)
    return [
        Row(
            name,
            reference[name],
            float(np.mean([run[name] for run in runs])),
            float(np.std([run[name] for run in runs], ddof=1)),
        )
        for name in runs[0]
    ]


def google_settings() -> ExampleSettings:
    """Return the settings of the reference's run; see above for the short targets."""
    return ExampleSettings(
        fidelity="google", max_predictions_per_seq=77, short_seq_prob=0.0, dupe_factor=1
    )
