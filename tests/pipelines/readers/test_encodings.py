"""Texts in other encodings than UTF-8."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import ConfigError
from albert_core.text.records import Document
from pipelines.config import SourceFormat
from pipelines.readers import Unreadable
from tests.pipelines.readers.reading import (
    CORPORA,
    needs,
    read,
    read_content,
    read_in_memory,
    reasons,
    texts,
)

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
