"""Which format a source file has: the one declared, or what its name and beginning tell."""

import codecs
import json
import re

from pipelines.config import SourceSettings
from pipelines.readers import installed_python, wiki_extracted
from pipelines.readers.source_bytes import packed_ending, read_head

_HEAD_BYTES = 1 << 13
_BY_ENDING = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".py": "installed-python",
    ".parquet": "parquet",
    ".warc": "warc",
    ".arc": "warc",
    ".wet": "warc",
}
_BY_BEGINNING = {
    "installed-python": re.compile(re.escape(installed_python.METADATA_FIRST_LINE)),
    "parquet": re.compile(rb"PAR1"),
    "warc": re.compile(rb"WARC/[01]\.|filedesc://"),
    "wiki-extracted": wiki_extracted.OPENING,
    "mediawiki-dump": re.compile(rb"(?:<\?xml[^>]*>\s*)?<mediawiki\b"),
}
_GUTENBERG = re.compile(
    rb"\*\*\* ?START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    rb"|\*START\*\*THE SMALL PRINT!"
    rb"|\A\W*(?:The )?Project Gutenberg(?:'s|\xe2\x80\x99s|\x92s)? ",
    re.IGNORECASE,
)
_OBJECT_BEGINS = re.compile(rb'\{[ \t]*"(?:[^"\\\n]|\\.){1,200}"[ \t]*:')


def format_of(uri: str, settings: SourceSettings) -> str:
    """Return the format of the file at ``uri``, a key of `READERS`.

    Raises:
        OSError: the file can't be read.
    """
    if settings.format != "auto":
        return settings.format
    name = uri.lower().removesuffix(packed_ending(uri))
    for ending, told in _BY_ENDING.items():
        if name.endswith(ending):
            return told
    return format_of_head(read_head(uri, _HEAD_BYTES))


def format_of_head(head: bytes) -> str:
    """Return the format of a file that begins with ``head``; "text" if nothing tells another."""
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for told, pattern in _BY_BEGINNING.items():
        if pattern.match(head):
            return told
    if _begins_with_json_object(head):
        return "jsonl"
    return "gutenberg" if _GUTENBERG.search(head) else "text"


def _begins_with_json_object(head: bytes) -> bool:
    line, line_end, _ = head.partition(b"\n")
    if not line_end:  # the line goes on behind the head
        return _OBJECT_BEGINS.match(line) is not None
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
