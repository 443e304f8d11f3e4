"""The rows that stages exchange: documents and examples; special pieces; packed rows.

Dimensions: S pieces of a sequence, P predictions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

PAD, UNK, CLS, SEP, MASK = range(5)
"""Ids of the special pieces. Source: google-research/albert, README, "Sentencepiece"."""

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
NUM_SPECIAL = len(SPECIAL_PIECES)
NUM_SPECIAL_IN_PAIR = 3
"""The special pieces of [CLS] a [SEP] b [SEP]."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    id: str
    """Stable id: the file, relative to the source, and the record in it. It is unique in a corpus,
    but for duplicates that are kept and share their id too."""
    text: str
    source: str
    """URI of the file that it came from."""
    lines_are_sentences: bool = False
    """Whether the source already has one sentence per line."""


DOCUMENT_SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.large_string()), ("source", pa.string())]
)

EXAMPLE_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.uint16())),
        ("segment_b_start", pa.uint16()),
        ("masked_lm_positions", pa.list_(pa.uint16())),
        ("masked_lm_labels", pa.list_(pa.uint16())),
        ("sentence_order_label", pa.uint8()),
        ("document_id", pa.string()),
        ("first_sentence", pa.uint32()),
        ("last_sentence", pa.uint32()),
        ("copy", pa.uint16()),
    ]
)
"""One pretraining example, not padded.

input_ids             (S,) [CLS] a [SEP] b [SEP], after masking
segment_b_start       first position of segment b; token_type_ids are 0 before it and 1 from it on
masked_lm_positions   (P,) ascending, never at a special piece
masked_lm_labels      (P,) the pieces that stood there
sentence_order_label  0 in document order; 1 swapped, or segment b from another document
document_id           the document of segment a, and of b unless `OTHER_DOCUMENT_FIELDS` differ
first_sentence        number of the first sentence in the pair, whole or in part
last_sentence         number of the last one, inclusive
copy                  which of the dupe_factor copies of the document this is
"""

OTHER_DOCUMENT_FIELDS = [
    ("other_document_id", pa.string()),
    ("other_first_sentence", pa.uint32()),
    ("other_last_sentence", pa.uint32()),
]
"""Further columns where segment b may come from another document (nsp, or google's pairs). They are
null in rows whose segments both come from `document_id`."""

MAX_VOCAB_SIZE = 1 << 16
"""Piece ids are stored as uint16."""


Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
UInt16s = NDArray[np.uint16]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sums over some sequences, or the means of one sequence."""

    num_sequences: int = 1
    """B."""
    num_pieces: float
    """Sum of the lengths S, in real pieces, special ones included. In a packed row, each sequence
    counts by itself."""
    sum_of_squares: float
    """Sum of S * S, which attention costs."""
    num_predictions: float
    """Real predictions of all sequences together."""

    @classmethod
    def of_lengths(cls, lengths: Ints, num_predictions: int) -> "Sizes":
        """Return the sums over sequences of these lengths, int64 (B,)."""
        return Sizes(
            num_sequences=len(lengths),
            num_pieces=int(lengths.sum()),
            sum_of_squares=int(lengths @ lengths),
            num_predictions=num_predictions,
        )


def ranges(first: NDArray[Any], length: NDArray[Any]) -> Ints:
    """Return first[i], first[i] + 1, ... (length[i] numbers) for each row i, concatenated.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    indices = np.arange(length.sum())
    indices += np.repeat(first - begins_of(length), length)
    return indices


def begins_of(lengths: NDArray[Any]) -> Ints:
    """Return where each of N parts begins when they are laid end to end, (N,).

    >>> begins_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    begins: Ints = np.cumsum(lengths) - lengths
    return begins
