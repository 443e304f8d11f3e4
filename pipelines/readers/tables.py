"""Tables with a text and perhaps an id field: JSON lines, such as Dolma's, CSV, Parquet, Arrow."""

import codecs
import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import SourceSettings
from pipelines.readers.record import (
    AUTO,
    Record,
    bounded_lines,
    decode_record,
    encoding_of,
    from_the_top,
    max_document_bytes,
    text_record,
    unreadable,
)

NOT_JSON, NOT_CSV = "not_json", "not_csv"
NOT_PARQUET, NOT_ARROW = "not_parquet", "not_arrow"
NO_TEXT_FIELD = "no_text_field"

_ROWS_PER_BATCH = 64
_BUFFER_BYTES = 1 << 20


def read_jsonl(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each line that is not blank."""
    for offset, line in bounded_lines(file, max_document_bytes(settings)):
        if not line.isspace():
            yield _of_line(offset, line, settings)


def _of_line(offset: int, line: bytes, settings: SourceSettings) -> Record:
    decoded = text_record(line, settings, offset)
    if decoded.unreadable:
        return decoded
    try:
        values = from_the_top(json.loads, decoded.text)
    except (ValueError, RecursionError):  # ValueError: also a number with too many digits
        return unreadable(NOT_JSON, offset, line)
    text = values.get(settings.text_field) if isinstance(values, dict) else None
    if not isinstance(text, str):
        return unreadable(NO_TEXT_FIELD, offset, line)
    if b"\\ud" in line or b"\\uD" in line:  # half a surrogate pair can't be written
        text = text.encode(errors="replace").decode()
    key = values.get(settings.id_field)
    return Record(text, "" if key is None else str(key), offset=offset)


csv.field_size_limit(1 << 28)  # the settings have a lower one


def read_csv(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row after the header; its offset is the row's number.

    Tabs or else commas or semicolons, whichever the header has most of, separate the columns. With
    no encoding declared, it is the one that the beginning of the file looks like.
    """
    first = file.readlines(_BUFFER_BYTES)
    is_declared = settings.encoding != AUTO
    lines = _decoded_lines(
        itertools.chain(first, file), settings.encoding if is_declared else encoding_of(first)
    )
    header = next(lines, "")
    delimiter = max("\t,;", key=header.count)
    row = 0
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
        if settings.text_field not in names:
            yield unreadable(NO_TEXT_FIELD, 0)
            return
        for values in csv.DictReader(lines, names, delimiter=delimiter):
            text, key = values[settings.text_field], values.get(settings.id_field)
            content = None if text is None else text.encode(errors="surrogateescape")
            yield _of_row(row, content, key or None, settings)
            row += 1
    except csv.Error:
        yield unreadable(NOT_CSV, row)


def _decoded_lines(lines: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Yield the lines, which may also end with a carriage return alone."""
    for line in codecs.iterdecode(iter(lines), encoding, "surrogateescape"):
        yield from io.StringIO(line, newline="")


def read_parquet(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row; its offset is the row's number.

    A file that breaks off is "not_parquet" after the rows before the break; so is a packed file,
    which allows no random access.
    """
    row = 0
    try:
        table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        if not _has_text(table.schema_arrow, settings.text_field):
            yield unreadable(NO_TEXT_FIELD, 0)
            return
        for text, key in _texts_and_keys(table, settings):
            yield _of_row(row, text, key, settings)
            row += 1
    except (pa.ArrowException, OSError, ValueError):
        yield unreadable(NOT_PARQUET, row)


_ARROW_FILE: Final = b"ARROW1\0\0"
"""Begins an Arrow file, which is a stream with an index behind it."""
_BYTES_OF: Final = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def read_arrow(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row of an Arrow stream or file; its offset is the row's number.

    One that breaks off is "not_arrow" after the batches before the break.
    """
    row = 0
    try:
        if cast(io.BufferedReader, file).peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
            file.read(len(_ARROW_FILE))
        table = pa.ipc.open_stream(file)
        if not _has_text(table.schema, settings.text_field):
            yield unreadable(NO_TEXT_FIELD, 0)
            return
        for batch in table:
            for text, key in _checked_rows(batch, settings):
                yield _of_row(row, text, key, settings)
                row += 1
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        yield unreadable(NOT_ARROW, row)


def _checked_rows(
    batch: pa.RecordBatch, settings: SourceSettings
) -> Iterator[tuple[bytes | None, Any]]:
    """Yield the text and the id of each row, after a look at what says where they lie.

    Raises:
        ArrowException: they lie outside the batch.
    """
    texts = batch.column(settings.text_field)
    texts = texts.view(_BYTES_OF.get(texts.type, texts.type))  # bad UTF-8 is found row by row
    has_key = batch.schema.names.count(settings.id_field) == 1
    keys = batch.column(settings.id_field) if has_key else pa.nulls(len(texts))
    for column in (texts, keys):
        column.validate(full=True)
    for begin in range(0, len(texts), _ROWS_PER_BATCH):
        some = texts.slice(begin, _ROWS_PER_BATCH).cast(pa.large_binary())
        yield from zip(
            some.to_pylist(), keys.slice(begin, _ROWS_PER_BATCH).to_pylist(), strict=True
        )


def _has_text(schema: pa.Schema, name: str) -> bool:
    if schema.names.count(name) != 1:
        return False
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _texts_and_keys(
    table: pq.ParquetFile, settings: SourceSettings
) -> Iterator[tuple[bytes | None, Any]]:
    """Yield the text and the id of each row.

    Texts are read as bytes: one that is not UTF-8 would make the whole batch fail. Batches do not
    span row groups: a damaged group would lose rows of the one before.
    """
    wanted = dict.fromkeys([settings.text_field, settings.id_field])
    columns = [name for name in wanted if name in table.schema_arrow.names]
    for group in range(table.num_row_groups):
        for batch in table.iter_batches(
            _ROWS_PER_BATCH, row_groups=[group], columns=columns, use_threads=False
        ):
            texts = batch.column(settings.text_field).cast(pa.large_binary()).to_pylist()
            with_ids = settings.id_field in columns
            keys = batch.column(settings.id_field) if with_ids else pa.nulls(len(texts))
            yield from zip(texts, keys.to_pylist(), strict=True)


def _of_row(row: int, text: bytes | None, key: Any, settings: SourceSettings) -> Record:
    name = f"row-{row}" if key is None else str(key)
    if text is None:
        return unreadable(NO_TEXT_FIELD, row, key=name)
    # Whatever the settings say, a string of Parquet is UTF-8, and one of CSV is by now.
    return text_record(text, settings, row, name, lambda content, _: decode_record(content, AUTO))
