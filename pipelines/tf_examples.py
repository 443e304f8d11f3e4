"""Rows of example shards as the records that the reference's training reads.

Source: REFERENCE.md B.8.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.contract.records import NUM_SPECIAL
from pipelines.tfrecord import serialise_tf_example


def tf_examples(
    rows: pa.Table, max_seq_length: int, max_predictions: int, opens_word: NDArray[np.bool_]
) -> Iterator[bytes]:
    """Yield each row as a serialised `tf.train.Example`, padded to fixed lengths.

    Args:
        rows: examples in EXAMPLE_SCHEMA.
        max_seq_length: S, length of the features for pieces.
        max_predictions: P, length of the features for predictions.
        opens_word: bool (V,), for `token_boundary`.
    """
    for row in rows.select(_COLUMNS).to_batches():
        for values in row.to_pylist():
            yield _serialise(values, max_seq_length, max_predictions, opens_word)


_COLUMNS = [
    "input_ids",
    "segment_b_start",
    "masked_lm_positions",
    "masked_lm_labels",
    "sentence_order_label",
]


def _serialise(
    row: dict[str, Any], max_seq_length: int, max_predictions: int, opens_word: NDArray[np.bool_]
) -> bytes:
    pieces = np.array(row["input_ids"], np.int64)
    positions = np.array(row["masked_lm_positions"], np.int64)
    labels = np.array(row["masked_lm_labels"], np.int64)
    unmasked = pieces.copy()
    unmasked[positions] = labels
    boundary = opens_word[unmasked] | (unmasked < NUM_SPECIAL)
    segments = np.arange(len(pieces)) >= row["segment_b_start"]
    integers = {
        "input_ids": _padded(pieces, max_seq_length),
        "input_mask": _padded(np.ones(len(pieces), np.int64), max_seq_length),
        "segment_ids": _padded(segments.astype(np.int64), max_seq_length),
        "token_boundary": _padded(boundary.astype(np.int64), max_seq_length),
        "masked_lm_positions": _padded(positions, max_predictions),
        "masked_lm_ids": _padded(labels, max_predictions),
        "next_sentence_labels": np.array([row["sentence_order_label"]], np.int64),
    }
    weights = _padded(np.ones(len(positions), np.int64), max_predictions).astype(np.float32)
    return serialise_tf_example(integers, {"masked_lm_weights": weights})


def _padded(values: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    padded = np.zeros(length, np.int64)
    padded[: len(values)] = values
    return padded
