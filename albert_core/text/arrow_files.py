"""Arrow IPC files by URI: written atomically, and memory-mapped when they are local."""

from typing import Literal

import pyarrow as pa

from albert_core.stage import manifest, storage

Compression = Literal["none", "zstd"]

BATCH_BYTES = 1 << 24
"""Approximate size of a record batch, so that any reader can stream a file in little memory."""


def write_arrow(table: pa.Table, uri: str, compression: Compression = "none") -> None:
    """Write ``table`` to ``uri`` as an Arrow IPC file of record batches of `BATCH_BYTES`.

    Args:
        table: the rows to write.
        uri: the file to write.
        compression: of each buffer; only uncompressed files can be memory-mapped.
    """
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with (
        storage.open_atomic(uri) as file,
        pa.ipc.new_file(file, table.schema, options=options) as writer,
    ):
        whole = table.combine_chunks()
        rows = len(whole) * BATCH_BYTES // max(whole.nbytes, 1)
        writer.write_table(whole, max_chunksize=max(rows, 1))


def open_arrow(uri: str) -> pa.RecordBatchFileReader:
    """Return a reader of the record batches at ``uri``.

    A local file is memory-mapped; of a remote one only the requested batches are fetched.
    """
    path = storage.local_path(uri)
    if path is None:
        fs, remote = storage.filesystem(uri)
        return pa.ipc.open_file(pa.PythonFile(fs.open(remote, "rb"), mode="r"))
    return pa.ipc.open_file(pa.memory_map(str(path)))


def read_arrow(uri: str) -> pa.Table:
    """Return the table at ``uri``; a local file is memory-mapped.

    Raises:
        IntegrityError: the file belongs to a result and has changed since it was written.
    """
    if storage.local_path(manifest.checked(uri)) is None:
        return pa.ipc.open_file(pa.BufferReader(storage.read_bytes(uri))).read_all()
    return open_arrow(uri).read_all()
