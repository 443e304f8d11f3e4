"""Ranges of a file's bytes give, however it is cut, the documents of the whole file."""

import bz2
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import READERS, Unreadable, read_documents
from tests.generated_text import document
from tests.pipelines.readers.reading import CORPORA, Read, json_lines, needs, split

URI = "memory://readers/ranges"
SPLITTABLE = [name for name, reader in READERS.items() if reader.boundary is not None]


def _page(title: str, number: int) -> bytes:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n"
        f'    <revision>\n      <text xml:space="preserve">Some text of {title}.</text>\n'
        "    </revision>\n  </page>\n"
    ).encode()


PARTS = {
    "jsonl": [
        json_lines({"id": 1, "text": "Größe."}),
        json_lines({"text": "No id."}),
        b"{broken\n",
        b"\r\n",
        b'{"text": "' + b"x" * 300 + b'"}\n',
        b'{"text": "No end."}',
    ],
    "wiki-extracted": [
        b'<doc id="1" title="A">\nText.\n\nMore.\n</doc>\n',
        b'<doc id="2" title="">\n</doc>\n\n',
        b'<doc id="3">\nNot closed.\n',
        b"stray\n",
        b"</doc>\n",
        b"<doc>\n",
        b'  <doc id="4">\n',
        b'\xef\xbb\xbf<doc id="5">\n\xff\n</doc>',
    ],
    "mediawiki-dump": [_page("A", 1), _page("B", 2)],
    "sentences": [b"One.\n", b"Two.\r\n", b"\n", b" \t\n", b"\xff\n", b"x" * 300, b"\n\n"],
}
PARTS["paragraphs"] = PARTS["sentences"]


def read_range(format: str, begin: int, end: int | None, max_document_mb: float = 64) -> Read:
    source = SourceSettings(max_document_mb=max_document_mb)
    return list(read_documents(URI, "x", source, format, begin, end))


def assert_cut_is_whole(format: str, content: bytes, cuts: list[int], mb: float = 64) -> None:
    storage.write_bytes(URI, content)
    whole = read_range(format, 0, None, mb)
    edges: list[int | None] = [0, *sorted(cuts), None]
    parts = [
        record
        for begin, end in pairwise(edges)
        for record in read_range(format, begin or 0, end, mb)
    ]
    assert parts == whole


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from([name for name in SPLITTABLE if name in PARTS]))
    some = st.sampled_from(PARTS[name]) | st.binary(max_size=4)
    if name == "mediawiki-dump":
        pages = draw(st.lists(st.sampled_from(PARTS[name]), max_size=8))
        return name, b"<mediawiki>\n" + b"".join(pages) + b"</mediawiki>\n"
    return name, b"".join(draw(st.lists(some, max_size=20)))


@settings(max_examples=400, deadline=None)
@given(contents(), st.lists(st.integers(0, 2500), max_size=6), st.sampled_from([64, 0.0001]))
def test_any_cut_gives_the_documents_of_the_whole_also_where_some_are_too_large(
    format_and_content: tuple[str, bytes], cuts: list[int], max_document_mb: float
) -> None:
    assert_cut_is_whole(*format_and_content, cuts, max_document_mb)


@pytest.mark.parametrize("format", ["jsonl", "wiki-extracted", "sentences", "paragraphs"])
def test_a_cut_at_every_byte_gives_the_documents_of_the_whole(format: str) -> None:
    content = b"".join(PARTS[format])
    for cut in range(len(content) + 3):
        assert_cut_is_whole(format, content, [cut])
    assert_cut_is_whole(format, content, list(range(len(content) + 3)))


def test_lines_longer_than_what_is_looked_at_are_one_line() -> None:
    long = b"x" * (3 << 16)
    content = long + b"\n\n" + long + b"\n \n" + b" " * (1 << 17) + b"\nend"
    cuts = [1, 1 << 16, (1 << 16) + 1, 3 << 16, (3 << 16) + 2, 6 << 16, len(content) - 2]
    for name in ("sentences", "paragraphs", "jsonl", "wiki-extracted"):
        assert_cut_is_whole(name, content, cuts)


def test_a_range_has_the_records_that_begin_in_it() -> None:
    lines = [json_lines({"id": n, "text": "T."}) for n in range(4)]
    storage.write_bytes(URI, b"".join(lines))
    size = len(lines[0])
    expected = {
        (0, 1): ["x#0"],
        (0, size): ["x#0"],
        (0, size + 1): ["x#0", "x#1"],
        (1, size): [],
        (1, size + 1): ["x#1"],
        (size, 2 * size): ["x#1"],
        (3 * size + 1, None): [],
        (4 * size, None): [],
        (9 * size, None): [],
    }
    for (begin, end), ids in expected.items():
        records = read_range("jsonl", begin, end)
        assert [record.id for record in records if isinstance(record, Document)] == ids


def test_little_more_than_a_range_is_read() -> None:
    lines = json_lines(*({"text": document(n)} for n in range(2000)))
    storage.write_bytes(URI, lines * 4)
    fs, path = storage.filesystem(URI)
    counted = _count_bytes_read(fs, path)
    middle = len(lines) * 2
    assert len(read_range("jsonl", middle, middle + 1000)) >= 1
    assert sum(counted) < 1 << 18


def _count_bytes_read(fs: object, path: str) -> list[int]:
    """Make the file in memory count what is read of it."""
    counted: list[int] = []
    file = fs.store[path]  # type: ignore[attr-defined]
    content = file.getvalue()

    class Counting(type(file)):  # type: ignore[misc]
        def read(self, size: int = -1) -> bytes:
            data: bytes = super().read(size)
            counted.append(len(data))
            return data

    fs.store[path] = Counting(fs, path, content)  # type: ignore[attr-defined]
    return counted


def test_every_range_of_a_dump_knows_its_names_of_files_and_categories() -> None:
    header = (
        b'<mediawiki>\n  <siteinfo>\n    <namespaces>\n      <namespace key="6">Bilderbuch'
        b"</namespace>\n    </namespaces>\n  </siteinfo>\n"
    )
    pages = [
        page.replace(b"Some text", b"[[Bilderbuch:a.png|thumb|Caption]] Some text")
        for page in PARTS["mediawiki-dump"]
    ]
    content = header + b"".join(pages) * 3 + b"</mediawiki>\n"
    for cut in range(0, len(content), 7):
        assert_cut_is_whole("mediawiki-dump", content, [cut])
    [*_, last] = read_range("mediawiki-dump", len(content) - len(pages[1]) - 50, None)
    assert isinstance(last, Document)
    assert "Caption" not in last.text


@needs("wiki_extracted")
@pytest.mark.parametrize("name", ["enwiki2018/AA/wiki_00", "zhwiki2024/AA/wiki_00"])
def test_real_articles_are_the_same_by_any_cut(name: str) -> None:
    content = (CORPORA / "wiki_extracted" / name).read_bytes()
    cuts = [Random(n).randrange(len(content)) for n in range(20)]
    assert_cut_is_whole("wiki-extracted", content, cuts)
    assert_cut_is_whole("paragraphs", content, cuts)


@needs("mediawiki_dumps")
def test_a_real_dump_is_the_same_by_any_cut() -> None:
    path = CORPORA / "mediawiki_dumps/full/enwiki-table-markup.xml.bz2"
    content = bz2.decompress(path.read_bytes())
    assert_cut_is_whole("mediawiki-dump", content, list(range(1, len(content), len(content) // 5)))
    good, _ = split(read_range("mediawiki-dump", 0, None))
    assert good


@needs("jsonl_dolma")
def test_real_json_lines_are_the_same_by_any_cut() -> None:
    content = (CORPORA / "jsonl_dolma/cc_en_head-0091.jsonl").read_bytes()
    assert_cut_is_whole("jsonl", content, list(range(0, len(content), 997)))


@needs("bert_sample")
def test_real_sentences_are_the_same_by_any_cut() -> None:
    content = (CORPORA / "bert_sample/sample_text.txt").read_bytes()
    assert_cut_is_whole("sentences", content, list(range(0, len(content), 97)))
    good, bad = split(read_range("sentences", 0, None))
    assert (len(good), bad) == (3, [])
    assert not any(isinstance(record, Unreadable) for record in good)
