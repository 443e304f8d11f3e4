import pickle

import pyarrow as pa

from albert_core.text import records
from albert_core.text.records import DOCUMENT_SCHEMA, EXAMPLE_SCHEMA, SPECIAL_PIECES, Document


def test_special_pieces_have_the_reference_ids() -> None:
    assert SPECIAL_PIECES == ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    ids = [records.PAD, records.UNK, records.CLS, records.SEP, records.MASK]
    assert ids == list(range(records.NUM_SPECIAL)) == [0, 1, 2, 3, 4]


def test_the_largest_vocabulary_fits_the_type_of_a_piece() -> None:
    largest = records.MAX_VOCAB_SIZE - 1
    assert pa.array([[largest]], EXAMPLE_SCHEMA.field("input_ids").type).to_pylist() == [[largest]]


def test_the_docstring_of_the_example_schema_is_about_its_columns() -> None:
    assert EXAMPLE_SCHEMA.names == [
        *["input_ids", "segment_b_start", "masked_lm_positions", "masked_lm_labels"],
        *["sentence_order_label", "document_id", "first_sentence", "last_sentence", "copy"],
    ]


def test_a_document_is_a_row_of_its_schema_and_travels_to_worker_processes() -> None:
    assert [*DOCUMENT_SCHEMA.names, "lines_are_sentences"] == list(Document.__slots__)
    document = Document("a#1", "Text.", "file:///a")
    assert pickle.loads(pickle.dumps(document)) == document
