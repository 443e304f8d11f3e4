"""TFRecord files that run_pretraining.py of google-research/albert reads, without TensorFlow.

Records are laid out for many rows at once. The place of nearly every byte of a record is known
beforehand; only the three features with numbers above 127 vary in length, and array arithmetic
writes their numbers as varints. Protobuf's own serialiser takes twice the time, because it turns
arrays into Python numbers.

Sources: create_pretraining_data.py in google-research/albert for the features;
protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.errors import SourceError
from albert_core.text.records import EXAMPLE_SCHEMA, NUM_SPECIAL, Bools, UInt16s

_CRC_MASK_DELTA = 0xA282EAD8


def write_tfrecord(records: Iterable[bytes], uri: str) -> None:
    """Write ``records`` to ``uri`` in TFRecord framing: length, its CRC, record, its CRC.

    Source: tensorflow/core/lib/io/record_writer.h.
    """
    with storage.open_atomic(uri) as file:
        for record in records:
            file.write(_length_header(len(record)) + record + _masked_crc(record))


@lru_cache(maxsize=1 << 14)
def _length_header(num_bytes: int) -> bytes:
    """Return the length and its CRC; lengths repeat, since records are padded."""
    length = struct.pack("<Q", num_bytes)
    return length + _masked_crc(length)


def read_tfrecord(uri: str) -> Iterator[bytes]:
    """Yield the records of the TFRecord file at ``uri``.

    Raises:
        ValueError: a checksum does not fit, or the file was cut off.
    """
    content = storage.read_bytes(uri)
    offset = 0
    while offset < len(content):
        length = content[offset : offset + 8]
        end = offset + 12 + int.from_bytes(length, "little")
        fits = content[offset + 8 : offset + 12] == _masked_crc(length)
        record = content[offset + 12 : end] if fits else b""
        if not fits or content[end : end + 4] != _masked_crc(record):
            raise ValueError(f"the record at byte {offset} does not fit its checksum")
        yield record
        offset = end + 4


def _masked_crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF)


_DECLARATION = """
name: "albert/tf_example.proto" package: "albert" syntax: "proto3"
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".albert.FloatList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".albert.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".albert.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".albert.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".albert.Features" } }
"""
"""`tf.train.Example` without TensorFlow: tensorflow/core/example/{example,feature}.proto."""


def _example_message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_DECLARATION, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("albert.Example"))


TFExample = _example_message()
"""Message class with the wire format of `tf.train.Example`."""

_ROWS_PER_BATCH = 512
"""Rows whose arrays fit the processor's cache."""
_DELIMITED = 2
"""Wire type of strings, messages and packed lists."""
_FLOAT_LIST, _INT64_LIST = 2, 3
"""Field numbers in `tf.train.Feature`."""

Bytes = NDArray[np.uint8]


def tf_examples(
    rows: pa.Table, max_seq_length: int, max_predictions: int, opens_word: Bools
) -> Iterator[bytes]:
    """Yield each row as a serialised `tf.train.Example`, padded to fixed lengths.

    Args:
        rows: examples in EXAMPLE_SCHEMA.
        max_seq_length: S, length of the features for pieces.
        max_predictions: P, length of the features for predictions.
        opens_word: bool (V,), for `token_boundary`.

    Raises:
        SourceError: a row is longer than S or has more than P predictions.
    """
    boundary = opens_word.astype(np.uint8)
    boundary[:NUM_SPECIAL] = 1
    for begin in range(0, rows.num_rows, _ROWS_PER_BATCH):
        batch = rows.slice(begin, _ROWS_PER_BATCH).select(_COLUMNS).combine_chunks()
        yield from _serialise(batch, max_seq_length, max_predictions, boundary)


_COLUMNS = EXAMPLE_SCHEMA.names[:5]


def _serialise(
    rows: pa.Table, max_seq_length: int, max_predictions: int, boundary: Bytes
) -> Iterator[bytes]:
    ids, is_piece = padded(rows["input_ids"], max_seq_length)
    positions, is_prediction = padded(rows["masked_lm_positions"], max_predictions)
    labels, _ = padded(rows["masked_lm_labels"], max_predictions)
    token_boundary = boundary.take(ids) * is_piece
    predicted = np.nonzero(is_prediction)[0], positions[is_prediction]
    token_boundary[predicted] = boundary.take(labels[is_prediction])
    b_start = rows["segment_b_start"].to_numpy()[:, None]
    segments = is_piece & (np.arange(max_seq_length) >= b_start)
    order = rows["sentence_order_label"].to_numpy().astype(np.uint8)[:, None]
    # The features are in the order of their names, as protobuf serialises deterministically.
    last = (
        ("masked_lm_weights", _FLOAT_LIST, is_prediction.astype("<f4").view(np.uint8)),
        ("next_sentence_labels", _INT64_LIST, order),
        ("segment_ids", _INT64_LIST, segments.view(np.uint8)),
        ("token_boundary", _INT64_LIST, token_boundary),
    )
    entries = (
        _varint_entries("input_ids", ids),
        _rows_of(_fixed_entries("input_mask", _INT64_LIST, is_piece.view(np.uint8))),
        _varint_entries("masked_lm_ids", labels),
        _varint_entries("masked_lm_positions", positions),
        _rows_of(*(_fixed_entries(*each) for each in last)),
    )
    for entries_of_row in zip(*entries, strict=True):
        content = b"".join(entries_of_row)
        yield _header(1, len(content)) + content


def padded(column: pa.ChunkedArray, width: int) -> tuple[UInt16s, Bools]:
    """Return the lists of ``column``, padded with zeros: uint16 (R, width); and what is filled.

    Raises:
        SourceError: a list is longer than ``width``.
    """
    lists = column.combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    if lengths.max(initial=0) > width:
        raise SourceError(
            f"an example has {lengths.max()} numbers in one feature, but {width} were asked for. "
            "Write TFRecords with the max_seq_length and max_predictions of the examples."
        )
    filled = np.arange(width) < lengths[:, None]
    values = np.zeros(filled.shape, np.uint16)
    values[filled] = lists.flatten().to_numpy()
    return values, filled


def _varint_entries(name: str, values: UInt16s) -> list[bytes]:
    """Return for each row of ``values`` (R, N) its entry in the map of features."""
    lanes = np.empty((*values.shape, 3), np.uint8)
    second, third = values > 0x7F, values > 0x3FFF
    np.bitwise_or(values & 0x7F, second.view(np.uint8) << 7, out=lanes[..., 0], casting="unsafe")
    np.bitwise_or(
        values >> 7 & 0x7F, third.view(np.uint8) << 7, out=lanes[..., 1], casting="unsafe"
    )
    np.right_shift(values, 14, out=lanes[..., 2], casting="unsafe")
    used = np.empty(lanes.shape, bool)
    used[..., 0], used[..., 1], used[..., 2] = True, second, third
    sizes = values.shape[1] + second.sum(axis=1) + third.sum(axis=1)
    headers = {size: _entry_header(name, _INT64_LIST, size) for size in np.unique(sizes).tolist()}
    content = lanes[used].tobytes()
    ends = np.cumsum(sizes)
    return [
        headers[size] + content[end - size : end]
        for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)
    ]


def _fixed_entries(name: str, kind: int, content: Bytes) -> Bytes:
    """Return (R, N + header) the entries of the bytes (R, N) of floats, or of values below 128."""
    header = np.frombuffer(_entry_header(name, kind, content.shape[1]), np.uint8)
    return np.hstack([np.tile(header, (len(content), 1)), content])


def _rows_of(*entries: Bytes) -> list[bytes]:
    """Return the bytes of each row, the ``entries`` side by side."""
    rows = np.hstack(entries)
    content, width = rows.tobytes(), rows.shape[1]
    return [content[begin : begin + width] for begin in range(0, len(content), width)]


def _entry_header(name: str, kind: int, num_bytes: int) -> bytes:
    """Return what precedes the packed values of feature ``name``, of ``num_bytes`` bytes.

    An entry of the map is the name (field 1) and a Feature (field 2), which has a list in the
    field of its ``kind``, which has packed values in field 1.
    """
    packed = _header(1, num_bytes)
    in_list = _header(kind, len(packed) + num_bytes) + packed
    feature = _header(2, len(in_list) + num_bytes) + in_list
    entry = _header(1, len(name)) + name.encode() + feature
    return _header(1, len(entry) + num_bytes) + entry


def _header(field: int, num_bytes: int) -> bytes:
    """Return the tag and length of a delimited field."""
    return bytes([field << 3 | _DELIMITED]) + _varint(num_bytes)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
