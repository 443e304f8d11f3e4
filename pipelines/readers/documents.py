"""Prose in formats that a library reads: mail, PDF, XML, and pandoc's.

What is kept is headings, paragraphs and the items of lists. Code, tables, pictures, displayed
formulas, footnotes, quoted mail and the running heads of pages are left out.
"""

import email
import email.policy
import html
import io
import logging
import re
import signal
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage, MIMEPart
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from lxml import etree  # type: ignore[import-untyped]

from albert_core.stage.errors import OutageError, killed
from pipelines.config import SourceSettings
from pipelines.readers import docbook_sgml, record, source_bytes, web
from pipelines.readers.record import Record

logging.getLogger("pypdf").setLevel(logging.CRITICAL)

# Mail

_ESCAPED_FROM: Final = re.compile(r"(\A|^\n|^[^>\n].*\n)>(?=From .*\n(?!>))", re.MULTILINE)
"""A line of an mbox that would otherwise begin the next message."""
_QUOTES: Final = re.compile(
    r"(?:(?:^(?:On|Am|Le|El|Il|Op|Em|Den|In) .{0,200}\n)?"
    r"^(?!>).{0,100}(?:@|\d:\d\d|\d{4}|wrote|writes|schr[ei]+b|écrit|escri|scritt|skrev|пис|写道)"
    r".{0,100}[:：][ \t]*\n(?:[ \t]*\n){0,2})?"
    r"(?:^(?:[ \t]|[A-Z]{2,3})?>.*(?:\n|\Z))+",
    re.MULTILINE,
)
"""Quoted lines, with the line before them that says whose they are."""
_HEADER_OF_QUOTE: Final = re.compile(
    r"^(?P<mark>[ \t]*(?:-{2,20} ?[^\n-]{1,60}-{2,20}|_{10,80}|[^\W\d].{0,60}:)[ \t]*\n\s{0,9})"
    r"(?=\*?(?:From|Sent|Date|Subject|Von|Datum|Betreff|De|Da|Van|Från|Fra|Od|От|发件人|寄件者|差出人"
    r"|보낸 ?사람)\b)"
    r"(?:\*?[^\W\d][\w .]{0,20}\*?[ \xa0]?[:：].*\n(?:[ \t]+\S.*\n)*){3,}",
    re.MULTILINE,
)
"""The mark and the fields with which mailers begin a message that they quote or forward."""
_FORWARDED: Final = re.compile(
    r"forward|weitergeleitet|transf|reenv|inoltr|encaminh|doorgestuurd|пересыла|转发|轉寄|転送"
    r"|\A(?:fwd?|wg|tr|rv|i|enc)\s*:",
    re.IGNORECASE,
)
_PGP: Final = re.compile(
    r"^-----BEGIN PGP SIGNED MESSAGE-----\n(?:[\w-]+: .*\n)*"
    r"|^-----BEGIN PGP SIGNATURE-----\n(?:(?!-----).*\n){0,99}-----END PGP SIGNATURE-----\n?",
    re.MULTILINE,
)
_SIGNATURE: Final = re.compile(
    r"^(?:- )?-- \n.*\Z"
    r"|^--\n[^\n]{0,39}[^\s.!?:;,…。！？](?:\n[^\n]{1,80}){0,4}\s*\Z"
    r"|^_{30,}\n(?:[^\n]*\n){0,8}[^\n]*\Z"
    r"|^(?:Sent from my|Von meinem|Envoyé de mon) [^\n]*\s*\Z",
    re.MULTILINE | re.DOTALL,
)
"""That of the writer, or of the list: the last lines after a mark.

Two dashes without the blank behind them may also part texts. They mark up to five lines without a
blank one between them, of which the first is short and ends like a name.
"""
_HEADER_BYTES: Final = 4096
_POST_LINE: Final = re.compile(rb"From \S+ .*\d:\d\d.*\d{4}\s*$")
_PART: Final = re.compile(rb'(?i)\bboundary\s*=\s*"?([^\s";]+)|^--(\S+)--\s*$', re.MULTILINE)
"""Declares the boundary of a message's parts, or ends the last one."""
_LONG_FIELD: Final = re.compile(
    rb"(?i)^(?:subject|content-[\w-]+):(?:[^\n]|\n[ \t]){16384}", re.MULTILINE
)
"""A field of a header that no mailer writes: Python takes the square of its length."""
_MOST_COMPARED: Final = 5_000_000
"""Lines of a message times the parts in parts that it has: Python compares each line with the
boundaries of all parts around it, a million in a second."""


def read_mail(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the text of each message of an eml file or an mbox.

    Quoted lines, messages quoted below the writer's own, signatures and attachments are left out.
    Of a forwarded message the text is kept.
    """
    max_bytes = settings.max_document_bytes
    block = record.Block(0, max_bytes)
    after_blank = True
    for offset, line in record.bounded_lines(file, max_bytes):
        if after_blank and _POST_LINE.match(line):
            if block.content:
                yield _message(block, settings)
            block = record.Block(offset, max_bytes)
        else:
            block.add(line)
        after_blank = line.isspace()
    yield _message(block, settings)


def _message(block: record.Block, settings: SourceSettings) -> Record:
    content = block.content
    header = content[:_HEADER_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    message_id = re.search(rb"^message-id:\s*<?([^>\s]+)", header, re.IGNORECASE | re.MULTILINE)
    key = message_id[1].decode("ascii", "replace") if message_id else ""
    return record.text_record(content, settings, block.offset, key, _body)


def _body(content: bytes, encoding: str) -> str:
    """Return the text of a message.

    Raises:
        UnreadableError: "not_extractable": it has no text or is broken.
    """
    try:
        subject, parts = record.from_the_top(_text_parts, content)
        texts = [_text_of_part(part, encoding, subject) for part in parts]
    except (LookupError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    if not texts:
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    return "\n\n".join(filter(None, texts))


def _text_of_part(part: MIMEPart, encoding: str, subject: str) -> str:
    """Return what the writer of a message says in a part of it."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    charset = part.get_content_charset("")
    if part.get_content_subtype() == "html":
        return web.text_of_page(payload, encoding, f"charset={charset}" if charset else "")
    text = record.decode_file(payload, encoding, charset).replace("\r\n", "\n")
    return _own_words(text, subject)


def _own_words(text: str, subject: str) -> str:
    """Return what the writer of a message says or forwards."""
    text = _PGP.sub("", _ESCAPED_FROM.sub(r"\1", text))
    if header := _HEADER_OF_QUOTE.search(text):
        is_forwarded = _FORWARDED.search(header["mark"]) or _FORWARDED.match(subject)
        rest = text[header.end() :] if is_forwarded else ""
        text = text[: header.start()] + rest
    return _SIGNATURE.sub("", _QUOTES.sub("", text))


def _text_parts(content: bytes) -> tuple[str, list[MIMEPart]]:
    """Return the subject of a message, and the parts that hold its text.

    Raises:
        RecursionError: parts are nested so deeply that it can't be read, or not in minutes.
    """
    around, deepest = set[bytes](), 0
    for begun, ended in _PART.findall(content):
        (around.add if begun else around.discard)(begun or ended)
        deepest = max(deepest, len(around))
    if deepest * content.count(b"\n") > _MOST_COMPARED or _LONG_FIELD.search(content):
        raise RecursionError
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return str(message["subject"] or ""), _shown(message) or _main_part(message)


def _shown(part: MIMEPart) -> list[MIMEPart]:
    """Return the parts of text in ``part`` that a mailer shows below each other.

    Named ones are files. Of alternatives it is the first that has plain text.
    """
    kind = part.get_content_type()
    if part.is_attachment() or part.get_filename():
        return []
    if not kind.startswith("multipart/") or kind == "multipart/related":
        return _main_part(part)
    found = [_shown(each) for each in part.iter_parts()]
    if kind == "multipart/alternative":
        return min(filter(None, found), key=_is_html, default=[])
    return [shown for each in found for shown in each]


def _is_html(parts: list[MIMEPart]) -> bool:
    return all(part.get_content_subtype() == "html" for part in parts)


def _main_part(part: MIMEPart) -> list[MIMEPart]:
    body = part.get_body(("plain", "html"))
    return [] if body is None else [body]


# PDF

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

    unknown: list[str] = []

    def note(text: str, _cm: Any, _tm: Any, font: Any, _size: float) -> None:
        # Numbers of glyphs of a font that says nothing of their characters
        if font and "/ToUnicode" not in font and font.get("/Encoding") in _BY_GLYPH:
            unknown.append(text)

    reader = PdfReader(io.BytesIO(content))
    pages = [
        page.extract_text(visitor_operand_before=_widen_gaps, visitor_text=note)
        for page in reader.pages
    ]
    is_known = sum(map(len, unknown)) <= _MOST_UNKNOWN * sum(map(len, pages))
    return pages if is_known else []


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


# XML and SGML: TEI, Reuters, TREC, and what the settings name

_TEXT_ELEMENTS: Final = frozenset({"body", "BODY", "TEXT"})
"""Elements that hold the text of a document in TEI, Reuters and TREC."""
_LEFT_OUT: Final = frozenset({"note", "fw", "figure", "figDesc", "table", "del", "rt", "rp"})
_UNEDITED: Final = frozenset({"abbr", "orig", "sic"})
"""Names of what stands in a TEI "choice" beside how it should read."""
_KEYS: Final = ("{http://www.w3.org/XML/1998/namespace}id", "id", "NEWID")
_PROLOG: Final = re.compile(
    r"\A\s*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)?", re.DOTALL
)
_ENTITY: Final = re.compile(r"&(?:#?\w{1,32};)?|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ESCAPED: Final = str.maketrans("&<", "\ue000\ue001")
_UNESCAPED: Final = str.maketrans("\ue000\ue001", "&<")
"""After its first error the parser drops escaped characters, so stand-ins take their place."""
_BLANKS: Final = re.compile(r"\s+")
_INDENTED: Final = re.compile(r"\n(?=[ \t]{2,}\S)|\n[ \t]*(?=\n)")


def read_markup(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each element that holds a text.

    That is what `source.xml_element` names; in a file without it, the body of TEI, Reuters and
    TREC, or all of DocBook, which may be SGML. Its key is the id of the nearest element that has
    one, or its number in the file. A file without such an element is "unknown_markup".
    """
    found = record.whole_file(file, settings, web.decode_declared)
    if found.unreadable:
        yield found
        return
    elements = _elements(found.text, settings.xml_element)
    if not elements and docbook_sgml.BEGINS.match(found.text):
        text_of = partial(by_pandoc, "docbook")
        yield record.text_record(
            docbook_sgml.as_xml(found.text).encode(), settings, 0, "doc-0", text_of
        )
        return
    for number, element in enumerate(elements):
        yield Record(_text_of(element), _key_of(element) or f"doc-{number}", offset=number)
    if not elements:
        yield record.unreadable("unknown_markup", 0, found.text[:1000].encode(errors="replace"))


def _elements(content: str, declared: str) -> list[Any]:
    """Return the innermost elements of the declared name, or else of the known ones.

    SGML has several roots, bare ampersands, and characters that XML forbids; the parser recovers.
    The document type is removed, so no entity can read files or expand without bound.
    """
    content = _ENTITY.sub(_character, _PROLOG.sub("", content))
    parser = etree.XMLParser(recover=True, resolve_entities="internal", no_network=True)
    root = etree.fromstring(f"<files>{content}</files>".encode(errors="replace"), parser)
    named = [element for element in root.iter() if declared and _name_of(element) == declared]
    found = named or [element for element in root.iter() if _name_of(element) in _TEXT_ELEMENTS]
    around = {outer for element in found for outer in element.iterancestors()}
    return [element for element in found if element not in around]


def _character(found: re.Match[str]) -> str:
    """Return the meaning of an entity of XML or HTML; a control character becomes a blank."""
    meant = html.unescape(found[0])
    return " " if len(meant) == 1 and ord(meant) < 32 else meant.translate(_ESCAPED)


def _name_of(element: Any) -> str:
    """Return the name without its namespace; `QName` refuses names that the parser repaired."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _key_of(element: Any) -> str:
    """Return the id of the nearest element around ``element`` that has one, or an empty string."""
    for around in (element, *element.iterancestors()):
        for name in _KEYS:
            if key := around.get(name):
                return str(key)
        number = around.find("DOCNO")
        if number is not None and number.text:
            return str(number.text).strip()
    return ""


def _text_of(element: Any) -> str:
    """Return the paragraphs in ``element``, one a line.

    An element with words of its own is a paragraph, with all that is in it; one without holds
    others. SGML, whose names are in capitals, has several paragraphs in an element: their lines
    stay, and an indented line begins a new one.
    """
    if _is_left_out(element):
        return ""
    own = [element.text, *(child.tail for child in element)]
    if any(words and not words.isspace() for words in own):
        text = "".join(_words_of(element)).translate(_UNESCAPED)
        return _INDENTED.sub("\n\n", text) if element.tag.isupper() else _BLANKS.sub(" ", text)
    return "\n\n".join(filter(None, map(_text_of, element)))


def _is_left_out(element: Any) -> bool:
    name, around = _name_of(element), element.getparent()
    return (
        not name
        or name in _LEFT_OUT
        or (name in _UNEDITED and around is not None and _name_of(around) == "choice")
    )


def _words_of(element: Any) -> Iterator[str]:
    """Yield all words in ``element`` that are part of its sentences."""
    if not _is_left_out(element):
        yield element.text or (" " if _name_of(element) in ("lb", "pb") else "")
        for child in element:
            yield from _words_of(child)
            yield child.tail or ""


# pandoc

_PANDOC_NAMES: Final = {
    "latex": "latex+raw_tex",  # the argument of an unknown command is text
    # a dollar in prose is money more often than a formula
    "markdown": "gfm-tex_math_dollars+fenced_divs",
}
"""Our name of a format -> pandoc's, where they differ."""
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
local of_sphinx = {
  autoclass = true, autofunction = true, automodule = true, currentmodule = true,
  minigallery = true, moduleauthor = true, sectionauthor = true, toctree = true,
}
local no_text = {
  "bib", "cite", "color", "comment", "delete", "font", "graphic", "include", "index", "input",
  "label", "length", "mark", "note", "page", "phantom", "ref", "rule", "set", "size", "skip",
  "space", "style", "thanks", "todo",
}
local prose = {}
local function of_latex(text)
  return pandoc.read(text, "latex"):walk(prose).blocks
end
local function argument(raw)  -- of a command that pandoc doesn't know; its last one is its text
  if raw.format == "html" and raw.text:match("^<[bB][rR][ />]") then return pandoc.LineBreak() end
  local name, rest = raw.text:match("^\\\\(%a+)%*?(.*)$")
  if raw.format ~= "latex" or not name then return {} end
  for _, part in ipairs(no_text) do
    if name:find(part) then return {} end
  end
  local last = rest:match("(%b{})%s*$")
  return last and pandoc.utils.blocks_to_inlines(of_latex(last:sub(2, -2))) or {}
end
local function block(raw)  -- of HTML, or an environment that pandoc doesn't know
  if raw.format == "html" then return pandoc.read(raw.text, "html"):walk(prose).blocks end
  return raw.format == "latex" and raw.text:match("^\\\\begin") and of_latex(raw.text) or {}
end
local function title_first(doc)
  local title, abstract = doc.meta.title, doc.meta.abstract
  if pandoc.utils.type(abstract) == "Blocks" then doc.blocks = abstract .. doc.blocks end
  if pandoc.utils.type(title) == "Inlines" then doc.blocks:insert(1, pandoc.Para(title)) end
  return doc
end
prose = {
  CodeBlock = nothing, RawBlock = block, RawInline = argument, Table = nothing,
  Note = nothing, Image = nothing, Figure = nothing, HorizontalRule = nothing, Strikeout = nothing,
  Div = function(div) if of_sphinx[div.classes[1]] then return {} end end,
  Para = function(para)  -- a session of Python in reStructuredText, or a chart on a slide
    local text = pandoc.utils.stringify(para)
    if text:match("^>>> ") or text:match("^%[Graphic: other: ") then return {} end
  end,
  Code = function(code)  -- a role of Sphinx, with its target or the mark that shortens it
    if code.attributes.role then return (code.text:gsub(" *<[^>]*>$", ""):gsub("^[~!]", "")) end
  end,
  Link = function(link)  -- a reference whose target has no words, or only a name in LaTeX
    if link.attributes["reference-type"] or pandoc.utils.stringify(link) == "???" then return {} end
  end,
  Header = function(head)  -- what pandoc calls a slide that has no heading
    if pandoc.utils.stringify(head):match("^Slide %d+$") then return {} end
  end,
  BlockQuote = content, BulletList = items, OrderedList = items,
  Emph = content, Strong = content, Underline = content, SmallCaps = content,
  Superscript = content, Subscript = content,
  Math = function(math) if math.mathtype == "DisplayMath" then return {} end end,
}
local marks = {
  Div = function(div)  -- what code in a notebook printed
    if div.classes:includes("output") then return div:walk({RawBlock = nothing}) end
  end,
  Link = function(link)  -- marks of notes, where a book does not say so
    if #link.content == 1 and link.content[1].t == "Superscript" then return {} end
  end,
  Superscript = function(mark)
    if #mark.content == 1 and mark.content[1].t == "Link" then return {} end
  end,
  Span = function(span)  -- the number of a printed page
    if span.classes:includes("pagebreak") or span.classes:includes("pagenum") then return {} end
  end,
}
return {marks, prose, {Pandoc = title_first}}
"""
"""For pandoc: it keeps headings, paragraphs and the items of lists, without marks for emphasis."""
_INCLUDE: Final = re.compile(rb"^[ \t]*\.\. (?:\|[^|\n]*\| )?include::.*$", re.MULTILINE)
_CSV_TABLE: Final = re.compile(rb"^([ \t]*\.\. )csv-table::", re.MULTILINE)
_ANONYMOUS: Final = re.compile(
    rb"(?<!`)`([^`<>]+?)(?:\s<[^>`]*>)?`__(?!\w)|(?<![\w`])([A-Za-z0-9][\w-]*?)__(?=[\s.,;:)?!])"
)
"""What reStructuredText includes, tables that may be in a file, and references without a name:
pandoc gives up at a file that it may not read, and where such references and targets are in
different parts of a text. The tables become comments."""
_ASCIIDOC_COMMENT: Final = re.compile(rb"^//(?!/).*\n?", re.MULTILINE)
"""pandoc leaves it in where it stands within a paragraph or at its end."""
_MOST_PACKED_BYTES: Final = 1 << 28
_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_COMPATIBILITY: Final = "http://schemas.openxmlformats.org/markup-compatibility/2006"
_RUBY: Final = re.compile(rb"<(rt|rp)\b[^>]*>.*?</\1\s*>", re.DOTALL)
"""How words of Japanese or Chinese are read, beside them."""
_PRESENTATION: Final = "http://schemas.openxmlformats.org/presentationml/2006/main"
_SLIDE: Final = re.compile(r"ppt/slides/slide\d+\.xml")
_WORD_TEXT: Final = re.compile(r"word/document\d*\.xml")
_WORD_LOST: Final = re.compile(rb"txbxContent|fldSimple")
_ODT_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_ODT_DRAWING: Final = "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"
_ODT_KNOWN: Final = frozenset(
    {"a", "bibliography-mark", "h", "note-citation", "p", "script", "span"}
)
"""Elements with words that pandoc reads, or that are none of the text. All others with words in a
paragraph are fields, such as dates and numbers of pages; pandoc leaves them out."""
_ODT_AROUND: Final = ("numbered-paragraph", "ruby", "ruby-base")
_LONG_DEF: Final = re.compile(rb"(?:\\(?:long|global|protected|outer)\s*)*\\[gex]?def(?![A-Za-z])")
_DOCUMENT_COMMAND: Final = re.compile(
    rb"\\(?:New|Renew|Provide|Declare)(?:Expandable)?DocumentCommand\s*\{?\s*(\\[A-Za-z]+)\s*\}?"
    rb"\s*\{\s*(?:(o)|O\s*\{([^{}]*)\})?((?:\s*\+?m)*)\s*\}"
)
"""Definitions of macros of LaTeX that pandoc doesn't know, but that others can replace."""
_NO_PROSE: Final = re.compile(
    r"<(refentryinfo|refmeta|cmdsynopsis|funcsynopsis)\b[^>]*(?:/>|>.*?</\1\s*>)", re.DOTALL
)
"""Parts of a manual page in DocBook of which pandoc makes a paragraph a word."""
_RTF_CHARACTER: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u-?\d+(?=[^\\{}\s\d])")
"""A character by its number, directly followed by its substitute for older readers: there pandoc
drops two letters instead of one, unless a blank stands between."""
_RTF_TOKEN: Final = re.compile(
    r"[{}]|(?P<unicode>\\u-?\d+ ?)?(?P<bytes>(?:\\'[0-9a-fA-F]{2})+)"
    r"|\\(?P<word>[a-z]+)(?P<number>\d{0,9})|\\.",
    re.DOTALL,
)
_RTF_MARK: Final = re.compile(r"[{}\\]")
_RTF_CHARACTER_SETS: Final = {
    "128": "cp932",
    "129": "cp949",
    "134": "cp936",
    "136": "cp950",
    "161": "cp1253",
    "162": "cp1254",
    "163": "cp1258",
    "177": "cp1255",
    "178": "cp1256",
    "186": "cp1257",
    "204": "cp1251",
    "222": "cp874",
    "238": "cp1250",
}
"""The character set of a font -> its code page."""
_MAX_MEMORY: Final = "4G"
_MAX_SECONDS: Final = 900


def by_pandoc(format: str, content: bytes, encoding: str) -> str:  # noqa: A002
    """Return the prose of a file of a format, a key of `PANDOC_FORMATS`.

    Raises:
        UnreadableError: "not_decodable", or "not_extractable": it is broken, or takes more than 4
            GB or a quarter of an hour.
        OutageError: pandoc was killed, and the content may be sound.
    """
    import pypandoc  # type: ignore[import-untyped]

    if format not in _PACKED:
        content = web.decode_declared(content, encoding).encode()
    if prepare := _PREPARATIONS.get(format):
        content = prepare(content)
    with tempfile.TemporaryFile() as prose_filter:  # unnamed, so a killed worker leaves no file
        prose_filter.write(_PROSE_FILTER.encode())
        prose_filter.seek(0)
        command = [
            str(Path(pypandoc.__file__).with_name("files") / "pandoc"),  # not one on the PATH
            *("+RTS", f"-M{_MAX_MEMORY}", "-RTS", "--sandbox"),
            *(f"--lua-filter=/dev/fd/{prose_filter.fileno()}", "--to", "plain"),
            *("--from", _PANDOC_NAMES.get(format, format), "--wrap", "none"),
        ]
        try:
            # Without environment variables it finds no settings of the worker's user.
            done = subprocess.run(
                command,
                check=False,
                input=content,
                capture_output=True,
                env={},
                pass_fds=[prose_filter.fileno()],
                timeout=_MAX_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    if done.returncode in (-signal.SIGKILL, -signal.SIGTERM):
        raise OutageError(
            f"pandoc {killed(-done.returncode)}. It read {len(content):,} bytes of {format}."
        )
    if done.returncode:
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    return done.stdout.decode(errors="replace")


def _newcommand(found: re.Match[bytes]) -> bytes:
    name, optional, default, mandatory = found.groups(b"")
    is_optional = optional or found[3] is not None
    number = mandatory.count(b"m") + bool(is_optional)
    return rb"\renewcommand{%s}[%d]%s" % (name, number, b"[%s]" % default if is_optional else b"")


def _plain_docbook(content: bytes) -> bytes:
    """Return DocBook as XML without its entities, and its manual pages without their data."""
    return _NO_PROSE.sub("", docbook_sgml.without_entities(content.decode())).encode()


def _repacked(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Return a packed document with each member changed; as it is where it is broken or large.

    Args:
        content: the document.
        change: takes a member's name and content; returns its content, or none to leave it out.
    """
    packed = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(packed, "w") as filled:
            if sum(member.file_size for member in given.infolist()) > _MOST_PACKED_BYTES:
                return content
            for name in dict.fromkeys(given.namelist()):
                if changed := change(name, given.read(name)):
                    filled.writestr(name, changed)
    except (*source_bytes.ARCHIVE_ERRORS, etree.XMLSyntaxError):  # for pandoc to refuse
        return content
    return packed.getvalue()


def _with_fields(name: str, content: bytes) -> bytes:
    """Return a member of an OpenDocument text with the words that its fields show in their place.

    Text boxes, which pandoc leaves out, come behind their paragraphs.
    """
    if name != "content.xml":
        return content if name.endswith(".xml") else b""
    root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    names = {
        each.tag
        for each in root.iter(f"{_ODT_TEXT}*")
        if _name_of(each) not in _ODT_KNOWN and (each.text or "").strip()
    }
    boxes = root.xpath("//draw:text-box[not(.//draw:image)]", namespaces={"draw": _ODT_DRAWING})
    for box in reversed(boxes):
        paragraph = next(box.iterancestors(_ODT_TEXT + "p"), None)
        if paragraph is not None:
            for part in reversed(box):
                paragraph.addnext(part)
    etree.strip_elements(root, _ODT_TEXT + "ruby-text", with_tail=False)
    etree.strip_tags(root, *names, *(_ODT_TEXT + name for name in _ODT_AROUND))
    return bytes(etree.tostring(root))


def _with_boxes_apart(name: str, content: bytes) -> bytes:
    """Return a member of a Word file, each text box behind its paragraph, and fields as text.

    pandoc leaves out the words of a paragraph that has a text box, and simple fields.
    """
    if not _WORD_TEXT.fullmatch(name) or not _WORD_LOST.search(content):
        return content
    root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    etree.strip_tags(root, f"{{{_WORD}}}fldSimple")
    etree.strip_elements(root, f"{{{_COMPATIBILITY}}}Fallback", with_tail=False)
    for box in reversed(list(root.iter(f"{{{_WORD}}}txbxContent"))):
        paragraph = next(box.iterancestors(f"{{{_WORD}}}p"), None)
        if paragraph is not None:
            for part in reversed(box):
                paragraph.addnext(part)
            box.getparent().remove(box)
    return bytes(etree.tostring(root))


def _ungrouped(name: str, content: bytes) -> bytes:
    """Return a member of a PowerPoint file with the shapes of a group beside the others."""
    if not _SLIDE.fullmatch(name) or b"grpSp>" not in content:
        return content
    root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    etree.strip_tags(root, f"{{{_PRESENTATION}}}grpSp")
    return bytes(etree.tostring(root))


@dataclass
class _CodePages:
    """The code page of a place in RTF, which the control words before it tell."""

    of_file: str = "cp1252"
    of_fonts: dict[str, str] = field(default_factory=dict)
    default_font: str = ""
    font: str = ""
    num_substitutes: int = 1
    """Bytes that follow a character given by its number, for older readers."""
    around: list[tuple[str, int]] = field(default_factory=list)
    """The font and the number of substitutes of each group around the place."""

    def follow(self, token: str, word: str | None, number: str) -> str:
        """Return the code page behind a brace or a control word."""
        match word or token:
            case "{":
                self.around.append((self.font, self.num_substitutes))
            case "}" if self.around:
                self.font, self.num_substitutes = self.around.pop()
            case "ansicpg":
                self.of_file = f"cp{number}"
            case "deff":
                self.default_font = number
            case "f" | "plain":
                self.font = number or self.default_font
            case "fcharset" if number in _RTF_CHARACTER_SETS:
                self.of_fonts[self.font] = _RTF_CHARACTER_SETS[number]
            case "uc":
                self.num_substitutes = int(number or 1)
        return self.of_fonts.get(self.font, self.of_file)


def _without_code_pages(content: bytes) -> bytes:
    """Return RTF whose bytes in other code pages than cp1252, which pandoc takes all for, are text.

    A byte is in the code page of its font's character set, or of the file. What follows a character
    that is given by its number is a substitute, and stays.
    """
    text, parts, position = content.decode(), [], 0
    pages = _CodePages()
    for found in _RTF_TOKEN.finditer(text):
        code_page = pages.follow(found[0], found["word"], found["number"])
        if not found["bytes"] or code_page == "cp1252":
            continue
        begin, end = found.span("bytes")
        if found["unicode"]:
            begin = min(begin + 4 * pages.num_substitutes, end)
        raw = bytes.fromhex(text[begin:end].replace("\\'", ""))
        with suppress(LookupError):
            words = raw.decode(code_page, "replace")
            if words.endswith("\ufffd") and text[end : end + 1].isalnum():  # two bytes: \'83e
                words, end = (raw + text[end].encode()).decode(code_page, "replace"), end + 1
            parts += [text[position:begin], _RTF_MARK.sub(r"\\\g<0>", words)]
            position = end
    return "".join([*parts, text[position:]]).encode()


_PREPARATIONS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "asciidoc": partial(_ASCIIDOC_COMMENT.sub, b""),
    "docbook": _plain_docbook,
    "docx": partial(_repacked, change=_with_boxes_apart),
    "epub": partial(_repacked, change=lambda _, content: _RUBY.sub(b"", content)),
    "latex": lambda content: _DOCUMENT_COMMAND.sub(_newcommand, _LONG_DEF.sub(rb"\\def", content)),
    "odt": partial(_repacked, change=_with_fields),
    "pptx": partial(_repacked, change=_ungrouped),
    "rst": lambda content: _ANONYMOUS.sub(
        rb"\1\2", _CSV_TABLE.sub(rb"\1", _INCLUDE.sub(b"", content))
    ),
    "rtf": lambda content: _RTF_CHARACTER.sub(rb"\g<0> ", _without_code_pages(content)),
}
"""What pandoc does not read, replaced by what it reads."""
