"""A check of a source before anything is started, for mistakes that are found in seconds."""

from collections import Counter
from itertools import islice

from albert_core.stage.errors import SourceError
from pipelines.config import ExampleSettings, SourceSettings
from pipelines.examples.pairs import is_held_out
from pipelines.readers import LEFT_OUT, Unreadable, format_of, read_documents
from pipelines.source_files import files_of

_SMALL_BYTES = 1 << 20
"""A source up to this size is read completely; of a larger one, files up to this size."""
_NUM_FILES = 8
"""Number of files of a larger source whose first record is read."""


def check_source(source: SourceSettings, examples: ExampleSettings) -> None:
    """Raise what would certainly end the stages that read the source.

    Raises:
        SourceError: there is no file; no record that was looked at can be read; or a small source
            has too few documents to train on some and hold others out.
    """
    files = files_of(source).files
    is_small = sum(file.num_bytes for file in files) <= _SMALL_BYTES
    if not is_small:
        files = [file for file in files if file.num_bytes <= _SMALL_BYTES][:_NUM_FILES]
    held_out, reasons = Counter[bool](), Counter[str]()
    for file in files:
        kind = format_of(file.uri, source)
        records = read_documents(file.uri, file.name, source, kind)
        for record in records if is_small else islice(records, 1):
            if isinstance(record, Unreadable):
                reasons[record.reason] += 1
            else:
                held_out[is_held_out(record.id, examples)] += 1
    # The rest of a larger folder that begins with pictures may well be text.
    is_certain = is_small or LEFT_OUT.isdisjoint(reasons)
    if reasons and not held_out and is_certain and source.max_unreadable_share < 1:
        why = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        raise SourceError(
            f"no record of the source can be read ({why} of {reasons.total()} looked at, beginning "
            f"with {files[0].uri}). Give files of text, source.format or source.encoding."
        )
    if is_small and len(held_out) < 2:
        raise SourceError(
            f"the source has {held_out.total()} documents, of which {held_out[True]} would be held "
            "out and the others trained on; there must be some of both. Give more text, or another "
            "examples.held_out_share."
        )
