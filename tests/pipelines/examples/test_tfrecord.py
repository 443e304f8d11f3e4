import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from albert_core.stage.errors import SourceError
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, NUM_SPECIAL, SEP, UNK
from pipelines.examples.tfrecord import TFExample, read_tfrecord, tf_examples, write_tfrecord

VOCAB_SIZE = 40_000
OPENS_WORD = np.arange(VOCAB_SIZE) % 3 != 0
S, P = 64, 10


def row(seed: int) -> dict[str, Any]:
    """Return a row with ids of every length as varints, and any label."""
    random = np.random.default_rng(seed)
    length = int(random.integers(7, S + 1))
    b_start = int(random.integers(3, length - 2))
    ids = random.choice([UNK, 127, 128, 16_383, 16_384, VOCAB_SIZE - 1, 9, 3000], length)
    ids[[0, b_start - 1, length - 1]] = CLS, SEP, SEP
    places = np.setdiff1d(np.arange(length), [0, b_start - 1, length - 1])
    positions = np.sort(random.choice(places, min(P, len(places)), replace=False))
    return {
        "input_ids": ids,
        "segment_b_start": b_start,
        "masked_lm_positions": positions,
        "masked_lm_labels": random.integers(NUM_SPECIAL, VOCAB_SIZE, len(positions)),
        "sentence_order_label": int(random.integers(0, 2)),
        "document_id": "d",
        "first_sentence": 0,
        "last_sentence": 1,
        "copy": 0,
    }


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=EXAMPLE_SCHEMA)


def by_protobuf(row: dict[str, Any], max_seq_length: int, max_predictions: int) -> bytes:
    """Return what protobuf makes of ``row``: feature by feature, number by number."""

    def pad(values: Any, length: int) -> list[int]:
        return [int(v) for v in values] + [0] * (length - len(values))

    ids, positions, labels = (
        np.array(row[name], np.int64)
        for name in ("input_ids", "masked_lm_positions", "masked_lm_labels")
    )
    unmasked = ids.copy()
    unmasked[positions] = labels
    integers = {
        "input_ids": pad(ids, max_seq_length),
        "input_mask": pad(np.ones(len(ids)), max_seq_length),
        "segment_ids": pad(np.arange(len(ids)) >= row["segment_b_start"], max_seq_length),
        "token_boundary": pad(OPENS_WORD[unmasked] | (unmasked < NUM_SPECIAL), max_seq_length),
        "masked_lm_positions": pad(positions, max_predictions),
        "masked_lm_ids": pad(labels, max_predictions),
        "next_sentence_labels": [row["sentence_order_label"]],
    }
    example = TFExample()
    for name, values in integers.items():
        example.features.feature[name].int64_list.value.extend(values)
    weights = pad(np.ones(len(positions)), max_predictions)
    example.features.feature["masked_lm_weights"].float_list.value.extend(map(float, weights))
    return bytes(example.SerializeToString(deterministic=True))


def test_the_bytes_are_those_of_protobuf_for_rows_in_many_batches_slices_and_chunks() -> None:
    rows = [row(seed) for seed in range(1100)]
    chunked = pa.concat_tables([table(rows[:5]), table(rows[5:])]).slice(3)
    made = list(tf_examples(chunked, S, P, OPENS_WORD))
    assert made == [by_protobuf(values, S, P) for values in rows[3:]]


@pytest.mark.parametrize(("length", "predictions"), [(6, P), (S, 3)])
def test_a_row_that_does_not_fit_is_refused(length: int, predictions: int) -> None:
    with pytest.raises(SourceError, match=f"but {min(length, predictions)} were asked for"):
        list(tf_examples(table([row(0)]), length, predictions, OPENS_WORD))


READ_BY_TENSORFLOW = """
import json, sys
import tensorflow as tf
path, s, p = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sizes = dict.fromkeys(["input_ids", "input_mask", "segment_ids", "token_boundary"], s)
sizes |= dict.fromkeys(["masked_lm_positions", "masked_lm_ids"], p) | {"next_sentence_labels": 1}
spec = {name: tf.io.FixedLenFeature([size], tf.int64) for name, size in sizes.items()}
spec["masked_lm_weights"] = tf.io.FixedLenFeature([p], tf.float32)
rows = [tf.io.parse_single_example(r, spec) for r in tf.data.TFRecordDataset(path)]
rows = [{name: value.numpy().tolist() for name, value in row.items()} for row in rows]
print(json.dumps({"version": tf.__version__, "rows": rows}))
"""


@pytest.mark.slow
@pytest.mark.skipif("ALBERT_TF_PYTHON" not in os.environ, reason="names no python with tensorflow")
def test_tensorflow_reads_the_records_with_the_reference_s_features(tmp_path: Path) -> None:
    rows = [row(seed) for seed in range(20)]
    path = tmp_path / "x.tfrecord"
    write_tfrecord(tf_examples(table(rows), S, P, OPENS_WORD), str(path))
    printed = subprocess.run(
        [os.environ["ALBERT_TF_PYTHON"], "-c", READ_BY_TENSORFLOW, str(path), str(S), str(P)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    read = json.loads(printed)
    print(read["version"], len(read["rows"]), read["rows"][0])
    for ours, theirs in zip(rows, read["rows"], strict=True):
        features = TFExample.FromString(by_protobuf(ours, S, P)).features.feature
        weights = list(features["masked_lm_weights"].float_list.value)
        assert theirs.pop("masked_lm_weights") == weights
        assert theirs == {name: list(features[name].int64_list.value) for name in theirs}


# Files


def test_records_come_back_as_they_were_in_golden_framing(tmp_path: Path) -> None:
    uri = str(tmp_path / "x")
    write_tfrecord([b"albert", b""], uri)
    assert Path(uri).read_bytes().hex() == GOLDEN_FRAMING
    assert list(read_tfrecord(uri)) == [b"albert", b""]


def test_a_changed_byte_or_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_tfrecord([b"some record"], str(path))
    content = path.read_bytes()
    flipped = [content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :] for n in (0, 9, 13, 24)]
    for damaged in [*flipped, *(content[:size] for size in (3, 11, 20, 26))]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="does not fit its checksum"):
            list(read_tfrecord(str(path)))


GOLDEN_FRAMING = "06000000000000007369d537616c62657274c27fa806000000000000000029039807d8ea82a2"
