"""Parquet: a row is a document, with a text column and perhaps an id column."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import SourceSettings
from pipelines.readers.encodings import AUTO, UndecodableError, decode_record
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable

_ROWS_PER_BATCH = 64
_BUFFER_BYTES = 1 << 20
NOT_PARQUET, NO_TEXT_FIELD = "not_parquet", "no_text_field"


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row; its offset is the row's number.

    A file that breaks off or can't be sought in, as it is packed, is "not_parquet" after the rows
    before.
    """
    row = 0
    try:
        table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        if not _has_text(table.schema_arrow, settings.text_field):
            yield unreadable(NO_TEXT_FIELD, 0)
            return
        columns = [name for name in _columns(settings) if name in table.schema_arrow.names]
        for batch in _batches(table, columns):
            for record in _records(batch, row, settings):
                yield record
                row += 1
    except (pa.ArrowException, OSError, ValueError):
        yield unreadable(NOT_PARQUET, row)


def _batches(table: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows; a batch over two row groups would be lost where the second is damaged."""
    for group in range(table.num_row_groups):
        yield from table.iter_batches(
            _ROWS_PER_BATCH, row_groups=[group], columns=columns, use_threads=False
        )


def _has_text(schema: pa.Schema, name: str) -> bool:
    if schema.names.count(name) != 1:
        return False
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        is_text(kind)
        for is_text in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )


def _columns(settings: SourceSettings) -> list[str]:
    return list(dict.fromkeys([settings.text_field, settings.id_field]))


def _records(batch: pa.RecordBatch, first: int, settings: SourceSettings) -> Iterator[Record]:
    # As bytes: a text that is not UTF-8 would end the whole batch.
    texts = batch.column(settings.text_field).cast(pa.large_binary()).to_pylist()
    with_ids = settings.id_field in batch.schema.names
    keys = batch.column(settings.id_field).to_pylist() if with_ids else [None] * len(texts)
    for row, (text, key) in enumerate(zip(texts, keys, strict=True), first):
        yield _record(text, f"row-{row}" if key is None else str(key), row, settings)


def _record(content: bytes | None, key: str, row: int, settings: SourceSettings) -> Record:
    if content is None:
        return unreadable(NO_TEXT_FIELD, row, key=key)
    if len(content) > max_document_bytes(settings):
        return unreadable(TOO_LARGE, row, content, key)
    try:
        return Record(decode_record(content, AUTO), key, offset=row)  # of Parquet's strings
    except UndecodableError as error:
        return unreadable(str(error), row, content, key)
