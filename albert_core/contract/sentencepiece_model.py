"""A serialised SentencePiece model, read and changed as bytes.

The package's own message classes can't be imported beside Beam's protobuf, and only two fields
are needed.

Source: sentencepiece/src/sentencepiece_model.proto; the wire format of protocol buffers.
"""

from collections.abc import Iterator

_NORMALISER = 3
"""Field of ModelProto."""
_NAME, _CHARACTER_MAP = 1, 2
"""Fields of NormalizerSpec: the rule's name, and its compiled table."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def without_character_map(model: bytes) -> tuple[str, bytes]:
    """Return the name of the model's normalisation rule, and the model without its table."""
    name = ""
    parts = []
    for number, begin, content, end in _fields(model):
        if number != _NORMALISER:
            parts.append(model[begin:end])
            continue
        spec = model[content:end]
        kept = b"".join(spec[b:e] for n, b, _, e in _fields(spec) if n != _CHARACTER_MAP)
        name = next((spec[c:e].decode() for n, _, c, e in _fields(spec) if n == _NAME), "")
        parts.append(_varint(_NORMALISER << 3 | _BYTES) + _varint(len(kept)) + kept)
    return name, b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each field, and where it, its content and what follows it begin."""
    begin = 0
    while begin < len(message):
        key, content = _read_varint(message, begin)
        kind = key & 7
        if kind == _VARINT:
            _, end = _read_varint(message, content)
        elif kind == _BYTES:
            length, content = _read_varint(message, content)
            end = content + length
        else:
            end = content + {_FIXED_32: 4, _FIXED_64: 8}[kind]
        yield key >> 3, begin, content, end
        begin = end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
