"""Pure: DocBook as SGML, or with entities, to DocBook as XML without, which pandoc reads.

SGML leaves out ends of elements and quotes of attributes, abbreviates tags, and names are in any
case. Files of a book's parts have no document type.
"""

import re
from collections.abc import Sequence
from html.entities import html5
from html.parser import HTMLParser
from typing import Final
from xml.sax.saxutils import escape, quoteattr

_DIVISIONS: Final = {
    name: rank
    for rank, names in enumerate(
        [
            *("set", "book", "part", "chapter appendix preface article reference", "refentry"),
            *("section sect1 refsect1", "sect2 refsect2", "sect3 refsect3", "sect4", "sect5"),
        ]
    )
    for name in names.split()
}
"""Elements that hold titles and paragraphs, and how deep they are."""
BEGINS: Final = re.compile(
    r"\s*(?:<\?[^>]*>\s*|<!--(?:[^-]|-(?!->))*-->\s*)*"
    rf"(?:<!doctype[^>\[]*\bDocBook\b|<(?:{'|'.join(_DIVISIONS)})\b(?=.*<(?:sim)?para\b))",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a book in DocBook, or a part of one in a file of its own."""
_PROLOG: Final = re.compile(r"<!doctype[^>\[]*(?:\[.*?\]\s*)?>", re.IGNORECASE | re.DOTALL)
_ENTITY: Final = re.compile(
    r"<!ENTITY\s+([\w.-]+)\s+(?:\"([^\"]*)\"|'([^']*)'|(?:SYSTEM|PUBLIC)\b[^>]*)\s*>", re.IGNORECASE
)
_REFERENCE: Final = re.compile(r"(^[ \t]*(?=&[\w.-]+;?[ \t]*$))?&([A-Za-z][\w.-]*);?", re.MULTILINE)
"""The first group matches before one that has a line of its own."""
_MOST_ADDED: Final = 1 << 20
"""Characters that entities may add to a text, besides as many as it has."""
_MARKED: Final = re.compile(
    r"<!\[\s*(?:CDATA\s*\[(?P<literal>.*?)|IGNORE\s*\[.*?)\]\]>|<!\[[^\[\]<>]{0,80}\[|\]\]>",
    re.DOTALL,
)
_NULL_END: Final = re.compile(r"<(\w+)/([^/<>\n]*)/")
_EMPTY: Final = frozenset(
    {
        *("anchor", "area", "audiodata", "beginpage", "co", "colspec", "footnoteref", "graphic"),
        *("imagedata", "inlinegraphic", "sbr", "spanspec", "videodata", "void", "xref"),
    }
)
_AROUND: Final = {
    "para": "listitem entry footnote blockquote note warning tip caution important sidebar step",
    "listitem": "itemizedlist orderedlist varlistentry",
    "varlistentry": "variablelist",
    "term": "varlistentry",
    "title": "figure example table note warning tip caution important sidebar",
    "row": "tbody thead",
    "entry": "row",
}
"""Elements that end where the next one of their name begins, unless that is within one of those in
which they may be within another."""
_ENDED_BY_BLOCKS: Final = frozenset({"title", "term"})


class _Writer(HTMLParser):
    """Writes tags and words as XML."""

    CDATA_CONTENT_ELEMENTS = RCDATA_CONTENT_ELEMENTS = ()  # type: ignore[misc]  # those of HTML

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Write a start, after the ends that it implies."""
        if tag in _DIVISIONS:
            while self._open and _DIVISIONS.get(self._open[-1], 99) > _DIVISIONS[tag]:
                self._end()
            if tag != "section" and self._open and self._open[-1] == tag:
                self._end()
        elif tag in _AROUND:
            if self._open and self._open[-1] in _ENDED_BY_BLOCKS:
                self._end()
            barriers = _AROUND[tag].split()
            near = next(
                (name for name in reversed(self._open) if name == tag or name in barriers), ""
            )
            if near == tag:
                self.handle_endtag(tag)
        values = {name: value or "" for name, value in attrs if name.isidentifier()}
        self.written.append(
            f"<{tag}{''.join(f' {name}={quoteattr(values[name])}' for name in values)}>"
        )
        self._open.append(tag)
        if tag in _EMPTY:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        """Write an end, after those of the elements within; ``</>`` is that of the innermost."""
        if tag in self._open:
            while self._end() != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Write words."""
        if self._open:
            self.written.append(escape(data))

    def close(self) -> None:
        """Write all ends that are missing."""
        super().close()
        while self._open:
            self._end()

    def _end(self) -> str:
        self.written.append(f"</{self._open[-1]}>")
        return self._open.pop()


def as_xml(text: str) -> str:
    """Return DocBook in SGML as XML without a document type and entities."""
    writer = _Writer()
    writer.feed(_NULL_END.sub(r"<\1>\2</\1>", without_entities(text).replace("<![", "")))
    writer.close()
    return "".join(writer.written)


def without_entities(text: str) -> str:
    """Return DocBook without its document type and other entities than those of HTML.

    Those that are files are left out. One that the text doesn't declare is mostly the word that it
    is called, such as that of a program or a key, but with a line of its own it is a file.
    """
    declared: dict[str, str] = {name: one or other for name, one, other in _ENTITY.findall(text)}
    room = len(text) + _MOST_ADDED

    def meaning(found: re.Match[str]) -> str:
        nonlocal room
        name = found[2]
        if f"{name};" in html5:
            return found[0]
        meant = declared.get(name, name if found[1] is None else "")
        room -= len(meant)
        return meant if room > 0 else ""

    if prolog := _PROLOG.match(text, max(0, text.lower().find("<!doctype"))):
        text = text[prolog.end() :]
    marked, mark, rest = text.rpartition("]]>")
    text = _MARKED.sub(lambda found: escape(found["literal"] or ""), marked + mark) + rest
    for _ in range(2):  # an entity may have others in it
        text = _REFERENCE.sub(meaning, text)
    return text
