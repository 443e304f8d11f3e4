"""Arrow IPC files by URI: written whole, mapped into memory when they are read locally."""

import pyarrow as pa

from albert_core.contract import storage


def write_arrow(table: pa.Table, uri: str) -> None:
    """Write ``table`` to ``uri`` as one Arrow IPC file with a single record batch."""
    with storage.open_atomic(uri) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def open_arrow(uri: str) -> pa.RecordBatchFileReader:
    """Return a reader of the record batches at ``uri``; a local file is mapped, not read."""
    path = storage.local_path(uri)
    if path is None:
        return pa.ipc.open_file(pa.BufferReader(storage.read_bytes(uri)))
    return pa.ipc.open_file(pa.memory_map(str(path)))


def read_arrow(uri: str) -> pa.Table:
    """Return the table at ``uri``; a local file is mapped, not read."""
    return open_arrow(uri).read_all()
