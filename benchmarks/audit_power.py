"""How often the auditor's checks of what is drawn fail: on correct rows, and on each fault.

    python -m benchmarks.audit_power [--examples MANIFEST] [--runs N] [--results FILE]

Rows are drawn from finished examples, and faults planted in them: for each fault and number of
rows, the share of the runs in which a check fails that passed before. Checks of rules without
exceptions are not counted: one row that breaks such a rule is enough.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import MASK, NUM_SPECIAL
from albert_core.text.tokenizer import Tokenizer
from benchmarks.english_text import make_examples
from benchmarks.harness import arguments, report, table
from pipelines.audit.checks import Expected, Finding, Tally, judge, measure
from pipelines.audit.rows import Rows, rows_of_batch

SIZES = (1, 5, 57, 300, 3000)
MOST_ROWS = 30_000
_TEXT_BYTES = 30_000_000

Columns = dict[str, pa.Array]
Draw = np.random.Generator
Fault = Callable[[Rows, Draw], Columns]


def labels(share: float) -> Fault:
    """Return the fault that so many labels are 1."""

    def change(rows: Rows, draw: Draw) -> Columns:
        return {"sentence_order_label": pa.array((draw.random(len(rows)) < share).astype(np.int64))}

    return change


def lost(share: float) -> Fault:
    """Return the fault that this share of the predictions is not made."""

    def change(rows: Rows, draw: Draw) -> Columns:
        kept = draw.random(len(rows.labels)) >= share
        ids = rows.ids.copy()
        ids[rows.where[~kept]] = rows.labels[~kept]
        numbers = np.bincount(rows.row_of_prediction[kept], minlength=len(rows))
        return {
            "input_ids": lists(ids, rows.lengths),
            "masked_lm_positions": lists(rows.positions[kept], numbers),
            "masked_lm_labels": lists(rows.labels[kept], numbers),
        }

    return change


def became(change_of: Callable[[NDArray[np.int64], Draw], NDArray[np.int64]]) -> Fault:
    """Return the fault that random pieces became others."""

    def change(rows: Rows, draw: Draw) -> Columns:
        ids = rows.ids.copy()
        at = rows.where[(ids[rows.where] != MASK) & (ids[rows.where] != rows.labels)]
        ids[at] = change_of(ids[at], draw)
        return {"input_ids": lists(ids, rows.lengths)}

    return change


def from_range(low: float, high: float, vocab_size: int) -> Fault:
    """Return the fault that random pieces are of a part of the vocabulary only."""
    first, last = (int(NUM_SPECIAL + end * (vocab_size - NUM_SPECIAL)) for end in (low, high))
    return became(lambda ids, draw: draw.integers(first, last, len(ids)))


def masked_instead(share: float) -> Fault:
    """Return the fault that this share of the random pieces is [MASK]."""
    return became(lambda ids, draw: np.where(draw.random(len(ids)) < share, MASK, ids))


def lists(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    """Return the values as lists of these lengths."""
    return pa.LargeListArray.from_arrays(np.append(0, np.cumsum(lengths)), values)


def failed(rows: Rows, expected: Expected, tokenizer: Tokenizer) -> list[Finding]:
    """Return the checks of these rows that fail."""
    tally = Tally(expected, tokenizer.starts_word)
    measure(rows, tally)
    return [finding for finding in judge(tally) if finding.ok is False]


def main() -> None:
    """Measure, print and write the results."""
    parser = arguments(__doc__, "audit_power")
    parser.add_argument("--examples", default="", help="manifest of examples; default: make some")
    parser.add_argument("--runs", type=int, default=50, help="of each fault and number of rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uri = options.examples or make_examples(Path(folder), _TEXT_BYTES, [128])[1][128]
        manifest = read_manifest(uri)
        shards = [f"{uri.rpartition('/')[0]}/{s.path}" for s in manifest.shards_of("train")]
        shuffled = pa.concat_tables(map(read_arrow, shards)).slice(0, MOST_ROWS).combine_chunks()
        every = rows_of_batch(shuffled.to_batches()[0])
        tokenizer = Tokenizer.load(manifest.input_manifests["vocab"].rpartition("/")[0])
    names = Expected.model_fields.keys() & manifest.settings.keys()
    settings = {name: manifest.settings[name] for name in names} | manifest.result
    known = {name: settings[name] for name in Expected.model_fields if settings.get(name)}
    expected = Expected(**{**known, "vocab_size": tokenizer.vocab_size})
    faults: dict[str, Fault] = {
        "none": lambda rows, draw: {},
        **{f"{share:.0%} of labels 1": labels(share) for share in (0.48, 0.45, 0.4, 0.0)},
        **{f"{share:.0%} of predictions lost": lost(share) for share in (0.01, 0.05, 0.09)},
        "random pieces of the lower half": from_range(0, 0.5, tokenizer.vocab_size),
        "random pieces of the middle half": from_range(0.25, 0.75, tokenizer.vocab_size),
        "random pieces of 90 %": from_range(0.05, 0.95, tokenizer.vocab_size),
        **{f"{share:.0%} of random pieces masked": masked_instead(share) for share in (0.1, 0.3)},
    }
    found = []
    for name, fault in faults.items():
        row: list[object] = [name]
        for size in (size for size in SIZES if size <= len(every)):
            draw, runs = np.random.default_rng(size), max(5, options.runs // (1 + size // 3000))
            runs = 20 * runs if name == "none" and size < 300 else runs
            alarms = 0
            for _ in range(runs):
                chosen = pa.array(draw.choice(len(every), size, replace=False))
                rows = Rows({n: column.take(chosen) for n, column in every.columns.items()})
                rows = Rows(rows.columns | fault(rows, draw))
                alarms += bool(failed(rows, expected, tokenizer))
            row.append(f"{alarms} of {runs}")
        found.append(row)
    header = ["fault", *(f"{size:,} rows" for size in SIZES if size <= len(every))]
    report({"found": found}, table(header, found), options.results)


if __name__ == "__main__":
    main()
