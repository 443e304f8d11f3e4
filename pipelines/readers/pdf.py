"""PDF: the text layer, without running heads and page numbers, its lines joined."""

import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from pipelines.readers import record

logging.getLogger("pypdf").setLevel(logging.CRITICAL)


_LEAST_PAGES: Final = 3
_MOST_RUNNING: Final = 2
"""Running lines at each edge of a page; any more are text."""
_BY_GLYPH: Final = ("/Identity-H", "/Identity-V")
_MOST_UNKNOWN: Final = 0.1
"""Share of the characters of a file that may be unknown, such as those of formulas."""
_LEAST_GAP: Final = 150
"""Between words, in thousandths of the size of the font. TeX's least is some 160."""
_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_SUSPENDED: Final = re.compile(r"(?:und|oder|bzw|and)\b")
"""What follows a hyphen that stands for a part of the next word, as in *Vor- und Nachteile*."""
_NUMBER: Final = re.compile(r"\d+|\b[ivxlc]+\b")
_LEADERS: Final = re.compile(r"(?:\. ?){8}")
"""Lead to a page, in a table of contents."""


def text_layer(content: bytes, encoding: str) -> str:
    """Return the text layer of a file, its pages joined.

    Raises:
        UnreadableError: "not_extractable": broken or encrypted; "no_text_layer": only pictures,
            or characters that the file doesn't name.
    """
    del encoding  # a PDF knows its own
    try:
        pages = record.from_the_top(_pages_of, content)
    except Exception as error:  # whatever it is, the next file may be sound
        raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    text = join_pages(pages)
    if not text:
        raise record.UnreadableError("no_text_layer")
    return text.encode(errors="replace").decode()


def _pages_of(content: bytes) -> list[str]:
    from pypdf import PdfReader
    from pypdf.generic import ContentStream, NameObject

    unknown: list[str] = []

    def note(text: str, _cm: Any, _tm: Any, font: Any, _size: float) -> None:
        # Numbers of glyphs of a font that says nothing of their characters
        if font and "/ToUnicode" not in font and font.get("/Encoding") in _BY_GLYPH:
            unknown.append(text)

    reader, pages = PdfReader(io.BytesIO(content)), []
    for page in reader.pages:
        if contents := page.get("/Contents"):
            stream = ContentStream(contents.get_object(), reader, "bytes")
            for (matrix, first), (move, second) in pairwise(stream.operations):
                if (first, second) == (b"Tm", b"Td"):
                    with suppress(TypeError, ValueError):  # broken ones, which pypdf leaves out
                        _move_at_once(matrix, move)
            page[NameObject("/Contents")] = stream
        pages.append(page.extract_text(visitor_operand_before=_widen_gaps, visitor_text=note))
    is_known = sum(map(len, unknown)) <= _MOST_UNKNOWN * sum(map(len, pages))
    return pages if is_known else []


def _move_at_once(matrix: list[Any], move: list[Any]) -> None:
    """Let a text matrix do what the move behind it does.

    At each of them pypdf ends a line. Qt writes both wherever the font changes, and some programs
    at each letter: first a move to a corner of the page, then one from there.
    """
    a, b, c, d, x, y = map(float, matrix)
    right, up = map(float, move)
    matrix[4:] = x + right * a + up * c, y + right * b + up * d
    move[:] = 0, 0


def _widen_gaps(operator: bytes, operands: Sequence[Any], *_: Any) -> None:
    """Make each gap between words so wide that pypdf takes it for one, and go back as far.

    pypdf expects half the width of a blank. TeX and others write none, and what pypdf then takes
    for its width may be that of any letter, so that up to half of the words were joined.
    """
    if operator == b"TJ" and operands and isinstance(operands[0], list):
        operands[0][:] = [
            part
            for each in operands[0]
            for part in ((-1000.0, each + 1000.0) if _is_gap(each) else (each,))
        ]


def _is_gap(offset: Any) -> bool:
    return isinstance(offset, float | int) and -1000 < offset <= -_LEAST_GAP


def join_pages(pages: Sequence[str]) -> str:
    """Return the text of the pages without contents, running heads and feet, numbers, and hyphens.

    First or last lines are running heads or feet where most pages have one that at least three
    share, numbers aside: those of a chapter, or of every other page. A hyphen at the end of a line
    is removed if a lower-case letter follows, but not before *und* and the like.
    """
    lines = [
        [line.strip() for line in page.split("\n") if line.strip() and not _LEADERS.search(line)]
        for page in pages
    ]
    for edge in (0, -1) * _MOST_RUNNING:
        running = _running_lines(lines, edge)
        for page in lines:
            if page and _NUMBER.sub("#", page[edge].lower()) in running:
                del page[edge]
    text = "\n".join(line for page in lines for line in page)
    return _HYPHEN.sub(lambda found: _joint(text, found.end()), text)


def _joint(text: str, begin: int) -> str:
    """Return what stands between the parts that a hyphen ends, and that begins at ``begin``."""
    if _SUSPENDED.match(text, begin):
        return "- "
    return "" if text[begin].islower() else "-"


def _running_lines(lines: Sequence[Sequence[str]], edge: int) -> Collection[str]:
    """Return the lines at the edge of most pages that pages share, their numbers as ``#``."""
    shapes = Counter(_NUMBER.sub("#", page[edge].lower()) for page in lines if page)
    shared = {shape: number for shape, number in shapes.items() if number >= _LEAST_PAGES}
    return shared if 2 * sum(shared.values()) > len(lines) else ()
