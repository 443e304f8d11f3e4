from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.examples.tfrecord import read_tfrecord, write_tfrecord


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300)))
def test_records_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes]
) -> None:
    uri = str(tmp_path_factory.mktemp("records") / "x.tfrecord")
    write_tfrecord(records, uri)
    assert list(read_tfrecord(uri)) == records


def test_golden_framing(tmp_path: Path) -> None:
    write_tfrecord([b"albert", b""], str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes().hex() == GOLDEN


@pytest.mark.parametrize("byte", [0, 9, 13, 21])
def test_a_changed_byte_is_noticed(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "x"
    write_tfrecord([b"some record"], str(path))
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not fit its checksum"):
        list(read_tfrecord(str(path)))


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_tfrecord([b"some record"], str(path))
    for size in (3, 11, 20, 26):
        (tmp_path / "cut").write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match="does not fit its checksum"):
            list(read_tfrecord(str(tmp_path / "cut")))


GOLDEN = "06000000000000007369d537616c62657274c27fa806000000000000000029039807d8ea82a2"
