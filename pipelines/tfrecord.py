"""TFRecord files of `tf.train.Example` records, without TensorFlow."""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from albert_core.contract import storage

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


def _example_message() -> Any:
    """Return the message class of `tf.train.Example`, declared without TensorFlow.

    Source: tensorflow/core/example/{example,feature}.proto.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="albert/tf_example.proto", package="albert", syntax="proto3"
    )
    repeated, single = field.LABEL_REPEATED, field.LABEL_OPTIONAL

    def message(name: str, *fields: dict[str, Any]) -> Any:
        declared = file.message_type.add(name=name)
        for values in fields:
            declared.field.add(**values)
        return declared

    values = {"name": "value", "number": 1, "label": repeated}
    message("FloatList", values | {"type": field.TYPE_FLOAT})
    message("Int64List", values | {"type": field.TYPE_INT64})

    def nested(name: str, number: int, kind: str, label: int = single) -> dict[str, Any]:
        return {
            "name": name,
            "number": number,
            "label": label,
            "type": field.TYPE_MESSAGE,
            "type_name": f".albert.{kind}",
        }

    message("Feature", nested("float_list", 2, "FloatList"), nested("int64_list", 3, "Int64List"))
    features = message("Features", nested("feature", 1, "Features.FeatureEntry", repeated))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=single, type=field.TYPE_STRING)
    entry.field.add(**nested("value", 2, "Feature"))
    message("Example", nested("features", 1, "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("albert.Example"))


TFExample = _example_message()
"""Message class with the wire format of `tf.train.Example`."""
