"""Input sequences, their batches without padding, and the outputs of a head for them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.tasks.problem import Sequences, batches_by_length
from albert_core.text.records import CLS, SEP

CPU = torch.device("cpu")
_SEGMENTS = st.lists(st.integers(5, 30_000), max_size=9)
_PAIRS = st.lists(st.tuples(_SEGMENTS, st.none() | _SEGMENTS), min_size=1, max_size=12)


@settings(deadline=None)
@given(_PAIRS, st.data())
def test_a_batch_has_each_sequence_that_was_asked_for(
    pairs: list[tuple[list[int], list[int] | None]], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=20))
    batch = Sequences.of(pairs).batch(np.array(rows), CPU)
    assert sum(number * length for number, length in batch.runs) == len(batch.input_ids)
    for row, first, length in zip(rows, batch.first_positions, batch.lengths, strict=True):
        a, b = pairs[row]
        ids = [CLS, *a, SEP] if b is None else [CLS, *a, SEP, *b, SEP]
        types = [0] * (len(a) + 2) + ([] if b is None else [1] * (len(b) + 1))
        assert batch.input_ids[first : first + length].tolist() == ids
        assert batch.token_type_ids[first : first + length].tolist() == types


def test_sequences_of_one_length_are_one_run_also_if_asked_for_twice() -> None:
    sequences = Sequences.of([([7, 8], None), ([9], [10, 11]), ([12, 13], None)])
    batch = sequences.batch(np.array([0, 1, 2, 0]), CPU)
    assert batch.runs == [(3, 4), (1, 6)]
    assert batch.lengths.tolist() == [4, 6, 4, 4]


@given(st.lists(st.integers(2, 50), max_size=40), st.integers(1, 200))
def test_batches_by_length_have_every_row_once_and_no_more_pieces_than_allowed(
    lengths: list[int], max_pieces: int
) -> None:
    of = np.array(lengths, dtype=np.int64)
    batches = batches_by_length(of, max_pieces)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(of)))
    assert all(of[batch].sum() <= max_pieces or len(batch) == 1 for batch in batches)


def test_batches_by_length_are_of_similar_lengths_and_full() -> None:
    batches = batches_by_length(np.array([2, 9, 2, 9]), max_pieces=18)
    assert [sorted(batch.tolist()) for batch in batches] == [[1, 3], [0, 2]]
