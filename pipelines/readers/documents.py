"""Files that are one document: pages of HTML, PDF, mail, and what pandoc reads.

Each format has the library that knows it: trafilatura, pypdf, the standard library, pandoc. What is
kept is prose: headings, paragraphs and the items of lists. Code, tables, pictures, formulas of
their own line, footnotes, menus, quoted mail and the running heads of pages are left out.
"""

import email
import email.policy
import io
import logging
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from albert_core.stage.errors import OutageError
from pipelines.config import SourceSettings
from pipelines.readers.record import (
    AUTO,
    Block,
    Record,
    UnreadableError,
    bounded_lines,
    decode_file,
    from_the_top,
    max_document_bytes,
    text_record,
    whole_file,
)

NOT_EXTRACTABLE, NO_TEXT_LAYER = "not_extractable", "no_text_layer"

for _name in ("pypdf", "trafilatura"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

Read = Callable[[BinaryIO, SourceSettings], Iterator[Record]]

_HEAD_BYTES: Final = 4096
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_DECLARED: Final = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]+)"
    rb"|\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE | re.DOTALL,
)


def declared_encoding(content: bytes, content_type: str = "") -> str:
    """Return the encoding that the server or else the page or the XML names, or an empty string."""
    if found := _CHARSET.search(content_type):
        return found[1]
    declared = _DECLARED.search(content, 0, _HEAD_BYTES)
    return (declared[1] or declared[2]).decode("ascii", "replace") if declared else ""


# HTML


def read_html(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the main text of the page, as trafilatura finds it."""
    yield whole_file(file, settings, text_of_page)


def decode_page(content: bytes, encoding: str, content_type: str = "") -> str:
    """Return a page or a text from the web as browsers read it.

    Args:
        content: its bytes.
        encoding: a declared one; auto: what the server or the page names, or what the bytes are.
        content_type: as the server gave it.

    Raises:
        UnreadableError: "not_decodable".
    """
    declared = declared_encoding(content, content_type)
    if encoding == AUTO and declared.lower() in ("utf-8", "utf8"):
        return content.decode(errors="replace")
    return decode_file(content, encoding, declared)


def text_of_page(content: bytes, encoding: str, content_type: str = "") -> str:
    """Return the text of a page without menus, comments and tables; empty if there is none.

    Args: see `decode_page`.

    Raises:
        UnreadableError: "not_decodable", or "not_extractable": a parser failed.
    """
    from trafilatura import extract  # takes a second, which other formats need not wait for

    page = decode_page(content, encoding, content_type)
    if not page.strip():
        return ""
    # All threads share its HTML parser and its XPaths, which lxml locks. Its caches hold pure
    # results, except that of `deduplicate`, which is off.
    try:
        text = extract(page, fast=True, include_comments=False, include_tables=False) or ""
    except Exception as error:  # whatever it is, the next page may be sound
        raise UnreadableError(NOT_EXTRACTABLE) from error
    return text.encode(errors="replace").decode()


# pandoc

PANDOC_FORMATS: Final = {
    "asciidoc": "asciidoc",
    "docbook": "docbook",
    "docx": "docx",
    "epub": "epub",
    "fb2": "fb2",
    "ipynb": "ipynb",
    "jats": "jats",
    "latex": "latex",
    "markdown": "gfm-tex_math_dollars",  # a dollar in prose is money more often than a formula
    "odt": "odt",
    "org": "org",
    "pptx": "pptx",
    "rst": "rst",
    "rtf": "rtf",
}
"""Our name of a format -> pandoc's."""
_PACKED: Final = frozenset({"docx", "epub", "odt", "pptx"})
"""Formats that are archives, not text."""
_PROSE_FILTER: Final = """
local function nothing() return {} end
local function content(element) return element.content end
local function items(list)
  local blocks = {}
  for _, item in ipairs(list.content) do
    for _, block in ipairs(item) do table.insert(blocks, block) end
  end
  return blocks
end
return {{
  CodeBlock = nothing, RawBlock = nothing, RawInline = nothing, Table = nothing, Note = nothing,
  Image = nothing, Figure = nothing, HorizontalRule = nothing, Strikeout = nothing,
  BlockQuote = content, BulletList = items, OrderedList = items,
  Emph = content, Strong = content, Underline = content, SmallCaps = content,
  Math = function(math) if math.mathtype == "DisplayMath" then return {} end end,
}}
"""
"""For pandoc: it keeps headings, paragraphs and the items of lists, without marks for emphasis."""
_RTF_CHARACTER: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u-?\d+(?=[^\\{}\s\d])")
"""A character by its number, with what older readers show for it right behind: there pandoc leaves
out two letters instead of one, and after a blank it does not."""
_MAX_MEMORY: Final = "4G"
_MAX_SECONDS: Final = 900


def pandoc_reader(format: str) -> Read:  # noqa: A002 - as the settings call it
    """Return the reader of files of a format, a key of `PANDOC_FORMATS`."""

    def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
        yield whole_file(file, settings, partial(_by_pandoc, format))

    return read


def _by_pandoc(format: str, content: bytes, encoding: str) -> str:  # noqa: A002
    """Return the prose of ``content``.

    Raises:
        UnreadableError: "not_decodable", or "not_extractable": it is broken, or takes more than 4
            GB or a quarter of an hour.
        OutageError: pandoc was killed, and the content may be sound.
    """
    import pypandoc  # type: ignore[import-untyped]

    if format not in _PACKED:
        content = decode_file(content, encoding, declared_encoding(content)).encode()
    if format == "rtf":
        content = _RTF_CHARACTER.sub(rb"\g<0> ", content)
    with _pipe_with(_PROSE_FILTER.encode()) as prose_filter:
        command = [
            str(Path(pypandoc.__file__).with_name("files") / "pandoc"),  # not one of the PATH
            *("+RTS", f"-M{_MAX_MEMORY}", "-RTS", "--sandbox"),
            *(f"--lua-filter=/dev/fd/{prose_filter}", "--from", PANDOC_FORMATS[format]),
            *("--to", "plain", "--wrap", "none"),
        ]
        try:
            # Without variables it finds no settings of the worker's user.
            done = subprocess.run(
                command,
                check=False,
                input=content,
                capture_output=True,
                env={},
                pass_fds=[prose_filter],
                timeout=_MAX_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise UnreadableError(NOT_EXTRACTABLE) from error
    if done.returncode in (-signal.SIGKILL, -signal.SIGTERM):
        raise OutageError(
            f"pandoc was killed by signal {-done.returncode} while it read {len(content):,} bytes "
            f"of {format}. Most likely memory is short: give the worker more, or fewer threads."
        )
    if done.returncode:
        raise UnreadableError(NOT_EXTRACTABLE)
    return done.stdout.decode(errors="replace")


@contextmanager
def _pipe_with(content: bytes) -> Iterator[int]:
    """Give the number of a pipe that holds ``content``, at most 4 KiB.

    A worker that is killed would leave a file.
    """
    read_end, write_end = os.pipe()
    try:
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(content)
        yield read_end
    finally:
        os.close(read_end)


# PDF

_LEAST_PAGES: Final = 3
_MOST_RUNNING: Final = 2
"""Running lines at each edge of a page; what looks like more is text."""
_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_NUMBER: Final = re.compile(r"\d+|\b[ivxlc]+\b")


def read_pdf(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the text layer of the file, its pages joined."""
    yield whole_file(file, settings, _text_layer)


def _text_layer(content: bytes, encoding: str) -> str:
    """Return the text of all pages.

    Raises:
        UnreadableError: "not_extractable": broken or encrypted; "no_text_layer": only pictures.
    """
    del encoding  # a PDF knows its own
    try:
        pages = from_the_top(_pages_of, content)
    except Exception as error:  # whatever it is, the next file may be sound
        raise UnreadableError(NOT_EXTRACTABLE) from error
    text = join_pages(pages)
    if not text:
        raise UnreadableError(NO_TEXT_LAYER)
    return text.encode(errors="replace").decode()


def _pages_of(content: bytes) -> list[str]:
    from pypdf import PdfReader

    return [page.extract_text() for page in PdfReader(io.BytesIO(content)).pages]


def join_pages(pages: Sequence[str]) -> str:
    """Return the text of the pages without running heads and feet, page numbers, and hyphens.

    A first or last line that most pages share but for its numbers is a running one. A hyphen at
    the end of a line goes if a lower-case letter follows.
    """
    lines = [[line.strip() for line in page.split("\n") if line.strip()] for page in pages]
    for edge in (0, -1) * _MOST_RUNNING:
        if running := _running_line(lines, edge):
            for page in lines:
                if page and _NUMBER.sub("#", page[edge].lower()) == running:
                    del page[edge]
    text = "\n".join(line for page in lines for line in page)
    return _HYPHEN.sub(lambda found: "" if text[found.end()].islower() else "-", text)


def _running_line(lines: Sequence[Sequence[str]], edge: int) -> str:
    """Return the line at the edge of most pages, its numbers as ``#``, or an empty string."""
    shapes = Counter(_NUMBER.sub("#", page[edge].lower()) for page in lines if page)
    shape, number = max(shapes.items(), key=lambda item: item[1], default=("", 0))
    return shape if number >= _LEAST_PAGES and 2 * number > len(lines) else ""


# Mail

_QUOTED: Final = re.compile(r"^>.*\n?", re.MULTILINE)
_SIGNATURE: Final = re.compile(r"^-- \n.*\Z", re.MULTILINE | re.DOTALL)
_POST_LINE: Final = re.compile(rb"From \S+ .*\d{4}\s*$")


def read_mail(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the text of each message: of the one of an eml file, or of those of an mbox.

    Quoted lines and signatures are left out, and so are attachments.
    """
    max_bytes = max_document_bytes(settings)
    block = Block(0, max_bytes)
    after_blank = True
    for offset, line in bounded_lines(file, max_bytes):
        if after_blank and _POST_LINE.match(line):
            if block.content:
                yield _message(block, settings)
            block = Block(offset, max_bytes)
        else:
            block.add(line)
        after_blank = line.isspace()
    yield _message(block, settings)


def _message(block: Block, settings: SourceSettings) -> Record:
    content = block.content
    header = content[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    message_id = re.search(rb"^message-id:\s*<?([^>\s]+)", header, re.IGNORECASE | re.MULTILINE)
    key = message_id[1].decode("ascii", "replace") if message_id else ""
    return text_record(content, settings, block.offset, key, _body)


def _body(content: bytes, encoding: str) -> str:
    """Return the text of a message.

    Raises:
        UnreadableError: "not_extractable": it has no text or is broken.
    """
    try:
        part = from_the_top(_body_part, content)
        if part is None:
            raise UnreadableError(NOT_EXTRACTABLE)
        payload = part.get_payload(decode=True)
        charset = part.get_content_charset("")
    except (LookupError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise UnreadableError(NOT_EXTRACTABLE) from error
    if not isinstance(payload, bytes):
        raise UnreadableError(NOT_EXTRACTABLE)
    if part.get_content_subtype() == "html":
        return text_of_page(payload, encoding, f"charset={charset}" if charset else "")
    text = decode_file(payload, encoding, charset).replace("\r\n", "\n")
    return _SIGNATURE.sub("", _QUOTED.sub("", text))


def _body_part(content: bytes) -> Any:
    """Return the part of a message that holds its text, or None."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message.get_body(("plain", "html"))
