"""What pandoc would read wrongly or leave out, put right before it reads."""

import io
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lxml import etree  # type: ignore[import-untyped]

from pipelines.readers import docbook_sgml, source_bytes

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
        if etree.QName(each).localname not in _ODT_KNOWN and (each.text or "").strip()
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


PREPARATIONS: Final[dict[str, Callable[[bytes], bytes]]] = {
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
