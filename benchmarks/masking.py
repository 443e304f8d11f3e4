"""Masking alone: pieces masked in a CPU second, at the length of training.

    python benchmarks/masking.py

The words are like English ones under the published vocabulary: 1.12 pieces each.
"""

import json
import time

import numpy as np

from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, NUM_SPECIAL, SEP
from albert_core.text.seeds import random_bits

VOCAB_SIZE = 30_000
LENGTH = 512
NUM_ROWS = 1000
REPEATS = 20


def main() -> None:
    """Mask the same examples again and again; print the best rate."""
    random = np.random.default_rng(0)
    opens_word = random.random(VOCAB_SIZE) < 0.89
    ids = random.integers(NUM_SPECIAL, VOCAB_SIZE, (NUM_ROWS, LENGTH)).astype(np.uint16)
    b_starts = random.integers(20, LENGTH - 20, NUM_ROWS)
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[np.arange(NUM_ROWS), b_starts - 1] = SEP
    lengths = np.full(NUM_ROWS, LENGTH)
    seeds = random_bits(1, np.arange(NUM_ROWS))
    seconds = []
    for _ in range(REPEATS):
        begin = time.process_time()
        masked = mask_examples(ids.ravel(), lengths, b_starts, opens_word, seeds, 0.15, 3)
        seconds.append(time.process_time() - begin)
    budget = NUM_ROWS * round(0.15 * LENGTH)
    result = {
        "examples": NUM_ROWS,
        "length": LENGTH,
        "million_pieces_per_cpu_s": round(ids.size / min(seconds) / 1e6, 1),
        "median_million_pieces_per_cpu_s": round(ids.size / float(np.median(seconds)) / 1e6, 1),
        "budget_used": round(masked.num_predictions.sum() / budget, 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
