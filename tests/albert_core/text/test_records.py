import pickle

import pyarrow as pa

from albert_core.text.records import (
    CLS,
    DOCUMENT_SCHEMA,
    EXAMPLE_SCHEMA,
    MASK,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL,
    PAD,
    SEP,
    SPECIAL_PIECES,
    UNK,
    Document,
)


def test_special_pieces_have_the_reference_ids() -> None:
    named = {SPECIAL_PIECES[i]: i for i in range(NUM_SPECIAL)}
    assert named == {"<pad>": PAD, "<unk>": UNK, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
    assert [PAD, UNK, CLS, SEP, MASK] == [0, 1, 2, 3, 4]


def test_the_largest_vocabulary_fits_the_type_of_a_piece() -> None:
    largest = pa.array([[MAX_VOCAB_SIZE - 1]], EXAMPLE_SCHEMA.field("input_ids").type)
    assert largest.to_pylist() == [[MAX_VOCAB_SIZE - 1]]


def test_the_docstring_of_the_example_schema_is_about_its_columns() -> None:
    assert EXAMPLE_SCHEMA.names == [
        *["input_ids", "segment_b_start", "masked_lm_positions", "masked_lm_labels"],
        *["sentence_order_label", "document_id", "first_sentence", "last_sentence", "copy"],
    ]


def test_a_document_is_a_row_of_the_document_schema() -> None:
    assert [*DOCUMENT_SCHEMA.names, "lines_are_sentences"] == list(Document.__slots__)


def test_a_document_travels_to_worker_processes() -> None:
    document = Document("a#1", "Text.", "file:///a")
    assert pickle.loads(pickle.dumps(document)) == document
