"""Each reader gives the records of the table; formats are detected; broken content ends nothing."""

import codecs
import gzip
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.errors import ConfigError, OutageError
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import NOT_ASKED_FOR, READERS, Unreadable, can_split, format_of, wikipedia
from pipelines.readers.plain_text import book
from pipelines.readers.record import MAX_CONTENT_BYTES
from tests.pipelines.readers.examples import (
    BOOK_START,
    CHINESE,
    EXAMPLES,
    GERMAN,
    JAPANESE,
    METADATA,
    NAMED,
    QUICK,
    RUSSIAN,
    Example,
)
from tests.pipelines.readers.reading import (
    PACKERS,
    WIKI,
    Outcome,
    Read,
    article,
    by_pandoc,
    dump,
    outcomes,
    parquet,
    parts_in_parts,
    read,
    read_content,
    split,
    tar,
    texts,
    web_page,
    web_record,
)


def test_there_are_examples_of_every_format() -> None:
    assert EXAMPLES.keys() == READERS.keys()


@pytest.mark.parametrize(("declared", "example"), NAMED)
def test_a_file_gives_the_records_of_the_table(declared: SourceFormat, example: Example) -> None:
    records = read_content(example.content, declared, **example.settings)
    assert outcomes(records) == example.outcomes
    for record in records:
        if isinstance(record, Document):
            assert record.source == "memory://readers/f"
            assert record.lines_are_sentences == (declared == "sentences")
        elif declared not in ("json", "csv", "parquet", "arrow", "archive", "warc"):
            assert len(record.content) <= MAX_CONTENT_BYTES
            assert bool(record.content) == (record.reason not in NOT_ASKED_FOR)
            assert record.content[:50] in example.content[record.offset : record.offset + 99]


@pytest.mark.parametrize(
    ("declared", "content", "expected"),
    [
        ("mediawiki-dump", dump(article(7)).decode(), [("#7", "Title 7\n\nSome text.")]),
        ("jsonl", '{"id": "a", "text": "Größe"}\n', [("#a", "Größe")]),
        ("csv", "id,text\na,Größe\n", [("#a", "Größe")]),
        ("paragraphs", "Größe.\n\nTwo.\n", [("#@0", "Größe.\n"), ("#@10", "Two.\n")]),
    ],
)
def test_lines_in_utf16_are_read(
    declared: SourceFormat, content: str, expected: list[Outcome]
) -> None:
    assert outcomes(read_content(content.encode("utf-16"), declared)) == expected
    assert not can_split("memory://readers/f", declared)


def test_what_is_kept_of_a_bad_record_is_its_content() -> None:
    unclosed = b'<doc id="1">\nLost.\n' + WIKI
    uri = "memory://readers/f"
    expected = Unreadable(uri, 0, "doc_not_closed", b"Lost.\n")
    assert read_content(unclosed, "wiki-extracted")[0] == expected
    long = b"[" * 100_000
    expected = Unreadable(uri, 0, "not_json", long[:MAX_CONTENT_BYTES])
    assert read_content(long, "jsonl") == [expected]
    rows = parquet({"text": pa.array([None, b"\xff", b"x" * 2000])})
    _, bad = split(read_content(rows, "parquet", max_document_mb=0.001))
    assert [each.content for each in bad] == [b"", b"\xff", b"x" * 2000]


# What a file is, when nobody says so


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"", "jsonl"),
        ("a.JSON.gz", gzip.compress(b"", mtime=0), "jsonl"),
        ("a.json", b'\n{"text": "T."}\n', "jsonl"),
        ("a.json", b'{broken\n{"text": "T."}\n', "jsonl"),
        *((f"a{end}", b'{\n  "text": "T."\n}\n', "json") for end in ("", ".json", ".txt")),
        *((f"a{end}", codecs.BOM_UTF8 + b'[{"text": "T."}]', "json") for end in ("", ".json")),
        ("a.ndjson.XZ", b"", "jsonl"),
        ("a.py", b"", "installed-python"),
        ("a.parquet", b"", "parquet"),
        ("a.warc.gz", b"", "warc"),
        ("a.warc.wet.gz", b"", "warc"),
        ("a.arc", b"", "warc"),
        ("a.mhtml", b"", "mail"),
        ("METADATA", METADATA, "installed-python"),
        ("a.txt", b"T.", "text"),
        ("a.txt", b"\n\n" + WIKI, "wiki-extracted"),
        ("wiki_00.bz2", PACKERS[".bz2"](WIKI), "wiki-extracted"),
        ("wiki_00.zst", PACKERS[".zst"](WIKI), "wiki-extracted"),
        ("a.txt", b"<document>\nT.", "xml"),
        ("a.txt", b"<3 for all of you.", "text"),
        ("a.txt", b"<!DOCTYPE html>\n<p>T.", "html"),
        ("a", b'<?xml version="1.0"?><book xmlns="http://docbook.org/ns/docbook">', "docbook"),
        ("a", b'<article article-type="research-article" dtd-version="1.2">', "jats"),
        ("a", b"%PDF-1.7\n", "pdf"),
        ("a", b"\\documentclass{article}", "latex"),
        ("a", b"{\\rtf1\\ansi", "rtf"),
        ("a", b"Received: x\n by y\nMessage-ID: <1@x>\n", "mail"),
        ("a", b"From London to Paris in 1924\n", "text"),
        ("a", b"From a@example.com Mon Jan  1 00:00:00 2024\n", "mail"),
        ("a", b"\x89PNG\r\n", "binary"),
        ("a.svg", b"<svg>", "binary"),
        ("a", b"PK\x03\x04 other.txt", "binary"),
        ("a.zip", b"", "archive"),
        ("a.tar.gz", b"", "archive"),
        ("a.tgz", gzip.compress(tar({"a": b"x"}), mtime=0), "archive"),
        *(("a", by_pandoc(packed), packed) for packed in ("docx", "epub", "odt", "pptx")),
        *((f"a.{name}", b"T.", name) for name in ("csv", "rst", "org", "ipynb", "docx", "html")),
        ("a.md.gz", PACKERS[".gz"](b"T."), "markdown"),
        ("a", '<mediawiki xmlns="x">'.encode("utf-16"), "mediawiki-dump"),
        ("no_ending", b'{"text": "T."}\n', "jsonl"),
        ("no_ending", b'{"text": "T."}', "jsonl"),
        ("no_ending", b'{"text": "' + b"T. " * 9999, "jsonl"),
        ("no_ending", b'{"text":\n "T."}', "text"),
        ("no_ending", b"{not json}\n", "text"),
        ("no_ending", b"PAR1...", "parquet"),
        ("no_ending", b"WARC/1.0\r\n", "warc"),
        ("no_ending", b"filedesc://x.arc 0.0.0.0 2008", "warc"),
        ("x.xml.bz2", PACKERS[".bz2"](b"<mediawiki xmlns=..."), "mediawiki-dump"),
        ("x.xml", b'<?xml version="1.0"?>\n<mediawiki xml:lang="en">', "mediawiki-dump"),
        ("x.xml", b"<?xml version='1.0'?>\n<html>", "html"),
        ("x.xml", b"<!-- A comment. -->\n" * 300 + b"<html>", "html"),
        ("x.xml", b"<!-- A comment. -->\n" * 300 + b"<root>", "xml"),
        ("1.txt", b"The Project Gutenberg EBook of Emma, by Jane Austen", "gutenberg"),
        ("1.txt", b"\xef\xbb\xbfProject Gutenberg's Emma, by Jane Austen", "gutenberg"),
        ("1.txt", b"A\n\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***", "gutenberg"),
        ("1.txt", b"A\n***START**THE SMALL PRINT!**FOR PUBLIC", "gutenberg"),
        ("1.txt", b"We read of Project Gutenberg in the paper.", "text"),
        ("1.txt", b"A\n=\n\n.. contents::\n\nB", "rst"),
        ("1.txt", b"A\n\n.. and B::\n", "text"),
        *((f"a{ending}", b"T.", "markdown") for ending in (".mkd", ".mdx", ".qmd", ".md.txt")),
        ("a.rst.txt", b"T.", "rst"),
        ("cut.txt.gz", gzip.compress(WIKI, mtime=0)[:90], "wiki-extracted"),
        ("not.txt.gz", b"plain", "text"),
    ],
)
def test_the_format_is_told_by_name_and_beginning(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert format_of(str(tmp_path / name), SourceSettings()) == expected
    assert format_of(str(tmp_path / name), SourceSettings(format="sentences")) == "sentences"


@pytest.mark.parametrize(
    ("name", "format", "expected"),
    [
        *(("a", name, reader.boundary is not None) for name, reader in READERS.items()),
        *((f"a{ending}", "jsonl", False) for ending in PACKERS),
    ],
)
def test_files_of_lines_that_are_not_packed_can_be_split(
    tmp_path: Path, name: str, format: str, expected: bool
) -> None:
    (tmp_path / name).write_bytes(WIKI)
    assert can_split(str(tmp_path / name), format) is expected


def test_a_file_that_is_gone_or_a_folder_is_reported(tmp_path: Path) -> None:
    uri = str(tmp_path / "gone.txt")
    assert read(uri, "text") == [Unreadable(uri, 0, "not_readable", b"")]
    assert outcomes(read(tmp_path, "text")) == [(0, "not_readable")]
    with pytest.raises(OSError, match=r"gone\.txt"):
        format_of(uri, SourceSettings())


# Encodings


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "“It’s a nice day,” he said, and paid €5 for a café crème."),
        ("cp1252", "El dueño del niño está en la mañana con su señora. ¿Qué año es?"),
        ("cp1252", "På en ö i havet står en älg och äter små blåbär. Är du där?"),
        ("cp1252", "Não há razão para a informação não chegar às mãos dos cidadãos."),
        ("cp1252", "L'été dernier, où es-tu allé ? Ça va très bien, le garçon."),
        ("cp1252", "På øen bor der en mand, som æder blåbær og rødgrød med fløde."),
        ("cp1252", "Hän söi äidin tekemää hyvää ruokaa. Työ on päättynyt tänään."),
        ("latin-1", "Über die Größe der Straße könnte man streiten. Schöne Grüße."),
        ("mac_roman", "Über die Größe der Straße könnte man streiten. Schöne Grüße."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy. Dnes je krásný den."),
        ("iso8859-2", "Wczoraj było bardzo ładnie, a dziś jest źle. Zażółć gęślą jaźń."),
        ("cp1250", "Árvíztűrő tükörfúrógép. A gyerekek örülnek, hogy süt a nap."),
        ("cp1254", "İstanbul'da güneşli bir gün. Çocuklar okula gidiyor ve çok mutlular."),
        ("koi8-r", "Это простой русский текст, который нужно прочитать правильно."),
        ("cp1253", "Αυτό είναι ένα απλό ελληνικό κείμενο που πρέπει να διαβαστεί."),
        ("cp1256", "هذا نص عربي بسيط يجب قراءته بشكل صحيح."),
        ("shift_jis", "これは日本語の簡単なテキストです。正しく読む必要があります。"),
    ],
)
def test_text_of_one_sentence_is_read_in_the_encoding_that_it_was_written_in(
    encoding: str, text: str
) -> None:
    assert outcomes(read_content(text.encode(encoding), "text")) == [("", text)]
    table = f"text\n{text}\n".replace(",", ";").encode(encoding)
    assert outcomes(read_content(table, "csv")) == [("#row-0", text.replace(",", ";"))]


@pytest.mark.parametrize("text", [RUSSIAN, JAPANESE, CHINESE, GERMAN])
def test_a_file_in_utf8_with_a_few_broken_bytes_is_read_but_for_these(text: str) -> None:
    whole = f"{text}\n" * 9
    content = whole.encode()
    for damaged in (content + b"\xd0", b"\xbe" + content, content + "Café.".encode("cp1252")):
        [(_, found)] = outcomes(read_content(damaged, "text"))
        assert whole in found
        assert len(found) <= len(whole) + 5
    assert outcomes(read_content(content + b"Caf\xe9.", "text")) == [("", f"{whole}Café.")]


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        *((name, "can't be cut into lines") for name in ("utf-16", "utf-32-le", "cp037")),
        *((name, "is no text encoding") for name in ("klingon", "base64", "rot13")),
    ],
)
def test_an_encoding_of_no_text_or_no_lines_is_a_mistake_in_the_settings(
    encoding: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=f"source.encoding '{encoding}' {told}"):
        read_content(b"", "jsonl", encoding=encoding)


# No content ends a reader


@pytest.mark.parametrize("declared", QUICK)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_read_of_any_bytes_can_be_written(
    declared: SourceFormat, data: st.DataObject
) -> None:
    some = st.sampled_from([each.content[:2000] for each in EXAMPLES[declared]])
    parts = data.draw(st.lists(some | st.binary(max_size=20), max_size=3))
    for record in read_content(b"".join(parts), declared):
        assert record.text.encode() is not None if isinstance(record, Document) else record.reason


@pytest.mark.parametrize(
    "content",
    [
        "<div>" * 50_000 + "x",
        "<html>\x00\x01" + web_page("x"),
        "<!DOCTYPE" * 99,
        "<table><tr>" * 9999,
    ],
)
def test_after_any_web_page_the_next_is_read(content: str) -> None:
    archive = web_record(content.encode())
    archive += web_record(web_page("Two.").encode(), uri="http://a/2")
    *_, last = read_content(archive, "warc")
    assert "Two." in texts([last])[0]


def test_a_web_page_on_which_the_parser_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(*_: object, **__: object) -> str:
        raise RecursionError

    monkeypatch.setattr("trafilatura.extract", extract)
    archive = web_record(web_page("One.").encode())
    assert outcomes(read_content(archive, "warc")) == [(0, "not_extractable")]


NESTED = [
    *(("jsonl", b'{"text": "T.", "x": %b%b}\n' % (b"[" * n, b"]" * n)) for n in (900, 2000)),
    *(("mail", b"Message-ID: <x>\n" + parts_in_parts(n)) for n in (900, 2000)),
]


@pytest.mark.parametrize(("declared", "content"), NESTED)
def test_engines_that_call_from_other_depths_read_the_same(
    declared: SourceFormat, content: bytes
) -> None:
    def read_at(depth: int) -> Read:
        return read_at(depth - 1) if depth else read_content(content, declared)

    assert read_at(0) == read_at(200)


def test_what_pandoc_gives_does_not_depend_on_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pandoc" / "init.lua"
    settings.parent.mkdir()
    settings.write_text("error('of the user')")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert texts(read_content(b"Text.", "markdown")) == ["Text.\n"]


def test_a_document_is_not_dropped_because_pandoc_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandoc = tmp_path / "files" / "pandoc"
    pandoc.parent.mkdir()
    pandoc.write_text("#!/bin/sh\nkill -9 $$\n")
    pandoc.chmod(0o755)
    monkeypatch.setattr("pypandoc.__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(OutageError, match=r"killed by SIGKILL, .* memory.* 5 bytes of markdown"):
        read_content(b"Text.", "markdown")


@pytest.mark.parametrize("declared", ["jsonl", "wiki-extracted", "sentences"])
def test_of_a_large_record_little_is_held(declared: SourceFormat, tmp_path: Path) -> None:
    large = b'<doc id="1">\n' + b"x" * (50 << 20) + b'\n</doc>\n\n{"text": "T."}\n'
    (tmp_path / "f").write_bytes(large)
    tracemalloc.start()
    records = read(tmp_path / "f", declared, max_document_mb=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "too_large" in [reason for _, reason in outcomes(records)]
    assert peak < 12 << 20


# Project Gutenberg

BODY = "EMMA\n\nBy Jane Austen\n\n\nChapter 1\n\nEmma Woodhouse, handsome, clever, and rich."
HEADER = "The Project Gutenberg EBook of Emma, by Jane Austen\n\nFor the use of anyone.\n\n"
SMALL_PRINT = "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nYou know: lawyers.\n"
BEFORE = [
    "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***\n\n",
    "*** START OF THE PROJECT GUTENBERG EBOOK, EMMA ***\n\n",
    "***START OF THE PROJECT GUTENBERG EBOOK EMMA***\n\n",
    "*** START OF PROJECT GUTENBERG EBOOK EMMA ***\n",
    "*** START OF THE PROJECT GUTENBERG EBOOK EMMA\n",
    "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA, A LONG\nTITLE IN TWO LINES ***\n",
    "* START OF THE PROJECT GUTENBERG EBOOK EMMA *\n\n",
    SMALL_PRINT + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n",
    SMALL_PRINT + "*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.10/04/01*END*\n",
    BOOK_START + "Produced by A. Nonymous and the Online\nProofreading Team at pgdp.net\n\n\n",
    "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***\nE-text prepared by A.\n\n",
    BOOK_START + "This eBook was produced by A.\n\n[Transcribed from the 1900 edition by B.]\n\n",
]
SMALL_PRINT_LAST = (
    f"\n\n{SMALL_PRINT}*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11*END*\n"
)


@pytest.mark.parametrize(
    ("before", "after"), [*((before, "") for before in BEFORE), (BOOK_START, SMALL_PRINT_LAST)]
)
@pytest.mark.parametrize(
    "end",
    [
        "*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
        "*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***",
        "***END OF THE PROJECT GUTENBERG EBOOK, EMMA***",
        "End of the Project Gutenberg EBook of Emma\n\n*** END OF THIS PROJECT GUTENBERG EBOOK ***",
        "End of Project Gutenberg's Etext of Emma, by Jane Austen",
        "End of The Project Gutenberg Etext of Emma",
        "End of Project Gutenberg’s Emma, by Jane Austen",
    ],
)
def test_the_licence_is_left_out_in_its_many_spellings(before: str, after: str, end: str) -> None:
    text = f"{HEADER}{before}\n{BODY}\n\n\n{end}\n\nThe licence.{after}\n"
    assert book(text) == BODY
    assert book(text.replace("\n", "\r\n")) == BODY


@pytest.mark.parametrize("text", [BODY, HEADER + BODY])
def test_without_the_marks_all_is_kept(text: str) -> None:
    assert book(text) == text


@pytest.mark.timeout(60)  # with the square of the length it would take an hour
def test_a_line_of_blanks_takes_no_longer_than_other_lines() -> None:
    text = HEADER + "\t" * 400_000 + BODY
    assert book(text) == text


# Dumps of MediaWiki


def test_a_page_too_large_is_not_held_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wikipedia, "_BLOCK_BYTES", 512)
    huge = article(2, "word " * 500)
    content = dump(article(1), huge, article(3))
    records = read_content(content, "mediawiki-dump", max_document_mb=0.001)
    found = outcomes(records)
    assert [found[0][0], found[1][1], found[-1][0]] == ["#1", "too_large", "#3"]
    assert max(len(bad.content) for bad in split(records)[1]) < 3000
    found = outcomes(read_content(dump(huge), "mediawiki-dump", max_document_mb=0.001))
    assert [reason for _, reason in found] == ["too_large", "broken_xml"]
