"""Arrow files as other readers meet them."""

from pathlib import Path

import pyarrow as pa
import pytest

from albert_core.text import arrow_files


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_file_is_read_in_batches_of_bounded_size(
    compression: arrow_files.Compression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "BATCH_BYTES", 1 << 12)
    pieces = [list(range(37 * number % 90)) for number in range(2000)]
    table = pa.table({"id": [str(n) for n in range(2000)], "pieces": pieces})
    uri = str(tmp_path / "file.arrow")
    arrow_files.write_arrow(table.slice(7), uri, compression)
    reader = arrow_files.open_arrow(uri)
    sizes = [reader.get_batch(n).nbytes for n in range(reader.num_record_batches)]
    assert max(sizes) < 1.2 * (1 << 12) < sum(sizes)
    assert arrow_files.read_arrow(uri).equals(table.slice(7))
    arrow_files.write_arrow(table.slice(0, 0), uri, compression)
    assert arrow_files.read_arrow(uri).schema == table.schema
