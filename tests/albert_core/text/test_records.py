import pickle

import pyarrow as pa

from albert_core.text import records
from albert_core.text.records import DOCUMENT_SCHEMA, EXAMPLE_SCHEMA, Document


def test_the_largest_vocabulary_fits_the_type_of_a_piece() -> None:
    largest = records.MAX_VOCAB_SIZE - 1
    assert pa.array([[largest]], EXAMPLE_SCHEMA.field("input_ids").type).to_pylist() == [[largest]]


def test_a_document_is_a_row_of_its_schema_and_travels_to_worker_processes() -> None:
    assert [*DOCUMENT_SCHEMA.names, "lines_are_sentences"] == list(Document.__slots__)
    document = Document("a#1", "Text.", "file:///a")
    assert pickle.loads(pickle.dumps(document)) == document
