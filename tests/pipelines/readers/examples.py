"""One table of files for each reader: what is in them, and the records that they give."""

import codecs
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterable
from email.message import EmailMessage
from typing import Any, NamedTuple, cast
from unittest.mock import ANY

import brotli  # type: ignore[import-untyped]
import pyarrow as pa

from pipelines.config import SourceFormat
from pipelines.readers import PANDOC_FORMATS
from tests.generated_text import document
from tests.pipelines.readers.reading import (
    DUMP_END,
    DUMP_HEADER,
    PARAGRAPH,
    PROSE,
    WIKI,
    Outcome,
    archive,
    arrow,
    article,
    by_pandoc,
    dump,
    json_lines,
    mail,
    odt,
    parquet,
    parts_in_parts,
    pdf,
    tar,
    web_page,
    web_record,
    web_text,
)


class Example(NamedTuple):
    """The content of a file, and what it gives under some settings."""

    content: bytes
    outcomes: list[Outcome]
    settings: dict[str, Any]


def of(content: bytes, *outcomes: Outcome, **settings: Any) -> Example:
    return Example(content, list(outcomes), settings)


def lost(reason: str, *contents: bytes, **settings: Any) -> list[Example]:
    """Return files of which nothing can be read."""
    return [of(content, (0, reason), **settings) for content in contents]


def rows(texts: Iterable[str]) -> list[Outcome]:
    """Return what a table without ids gives."""
    return [(f"#row-{number}", text) for number, text in enumerate(texts)]


SMALL = {"max_document_mb": 0.001}
MARK = codecs.BOM_UTF8
GERMAN = (
    "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem "
    "Bett zu einem ungeheueren Ungeziefer verwandelt. Er lag auf seinem panzerartig harten Rücken."
)
FRENCH = "Le cœur a ses raisons que la raison ne connaît point. Élève à l'école où l’été finit."
RUSSIAN = "Я помню чудное мгновенье: передо мной явилась ты, как мимолётное виденье."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
CHINESE = "道可道，非常道。名可名，非常名。无名天地之始，有名万物之母。"
ENCODED = [
    *((GERMAN, "latin-1"), (FRENCH, "cp1252"), (RUSSIAN, "koi8-r"), (RUSSIAN, "cp1251")),
    *((JAPANESE, "shift_jis"), (JAPANESE, "iso-2022-jp"), (CHINESE, "gb18030")),
    *((RUSSIAN, marked) for marked in ("utf-8-sig", "utf-16", "utf-32")),
]
TEXT = [
    of("Größe.\n\nTwo.".encode(), ("", "Größe.\n\nTwo.")),
    of(b"", ("", "")),
    *(of(text.encode(encoding), ("", text)) for text, encoding in ENCODED),
    of(codecs.BOM_UTF16_BE + RUSSIAN.encode("utf-16-be"), ("", RUSSIAN)),
    *(of(GERMAN.encode(unmarked), ("", GERMAN)) for unmarked in ("utf-16-le", "utf-16-be")),
    of(codecs.BOM_UTF32_BE + RUSSIAN.encode("utf-32-be"), ("", RUSSIAN)),
    *lost("not_decodable", b"PK\x03\x04\x00\xff", codecs.BOM_UTF16_LE + b"\x00"),
    *(
        of("Größe".encode(declared), ("", "Größe"), encoding=declared)
        for declared in ("utf-8", "cp1252", "utf-16", "gb18030")
    ),
    of(RUSSIAN.encode("koi8_r"), ("", RUSSIAN), encoding="koi8_r"),
    *lost("not_decodable", b"Gr\xf6", encoding="utf-8"),
    *lost("too_large", b"x" * 1001, **SMALL),
    of(b"x" * 1000, ("", "x" * 1000), **SMALL),
]

LINES = b"\n\nOne one.\nOne two.\r\n \t\r\nTwo one.\n\n\n\nThree one."
BLOCKS = [
    of(LINES, ("#@2", "One one.\nOne two.\r\n"), ("#@25", "Two one.\n"), ("#@37", "Three one.")),
    of(b"One.\n\nTwo \xff.\n\nThree.", ("#@0", "One.\n"), (6, "not_utf8"), ("#@14", "Three.")),
    of("Gr\xf6.\n".encode("latin-1"), ("#@0", "Grö.\n"), encoding="latin-1"),
    *lost("not_decodable", "Gr\xf6.\n".encode("latin-1"), encoding="utf-8"),
    of(MARK + b"Text.", ("#@0", "Text.")),
    of(b"", *()),
    *(
        of(b"One.\n\n" + large + b"\nTwo.", ("#@0", "One.\n"), (6, "too_large"), end, **SMALL)
        for large in (b"x y\n" * 999, b"x" * 5000 + b"\n")
        for end in [(f"#@{7 + len(large)}", "Two.")]
    ),
]

BOOK_START = "*** START OF THE PROJECT GUTENBERG EBOOK ***\n"
BOOK_ENCODINGS = [
    *(("ISO-8859-1", "cp1252"), ("ISO Latin-1", "latin-1"), ("ASCII", "cp1252")),
    *(("UTF-8", "utf-8"), ("Unicode UTF-8", "utf-8"), ("Windows-1251", "cp1251")),
    *(("ISO-8859-1", "utf-8"), ("nonsense", "utf-8")),
]
GUTENBERG = [
    of(f"{BOOK_START}\nText.\n\n*** END OF THE PROJECT GUTENBERG EBOOK".encode(), ("", "Text.")),
    *lost("too_large", b"x" * 5000, **SMALL),
    *(
        of(f"Character set encoding: {told}\n\n{BOOK_START}{text}".encode(encoding), ("", text))
        for told, encoding in BOOK_ENCODINGS
        for text in ["Опять весна" if encoding == "cp1251" else "Größe"]
    ),
]

MODULE = '''"""The module.

  Indented.
"""
import x  # "not this"

class A:
    """The class."""

    NAME = """nor this"""

    async def f(self):
        """The method."""
        def g():
            "The inner one."

def h(): ...
def i():
    """The last one."""
'''
DOCSTRINGS = (
    "The module.\n\nIndented.\n\nThe class.\n\nThe method.\n\nThe inner one.\n\nThe last one."
)
METADATA = b"""Metadata-Version: 2.1
Name: x
Classifier: Operating System :: OS Independent

# The package

It is for gr\xc3\xb6\xc3\x9fe.
"""
UNPARSED = [b'"""unclosed', b'print "two" """x"""', b'"""x"""\x00', b'"""x"""' + b"(" * 9999]
PYTHON = [
    of(MODULE.encode(), ("", DOCSTRINGS)),
    of(b'"""Text."""\nraise SystemExit("run")\n', ("", "Text.")),
    of("# -*- coding: latin-1 -*-\n'''Größe.'''\n".encode("latin-1"), ("", "Größe.")),
    of(METADATA, ("", "# The package\n\nIt is for größe.\n")),
    of(b"x = 1", ("", "")),
    *lost("too_large", b"x" * 5000, **SMALL),
    *lost("not_python", *UNPARSED),
]

LINE = json_lines({"text": "T."})
BAD_LINES = [
    (b"{broken", "not_json"),
    (b'{"text": "\xff"}', "not_utf8"),
    (b'{"text": "\xed\xa0\x80"}', "not_utf8"),
    (b'{"title": "no text"}', "no_text_field"),
    (b'{"text": 5}', "no_text_field"),
    (b'{"text": null}', "no_text_field"),
    (b'["text"]', "no_text_field"),
    (b"[" * 100_000, "not_json"),
    (b'{"text": "T.", "n": ' + b"1" * 5000 + b"}", "not_json"),
    (b"\x00\x01", "not_json"),
]
IDS = ("a", "a", 0, "", None)
LATIN = '{"text": "Größe"}\n'.encode("latin-1")
LONG = b'{"text": "' + b"x" * 5000 + b'"}\n'
JSONL = [
    of(json_lines({"id": "a", "text": "1"}, {"id": 7, "text": "2"}), ("#a", "1"), ("#7", "2")),
    of(b"\n" + LINE + b"  \r\n" + LINE.rstrip(), ("#@1", "T."), ("#@20", "T.")),
    of(MARK + LINE, ("#@0", "T.")),
    of(json_lines({"a": "1", "b": "u", "text": "x"}), ("#u", "1"), text_field="a", id_field="b"),
    of(b'{"id": "\\ud800", "text": "a\\ud800 \\ud83d\\ude00"}\n', ("#?", "a? 😀")),
    of(
        json_lines(*({"id": key, "text": "T."} for key in IDS)),
        *((key, "T.") for key in ("#a", "#a", "#0", "#@76", "#@101")),
    ),
    *(
        of(LINE + line + b"\n" + LINE, ("#@0", "T."), (len(LINE), why), end)
        for line, why in BAD_LINES
        for end in [(f"#@{len(LINE + line) + 1}", "T.")]
    ),
    of(LATIN, ("#@0", "Größe"), encoding="latin-1"),
    *lost("not_decodable", LATIN, encoding="utf-8"),
    of(LINE + LONG + LINE, ("#@0", "T."), (15, "too_large"), ("#@5028", "T."), **SMALL),
]

RECORDS = [{"id": "a", "text": "Größe", "of": {"text": "x"}}, {"text": "Two."}, {"id": 7}, "Two."]
OF_RECORDS: list[Outcome] = [
    *(("#a", "Größe"), ("#row-1", "Two."), (2, "no_text_field"), (3, "no_text_field")),
]
JSON = [
    *(
        of(json.dumps(RECORDS, indent=indent, ensure_ascii=is_ascii).encode(), *OF_RECORDS)
        for indent in (None, 2)
        for is_ascii in (True, False)
    ),
    of(
        b"\n".join(json.dumps(each, indent=1).encode() for each in RECORDS[:2]),
        *OF_RECORDS[:2],
    ),
    *(of(MARK + text, ("#row-0", "T.")) for text in (b'[{"text": "T."}]', b'{"text": "T."}')),
    *(
        of(json.dumps([{"text": RUSSIAN}]).encode(wide), ("#row-0", RUSSIAN))
        for wide in ("utf-16", "utf-16-le", "utf-32")
    ),
    of(b'[{"text": "Gr\xf6"}]', ("#row-0", "Grö"), encoding="latin-1"),
    *(
        of(b'[{"text": "T."}, %b, {"text": "U."}]' % line, ("#row-0", "T."), (1, why), end)
        for line, why in [
            *BAD_LINES,
            (b'{"text": "a\tb"}', "not_json"),
            (b'{"text" "T."}', "not_json"),
        ]
        for end in [("#row-2", "U.")]
        if line.count(b"[") == line.count(b"]") and line.count(b"{") == line.count(b"}")
    ),
    of(
        b'[{"text": "a,]}\\"[{", "n": NaN},\n{"n": [-Infinity, {"}": 1}], "text": "\\\\"}]',
        *(("#row-0", 'a,]}"[{'), ("#row-1", "\\")),
    ),
    of(b'[{"text": "T."}, {"te', ("#row-0", "T."), (1, "not_json")),
    of(b'[{"text": ["T."]}, ["T."]]', (0, "no_text_field"), (1, "no_text_field")),
    of(b'[{"a": "1", "b": "u"}]', ("#u", "1"), text_field="a", id_field="b"),
    of(b'[{"id": "\\ud800", "text": "a\\ud800 \\ud83d\\ude00"}]', ("#?", "a? 😀")),
    of(
        b'[{"text": "' + b"x" * 2000 + b'"}, {"text": "T."}]',
        (0, "too_large"),
        ("#row-1", "T."),
        **SMALL,
    ),
    *lost("not_json", b"", b"[" * 100_000, b"Hello."),
    of(b"[]"),
]

TEXTS = [document(number, 5) for number in range(90)]
WORDS = ["Größe.", "Two.", "Two."]
KINDS = (
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary()),
    pa.dictionary(pa.int32(), pa.string()),
)
KEYED: list[Outcome] = [("#7", "Größe."), ("#row-1", "Two."), ("#9", "Two.")]
ROWS = {"text": pa.array([b"One.", None, b"\xff", b"x" * 2000, b"Two."])}
OF_ROWS: list[Outcome] = [
    *(("#row-0", "One."), (1, "no_text_field"), (2, "not_utf8"), (3, "too_large")),
    ("#row-4", "Two."),
]
WITH_IDS = {"id": [f"d{n}" for n in range(90)], "text": TEXTS, "other": [{"a": 1}] * 90}
NAMED_COLUMNS = parquet({"a": ["One."], "b": ["u/1"], "text": ["no"]})
NO_TEXTS: list[tuple[str, Any]] = [("body", "T."), ("text", 5), ("text", ["T."])]
PARQUET = [
    *(
        of(
            parquet(WITH_IDS, compression=compression, row_group_size=40),
            *((f"#d{n}", text) for n, text in enumerate(TEXTS)),
        )
        for compression in ("none", "snappy", "zstd", "gzip")
    ),
    of(parquet({"text": TEXTS}, row_group_size=40), *rows(TEXTS)),
    of(parquet({"text": WORDS, "id": [7, None, 9]}), *KEYED),
    of(parquet({"text": WORDS, "id": [b"7", None, b"9"]}), *KEYED),
    of(parquet(pa.table([WORDS, WORDS, WORDS], ["text", "id", "id"])), *rows(WORDS)),
    of(NAMED_COLUMNS, ("#u/1", "One."), text_field="a", id_field="b"),
    of(NAMED_COLUMNS, ("#One.", "One."), text_field="a", id_field="a"),
    *(of(parquet({"text": pa.array(WORDS).cast(kind)}), *rows(WORDS)) for kind in KINDS),
    *lost("no_text_field", *(parquet({name: [value]}) for name, value in NO_TEXTS)),
    of(parquet(ROWS), *OF_ROWS, **SMALL),
    of(parquet({"text": pa.array([], pa.string())})),
    *lost("not_parquet", b"", b"{}\n" * 100, gzip.compress(parquet({"text": ["T."]}))),
    *lost("not_parquet", *(parquet({"text": TEXTS})[:length] for length in (9, 900, -9))),
]

OUTSIDE = arrow({"text": ["x" * 0x0A0B]}).replace(b"\x0b\x0a\0\0", b"\x0b\x0a\0\x0f")
"""A table that says that its text ends outside of it."""
ARROW = [
    of(arrow({"text": TEXTS}, kind=pa.ipc.new_stream), *rows(TEXTS)),
    of(arrow({"text": TEXTS}, kind=pa.ipc.new_file), *rows(TEXTS)),
    *(of(arrow({"id": [7, None, 9], "text": pa.array(WORDS).cast(k)}), *KEYED) for k in KINDS),
    *lost("no_text_field", arrow({"body": ["T."]})),
    of(arrow(ROWS), *OF_ROWS, **SMALL),
    of(arrow({"text": TEXTS})[:-900], *rows(TEXTS)[:80], (80, "not_arrow")),
    *lost("not_arrow", b"", b"{}\n" * 100, OUTSIDE),
]

FIRST, SECOND = (web_record(web_page(f"Größe {n}.").encode(), uri=f"http://a/{n}") for n in (1, 2))
OF_FIRST, OF_SECOND = (("#http://a/1", web_text("Größe 1.")), ("#http://a/2", web_text("Größe 2.")))
WEB_ENCODINGS = [
    ("Größe.", "utf-8", "text/html", ""),
    ("Größe.", "cp1252", "text/html; charset=ISO-8859-1", ""),
    ("Größe.", "cp1252", "text/html", '<meta charset="windows-1252">'),
    ("Опять весна.", "cp1251", "text/html;charset=windows-1251", ""),
    ("吾輩は猫である。", "shift_jis", "text/html", '<meta content="x; charset=Shift_JIS">'),
    ("Größe.", "utf-16", "application/xhtml+xml", ""),
    ("Größe.", "cp1252", "text/html; charset=utf-8", ""),
]
HTML = web_page("Größe 1.").encode()
FIELDS = "application/warc-fields"
BROKEN = b"WARC/1.0\r\nWARC-Type: response\r\nno length\r\n\r\na\r\nb\r\n"
ENDLESS = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: " + b"9" * 99 + b"\r\n\r\n"
LENGTH = f"Content-Length: {len(FIRST) - FIRST.index(b'HTTP/1.1') - 4}".encode()
SHORT = FIRST.replace(LENGTH, b"Content-Length: 300", 1)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HTML), HTML)
LARGE = brotli.compress(b"x" * 10**7)
WEB = [
    of(FIRST + SECOND, OF_FIRST, OF_SECOND),
    of(FIRST * 6, *([OF_FIRST] * 6)),
    of(SHORT + SECOND, ("#http://a/1", ANY), (433, "broken_record"), OF_SECOND),
    *lost("broken_record", gzip.compress(FIRST + SECOND)),
    of(
        web_record(b"x: y", FIELDS, record="warcinfo")
        + web_record("Größe.\n\nTwo.".encode(), "text/plain", record="conversion"),
        ("#http://a/1", "Größe.\n\nTwo."),
    ),
    of(
        web_record(b"GET / HTTP/1.0", record="request")
        + web_record(b"fetched: 1", FIELDS, record="metadata")
        + web_record(b"\x89PNG", "image/png", uri="http://a/1.png"),
        (342, "not_html"),
    ),
    *lost("not_html", web_record(b"a IN A 1.2.3.4", "text/dns", record="resource", uri="dns:a")),
    *lost("http_error", web_record(HTML, status="404 Not Found", uri="http://a")),
    of(web_record(b"<html></html>"), ("#http://a/1", "")),
    of(web_record(b""), ("#http://a/1", "")),
    of(web_record(HTML, kind=""), OF_FIRST),
    *lost("not_html", web_record(b"x", kind="")),
    of(web_record(gzip.compress(HTML), Content_Encoding="gzip"), OF_FIRST),
    of(web_record(brotli.compress(HTML), Content_Encoding="br"), OF_FIRST),
    of(web_record(HTML, Content_Encoding="br"), OF_FIRST),
    *lost("too_large", web_record(LARGE, Content_Encoding="br"), max_document_mb=1),
    of(web_record(CHUNKED, Transfer_Encoding="chunked"), OF_FIRST),
    of(FIRST + BROKEN + SECOND, OF_FIRST, (len(FIRST), "broken_record"), OF_SECOND),
    of(FIRST + ENDLESS, OF_FIRST, (len(FIRST), "broken_record")),
    of((FIRST + SECOND)[:-200], OF_FIRST, (len(FIRST), "truncated_record")),
    of(web_record(b"x" * 20_000) + SECOND, (0, "too_large"), OF_SECOND, max_document_mb=0.01),
    *(
        of(web_record(web_page(text, head).encode(encoding), kind), ("#http://a/1", web_text(text)))
        for text, encoding, kind, head in WEB_ENCODINGS
    ),
]

OF_WIKI: list[Outcome] = [
    ("#12", "Anarchism\n\nIt is a philosophy.\n"),
    ("#25", "Autism &amp; others.\n"),
]
EXTRACTED = [
    of(WIKI, *OF_WIKI),
    of(MARK + WIKI + MARK + WIKI, *OF_WIKI, *OF_WIKI),
    of(b'<doc id="1" url="u" title=""A" > <B>">\nOne.\n</doc>\n', ("#1", "One.\n")),
    of(
        b'<doc id="1">\nLost.\n' + WIKI + b'<doc id="3">\nCut of',
        *((0, "doc_not_closed"), *OF_WIKI, (19 + len(WIKI), "doc_not_closed")),
    ),
    of(
        b'<doc id="a">\nOne.\n</doc>\n\nstray\n\nlines\n<doc id="b">\nTwo.\n</doc>\n',
        *(("#a", "One.\n"), (26, "text_outside_doc"), ("#b", "Two.\n")),
    ),
    of(b'<doc id="1">\n\xff\n</doc>\n' + WIKI, (0, "not_utf8"), *OF_WIKI),
    of(b'<doc id="1">\n\xf6\n</doc>\n', ("#1", "ö\n"), encoding="latin-1"),
    *lost("not_decodable", b'<doc id="1">\n\xf6\n</doc>\n', encoding="utf-8"),
    of(
        b'</doc>\n<doc>\n  <doc id="4">\n' + MARK + b'<doc id="5">\n</doc>',
        *((0, "text_outside_doc"), ("#5", "")),
    ),
    *(
        of(WIKI + large + WIKI, *OF_WIKI, (len(WIKI), "too_large"), *OF_WIKI, **SMALL)
        for lines in (b"x y\n" * 999, b"x" * 5000 + b"\n")
        for large in [b'<doc id="9">\n' + lines + b"</doc>\n"]
    ),
]

AT, SIZE = len(DUMP_HEADER) + 2, len(article(1))
PAGE_1, PAGE_2, PAGE_3, PAGE_4 = ((f"#{n}", f"Title {n}\n\nSome text.") for n in range(1, 5))
BROKEN_PAGES = [
    article(2).replace("</revision>", ""),
    article(2).replace("</page>\n", ""),
    article(2, "a & b"),
    article(2, "<b>").replace("</text>", "</b>"),
]
DELETED = article(2).replace(">Some ''text''.</text>", ' deleted="deleted" />')
OTHER_PAGES = [
    article(1, ns="1"),
    article(2, redirect='    <redirect title="X" />\n'),
    article(3, "{}", model="wikibase-item", format="application/json"),
]
NEWER = "    <revision><text>Newer.</text></revision>\n  </page>"
MINIMAL = "<page><title>T</title><id>5</id><revision><text>A.</text></revision></page>"
DUMPS = [
    of(
        dump(article(7, "'''A''' &lt;i&gt;b&lt;/i&gt; &amp;amp; c.\n\n[[D|d]]")),
        ("#7", "Title 7\n\nA b & c.\nd"),
    ),
    of(dump(article(1, "{{x}}"), DELETED), ("#1", ""), ("#2", "")),
    of(dump(article(1, "A. [[Bildchen:b|thumb|c]] [[Fach &amp; Art:d]]")), ("#1", "Title 1\n\nA.")),
    of(
        dump(article(1).replace("  <page>", "a <page>"), article(2), article(3)),
        PAGE_1,
        PAGE_2,
        PAGE_3,
    ),
    of(
        dump(article(1)) + dump(article(2, "[[Bildchen:b|c]]")).replace(b"Bildchen</", b"Image</"),
        *(PAGE_1, ("#2", "")),
    ),
    of(
        dump(*OTHER_PAGES, article(4)),
        *((AT, "other_namespace"), (AT + SIZE, "redirect"), (AT + 2 * SIZE + 27, "not_wikitext")),
        PAGE_4,
    ),
    of(dump(article(1, ns="9" * 5000), article(2)), (AT, "other_namespace"), PAGE_2),
    of(
        dump(article(1, ns="1"), article(2, ns="14"), article(3)),
        *(PAGE_1, PAGE_2, (AT + 2 * SIZE + 1, "other_namespace")),
        wiki_namespaces=[1, 14],
    ),
    of(dump(article(1, "Older.").replace("  </page>", NEWER)), ("#1", "Title 1\n\nNewer.")),
    of(dump(MINIMAL), ("#5", "T\n\nA.")),
    *(
        of(dump(article(1), broken, article(3)), PAGE_1, (AT + SIZE, "broken_xml"), PAGE_3)
        for broken in BROKEN_PAGES
    ),
    of(
        dump(article(1), article(2, "caf\xe9")).decode().encode("latin-1"),
        *(PAGE_1, (AT + SIZE, "broken_xml")),
    ),
    *(
        of(
            (DUMP_HEADER + article(1) + article(2)[:length]).encode(),
            *(PAGE_1, (AT + SIZE - 3 * (length < 8), "broken_xml")),
        )
        for length in (3, 30, 200, SIZE - 10)
    ),
    *(of((article(1) + rest).encode(), PAGE_1) for rest in ("", "\n", DUMP_END)),
    *(of(f"{before}{DUMP_HEADER}".encode()) for before in ("", "<?xml version='1.0'?>\n")),
    of(dump()),
    *lost("broken_xml", b"Hello."),
    of(b""),
]

CSV = [
    of(b'id,text\na,"1, ""2""\n3."\n,Four.\n', ("#a", '1, "2"\n3.'), ("#row-1", "Four.")),
    of("text;n\nGröße;1\n".encode(), ("#row-0", "Größe")),
    of(b"text\tid\nOne.\t7\n\nTwo.\n", ("#7", "One."), ("#row-1", "Two.")),
    *(of(MARK + b"text\nOne.\n", ("#row-0", "One."), encoding=name) for name in ("auto", "utf-8")),
    of(b'n,text\n1,"a" b\n', ("#row-0", "a b")),
    of(
        b'n,text\n1,"a\n2,b\n\n3,"c"\n4,d\n',
        *((row, "not_csv") for row in range(3)),
        ("#row-3", "d"),
    ),
    of(b'n,text\n1,a\n2,"b\n3,c\n', ("#row-0", "a"), (1, "not_csv"), (2, "not_csv")),
    of(
        b'id,text\n7,"Hello," she said, and left.\n8,So, we stayed.\n9,c,\n',
        *((0, "too_many_columns"), (1, "too_many_columns"), ("#9", "c")),
    ),
    of(b"n\ttext\n1\ta\tb\n2\tc\n", (0, "too_many_columns"), ("#row-1", "c")),
    of(b"id,text,id\n7,a,8\n", ("#row-0", "a")),
    of(b'n\ttext\n1\t"a\n2\t"b" c\n3\td\n', *rows(['"a', '"b" c', "d"])),
    of(b'n\ttext\n1\ta\n2\t"b\n', *rows(["a", '"b'])),
    of(b'n\ttext\n1\t"a\n""b"""\n2\tc\n', *rows(['a\n"b"', "c"])),
    of(
        b"text\tn\n" + 30_000 * b'"a ""\nlong"" text, and"\t1\n',
        *rows(30_000 * ['a "\nlong" text, and']),
    ),
    of(f"text;n\n{GERMAN};1\n".encode("cp1252"), ("#row-0", GERMAN)),
    of(f"text\n{RUSSIAN}\n".encode("koi8-r"), ("#row-0", RUSSIAN)),
    of(f"text\n{JAPANESE}\n".encode("iso-2022-jp"), ("#row-0", JAPANESE)),
    of("text\nGröße\n".encode() + b"Gr\xf6\n", ("#row-0", "Größe"), (1, "not_utf8")),
    of(b"text,n\rOne.,1\rTwo.,2\r", ("#row-0", "One."), ("#row-1", "Two.")),
    of("text\nGr\xf6\n".encode("latin-1"), ("#row-0", "Grö"), encoding="latin-1"),
    *lost("no_text_field", b"a,b\n1,2\n", b"n,text\n1\n", b"text,text\n1,2\n"),
    of(b"a,b\n1,2\n", ("#2", "1"), text_field="a", id_field="b"),
    *lost("too_large", b"text\n" + b"x" * 2000, **SMALL),
]

OF_BLOCKS = """A <b>b</b>
c<br>d.</p><ul><li><div>One</div><div>two</div></li><li>Three<p>four</p></li></ul>
<h2>Five<a class="headerlink" href="#x">¶</a></h2><pre>six
<i>seven</i>
eight</pre><p>Nine."""
BLOCKS_OF_PAGE = (
    "A b c\nd.\n\n- One\n\ntwo\n\n- Three\n\nfour\n\nFive\n\nsix\nseven\neight\n\nNine."
)
DOCBOOK = (
    "<html><body><div class='book'><div class='titlepage'><div><h2>One</h2></div></div>"
    f"<p>{PARAGRAPH * 5}</p></div></body></html>"
)
LONG_TEXT = (PARAGRAPH * 5).strip()
WORDS_BESIDE_BLOCKS = (
    f"<h1>One</h1>{LONG_TEXT}<h2>Two</h2><div>Three.</div><b>Four</b>.<div>Five.</div>"
)
WITHOUT_ARTICLE = [
    f"<html><head><title>T</title></head><body>{start}{WORDS_BESIDE_BLOCKS}<p>Six.{end}</body></html>"
    for start, end in (("", ""), ("<div class='x'>", "</div>"), ("<table><tr><td>", "</table>"))
]
OF_PAGE_WITHOUT_ARTICLE = f"One\n\n{LONG_TEXT}\n\nTwo\n\nThree.\n\nFour.\n\nFive.\n\nSix."
SHORT_PAGE = (
    "<html><head><title>T</title></head><body><div class='x'>"
    "<p>One of the ferries.</p><p>Two of the ferries.</p></div></body></html>"
)
PAGES = [
    *(of(page.encode(), ("", OF_PAGE_WITHOUT_ARTICLE)) for page in WITHOUT_ARTICLE),
    of(SHORT_PAGE.encode(), ("", "One of the ferries.\n\nTwo of the ferries.")),
    of(DOCBOOK.encode(), ("", f"One\n\n{(PARAGRAPH * 5).strip()}")),
    of(
        DOCBOOK.replace(PARAGRAPH * 5, f"{PARAGRAPH}</p><div class='toc'>x</div><p>Two.").encode(),
        ("", f"One\n\n{PARAGRAPH.strip()}\n\nTwo."),
    ),
    of(web_page("<a class='copiable-link'>¶</a>Größe").encode(), ("", web_text("Größe"))),
    of(web_page("Größe").encode(), ("", web_text("Größe"))),
    of(web_page("一行\n 目，\n二\nA\nB").encode(), ("", web_text("一行目，二 A B"))),
    of(
        web_page("<ruby>漢<rp>(</rp><rt>かん<rp>)</ruby>字<template>x</template>").encode(),
        ("", web_text("漢字")),
    ),
    of(web_page(OF_BLOCKS).encode(), ("", web_text(BLOCKS_OF_PAGE))),
    of(f"<div><div>{PARAGRAPH * 9}</div></div>".encode(), ("", (PARAGRAPH * 9).strip())),
    of(
        b"<div>Dear all,<div><br></div><div>come soon.</div></div>", ("", "Dear all,\n\ncome soon.")
    ),
    of(
        web_page(f"</p>{'<div>' * 300}<p>Deep.</p>{'</div>' * 300}<p>So").encode(),
        ("", web_text("Deep.\n\nSo")),
    ),
    of(web_page("Größe").encode("utf-16-le"), ("", web_text("Größe"))),
    *lost("not_extractable", web_page("<div>" * 600).encode()),
    of(b"", ("", "")),
]

HEAD = "Running head {}\n"
PARTS = ["One is a hyph-\nenated word.", "Two is well-\nKnown.", "Three is pre-\nand post-war."]
PAGE_OF_TEX = b"""%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/Contents 5 0 R/Resources<</Font<</F 4 0 R>>>>>> endobj
4 0 obj <</Type/Font/Subtype/Type1/BaseFont/X/FirstChar 32/LastChar 32/Widths[1000]>> endobj
5 0 obj <</Length 45>> stream
BT /F 9 Tf [(T)80(wo)-160(words.)] TJ ET     \nendstream endobj
trailer <</Root 1 0 R>>
startxref
0
%%EOF"""
"""A page without blanks, in a font that seems to have a wide one."""
LETTERS = b"".join(
    b"BT /F 9 Tf 1 0 0 -1 0 0 Tm %d -80 Td (%c) Tj ET " % (18 * place, letter)
    for place, letter in enumerate(b"One word.")
    if letter != ord(" ")
)
PAGE_OF_LETTERS = re.sub(
    rb"(?s)45>> stream.*?endstream",
    b"%d>> stream\n%s\nendstream" % (len(LETTERS), LETTERS),
    PAGE_OF_TEX,
)
"""A page whose letters are placed singly, by a matrix and a move each."""
WITHOUT_UNICODE = PAGE_OF_TEX.replace(b"/Type1/", b"/Type0/Encoding/Identity-H/")
CHAPTERS = [
    f"Chapter {n // 3}, {'ab'[n % 2]}\nOne {'. ' * 9}{n}\n{text}\n{'left' if n % 2 else 'right'}"
    for n, text in enumerate(["One.", "Two.", "Three.", "Four.", "Five.", "Six."])
]
PDF = [
    of(PAGE_OF_TEX, ("", "Two words.")),
    of(PAGE_OF_LETTERS, ("", "One word.")),
    *lost("no_text_layer", WITHOUT_UNICODE),
    of(pdf(*CHAPTERS), ("", "One.\nTwo.\nThree.\nFour.\nFive.\nSix.")),
    of(
        pdf(*(f"{HEAD.format(n)}{part}\n{n}" for n, part in enumerate(PARTS))),
        ("", "One is a hyphenated word.\nTwo is well-Known.\nThree is pre- and post-war."),
    ),
    *lost("no_text_layer", pdf("")),
    *lost("not_extractable", pdf("One.")[:900]),
]

QUOTING = "Größe.\n\n> Quoted.\nTwo.\n-- \nA. Writer\n"
OUTLOOK = """See below.

-----Original Message-----
From: Ann Smith [mailto:ann@example.org]
Sent: Monday, January 05, 2015 3:04 PM
To: Tom

Is it right?
"""
PGP = "-----{} PGP SIGNED MESSAGE-----\n"
PGP_END = "-----BEGIN PGP SIGNATURE-----\nx\n-----END PGP SIGNATURE-----\n"
FORWARDED = "See below.\n\n\nIs it right?\n"
QUOTED_MAIL = [
    *(
        (f"One.\n\n{whose}\n> Two?\n>\n> Three.\n\nFour.\n", "One.\n\n\nFour.\n")
        for whose in (
            "On Mon, 5 Jan 2015 at 15:04, Ann wrote:\n",
            "On Mon, 5 Jan 2015 at 15:04, Ann Smith\n<ann@example.org> wrote:",
            "Am 05.01.2015 um 15:04 schrieb Ann:",
            "Le 5 janv. 2015 à 15:04, Ann a écrit :",
            "5 января 2015 г., 15:04 Анна <a@example.org> написал:",
            "在 2015年1月5日，15:04，安娜 <a@example.org> 写道：",
        )
    ),
    ("One:\n\nAS> Two.\n > Three.\nFour.\n", "One:\n\nFour.\n"),
    ("One.\n\n>From here on.\n", "One.\n\nFrom here on.\n"),
    (OUTLOOK, "See below.\n\n"),
    (OUTLOOK.replace("Original Message", "Ursprüngliche Nachricht"), "See below.\n\n"),
    (OUTLOOK.replace("Original", "Forwarded"), FORWARDED),
    ("Settings:\n\nName: x\nSize: y\nKind: z\n\nOne.\n",) * 2,
    ("One.\n--\nA. Writer\n", "One.\n"),
    ("One.\n--\nA. Writer\nhttp://example.org\n\n", "One.\n"),
    *((f"One.\n\n--\n{two}\n",) * 2 for two in ("Two.", "Two\n\nThree.", PARAGRAPH[:60])),
    (f"One.\n{'_' * 40}\nThe list\nhttp://example.org\n", "One.\n"),
    ("One.\n\nSent from my phone\n", "One.\n\n"),
    (f"{PGP.format('BEGIN')}Hash: SHA1\n\nOne.\n{PGP_END}", "\nOne.\n"),
]
"""What messages say, and what of it their writers do."""
POST = b"From a@example.com Mon Jan  1 00:00:00 2024\n"
FROM_PARIS = "From Paris he went to Rome in 1925"
POSTS = b"".join(POST + mail(f"{n}.\n", number=n) + b"\n\n" for n in (1, 2))
SLOW_PARTS = b"Message-ID: <x>\n" + parts_in_parts(300) + b"x\n" * 20_000
"""Half a minute for each megabyte, if Python's parser reads them."""
LONG_FIELDS = [
    field + b"=?utf-8?q?a?= " * 2_000 + b"\n\nx\n"
    for field in (b"Content-Type: text/plain; a=", b"Subject: ")
]
IN_PARTS = EmailMessage()
IN_PARTS["Message-ID"] = "<1@example.com>"
IN_PARTS.set_content("One.\n-- \nA. Writer\n")
IN_PARTS.add_alternative("<p>Not this.</p>", subtype="html")
IN_PARTS.add_attachment(b"\x89", maintype="image", subtype="png", disposition="inline")
IN_PARTS.add_attachment("Two.\n", disposition="inline")
IN_PARTS.add_attachment("<p>Three.</p>", subtype="html", disposition="inline")
IN_PARTS.add_attachment("Not this.\n", disposition="inline", filename="a.txt")
IN_PARTS.add_attachment(f"{'_' * 40}\nThe list\nhttp://example.org\n", disposition="inline")
MAIL = [
    of(IN_PARTS.as_bytes(), ("#1@example.com", "One.\n\n\nTwo.\n\n\nThree.")),
    of(mail(QUOTING), ("#1@example.com", "Größe.\n\nTwo.\n")),
    *(of(mail(text), ("#1@example.com", own)) for text, own in QUOTED_MAIL),
    of(mail(OUTLOOK).replace(b"From:", b"Subject: FW: x\nFrom:", 1), ("#1@example.com", FORWARDED)),
    *(
        of(mail(text, charset=charset), ("#1@example.com", text))
        for text, charset in [
            *((f"{GERMAN}\n", "cp1252"), (f"{GERMAN}\n", "utf-7")),
            *((f"{JAPANESE}\n", "iso-2022-jp"), (f"{CHINESE}\n", "hz")),
        ]
    ),
    of(mail(web_page("x"), subtype="html"), ("#1@example.com", web_text("x"))),
    of(POSTS, ("#1@example.com", "1.\n"), ("#2@example.com", "2.\n")),
    of(
        POST + mail("\nFrom Paris he went to Rome in 1925\n"),
        ("#1@example.com", f"\n{FROM_PARIS}\n"),
    ),
    *lost(
        "not_extractable",
        b"Subject: x\nContent-Type: image/png\n\nx",
        SLOW_PARTS,
        *LONG_FIELDS,
    ),
]

TEI = """<TEI xmlns="http://www.tei-c.org/ns/1.0" xml:id="b1">
<teiHeader>Not this.</teiHeader><text><body><head>One</head><p>Gr&#246;&#xDF;e <hi>and</hi>
  more<note>not this</note> &amp; more.</p><lg><l>First,</l><l>second.</l></lg></body></text>
</TEI>"""
REUTERS = b"""<!DOCTYPE lewis SYSTEM "lewis.dtd">
<REUTERS NEWID="1"><UNKNOWN>&#5;&#5;</UNKNOWN><TEXT>&#2;<TITLE>T</TITLE><BODY>AT&T rose, &lt;T>,
on Monday.
    Next.
&#3;</BODY></TEXT></REUTERS>
<REUTERS NEWID="2"><TEXT><BODY>Caf&eacute;.</BODY></TEXT></REUTERS>
"""
TREC = b"<DOC>\n<DOCNO> A-1 </DOCNO>\n<TEXT>\nOne.\n</TEXT>\n</DOC>\n<DOC><TEXT>Two.</TEXT></DOC>\n"
BODY = "One\n\nGröße and more & more.\n\nFirst,\n\nsecond."
BOMB = b"""<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;"><!ENTITY d SYSTEM "file:///etc/passwd">]>
<TEI><body><p>&c;&d;.</p></body></TEI>"""
SGML_BOOK = b"""<!DOCTYPE BOOK PUBLIC "-//OASIS//DTD DocBook V4.1//EN" [
<!ENTITY prog "the <application>Foo</application> program"><!ENTITY two SYSTEM "two.sgml">]>
<CHAPTER ID=one><TITLE>Caf&eacute;s &amp; more
<PARA>One &prog;, <EMPHASIS>or</> <literal/so/<xref linkend=x>.
&two;
<PARA>Two:<ITEMIZEDLIST><LISTITEM><PARA>A<LISTITEM><PARA>b<PARA>c</ITEMIZEDLIST>
<SECT1><TITLE>Three</TITLE><PARA><![CDATA[a < b]]><![IGNORE[no]]>.<SECT2><TITLE>Four</TITLE><PARA>E.
<SECT1><TITLE>Five<PARA>F."""
OF_SGML_BOOK = """Cafés & more\n\nOne the Foo program, or so.\n\nTwo:\n\nA\n\nb\n\nc\n\nThree\n
a < b.\n\nFour\n\nE.\n\nFive\n\nF.\n"""
MARKUP = [
    of(TEI.encode(), ("#b1", BODY)),
    of(f'<?xml version="1.0" encoding="utf-16"?>{TEI}'.encode("utf-16"), ("#b1", BODY)),
    of(REUTERS, ("#1", "AT&T rose, <T>,\non Monday.\n\n    Next.\n"), ("#2", "Café.")),
    of(TREC, ("#A-1", "\nOne.\n"), ("#doc-1", "Two.")),
    of(
        b"<TEI><body><p>In <choice><sic>1</sic><corr>2</corr></choice> <ruby><rb>a</rb><rt>b</rt>"
        b"</ruby> <orig>was</orig>.</p></body></TEI>",
        ("#doc-0", "In 2 a was."),
    ),
    of(
        b"<TEI><body><p>One<lb/>line, cut-<lb break='no'/>\n lines.</p></body></TEI>",
        ("#doc-0", "One line, cutlines."),
    ),
    of(BOMB, ("#doc-0", "&c;&d;.")),
    of(TREC, ("#A-1", "\nOne.\n"), ("#doc-1", "Two."), xml_element="t"),
    of(b"<c><t>1.</t><t id='x'>2.</t></c>", ("#doc-0", "1."), ("#x", "2."), xml_element="t"),
    of(SGML_BOOK, ("#doc-0", OF_SGML_BOOK)),
    of(SGML_BOOK.partition(b"]>")[2], ("#doc-0", OF_SGML_BOOK.replace("the Foo program", "prog"))),
    *lost("unknown_markup", b"<catalog><item>x</item></catalog>"),
    of(b"<DOC><p:TEXT:x>y</p:TEXT:x><TEXT>One.</TEXT></DOC>", ("#doc-0", "One.")),
]

CODE = PROSE.replace("The end", "x = 1\n\nThe end")
SPACED = PROSE.replace("Größe des Meeres", " Größe  des  Meeres ").replace("code", " code ")
ODD = {
    "fb2": CODE.replace("An item", "•\xa0An item"),
    "odt": CODE,
    "pptx": SPACED.replace("The end", "x = 1\n\nThe end"),
    "rtf": PROSE.replace("An item", "• An item"),
}
"""What formats give that do not say what is a list, a block of code, or a word."""
BY_PANDOC: dict[str, list[Example]] = {
    name: [of(by_pandoc(name), ("", ODD.get(name, PROSE)))] for name in PANDOC_FORMATS
}
BY_PANDOC["docx"] += lost("not_extractable", by_pandoc("docx")[:300])
BOX = b"""<w:p xmlns:v="urn:schemas-microsoft-com:vml"
xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><w:r><w:t>Beside.</w:t></w:r>
<mc:AlternateContent><mc:Choice Requires="wps"><w:drawing>{0}</w:drawing></mc:Choice>
<mc:Fallback><w:pict>{0}</w:pict></mc:Fallback></mc:AlternateContent></w:p>
<w:p><w:fldSimple w:instr="REF x"><w:r><w:t>See 2.</w:t></w:r></w:fldSimple>
<w:r><w:rPr><w:vanish/></w:rPr><w:t>Not this.</w:t></w:r></w:p>"""
IN_BOX = (
    b"<v:shape><v:textbox><w:txbxContent><w:p><w:r><w:t>One.</w:t></w:r></w:p>"
    b"<w:p><w:r><w:t>Two.</w:t></w:r></w:p></w:txbxContent></v:textbox></v:shape>"
)
with zipfile.ZipFile(io.BytesIO(by_pandoc("docx", "First."))) as word:
    WITH_BOX = {
        name: word.read(name).replace(b"</w:body>", BOX.replace(b"{0}", IN_BOX) + b"</w:body>")
        for name in word.namelist()
    }
BY_PANDOC["docx"] += [of(archive(WITH_BOX), ("", "First.\n\nBeside.\n\nOne.\n\nTwo.\n\nSee 2.\n"))]
MARKED = """<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>。[12]{.pagebreak}So<sup>[1](#n)</sup>
it is[^2^](#n)."""
BY_PANDOC["epub"] += [of(by_pandoc("epub", MARKED), ("", "漢。So it is.\n"))]
with zipfile.ZipFile(io.BytesIO(by_pandoc("pptx"))) as deck:
    SLIDES = {name: deck.read(name) for name in deck.namelist()}
CHART = b"""<p:graphicFrame><a:graphic><a:graphicData
uri="http://schemas.openxmlformats.org/drawingml/2006/chart"/></a:graphic></p:graphicFrame>"""
WITH_CHARTS = {
    name: content.replace(b"</p:spTree>", CHART + b"</p:spTree>")
    for name, content in SLIDES.items()
}
BY_PANDOC["pptx"] += [of(archive(WITH_CHARTS), ("", ODD["pptx"]))]
GROUP = b"""<p:grpSp><p:nvGrpSpPr><p:cNvPr id="8" name="g"/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr>
<p:grpSpPr/><p:sp><p:nvSpPr><p:cNvPr id="9" name="t"/><p:cNvSpPr txBox="1"/><p:nvPr/></p:nvSpPr>
<p:spPr/><p:txBody><a:bodyPr/><a:p><a:r><a:t>In a group.</a:t></a:r></a:p></p:txBody></p:sp>
</p:grpSp>"""
with zipfile.ZipFile(io.BytesIO(by_pandoc("pptx", "# One"))) as deck:
    WITH_GROUP = {
        name: deck.read(name).replace(b"</p:spTree>", GROUP + b"</p:spTree>")
        for name in deck.namelist()
    }
BY_PANDOC["pptx"] += [of(archive(WITH_GROUP), ("", "One\n\nIn a group.\n"))]
RTF_IN_BYTES = rb"\'cf\'f0\'e8\'e2\'e5\'f2"
BY_PANDOC["rtf"] += [
    of(rb"{\rtf1 \u8220\'93Gr\u246\'f6\u223?e \\u1.\u8221\"}", ("", "“Größe \\u1.”\n")),
    of(rb"{\rtf1\ansicpg1251 " + RTF_IN_BYTES + rb" \'7b}", ("", "Привет {\n")),
    of(
        rb"{\rtf1\ansicpg1252{\fonttbl{\f0 A;}{\f1\fcharset204 B;}}\deff0\'e9 {\f1\u171\'ab"
        + RTF_IN_BYTES
        + rb"} \'e9 \f1\'cf\plain\'e9}",
        ("", "é «Привет é Пé\n"),
    ),
    of(
        rb"{\rtf1{\fonttbl{\f9\fcharset128 C;}}\f9\uc2 \u26085\'93\'fa\'96\'7b\'83e}",
        ("", "日本テ\n"),
    ),
]
SPHINX = b"""See :ref:`the text <x>` of :class:`~a.B` in H\\ :sub:`2`\\ O.

>>> x
1

.. toctree::

   b
"""
BY_PANDOC["rst"] += [of(SPHINX, ("", "See the text of a.B in H2O.\n"))]
MANUAL = b"""<?xml version="1.0"?><!DOCTYPE book PUBLIC "-//X//DTD DocBook//EN" "x.dtd" [
<!ENTITY a "One"> <!ENTITY b SYSTEM "b.docbook">]>
<book lang="&language;"><para>&a;: press &Ctrl;<keycap>S</keycap> in &prog; &copy;.&b;</para>
&licence;
</book>"""
BY_PANDOC["docbook"] += [of(MANUAL, ("", "One: press CtrlS in prog ©.\n"))]
MANUAL_PAGE = b"""<refentry><refentryinfo><author><firstname>A.</firstname></author></refentryinfo>
<refmeta><refentrytitle>cut</refentrytitle><manvolnum>1</manvolnum></refmeta>
<refnamediv><refname>cut</refname><refpurpose>Cut text</refpurpose></refnamediv>
<refsynopsisdiv><cmdsynopsis><command>cut</command><arg>-a</arg></cmdsynopsis></refsynopsisdiv>
<refsect1><title>Use</title><para>It cuts.</para></refsect1></refentry>"""
BY_PANDOC["docbook"] += [of(MANUAL_PAGE, ("", "cut\n\nCut text\n\nUse\n\nIt cuts.\n"))]
BY_PANDOC["asciidoc"] += [of(b"// No.\nOne\n// tag::a[]\ntwo.\n//end\n", ("", "One two.\n"))]
ARTICLE = rb"\documentclass{article}\title{A}\begin{document}\begin{abstract}B.\end{abstract}C."
BY_PANDOC["markdown"] += [of(b"::: note\nOne.\n:::\n", ("", "One.\n"))]
WITH_HTML = b"""<details><summary>One</summary>

Two<br>*three*.

</details>

<!-- No. -->

<table><tr><td>No.</td></tr></table>

<p align="center">Four <b>five</b>.<img alt="No."></p>
"""
BY_PANDOC["markdown"] += [of(WITH_HTML, ("", "One\n\nTwo\nthree.\n\nFour five.\n"))]
PRINTED = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<p>No.</p>"}}
CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": "<p>One.</p>"},
    {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [PRINTED]},
]
NOTEBOOK = {"cells": CELLS, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
BY_PANDOC["ipynb"] += [of(json.dumps(NOTEBOOK).encode(), ("", "One.\n"))]
BY_PANDOC["rst"] += [
    of(b".. include:: a.txt\n\nOne `two`__ and three__.\n", ("", "One two and three.\n")),
    of(b"One.\n\n.. csv-table:: T\n   :file: a.csv\n\nTwo.\n", ("", "One.\n\nTwo.\n")),
]
BY_PANDOC["latex"] += [of(ARTICLE + rb"\end{document}", ("", "A\n\nB.\n\nC.\n"))]
BY_PANDOC["latex"] += [of("Größe in a text.".encode("latin-1"), ("", "Größe in a text.\n"))]

MACROS = rb"""\newcommand{\a}{One} \NewDocumentCommand{\b}{O{x} m}{#1 #2} \long\def\c#1{#1 four}
\begin{document}\a\ \b{two}, \c{three}, \term{\emph{five} words}\label{six}~\cite{six}.
\begin{remark}See Table~\ref{tab:x}.\end{remark}\end{document}"""
BY_PANDOC["latex"] += [
    of(MACROS, ("", "One\xa0x two, three four, five words\xa0.\n\nSee Table\xa0.\n"))
]
FIELDS_OF_ODT = (
    "<text:h>On <text:title>ships</text:title></text:h><text:p>On <text:date>1 May</text:date>, "
    "page <text:page-number>3</text:page-number>, see <text:sequence-ref>T. 4</text:sequence-ref> "
    "by <text:ruby><text:ruby-base>A</text:ruby-base><text:ruby-text>b</text:ruby-text></text:ruby>"
    "<office:annotation><text:p>Not this.</text:p></office:annotation><text:note>"
    "<text:note-citation>1</text:note-citation><text:note-body><text:p>Nor this.</text:p>"
    "</text:note-body></text:note><text:change text:change-id='c'/>.</text:p>"
)
DELETED_IN_ODT = (
    "<text:tracked-changes><text:changed-region text:id='c'><text:deletion><text:p>Nor that."
    "</text:p></text:deletion></text:changed-region></text:tracked-changes>"
)
BOX_IN_ODT = (
    "<drawing:frame><drawing:text-box><text:p>Box {}</text:p></drawing:text-box></drawing:frame>"
)
BY_PANDOC["odt"] += [
    of(
        odt(DELETED_IN_ODT + FIELDS_OF_ODT),
        ("", "On ships\n\nOn 1 May, page 3, see T. 4 by A.\n"),
    ),
    of(
        odt(f"<text:p>One {BOX_IN_ODT.format(1)}{BOX_IN_ODT.format(2)}.</text:p>"),
        ("", "One .\n\nBox 1\n\nBox 2\n"),
    ),
    *lost("not_extractable", odt("<text:p>"), by_pandoc("odt")[:300]),
]

MEMBERS = {
    "a.txt": GERMAN.encode("latin-1"),
    "b/c.jsonl.gz": gzip.compress(json_lines({"id": "a", "text": "One."}) + b"{"),
    "d.gz": gzip.compress(b"x" * 99)[:-20],
    "e": archive({"a.txt": b"x"}),
    "f.zip": archive({"a.txt": b"x"}),
    ".g.txt": b"x",
    "h.arrow": arrow({"text": ["One."]}),
}
OF_MEMBERS: list[Outcome] = [
    ("#a.txt", GERMAN),
    *(("#b/c.jsonl.gz#a", "One."), (1, "not_json"), (2, "truncated_archive"), (3, "not_text")),
    *((4, "nested_archive"), (5, "hidden_member"), ("#h.arrow#row-0", "One.")),
]
ZIP, TAR = archive(MEMBERS), tar(MEMBERS)
DAMAGED = ZIP.replace(GERMAN.encode("latin-1"), b"x" * len(GERMAN))
ARCHIVES = [
    of(ZIP, *OF_MEMBERS),
    of(DAMAGED, (0, "corrupt_archive"), *OF_MEMBERS[1:]),
    *lost("corrupt_archive", ZIP[:-9], tar({"a": b"x"}, comment="x" * (1 << 21))),
    *lost("archive_bomb", archive({"a": bytes(10**6)}, packing=zipfile.ZIP_DEFLATED)),
    of(TAR, *OF_MEMBERS, (7, "special_member")),
    of(TAR[:900], ("#a.txt", GERMAN), (1, "corrupt_archive")),
]

NOT_TEXT = [
    *lost("not_text", ZIP),
    *lost("old_office", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    *lost("other_archive", b"7z\xbc\xaf\x27\x1c"),
]

EXAMPLES: dict[SourceFormat, list[Example]] = {
    "installed-python": PYTHON,
    "mediawiki-dump": DUMPS,
    "wiki-extracted": EXTRACTED,
    "jsonl": JSONL,
    "parquet": PARQUET,
    "arrow": ARROW,
    "warc": WEB,
    "gutenberg": GUTENBERG,
    "paragraphs": BLOCKS,
    "sentences": BLOCKS,
    "text": TEXT,
    "json": JSON,
    "csv": CSV,
    "html": PAGES,
    "pdf": PDF,
    "mail": MAIL,
    "xml": MARKUP,
    "binary": NOT_TEXT,
    "archive": ARCHIVES,
    **cast(dict[SourceFormat, list[Example]], BY_PANDOC),
}
QUICK = [name for name in EXAMPLES if name not in PANDOC_FORMATS or name in ("docx", "latex")]
"""The formats, of those of pandoc an archive and a text."""
NAMED = [(declared, example) for declared, examples in EXAMPLES.items() for example in examples]
