"""One table of files for each reader: what is in them, and the records that they give."""

import codecs
import gzip
import zipfile
from typing import Any, NamedTuple, cast
from unittest.mock import ANY

import brotli  # type: ignore[import-untyped]
import pyarrow as pa

from pipelines.config import SourceFormat
from pipelines.readers import PANDOC_FORMATS
from tests.generated_text import document
from tests.pipelines.readers import made_documents as made
from tests.pipelines.readers.reading import (
    DUMP_END,
    DUMP_HEADER,
    WIKI,
    Outcome,
    arrow,
    article,
    dump,
    json_lines,
    parquet,
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
    *((JAPANESE, "shift_jis"), (CHINESE, "gb18030")),
    *((RUSSIAN, marked) for marked in ("utf-8-sig", "utf-16", "utf-32")),
]
TEXT = [
    of("Größe.\n\nTwo.".encode(), ("", "Größe.\n\nTwo.")),
    of(b"", ("", "")),
    *(of(text.encode(encoding), ("", text)) for text, encoding in ENCODED),
    of(codecs.BOM_UTF16_BE + RUSSIAN.encode("utf-16-be"), ("", RUSSIAN)),
    of(codecs.BOM_UTF32_BE + RUSSIAN.encode("utf-32-be"), ("", RUSSIAN)),
    of(b"PK\x03\x04\x00\xff", (0, "not_decodable")),
    of(codecs.BOM_UTF16_LE + b"\x00", (0, "not_decodable")),
    *(
        of("Größe".encode(declared), ("", "Größe"), encoding=declared)
        for declared in ("utf-8", "cp1252", "utf-16", "gb18030")
    ),
    of(RUSSIAN.encode("koi8_r"), ("", RUSSIAN), encoding="koi8_r"),
    of(b"Gr\xf6", (0, "not_decodable"), encoding="utf-8"),
    of(b"x" * 1001, (0, "too_large"), max_document_mb=0.001),
    of(b"x" * 1000, ("", "x" * 1000), max_document_mb=0.001),
]

LINES = b"\n\nOne one.\nOne two.\r\n \t\r\nTwo one.\n\n\n\nThree one."
BLOCKS = [
    of(LINES, ("#@2", "One one.\nOne two.\r\n"), ("#@25", "Two one.\n"), ("#@37", "Three one.")),
    of(b"One.\n\nTwo \xff.\n\nThree.", ("#@0", "One.\n"), (6, "not_utf8"), ("#@14", "Three.")),
    of("Gr\xf6.\n".encode("latin-1"), ("#@0", "Grö.\n"), encoding="latin-1"),
    of("Gr\xf6.\n".encode("latin-1"), (0, "not_decodable"), encoding="utf-8"),
    of(MARK + b"Text.", ("#@0", "Text.")),
    of(b"", *()),
    *(
        of(
            b"One.\n\n" + large + b"\nTwo.",
            ("#@0", "One.\n"),
            (6, "too_large"),
            (f"#@{7 + len(large)}", "Two."),
            max_document_mb=0.001,
        )
        for large in (b"x y\n" * 999, b"x" * 5000 + b"\n")
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
    of(b"x" * 5000, (0, "too_large"), max_document_mb=0.001),
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
DOCSTRINGS = [
    *("The module.\n\nIndented.", "The class.", "The method.", "The inner one.", "The last one."),
]
METADATA = b"""Metadata-Version: 2.1
Name: x
Classifier: Operating System :: OS Independent

# The package

It is for gr\xc3\xb6\xc3\x9fe.
"""
PYTHON = [
    of(MODULE.encode(), ("", "\n\n".join(DOCSTRINGS))),
    of(b'"""Text."""\nraise SystemExit("run")\n', ("", "Text.")),
    of("# -*- coding: latin-1 -*-\n'''Größe.'''\n".encode("latin-1"), ("", "Größe.")),
    of(METADATA, ("", "# The package\n\nIt is for größe.\n")),
    of(b"x = 1", ("", "")),
    of(b"x" * 5000, (0, "too_large"), max_document_mb=0.001),
    *(
        of(source, (0, "not_python"))
        for source in (
            *(b'"""unclosed', b'print "two" """x"""', b'"""x"""\x00'),
            b'"""x"""' + b"(" * 9999,
        )
    ),
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
JSONL = [
    of(
        json_lines({"id": "a", "text": "One."}, {"id": 7, "text": "Two."}),
        *(("#a", "One."), ("#7", "Two.")),
    ),
    of(b"\n" + LINE + b"  \r\n" + LINE.rstrip(), ("#@1", "T."), ("#@20", "T.")),
    of(MARK + LINE, ("#@0", "T.")),
    of(
        json_lines({"content": "One.", "url": "u/1", "text": "no"}),
        ("#u/1", "One."),
        text_field="content",
        id_field="url",
    ),
    of(b'{"id": "\\ud800", "text": "a\\ud800 \\ud83d\\ude00"}\n', ("#?", "a? 😀")),
    of(
        json_lines(*({"id": key, "text": "T."} for key in ("a", "a", 0, "", None))),
        *(("#a", "T."), ("#a", "T."), ("#0", "T."), ("#@76", "T."), ("#@101", "T.")),
    ),
    *(
        of(
            LINE + line + b"\n" + LINE,
            *(("#@0", "T."), (len(LINE), why), (f"#@{len(LINE + line) + 1}", "T.")),
        )
        for line, why in BAD_LINES
    ),
    of('{"text": "Größe"}\n'.encode("latin-1"), ("#@0", "Größe"), encoding="latin-1"),
    of('{"text": "Größe"}\n'.encode("latin-1"), (0, "not_decodable"), encoding="utf-8"),
    of(
        LINE + b'{"text": "' + b"x" * 5000 + b'"}\n' + LINE,
        *(("#@0", "T."), (len(LINE), "too_large"), (f"#@{len(LINE) + 5013}", "T.")),
        max_document_mb=0.001,
    ),
]

TEXTS = [document(number, 5) for number in range(90)]
NUMBERED: list[Outcome] = [(f"#row-{n}", text) for n, text in enumerate(TEXTS)]
WORDS = ["Größe.", "Two.", "Two."]
KINDS = (pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()))
KEYED: list[Outcome] = [("#7", "Größe."), ("#row-1", "Two."), ("#9", "Two.")]
ARROW_KINDS = (pa.ipc.new_stream, pa.ipc.new_file)
PARQUET = [
    *(
        of(
            parquet(
                {"id": [f"d{n}" for n in range(90)], "text": TEXTS, "other": [{"a": 1}] * 90},
                compression=compression,
                row_group_size=40,
            ),
            *((f"#d{n}", text) for n, text in enumerate(TEXTS)),
        )
        for compression in ("none", "snappy", "zstd", "gzip")
    ),
    of(parquet({"text": TEXTS}, row_group_size=40), *NUMBERED),
    of(
        parquet({"text": WORDS, "id": [7, None, 9]}),
        *KEYED,
    ),
    *(
        of(
            parquet({"content": ["One."], "url": ["u/1"], "text": ["no"]}),
            (f"#{key}", "One."),
            text_field="content",
            id_field=field,
        )
        for field, key in (("url", "u/1"), ("content", "One."))
    ),
    *(
        of(
            parquet({"text": pa.array(WORDS).cast(kind)}),
            *((f"#row-{n}", text) for n, text in enumerate(WORDS)),
        )
        for kind in KINDS
    ),
    *(
        of(parquet(columns), (0, "no_text_field"))
        for columns in ({"body": ["T."]}, {"text": [5]}, {"text": [["T."]]})
    ),
    of(
        parquet({"text": pa.array([b"One.", None, b"\xff", b"x" * 2000, b"Two."])}),
        *(("#row-0", "One."), (1, "no_text_field"), (2, "not_utf8"), (3, "too_large")),
        ("#row-4", "Two."),
        max_document_mb=0.001,
    ),
    of(parquet({"text": pa.array([], pa.string())})),
    *(
        of(content, (0, "not_parquet"))
        for content in (b"", b"{}\n" * 100, gzip.compress(parquet({"text": ["T."]})))
    ),
    *(of(parquet({"text": TEXTS})[:length], (0, "not_parquet")) for length in (9, 900, -9)),
]

OUTSIDE = arrow({"text": ["x" * 0x0A0B]}).replace(b"\x0b\x0a\0\0", b"\x0b\x0a\0\x0f")
"""A table that says that its text ends outside of it."""
ARROW = [
    *(of(arrow({"text": TEXTS}, kind=kind), *NUMBERED) for kind in ARROW_KINDS),
    *(
        of(arrow({"id": [7, None, 9], "text": pa.array(WORDS).cast(kind)}), *KEYED)
        for kind in KINDS
    ),
    of(arrow({"body": ["T."]}), (0, "no_text_field")),
    of(
        arrow({"text": pa.array([b"One.", None, b"\xff", b"x" * 2000, b"Two."])}),
        *(("#row-0", "One."), (1, "no_text_field"), (2, "not_utf8"), (3, "too_large")),
        ("#row-4", "Two."),
        max_document_mb=0.001,
    ),
    of(arrow({"text": TEXTS})[:-900], *NUMBERED[:80], (80, "not_arrow")),
    *(of(content, (0, "not_arrow")) for content in (b"", b"{}\n" * 100, OUTSIDE)),
]

FIRST, SECOND = (web_record(f"http://a/{n}", web_page(f"Größe {n}.").encode()) for n in (1, 2))
OF_FIRST, OF_SECOND = (("#http://a/1", web_text("Größe 1.")), ("#http://a/2", web_text("Größe 2.")))
WEB_ENCODINGS = [
    ("utf-8", "text/html", ""),
    ("cp1252", "text/html; charset=ISO-8859-1", ""),
    ("cp1252", "text/html", '<meta charset="windows-1252">'),
    ("cp1251", "text/html;charset=windows-1251", ""),
    ("shift_jis", "text/html", '<meta http-equiv="x" content="text/html; charset=Shift_JIS">'),
    ("utf-16", "application/xhtml+xml", ""),
]
HTML = web_page("Größe 1.").encode()
BROKEN = b"WARC/1.0\r\nWARC-Type: response\r\nno length\r\n\r\na\r\nb\r\n"
LENGTH = f"Content-Length: {len(FIRST) - FIRST.index(b'HTTP/1.1') - 4}".encode()
SHORT = FIRST.replace(LENGTH, b"Content-Length: 300", 1)
WEB = [
    of(FIRST + SECOND, OF_FIRST, OF_SECOND),
    of(FIRST * 6, *([OF_FIRST] * 6)),
    of(SHORT + SECOND, ("#http://a/1", ANY), (433, "broken_record"), OF_SECOND),
    of(gzip.compress(FIRST + SECOND), (0, "broken_record")),
    of(
        web_record("http://a/1", b"x: y", "application/warc-fields", record="warcinfo")
        + web_record("http://a/1", "Größe.\n\nTwo.".encode(), "text/plain", record="conversion"),
        ("#http://a/1", "Größe.\n\nTwo."),
    ),
    of(
        web_record("http://a/1", b"GET / HTTP/1.0", record="request")
        + web_record("http://a/1", b"fetched: 1", "application/warc-fields", record="metadata")
        + web_record("http://a/1.png", b"\x89PNG", "image/png"),
        (342, "not_html"),
    ),
    of(web_record("dns:a", b"a 1 IN A 1.2.3.4", "text/dns", record="resource"), (0, "not_html")),
    of(web_record("http://a", HTML, status="404 Not Found"), (0, "http_error")),
    of(web_record("http://a/1", b"<html></html>"), ("#http://a/1", "")),
    of(web_record("http://a/1", b""), ("#http://a/1", "")),
    of(web_record("http://a/1", HTML, kind=""), OF_FIRST),
    of(web_record("http://a/1", b"x", kind=""), (0, "not_html")),
    of(web_record("http://a/1", gzip.compress(HTML), Content_Encoding="gzip"), OF_FIRST),
    *(
        of(web_record("http://a/1", content, Content_Encoding="br"), OF_FIRST)
        for content in (brotli.compress(HTML), HTML)
    ),
    of(
        web_record("http://a/1", brotli.compress(b"x" * 10**7), Content_Encoding="br"),
        (0, "too_large"),
        max_document_mb=1,
    ),
    of(
        web_record(
            "http://a/1",
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(HTML), HTML),
            Transfer_Encoding="chunked",
        ),
        OF_FIRST,
    ),
    of(FIRST + BROKEN + SECOND, OF_FIRST, (len(FIRST), "broken_record"), OF_SECOND),
    of(
        FIRST + b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: " + b"9" * 99 + b"\r\n\r\n",
        *(OF_FIRST, (len(FIRST), "broken_record")),
    ),
    of((FIRST + SECOND)[:-200], OF_FIRST, (len(FIRST), "truncated_record")),
    of(
        web_record("http://a/1", b"<html>" + b"x" * 20_000) + SECOND,
        *((0, "too_large"), OF_SECOND),
        max_document_mb=0.01,
    ),
    *(
        of(
            web_record("http://a/1", web_page(words, head).encode(encoding), kind),
            ("#http://a/1", web_text(words)),
        )
        for encoding, kind, head in WEB_ENCODINGS
        for words in [
            {"cp1251": "Опять весна.", "shift_jis": "吾輩は猫である。"}.get(encoding, "Größe.")
        ]
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
    of(b'<doc id="1">\n\xf6\n</doc>\n', (0, "not_decodable"), encoding="utf-8"),
    of(
        b'</doc>\n<doc>\n  <doc id="4">\n' + MARK + b'<doc id="5">\n</doc>',
        *((0, "text_outside_doc"), ("#5", "")),
    ),
    *(
        of(WIKI + large + WIKI, *OF_WIKI, (len(WIKI), "too_large"), *OF_WIKI, max_document_mb=0.001)
        for large in (
            b'<doc id="9">\n' + b"x y\n" * 999 + b"</doc>\n",
            b'<doc id="9">\n' + b"x" * 5000 + b"\n</doc>\n",
        )
    ),
]

AT = len(DUMP_HEADER) + 2
OF_PAGE = "Title {0}\n\nSome text."
BROKEN_PAGES = [
    article(2).replace("</revision>", ""),
    article(2).replace("</page>\n", ""),
    article(2, "a & b"),
    article(2, "<b>").replace("</text>", "</b>"),
]
SIZE = len(article(1))
DUMPS = [
    of(
        dump(article(7, "'''A''' &lt;i&gt;b&lt;/i&gt; &amp;amp; c.\n\n[[D|d]]")),
        ("#7", "Title 7\n\nA b & c.\nd"),
    ),
    of(
        dump(
            article(1, "{{x}}"),
            article(2).replace(">Some ''text''.</text>", ' deleted="deleted" />'),
        ),
        *(("#1", ""), ("#2", "")),
    ),
    of(
        dump(article(1, "A. [[Bildchen:b|thumb|c]] [[Fach &amp; Art:d]]")),
        ("#1", "Title 1\n\nA."),
    ),
    of(
        dump(
            article(1, ns="1"),
            article(2, redirect='    <redirect title="X" />\n'),
            article(3, "{}", model="wikibase-item", format="application/json"),
            article(4),
        ),
        *((AT, "other_namespace"), (AT + SIZE, "redirect"), (AT + 2 * SIZE + 27, "not_wikitext")),
        ("#4", OF_PAGE.format(4)),
    ),
    of(
        dump(article(1, ns="9" * 5000), article(2)),
        (AT, "other_namespace"),
        ("#2", OF_PAGE.format(2)),
    ),
    of(
        dump(article(1, ns="1"), article(2, ns="14"), article(3)),
        *(
            ("#1", OF_PAGE.format(1)),
            ("#2", OF_PAGE.format(2)),
            (AT + 2 * SIZE + 1, "other_namespace"),
        ),
        wiki_namespaces=[1, 14],
    ),
    of(
        dump(
            article(1, "Older.").replace(
                "  </page>", "    <revision><text>Newer.</text></revision>\n  </page>"
            )
        ),
        ("#1", "Title 1\n\nNewer."),
    ),
    of(
        dump("<page><title>T</title><id>5</id><revision><text>A.</text></revision></page>"),
        ("#5", "T\n\nA."),
    ),
    *(
        of(
            dump(article(1), broken, article(3)),
            *(("#1", OF_PAGE.format(1)), (AT + SIZE, "broken_xml"), ("#3", OF_PAGE.format(3))),
        )
        for broken in BROKEN_PAGES
    ),
    of(
        dump(article(1), article(2, "caf\xe9")).decode().encode("latin-1"),
        *(("#1", OF_PAGE.format(1)), (AT + SIZE, "broken_xml")),
    ),
    *(
        of(
            (DUMP_HEADER + article(1) + article(2)[:length]).encode(),
            *(("#1", OF_PAGE.format(1)), (AT + SIZE - 3 * (length < 8), "broken_xml")),
        )
        for length in (3, 30, 200, SIZE - 10)
    ),
    *(of((article(1) + rest).encode(), ("#1", OF_PAGE.format(1))) for rest in ("", "\n", DUMP_END)),
    *(
        of(header.encode())
        for header in (DUMP_HEADER, DUMP_HEADER + DUMP_END, "<?xml version='1.0'?>\n" + DUMP_HEADER)
    ),
    of(b"Hello.", (0, "broken_xml")),
    of(b""),
]

CSV = [
    of(
        b'id,text\na,"One, ""1""\ntwo."\n,Three.\n',
        ("#a", 'One, "1"\ntwo.'),
        ("#row-1", "Three."),
    ),
    of("text;n\nGröße;1\n".encode(), ("#row-0", "Größe")),
    of(b"text\tid\nOne.\t7\n\nTwo.\n", ("#7", "One."), ("#row-1", "Two.")),
    of(f"text;n\n{GERMAN};1\n".encode("cp1252"), ("#row-0", GERMAN)),
    of(f"text\n{RUSSIAN}\n".encode("koi8-r"), ("#row-0", RUSSIAN)),
    of("text\nGröße\n".encode() + b"Gr\xf6\n", ("#row-0", "Größe"), (1, "not_utf8")),
    of(b"text,n\rOne.,1\rTwo.,2\r", ("#row-0", "One."), ("#row-1", "Two.")),
    of("text\nGr\xf6\n".encode("latin-1"), ("#row-0", "Grö"), encoding="latin-1"),
    of(b"a,b\n1,2\n", (0, "no_text_field")),
    of(b"a,b\n1,2\n", ("#2", "1"), text_field="a", id_field="b"),
    of(b"n,text\n1\n", (0, "no_text_field")),
    of(b"text\n" + b"x" * 2000, (0, "too_large"), max_document_mb=0.001),
]

PAGES = [
    of(web_page("Größe").encode(), ("", web_text("Größe"))),
    of(b"", ("", "")),
]

HEAD = "Running head {}\n"
PARTS = ["One is a hyph-\nenated word.", "Two is well-\nKnown.", "Three."]
PDF = [
    of(
        made.pdf(*(f"{HEAD.format(n)}{part}\n{n}" for n, part in enumerate(PARTS))),
        ("", "One is a hyphenated word.\nTwo is well-Known.\nThree."),
    ),
    of(made.pdf(""), (0, "no_text_layer")),
    of(made.pdf("One.")[:900], (0, "not_extractable")),
]

QUOTING = "Größe.\n\n> Quoted.\nTwo.\n-- \nA. Writer\n"
POST = b"From a@example.com Mon Jan  1 00:00:00 2024\n"
MAIL = [
    of(made.mail(QUOTING), ("#1@example.com", "Größe.\n\nTwo.\n")),
    of(made.mail("Größe.\n", charset="cp1252"), ("#1@example.com", "Größe.\n")),
    of(made.mail(web_page("x"), subtype="html"), ("#1@example.com", web_text("x"))),
    of(
        b"".join(POST + made.mail(f"{n}.\n", number=n) + b"\n\n" for n in (1, 2)),
        ("#1@example.com", "1.\n"),
        ("#2@example.com", "2.\n"),
    ),
    of(b"Subject: x\nContent-Type: image/png\n\nx", (0, "not_extractable")),
    of(b"Message-ID: <x>\n" + made.parts_in_parts(1000), (0, "not_extractable")),
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
MARKUP = [
    of(TEI.encode(), ("#b1", BODY)),
    of(f'<?xml version="1.0" encoding="utf-16"?>{TEI}'.encode("utf-16"), ("#b1", BODY)),
    of(
        REUTERS,
        ("#1", "AT&T rose, <T>,\non Monday.\n\n    Next.\n"),
        ("#2", "Café."),
    ),
    of(TREC, ("#A-1", "\nOne.\n"), ("#doc-1", "Two.")),
    of(BOMB, ("#doc-0", "&c;&d;.")),
    of(
        b"<c><t>One.</t><t id='x'>Two.</t></c>", ("#doc-0", "One."), ("#x", "Two."), xml_element="t"
    ),
    of(b"<catalog><item>x</item></catalog>", (0, "unknown_markup")),
    of(b"<DOC><p:TEXT:x>y</p:TEXT:x><TEXT>One.</TEXT></DOC>", ("#doc-0", "One.")),
]

ODD = {
    "fb2": made.PROSE.replace("An item", "•\xa0An item").replace("The end", "x = 1\n\nThe end"),
    "odt": made.PROSE.replace("The end", "x = 1\n\nThe end"),
    "pptx": "A heading\n\nDie  Größe  des  Meeres  kostet $5 and $6 by  code .\n\nAn item\n\n"
    "Slide 2\n\nx = 1\n\nThe end.\n",
    "rtf": made.PROSE.replace("An item", "• An item"),
}
"""What formats give that do not say what is a list, a block of code, or a word."""
BY_PANDOC: dict[str, list[Example]] = {
    name: [of(made.by_pandoc(name), ("", ODD.get(name, made.PROSE)))] for name in PANDOC_FORMATS
}
BY_PANDOC["docx"] += [of(made.by_pandoc("docx")[:300], (0, "not_extractable"))]
BY_PANDOC["rtf"] += [
    of(rb"{\rtf1 \u8220\'93Gr\u246\'f6\u223?e \\u1.\u8221\"}", ("", "“Größe \\u1.”\n"))
]
BY_PANDOC["latex"] += [
    of(
        "Gr\xf6\xdfe in latin-1, encoded so.".encode("latin-1"),
        ("", "Größe in latin-1, encoded so.\n"),
    )
]

MEMBERS = {
    "a.txt": GERMAN.encode("latin-1"),
    "b/c.jsonl.gz": gzip.compress(json_lines({"id": "a", "text": "One."}) + b"{"),
    "d.gz": gzip.compress(b"x" * 99)[:-20],
    "e": made.archive({"a.txt": b"x"}),
    "f.zip": made.archive({"a.txt": b"x"}),
    ".g.txt": b"x",
    "h.arrow": arrow({"text": ["One."]}),
}
OF_MEMBERS: list[Outcome] = [
    ("#a.txt", GERMAN),
    *(("#b/c.jsonl.gz#a", "One."), (1, "not_json"), (2, "truncated_archive"), (3, "not_text")),
    *((4, "nested_archive"), (5, "hidden_member"), ("#h.arrow#row-0", "One.")),
]
ZIP, TAR = made.archive(MEMBERS), made.tar(MEMBERS)
AT_FIRST: Outcome = (0, "corrupt_archive")
ARCHIVES = [
    of(ZIP, *OF_MEMBERS),
    of(
        ZIP.replace(GERMAN.encode("latin-1"), b"x" * len(GERMAN)),
        (0, "corrupt_archive"),
        *OF_MEMBERS[1:],
    ),
    of(ZIP[:-9], (0, "corrupt_archive")),
    of(made.archive({"a": bytes(10**6)}, packing=zipfile.ZIP_DEFLATED), (0, "archive_bomb")),
    of(TAR, *OF_MEMBERS, (7, "special_member")),
    of(TAR[:900], ("#a.txt", GERMAN), (1, "corrupt_archive")),
    of(made.tar({"a": b"x"}, comment="x" * (1 << 21)), (0, "corrupt_archive")),
]

LEFT_OUT = [
    (ZIP, "not_text"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old_office"),
    (b"7z\xbc\xaf\x27\x1c", "other_archive"),
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
    "csv": CSV,
    "html": PAGES,
    "pdf": PDF,
    "mail": MAIL,
    "xml": MARKUP,
    "binary": [of(content, (0, reason)) for content, reason in LEFT_OUT],
    "archive": ARCHIVES,
    **cast(dict[SourceFormat, list[Example]], BY_PANDOC),
}
QUICK = [name for name in EXAMPLES if name not in PANDOC_FORMATS or name in ("docx", "latex")]
"""The formats, of those of pandoc an archive and a text."""
NAMED = [(declared, example) for declared, examples in EXAMPLES.items() for example in examples]
