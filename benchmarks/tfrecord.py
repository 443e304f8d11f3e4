"""TFRecord shards from rows: microseconds an example, framing and checksums included.

python benchmarks/tfrecord.py
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from albert_core.text.records import EXAMPLE_SCHEMA, NUM_SPECIAL
from pipelines.examples.tfrecord import tf_examples, write_tfrecord

VOCAB_SIZE = 30_000
LENGTH, PREDICTIONS = 512, 77
NUM_ROWS = 2000
REPEATS = 5


def rows() -> pa.Table:
    """Return examples of full length; common pieces have low ids, as in a real vocabulary."""
    random = np.random.default_rng(0)

    def lists(values: np.ndarray) -> list[np.ndarray]:
        return list(values.astype(np.uint16))

    ids = NUM_SPECIAL + (VOCAB_SIZE - NUM_SPECIAL) * random.random((NUM_ROWS, LENGTH)) ** 3
    positions = np.sort(random.random((NUM_ROWS, LENGTH)).argsort(axis=1)[:, :PREDICTIONS])
    columns = {
        "input_ids": lists(ids),
        "segment_b_start": random.integers(20, LENGTH - 20, NUM_ROWS),
        "masked_lm_positions": lists(positions),
        "masked_lm_labels": lists(np.take_along_axis(ids, positions, axis=1)),
        "sentence_order_label": random.integers(0, 2, NUM_ROWS),
        "document_id": [str(i) for i in range(NUM_ROWS)],
        "first_sentence": np.arange(NUM_ROWS),
        "last_sentence": np.arange(NUM_ROWS) + 1,
        "copy": np.zeros(NUM_ROWS, np.uint16),
    }
    return pa.table(columns, schema=EXAMPLE_SCHEMA)


def main() -> None:
    """Write the same shard again and again; print the best time."""
    table = rows()
    opens_word = np.random.default_rng(1).random(VOCAB_SIZE) < 0.89
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "x.tfrecord")
        for _ in range(REPEATS):
            begin = time.process_time()
            write_tfrecord(tf_examples(table, LENGTH, PREDICTIONS, opens_word), uri)
            seconds.append(time.process_time() - begin)
        num_bytes = Path(uri).stat().st_size
    result = {
        "examples": NUM_ROWS,
        "length": LENGTH,
        "cpu_us_per_example": round(min(seconds) / NUM_ROWS * 1e6, 1),
        "bytes_per_example": num_bytes // NUM_ROWS,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
