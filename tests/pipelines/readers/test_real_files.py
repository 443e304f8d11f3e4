"""Real corpora: they are read as they were when what was read was looked at."""

import bz2
import hashlib
import re
from collections import Counter
from random import Random

import pytest

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceFormat
from tests.pipelines.readers.reading import (
    CORPORA,
    needs,
    outcomes,
    read,
    read_content,
    split,
    texts,
)
from tests.pipelines.readers.test_ranges import assert_cut_is_whole

MARKUP = ("{{", "}}", "[[", "]]", "<ref", "''")
BOOKS = sorted((CORPORA / "gutenberg").glob("*/*.txt"))
FIRST = re.compile("(?i)PRIDE AND PREJUDICE|THE ADVENTURES OF|\\s+DIE VERWANDLUNG")
HOLMES = "gutenberg/The-Adventures-of-Sherlock-Holmes_1661/old__advsh12.txt"
GOLDEN: list[tuple[str, SourceFormat, int, str]] = [
    ("wiki_extracted/enwiki2018/AA/wiki_00", "auto", 37, "fd798b92e543d168"),
    ("wiki_extracted/kowiki2022/AA/wiki_01", "auto", 139, "93542f9e61c2763a"),
    ("jsonl_dolma/000.json.gz", "auto", 10, "32e5c77469935bcf"),
    ("novels.jsonl.gz", "auto", 45, "ce2d0b9196f63c43"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "auto", 1, "eec150b27b2e9e7f"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "text", 1, "a5f79b23c27160de"),
    (HOLMES, "auto", 1, "ac363b50de0a81b4"),
    ("gutenberg/Pride-and-Prejudice_1342/old__pandp10.txt", "auto", 1, "fc317e70c91a4361"),
    ("bert_sample/sample_text.txt", "sentences", 3, "4ae5d7937d85f040"),
    ("bert_sample/sample_text.txt", "paragraphs", 3, "4ae5d7937d85f040"),
]


@pytest.mark.parametrize(("name", "declared", "num_documents", "digest"), GOLDEN, ids=str)
def test_real_files_are_read_as_before(
    name: str, declared: SourceFormat, num_documents: int, digest: str
) -> None:
    if not (CORPORA / name).exists():
        pytest.skip(f"{CORPORA / name} is absent")
    documents = [each for each in read(CORPORA / name, declared) if isinstance(each, Document)]
    assert len(documents) == num_documents
    read_now = repr([(each.id, each.text) for each in documents]).encode()
    assert hashlib.sha256(read_now).hexdigest()[:16] == digest


@needs("jsonl_dolma")
@pytest.mark.parametrize("name", ["cc_en_head-0091.jsonl", "cc_en_head-0174.jsonl"])
def test_a_packed_file_of_dolma_holds_the_documents_of_the_plain_one(name: str) -> None:
    plain, packed = (
        read(CORPORA / "jsonl_dolma" / file, name="f") for file in (name, f"{name}.gz")
    )
    assert outcomes(plain) == outcomes(packed) != []


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


# Wikipedia


@needs("wiki_extracted")
@pytest.mark.parametrize(
    "name", ["enwiki2016/AA/wiki_00", "kowiki2022/AA/wiki_00", "zhwiki2024/AA/wiki_01"]
)
def test_every_article_of_wikipedia_is_read(name: str) -> None:
    path = CORPORA / "wiki_extracted" / name
    records = read(path)
    assert len(texts(records)) == path.read_bytes().count(b"</doc>")
    assert len({key for key, _ in outcomes(records)}) == len(records)


@needs("wiki_extracted")
def test_an_article_cut_off_at_the_end_of_its_file_is_reported() -> None:
    [(_, reason)] = outcomes(read(CORPORA / "wiki_extracted/enwiki2016/AA/wiki_03"))
    assert reason == "doc_not_closed"


@needs("mediawiki_dumps")
def test_a_real_dump_leaves_no_markup() -> None:
    (path,) = (CORPORA / "mediawiki_dumps").glob("full/*pages-articles*")
    good, bad = split(read(path))
    assert Counter(each.reason for each in bad) == {"redirect": 99, "other_namespace": 1}
    assert len(good) == 106
    text = "\n".join(document.text for document in good)
    assert [mark for mark in (*MARKUP, "thumb|", "&nbsp;") if mark in text] == []
    assert text.count("|") < 10
    assert "Anarchism is a political philosophy that advocates self-governed societies" in text


@needs("mediawiki_dumps")
def test_dumps_of_ninety_wikis_leave_no_markup() -> None:
    paths = sorted((CORPORA / "mediawiki_dumps").glob("mini/*.bz2"))
    documents = [document for path in paths for document in split(read(path))[0]]
    text = "\n".join(document.text for document in documents)
    assert sum(bool(document.text) for document in documents) > 70
    assert [mark for mark in (*MARKUP, "|") if mark in text] == []


# Web archives


@needs("warc")
def test_the_pages_of_a_real_arc_file_are_read() -> None:
    good, bad = split(read(CORPORA / "warc/aut/example.arc.gz"))
    assert len(good) == 94
    assert {each.reason for each in bad} == {"not_html", "http_error"}
    assert all(each.id.startswith("example.arc.gz#http://") for each in good)
    assert sum(len(each.text) > 500 for each in good) > 40


@needs("warc")
def test_a_real_archive_that_is_broken_or_without_pages_says_so() -> None:
    found = outcomes(read(CORPORA / "warc/aut/badexample.arc.gz"))
    assert [reason for _, reason in found] == ["not_html", "broken_record", "truncated_record"]
    found = outcomes(read(CORPORA / "warc/aut/example.docs.warc.gz"))
    assert {reason for _, reason in found} == {"not_html"}


# Cut


@needs("warc")
@needs("novels.jsonl.gz")
@pytest.mark.parametrize(
    ("name", "share", "at_least"),
    [("warc/aut/example.arc.gz", 0.1, 1), ("novels.jsonl.gz", 0.5, 15)],
)
def test_of_a_real_archive_cut_off_the_documents_before_are_read(
    name: str, share: float, at_least: int
) -> None:
    content = (CORPORA / name).read_bytes()
    cut = content[: int(len(content) * share)]
    good, bad = split(read_content(cut, name=name.rpartition("/")[2]))
    assert at_least <= len(good) < 90
    assert bad[-1].reason == "truncated_archive"


@pytest.mark.parametrize(
    ("name", "format", "num_cuts"),
    [
        ("wiki_extracted/enwiki2018/AA/wiki_00", "wiki-extracted", 20),
        ("wiki_extracted/enwiki2018/AA/wiki_00", "paragraphs", 20),
        ("wiki_extracted/zhwiki2024/AA/wiki_00", "wiki-extracted", 20),
        ("wiki_extracted/zhwiki2024/AA/wiki_00", "paragraphs", 20),
        ("mediawiki_dumps/full/enwiki-table-markup.xml.bz2", "mediawiki-dump", 9),
        ("jsonl_dolma/cc_en_head-0091.jsonl", "jsonl", 106),
        ("bert_sample/sample_text.txt", "sentences", 46),
    ],
)
def test_a_real_file_is_the_same_by_any_cut(name: str, format: str, num_cuts: int) -> None:
    if not (CORPORA / name).exists():
        pytest.skip(f"{CORPORA / name} is absent")
    content = storage.read_bytes(str(CORPORA / name))
    content = bz2.decompress(content) if name.endswith(".bz2") else content
    cuts = [Random(n).randrange(len(content)) for n in range(num_cuts)]
    assert_cut_is_whole(format, content, cuts)
