"""Where the results in a work folder hold text, and whose it is: files, and columns of ids."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.text.arrow_files import open_arrow

ID_COLUMNS = ("id", "document_id", "other_document_id")
OF_REPEATED_ID = "~[0-9a-f]{8}$"
"""The end of a document's id when an earlier document has the same one; see `ids_of`."""


def results_in(work: str, stage: str) -> dict[str, list[str]]:
    """Return the folders and files right below a stage's folder, each with the files in it."""
    folder = storage.join(work, stage)
    results: dict[str, list[str]] = {}
    for uri in files_below(folder):
        first = uri.removeprefix(folder).lstrip("/").partition("/")[0]
        results.setdefault(storage.join(folder, first), []).append(uri)
    return results


def folders_in(work: str, stage: str) -> list[str]:
    """Return the folders right below a stage's folder."""
    folder = storage.join(work, stage)
    entries = storage.list_folder(folder)
    return [storage.join(folder, name_of(e["name"])) for e in entries if e["type"] == "directory"]


def files_below(folder: str, *, passing: bool = False) -> list[str]:
    """Return all files below ``folder``, or itself; only finished or only temporary ones."""
    fs, path = storage.filesystem(folder)
    fs.invalidate_cache()
    inner = (str(file).removeprefix(path).lstrip("/") for file in fs.find(path))
    files = [storage.join(folder, each) if each else folder for each in inner]
    return [file for file in sorted(files) if is_passing(file.removeprefix(folder)) == passing]


def is_passing(uri: str) -> bool:
    """Return whether ``uri`` is, or is in, a temporary file or folder of a process."""
    return any(
        part.startswith(".scratch-") or (part.startswith(".") and part.endswith(".tmp"))
        for part in uri.split("/")
    )


def name_of(uri: str) -> str:
    """Return the last part of ``uri``."""
    return str(uri).rpartition("/")[2]


def batches_of(uri: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file; of any other file, none.

    Raises:
        IntegrityError: it is damaged.
    """
    if uri.endswith(".arrow"):
        try:
            reader = open_arrow(uri)
        except pa.ArrowInvalid as error:
            raise IntegrityError(f"{uri} can't be read: {error}. Delete its folder.") from error
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


def text_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of text, of any total length."""
    return batch.column(name).cast(pa.large_string())


def is_in(values: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return for each value whether it is among ``wanted``."""
    return pc.is_in(values, value_set=wanted)


def without_ending(ids: pa.Array) -> pa.Array:
    """Return the ids as their documents gave them, without `OF_REPEATED_ID`."""
    return pc.replace_substring_regex(ids, OF_REPEATED_ID, "")
