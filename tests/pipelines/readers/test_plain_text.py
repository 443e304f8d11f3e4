"""Plain text: in any encoding, in blocks, and the books of Project Gutenberg."""

import codecs
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import ConfigError
from albert_core.text.records import Document
from pipelines.config import SourceFormat
from pipelines.readers import Unreadable
from pipelines.readers.plain_text import book
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    ids,
    needs,
    read,
    read_content,
    read_in_memory,
    reasons,
    split,
    texts,
)


@pytest.mark.parametrize("ending", ["", *PACKERS])
def test_a_text_file_is_one_document_by_its_name(tmp_path: Path, ending: str) -> None:
    content = "Größe.\n\nTwo.".encode()
    packed = PACKERS[ending](content) if ending else content
    records = read_content(tmp_path, f"a.txt{ending}", packed)
    assert ids(records) == [f"a.txt{ending}"]
    assert texts(records) == ["Größe.\n\nTwo."]


LINES = b"\n\nOne one.\nOne two.\r\n \t\r\nTwo one.\n\n\n\nThree one."


def test_paragraphs_are_documents_by_their_offsets(tmp_path: Path) -> None:
    records = read_content(tmp_path, "a.txt", LINES, "paragraphs")
    assert texts(records) == ["One one.\nOne two.\r\n", "Two one.\n", "Three one."]
    assert ids(records) == ["a.txt#@2", "a.txt#@25", "a.txt#@37"]
    assert [LINES[int(each.partition("@")[2]) :].split()[0] for each in ids(records)] == [
        b"One",
        b"Two",
        b"Three",
    ]


def test_sentences_are_documents_of_one_sentence_a_line(tmp_path: Path) -> None:
    sentences = read_content(tmp_path, "a.txt", LINES, "sentences")
    paragraphs = read_content(tmp_path, "a.txt", LINES, "paragraphs")
    assert texts(sentences) == texts(paragraphs)
    assert all(isinstance(each, Document) and each.lines_are_sentences for each in sentences)
    assert not any(isinstance(each, Document) and each.lines_are_sentences for each in paragraphs)


@pytest.mark.parametrize("declared", ["paragraphs", "sentences"])
def test_a_run_of_lines_that_is_not_utf8_is_reported(declared: SourceFormat) -> None:
    good, bad = split(read_in_memory(b"One.\n\nTwo \xff.\n\nThree.", declared))
    assert [document.text for document in good] == ["One.\n", "Three."]
    assert [(each.offset, each.reason) for each in bad] == [(6, "not_utf8")]


# Encodings

GERMAN = (
    "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem "
    "Bett zu einem ungeheueren Ungeziefer verwandelt. Er lag auf seinem panzerartig harten Rücken."
)
FRENCH = "Le cœur a ses raisons que la raison ne connaît point. Élève à l'école où l’été finit."
RUSSIAN = "Я помню чудное мгновенье: передо мной явилась ты, как мимолётное виденье."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
CHINESE = "道可道，非常道。名可名，非常名。无名天地之始，有名万物之母。"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "latin-1"),
        (FRENCH, "cp1252"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp1251"),
        (JAPANESE, "shift_jis"),
        (CHINESE, "gb18030"),
    ],
)
def test_an_encoding_is_told_by_what_the_bytes_look_like(text: str, encoding: str) -> None:
    assert texts(read_in_memory(text.encode(encoding), "text")) == [text]


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(mark: str) -> None:
    assert texts(read_in_memory(RUSSIAN.encode(mark), "text")) == [RUSSIAN]


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-32-be"])
def test_a_mark_in_the_other_byte_order_tells_it_too(encoding: str) -> None:
    mark = {"utf-16-be": codecs.BOM_UTF16_BE, "utf-32-be": codecs.BOM_UTF32_BE}[encoding]
    assert texts(read_in_memory(mark + RUSSIAN.encode(encoding), "text")) == [RUSSIAN]


@pytest.mark.parametrize("content", [b"PK\x03\x04\x00\xff", codecs.BOM_UTF16_LE + b"\x00"])
def test_bytes_that_are_no_text_are_reported(content: bytes) -> None:
    uri = "memory://readers/any"
    assert read_in_memory(content, "text") == [Unreadable(uri, 0, "not_decodable", content)]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16", "gb18030", "koi8_r"])
def test_a_declared_encoding_is_what_a_text_is_read_by(encoding: str) -> None:
    content = "Größe".encode(encoding, "replace")
    expected = content.decode(encoding)
    assert texts(read_in_memory(content, "text", encoding=encoding)) == [expected]


def test_a_text_that_is_not_in_the_declared_encoding_is_reported() -> None:
    assert reasons(read_in_memory(b"Gr\xf6", "text", encoding="utf-8")) == ["not_decodable"]


@pytest.mark.parametrize(
    ("declared", "content", "expected"),
    [
        ("jsonl", '{"text": "Größe"}\n', "Größe"),
        ("wiki-extracted", '<doc id="1">\nGröße\n</doc>\n', "Größe\n"),
        ("sentences", "Größe\n", "Größe\n"),
        ("paragraphs", "Größe\n", "Größe\n"),
    ],
)
def test_lines_are_utf8_unless_an_encoding_is_declared(
    declared: SourceFormat, content: str, expected: str
) -> None:
    latin = content.encode("latin-1")
    assert texts(read_in_memory(content.encode(), declared)) == [expected]
    assert reasons(read_in_memory(latin, declared)) == ["not_utf8"]
    assert texts(read_in_memory(latin, declared, encoding="latin-1")) == [expected]
    assert reasons(read_in_memory(latin, declared, encoding="utf-8")) == ["not_decodable"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "cp037"])
def test_an_encoding_without_plain_line_ends_can_not_be_cut_into_lines(encoding: str) -> None:
    with pytest.raises(ConfigError, match=f"source.encoding '{encoding}' can't be cut into lines"):
        read_in_memory(b"", "jsonl", encoding=encoding)


@given(st.text())
def test_every_text_in_utf8_is_read_as_it_is(text: str) -> None:
    [found] = texts(read_in_memory(text.encode(), "text"))
    assert found == text.removeprefix("\ufeff")


@given(st.binary(min_size=1, max_size=60))
def test_what_is_read_of_any_bytes_can_be_written(content: bytes) -> None:
    for record in read_in_memory(content, "text"):
        assert isinstance(record, Unreadable) or record.text.encode() is not None


@needs("gutenberg")
@pytest.mark.parametrize("declared", ["text", "gutenberg"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Die-Verwandlung_22367/22367-8.txt", ["Träumen", "gewölbten", "größten", "Tür"]),
        ("The-Adventures-of-Sherlock-Holmes_1661/1661-8.txt", ["fiancé", "pâté", "répertoire"]),
    ],
)
def test_books_in_latin_1_are_read(name: str, words: list[str], declared: SourceFormat) -> None:
    path = CORPORA / "gutenberg" / name
    [book] = texts(read(path, declared))
    assert book in path.read_bytes().decode("cp1252").replace("\r\n", "\n") or declared == "text"
    assert [word for word in words if word not in book] == []


def test_a_records_content_is_text_whatever_its_name(tmp_path: Path) -> None:
    [record] = read_content(tmp_path, "größe.txt", GERMAN.encode("latin-1"))
    assert isinstance(record, Document)
    assert record.id == "größe.txt"


# Project Gutenberg

BODY = "EMMA\n\nBy Jane Austen\n\n\nChapter 1\n\nEmma Woodhouse, handsome, clever, and rich."
HEADER = "The Project Gutenberg EBook of Emma, by Jane Austen\n\nFor the use of anyone.\n\n"
START = "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***\n\n"
SMALL_PRINT = "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nYou know: lawyers.\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***\n\n", ""),
        ("*** START OF THE PROJECT GUTENBERG EBOOK, EMMA ***\n\n", ""),
        ("***START OF THE PROJECT GUTENBERG EBOOK EMMA***\n\n", ""),
        ("*** START OF PROJECT GUTENBERG EBOOK EMMA ***\n", ""),
        ("*** START OF THE PROJECT GUTENBERG EBOOK EMMA\n", ""),
        ("*** START OF THIS PROJECT GUTENBERG EBOOK EMMA, A LONG\nTITLE IN TWO LINES ***\n", ""),
        ("* START OF THE PROJECT GUTENBERG EBOOK EMMA *\n\n", ""),
        (SMALL_PRINT + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n", ""),
        (SMALL_PRINT + "*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.10/04/01*END*\n", ""),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK, EMMA ***\n\n",
            "\n\n"
            + SMALL_PRINT
            + "*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11*END*\n",
        ),
        (
            START + "Produced by A. Nonymous and the Online\nProofreading Team at pgdp.net\n\n\n",
            "",
        ),
        ("*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***\nE-text prepared by A.\n\n", ""),
        (
            START
            + "This eBook was produced by A.\n\n[Transcribed from the 1900 edition by B.]\n\n",
            "",
        ),
    ],
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


def test_without_the_marks_all_is_kept() -> None:
    assert book(BODY) == BODY
    assert book(HEADER + BODY) == HEADER + BODY


def test_words_of_the_book_about_its_production_stay() -> None:
    text = "The next variation which their visit afforded was\nproduced by the entrance."
    assert book(START + text) == text


@given(st.text(max_size=400))
def test_any_text_has_a_book(text: str) -> None:
    assert len(book(text)) <= len(text)


@given(st.lists(st.sampled_from([HEADER, SMALL_PRINT, BODY, "\n\n", "*END*THE SMALL PRINT!\n"])))
def test_any_order_of_marks_has_a_book(parts: list[str]) -> None:
    assert isinstance(book("".join(parts)), str)


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("ISO-8859-1", "cp1252"),
        ("ISO Latin-1", "latin-1"),
        ("ASCII", "cp1252"),
        ("UTF-8", "utf-8"),
        ("Unicode UTF-8", "utf-8"),
        ("Windows-1251", "cp1251"),
        ("ISO-8859-1", "utf-8"),
        ("nonsense", "utf-8"),
    ],
)
def test_the_header_tells_the_encoding_unless_it_is_utf8(declared: str, encoding: str) -> None:
    body = "Опять весна" if encoding == "cp1251" else "Größe"
    header = f"Character set encoding: {declared}\n\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n"
    assert texts(read_in_memory((header + body).encode(encoding), "gutenberg")) == [body]


BOOKS = sorted((CORPORA / "gutenberg").glob("*/*.txt"))
FIRST = re.compile("(?i)PRIDE AND PREJUDICE|THE ADVENTURES OF|\\s+DIE VERWANDLUNG")


@needs("gutenberg")
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.name)
def test_every_edition_begins_with_its_title_and_ends_with_its_last_words(path: str) -> None:
    [text] = texts(read(path, "gutenberg"))
    if "pandp09" in path.name:  # type: ignore[attr-defined]
        assert text.startswith("total 287381")  # a folder's listing that is named like a book
        return
    assert FIRST.match(text)
    assert text.split()[-1] in ("dehnte.", "them.", "success.")
    assert "Gutenberg" not in text
