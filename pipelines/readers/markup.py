"""XML and SGML: TEI, Reuters, TREC, and the elements that the settings name."""

import html
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Final

from lxml import etree  # type: ignore[import-untyped]

from pipelines.config import SourceSettings
from pipelines.readers import docbook_sgml, pandoc, record, web
from pipelines.readers.record import Record

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
_WITHIN_WORD: Final = "\ue002"
"""Stands for the end of a line in a word."""
_CUT: Final = re.compile(rf"[-\xad\u2010¬]?\s*{_WITHIN_WORD}\s*")
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
        text_of = partial(pandoc.by_pandoc, "docbook")
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
        text = _CUT.sub("", "".join(_words_of(element))).translate(_UNESCAPED)
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
        if _name_of(element) in ("lb", "cb", "pb"):
            yield _WITHIN_WORD if element.get("break") == "no" else " "
        yield element.text or ""
        for child in element:
            yield from _words_of(child)
            yield child.tail or ""
