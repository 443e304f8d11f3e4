"""Project Gutenberg's books without its licence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.readers.gutenberg import book
from tests.pipelines.readers.reading import CORPORA, needs, read, read_in_memory, texts

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
