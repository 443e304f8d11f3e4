"""What pandoc would read wrongly or leave out, put right before it reads."""

import io
import re
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

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
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_COMPATIBILITY: Final = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_HIDDEN_RUNS: Final = etree.XPath(
    "//w:r[w:rPr/w:vanish[not(@w:val) or contains('1 true on', @w:val)]]",
    namespaces={"w": _WORD.strip("{}")},
)
_PRESENTATION: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_ODT_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_ODT_BOXES: Final = etree.XPath(
    "//draw:text-box[not(.//draw:image)]",
    namespaces={"draw": "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"},
)
_ODT_KNOWN: Final = frozenset(
    {"a", "bibliography-mark", "h", "note-citation", "p", "script", "span"}
)
"""Elements with words that pandoc reads, or that are none of the text. All others with words in a
paragraph are fields, such as dates and numbers of pages; pandoc leaves them out."""
_ODT_AROUND: Final = ("numbered-paragraph", "ruby", "ruby-base")
_RUBY: Final = re.compile(rb"<(rt|rp)\b[^>]*>.*?</\1\s*>", re.DOTALL)
"""How words of Japanese or Chinese are read, beside them."""
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


def _repacked(content: bytes, names: str, lost: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a packed document with its text changed; as it is where it is broken or large.

    Args:
        content: the document.
        names: matches the names of the members that hold its text.
        lost: is found in those that have to be changed.
        change: takes and returns the content of such a member.
    """
    packed = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as given:
            if sum(member.file_size for member in given.infolist()) > _MOST_PACKED_BYTES:
                return content
            all_names = dict.fromkeys(given.namelist())
            texts = {name: given.read(name) for name in all_names if re.fullmatch(names, name)}
            changed = {name: change(text) for name, text in texts.items() if re.search(lost, text)}
            if not changed:
                return content
            with zipfile.ZipFile(packed, "w") as filled:
                for name in all_names:
                    filled.writestr(name, changed.get(name) or given.read(name))
    except (*source_bytes.ARCHIVE_ERRORS, etree.XMLSyntaxError):  # for pandoc to refuse
        return content
    return packed.getvalue()


def _with_tree(rewrite: Callable[[Any], None], content: bytes) -> bytes:
    """Return XML whose elements ``rewrite`` has changed."""
    root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    rewrite(root)
    return bytes(etree.tostring(root))


def _set_apart(boxes: Iterable[Any], paragraph: str) -> None:
    """Move what is in each box behind the paragraph around it, an element of that name."""
    for box in reversed(list(boxes)):
        around = next(box.iterancestors(paragraph), None)
        if around is not None:
            for part in reversed(box):
                around.addnext(part)
            box.getparent().remove(box)


def _show_odt(root: Any) -> None:
    """Put the words that fields show in their place, and text boxes behind their paragraphs."""
    names = {
        each.tag
        for each in root.iter(f"{_ODT_TEXT}*")
        if etree.QName(each).localname not in _ODT_KNOWN and (each.text or "").strip()
    }
    _set_apart(_ODT_BOXES(root), _ODT_TEXT + "p")
    etree.strip_elements(root, _ODT_TEXT + "ruby-text", with_tail=False)
    etree.strip_tags(root, *names, *(_ODT_TEXT + name for name in _ODT_AROUND))


def _show_docx(root: Any) -> None:
    """Put text boxes behind their paragraphs, make simple fields text, and drop hidden text.

    pandoc leaves out the words of a paragraph that has a text box, and keeps hidden ones.
    """
    etree.strip_tags(root, _WORD + "fldSimple")
    etree.strip_elements(root, _COMPATIBILITY + "Fallback", with_tail=False)
    for run in _HIDDEN_RUNS(root):
        run.getparent().remove(run)
    _set_apart(root.iter(_WORD + "txbxContent"), _WORD + "p")


def _show_pptx(root: Any) -> None:
    """Put the shapes of a group beside the others."""
    etree.strip_tags(root, _PRESENTATION + "grpSp")


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
    "docx": partial(
        _repacked,
        names=r"word/document\d*\.xml",
        lost=b"txbxContent|fldSimple|vanish",
        change=partial(_with_tree, _show_docx),
    ),
    "epub": partial(
        _repacked,
        names=r"(?i).*\.(?:x?html?|xml)",
        lost=rb"<r[tp]\b",
        change=partial(_RUBY.sub, b""),
    ),
    "latex": lambda content: _DOCUMENT_COMMAND.sub(_newcommand, _LONG_DEF.sub(rb"\\def", content)),
    "odt": partial(
        _repacked, names=r"content\.xml", lost=b"", change=partial(_with_tree, _show_odt)
    ),
    "pptx": partial(
        _repacked,
        names=r"ppt/slides/slide\d+\.xml",
        lost=b"grpSp>",
        change=partial(_with_tree, _show_pptx),
    ),
    "rst": lambda content: _ANONYMOUS.sub(
        rb"\1\2", _CSV_TABLE.sub(rb"\1", _INCLUDE.sub(b"", content))
    ),
    "rtf": lambda content: _RTF_CHARACTER.sub(rb"\g<0> ", _without_code_pages(content)),
}
"""What pandoc does not read, replaced by what it reads."""
