"""XML and SGML whose documents are elements: TEI, Reuters, TREC, and what the settings name."""

import html
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from lxml import etree  # type: ignore[import-untyped]

from pipelines.config import SourceSettings
from pipelines.readers.documents import declared_encoding
from pipelines.readers.record import (
    AUTO,
    Record,
    UnreadableError,
    decode_file,
    unreadable,
    whole_file,
)

UNKNOWN_MARKUP = "unknown_markup"
"""Reason of a file that looks like markup, in which no element is known to hold a text."""

_TEXT_ELEMENTS: Final = frozenset({"body", "BODY", "TEXT"})
"""Hold the text of a document: of TEI, of Reuters, of TREC."""
_LEFT_OUT: Final = frozenset({"note", "fw", "figure", "figDesc", "table", "del"})
_KEYS: Final = ("{http://www.w3.org/XML/1998/namespace}id", "id", "NEWID")
_PROLOG: Final = re.compile(
    r"\A\s*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)?", re.DOTALL
)
_ENTITY: Final = re.compile(r"&(?:#?\w{1,32};)?|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ESCAPED: Final = str.maketrans("&<", "\ue000\ue001")
_UNESCAPED: Final = str.maketrans("\ue000\ue001", "&<")
"""After a first error the parser drops escaped characters, so these travel as others do."""
_BLANKS: Final = re.compile(r"\s+")
_INDENTED: Final = re.compile(r"\n(?=[ \t]{2,}\S)|\n[ \t]*(?=\n)")


def read_markup(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each element that holds a text.

    That is what `source.xml_element` names, or else the body of TEI, Reuters and TREC. Its key is
    the id of the nearest element that has one, or its number in the file. A file without such an
    element is "unknown_markup".
    """
    found = whole_file(file, settings, _decode_markup)
    if found.unreadable:
        yield found
        return
    wanted = frozenset({settings.xml_element}) if settings.xml_element else _TEXT_ELEMENTS
    elements = list(_elements(found.text, wanted))
    for number, element in enumerate(elements):
        yield Record(_text_of(element), _key_of(element) or f"doc-{number}", offset=number)
    if not elements:
        yield unreadable(UNKNOWN_MARKUP, 0, found.text[:1000].encode(errors="replace"))


def _decode_markup(content: bytes, encoding: str) -> str:
    declared = declared_encoding(content)
    if encoding == AUTO and declared.lower() in ("utf-8", "utf8", ""):
        try:
            return decode_file(content, "utf-8" if declared else AUTO)
        except UnreadableError:
            return decode_file(content, AUTO)
    return decode_file(content, encoding, declared)


def _elements(content: str, wanted: frozenset[str]) -> Iterator[Any]:
    """Yield the innermost elements of the wanted names.

    SGML has several roots, bare ampersands, and characters that XML forbids; the parser mends them.
    Without its document type a file has no entities that read others or grow in memory.
    """
    prolog = _PROLOG.match(content)
    content = _ENTITY.sub(_character, content[prolog.end() if prolog else 0 :])
    parser = etree.XMLParser(recover=True, resolve_entities="internal", no_network=True)
    root = etree.fromstring(f"<files>{content}</files>".encode(errors="replace"), parser)
    for element in root.iter():
        is_wanted = _name_of(element) in wanted
        if is_wanted and not any(_name_of(inner) in wanted for inner in element.iterdescendants()):
            yield element


def _character(found: re.Match[str]) -> str:
    """Return what an entity of XML or HTML means; a control, which XML forbids, is a blank."""
    meant = html.unescape(found[0])
    return " " if len(meant) == 1 and ord(meant) < 32 else meant.translate(_ESCAPED)


def _name_of(element: Any) -> str:
    """Return the name without its namespace; `QName` refuses names that the parser mended."""
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
    if _name_of(element) in _LEFT_OUT or not isinstance(element.tag, str):
        return ""
    own = [element.text, *(child.tail for child in element)]
    if any(words and not words.isspace() for words in own):
        text = "".join(_words_of(element)).translate(_UNESCAPED)
        return _INDENTED.sub("\n\n", text) if element.tag.isupper() else _BLANKS.sub(" ", text)
    return "\n\n".join(filter(None, map(_text_of, element)))


def _words_of(element: Any) -> Iterator[str]:
    """Yield all words in ``element``, without what is no part of its sentences."""
    if isinstance(element.tag, str) and _name_of(element) not in _LEFT_OUT:
        yield element.text or (" " if _name_of(element) in ("lb", "pb") else "")
        for child in element:
            yield from _words_of(child)
            yield child.tail or ""
