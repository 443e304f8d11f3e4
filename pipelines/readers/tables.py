"""Tables with a text and perhaps an id field: JSON, such as Dolma's lines, CSV, Parquet, Arrow."""

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import SourceSettings
from pipelines.readers import record
from pipelines.readers.record import Record

NO_TEXT_FIELD = "no_text_field"

_ROWS_PER_BATCH = 64
_BUFFER_BYTES = 1 << 20


def read_jsonl(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each line that is not blank."""
    for offset, line in record.bounded_lines(file, settings.max_document_bytes):
        if not line.isspace():
            yield _of_json(line, settings, offset)


def read_json(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each record of one array, or for each of the records over many lines.

    Its offset is the record's number. What breaks off is a last record that is "not_json".
    """
    pieces = iter(partial(file.read, _BUFFER_BYTES), b"")
    if settings.encoding != record.AUTO:
        pieces = codecs.iterencode(codecs.iterdecode(pieces, settings.encoding), "utf-8")
    row = 0
    try:
        for value in _json_values(pieces, settings.max_document_bytes):
            found = _of_json(value, settings, row, _decode_text)
            yield replace(found, key=found.key or f"row-{row}")
            row += 1
    except _BROKEN:
        yield record.unreadable("not_json", row)


_WORDS: Final = rb'(?:[^][{},"]++|"(?:[^"\\]++|\\.)*+")*+'
_JSON_WORDS: Final = re.compile(_WORDS, re.DOTALL)
_JSON_PART: Final = re.compile(_WORDS + rb"([][{},])", re.DOTALL)


def _json_values(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of each value of one array, or else of each value; they may be no JSON.

    Of a value of more than ``max_bytes`` it is a beginning that is longer than that.
    """
    pieces = iter(pieces)
    begin = next(pieces, b"").removeprefix(codecs.BOM_UTF8)
    is_array, depth = begin.lstrip().startswith(b"["), 0
    value = record.Block(0, max_bytes)
    for part, mark in _json_parts(itertools.chain([begin], pieces), max_bytes):
        depth = max(0, depth + (mark in (b"[", b"{")) - (mark in (b"]", b"}")))
        is_between = is_array and depth == 1 and mark in (b"[", b",")
        is_last = depth == 0 and mark in (b"]", b"}")
        value.add(part[:-1] if is_between or (is_last and is_array) else part)
        if is_between or is_last:
            if (content := value.content).strip():
                yield content
            value = record.Block(0, max_bytes)
    if depth or value.content.strip() or not begin:
        yield value.content


def _json_parts(pieces: Iterable[bytes], max_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bytes up to each bracket or comma outside of strings, and that; then the rest."""
    rest = b""
    for piece in pieces:
        rest, end = rest + piece, 0
        while part := _JSON_PART.match(rest, end):
            yield part[0], part[1]
            end = part.end()
        rest = rest[end:]
        if len(rest) > max_bytes:  # a string, or blanks, which its value is too large with
            yield rest, b""
            is_escape = (len(rest) - len(rest.rstrip(b"\\"))) % 2
            rest = b"" if _JSON_WORDS.fullmatch(rest) else b'"' + b"\\" * is_escape
    yield rest, b""


def _of_json(
    value: bytes,
    settings: SourceSettings,
    offset: int,
    decode: Callable[[bytes, str], str] = record.decode_record,
) -> Record:
    decoded = record.text_record(value, settings, offset, decode=decode)
    if decoded.unreadable:
        return decoded
    try:
        values = record.from_the_top(json.loads, decoded.text)
    except (ValueError, RecursionError):  # ValueError: also a number with too many digits
        return record.unreadable("not_json", offset, value)
    text = values.get(settings.text_field) if isinstance(values, dict) else None
    if not isinstance(text, str):
        return record.unreadable(NO_TEXT_FIELD, offset, value)
    if b"\\ud" in value or b"\\uD" in value:  # half a surrogate pair can't be written
        text = text.encode(errors="replace").decode()
    key = values.get(settings.id_field)
    return Record(text, "" if key is None else str(key), offset=offset)


# Tables of rows


csv.field_size_limit(1 << 28)  # the settings have a lower one


def read_csv(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row after the header; its offset is the row's number.

    Tabs or else commas or semicolons, whichever the header has most of, separate the columns. With
    no encoding declared, it is the one that the beginning of the file looks like. With tabs, quotes
    are part of the text unless the beginning of the file is sound with quoted columns. Each line of
    those that a stray quote makes one row is "not_csv".
    """
    return _records(_csv_rows(file, settings), settings, "not_csv")


def read_parquet(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row; its offset is the row's number.

    A file that breaks off is "not_parquet" after the rows before the break; so is a packed file,
    which allows no random access.
    """
    return _records(_parquet_rows(file, settings), settings, "not_parquet")


def read_arrow(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each row of an Arrow stream or file; its offset is the row's number.

    One that breaks off is "not_arrow" after the batches before the break.
    """
    return _records(_arrow_rows(file, settings), settings, "not_arrow")


_Rows = Iterator[tuple[bytes | str | None, Any]]
"""The text of each row, or in its place the reason that it has none; and its id or None."""
_BROKEN: Final = (csv.Error, pa.ArrowException, OSError, ValueError, MemoryError)
_ARROW_FILE: Final = b"ARROW1\0\0"
"""Begins an Arrow file, which is a stream with an index behind it."""
_BYTES_OF: Final = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_TEXTS: Final = {*_BYTES_OF, *_BYTES_OF.values()}


def _records(rows: _Rows, settings: SourceSettings, broken: str) -> Iterator[Record]:
    """Yield a record for each row, then the reason ``broken`` if reading them fails."""
    row = 0
    try:
        for text, key in rows:
            name = f"row-{row}" if key is None else _as_text(key)
            if not isinstance(text, bytes):
                yield record.unreadable(text or NO_TEXT_FIELD, row, key=name)
            else:
                yield record.text_record(text, settings, row, name, _decode_text)
            row += 1
    except record.UnreadableError as error:
        yield record.unreadable(str(error), row)
    except _BROKEN:
        yield record.unreadable(broken, row)


def _as_text(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _decode_text(content: bytes, _encoding: str) -> str:
    """Return a text as UTF-8: whatever the settings say, Parquet's is, and one of CSV is by now."""
    return record.decode_record(content, record.AUTO)


def _csv_rows(file: BinaryIO, settings: SourceSettings) -> _Rows:
    whole = (line for _, line in record.bounded_lines(file, settings.max_document_bytes))
    first = _beginning(whole)
    encoding = record.encoding_of(first) if settings.encoding == record.AUTO else settings.encoding
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # Excel's begins with a mark
    lines = _text_lines(itertools.chain(first, whole), encoding)
    header = next(lines, "")
    delimiter = max("\t,;", key=header.count)
    names = next(csv.reader([header], delimiter=delimiter), [])
    if names.count(settings.text_field) != 1:
        raise record.UnreadableError(NO_TEXT_FIELD)
    has_key = names.count(settings.id_field) == 1
    is_quoted = delimiter != "\t" or _has_quoted_columns([*_text_lines(first, encoding)])
    taken: list[str] = []
    reader = csv.reader(
        _noted(lines, taken),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        strict=True,
    )
    while True:
        taken.clear()
        try:
            columns = next(reader, None)
        except csv.Error:
            if len(taken) > 1:
                yield from (("not_csv", None) for line in taken if line.strip())
                continue
            columns = next(csv.reader(taken, delimiter=delimiter))
        if columns is None:
            return
        if columns:
            values = dict(zip(names, columns, strict=False))
            text = values.get(settings.text_field)
            content = None if text is None else text.encode(errors="surrogateescape")
            is_cut = any(map(str.strip, columns[len(names) :]))
            key = values.get(settings.id_field) if has_key else None
            yield "too_many_columns" if is_cut else content, key or None


def _beginning(lines: Iterable[bytes]) -> list[bytes]:
    """Take lines of at least `_BUFFER_BYTES`, if there are as many."""
    taken, num_bytes = [], 0
    for line in lines:
        taken.append(line)
        num_bytes += len(line)
        if num_bytes >= _BUFFER_BYTES:
            break
    return taken


def _text_lines(lines: Iterable[bytes], encoding: str) -> Iterator[str]:
    decoded = codecs.iterdecode(lines, encoding, "surrogateescape")
    # Lines may also end with a carriage return alone.
    return itertools.chain.from_iterable(io.StringIO(line, newline="") for line in decoded)


def _noted(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    """Yield the lines, each after it was appended to ``taken``."""
    for line in lines:
        taken.append(line)
        yield line


def _has_quoted_columns(lines: list[str]) -> bool:
    """Return whether the beginning of a file with tabs is sound with columns in quotes."""
    reader = csv.reader(lines, delimiter="\t", strict=True)
    try:
        return all(True for _ in reader)
    except csv.Error:  # the beginning of a large file may end in mid-column
        is_cut = sum(map(len, lines)) > _BUFFER_BYTES // 4
        return is_cut and reader.line_num == len(lines)


def _parquet_rows(file: BinaryIO, settings: SourceSettings) -> _Rows:
    table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    _check_text(table.schema_arrow, settings.text_field)
    wanted = dict.fromkeys([settings.text_field, settings.id_field])
    columns = [name for name in wanted if name in table.schema_arrow.names]
    # Batches do not span row groups: a damaged group would lose rows of the one before.
    for group in range(table.num_row_groups):
        for batch in table.iter_batches(
            _ROWS_PER_BATCH, row_groups=[group], columns=columns, use_threads=False
        ):
            yield from _batch_rows(batch, settings)


def _arrow_rows(file: BinaryIO, settings: SourceSettings) -> _Rows:
    if cast(io.BufferedReader, file).peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        file.read(len(_ARROW_FILE))
    table = pa.ipc.open_stream(file)
    _check_text(table.schema, settings.text_field)
    for batch in table:
        yield from _batch_rows(batch, settings)


def _check_text(schema: pa.Schema, name: str) -> None:
    """Raise UnreadableError unless there is one column of the name, of texts."""
    kind = schema.field(name).type if schema.names.count(name) == 1 else pa.null()
    if (kind.value_type if pa.types.is_dictionary(kind) else kind) not in _TEXTS:
        raise record.UnreadableError(NO_TEXT_FIELD)


def _batch_rows(batch: pa.RecordBatch, settings: SourceSettings) -> _Rows:
    """Yield the text and the id of each row, after a check of where the batch says that they lie.

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
        some = texts.slice(begin, _ROWS_PER_BATCH).cast(pa.large_binary()).to_pylist()
        yield from zip(some, keys.slice(begin, _ROWS_PER_BATCH).to_pylist(), strict=True)
