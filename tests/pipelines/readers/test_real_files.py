"""Real corpora are read as they were when their records were inspected."""

import hashlib

import pytest

from albert_core.text.records import Document
from pipelines.config import SourceFormat
from tests.pipelines.readers.reading import CORPORA, read, read_content, split

BOOKS = "gutenberg/Die-Verwandlung_22367/22367-8.txt", "gutenberg/*/*.txt"
GOLDEN: list[tuple[str, SourceFormat, int, int, str]] = [
    ("wiki_extracted/enwiki2018/AA/wiki_00", "auto", 37, 0, "fd798b92e543d168"),
    ("wiki_extracted/enwiki2016/AA/wiki_03", "auto", 0, 1, "20c886fe2b6ccb20"),
    ("wiki_extracted/kowiki2022/AA/wiki_01", "auto", 139, 0, "93542f9e61c2763a"),
    ("wiki_extracted/zhwiki2024/AA/wiki_01", "auto", 1168, 0, "62feb810ac763550"),
    ("jsonl_dolma/000.json.gz", "auto", 10, 0, "32e5c77469935bcf"),
    ("jsonl_dolma/cc_en_head-0091.jsonl", "auto", 10, 0, "06d2a42d5b24f268"),
    ("novels.jsonl.gz", "auto", 45, 0, "ce2d0b9196f63c43"),
    (BOOKS[0], "auto", 1, 0, "eec150b27b2e9e7f"),
    (BOOKS[0], "text", 1, 0, "a5f79b23c27160de"),
    (BOOKS[1], "gutenberg", 12, 0, "1d851684dfacec31"),
    ("bert_sample/sample_text.txt", "sentences", 3, 0, "4ae5d7937d85f040"),
    ("bert_sample/sample_text.txt", "paragraphs", 3, 0, "4ae5d7937d85f040"),
    ("mediawiki_dumps/full/*pages-articles*", "auto", 106, 100, "4abbf1c39ab88e9b"),
    ("mediawiki_dumps/mini/*.bz2", "auto", 73, 3, "2a1d3321f64d928a"),
    ("warc/aut/badexample.arc.gz", "auto", 0, 3, "41c6f1e06cbc8edb"),
    ("warc/aut/example.docs.warc.gz", "auto", 0, 9, "92f735a5a82c3c5b"),
]


@pytest.mark.parametrize(("name", "declared", "num_documents", "num_bad", "digest"), GOLDEN)
def test_real_files_are_read_as_before(
    name: str, declared: SourceFormat, num_documents: int, num_bad: int, digest: str
) -> None:
    paths = sorted(CORPORA.glob(name))
    if not paths:
        pytest.skip(f"{CORPORA / name} is absent")
    records = [record for path in paths for record in read(path, declared)]
    good, bad = split(records)
    assert (len(good), len(bad)) == (num_documents, num_bad)
    found = [
        (each.id, each.text) if isinstance(each, Document) else (each.offset, each.reason)
        for each in records
    ]
    assert hashlib.sha256(repr(found).encode()).hexdigest()[:16] == digest


@pytest.mark.skipif(not CORPORA.exists(), reason=f"{CORPORA} is absent")
def test_of_a_real_archive_cut_off_the_documents_before_are_read() -> None:
    content = (CORPORA / "warc/aut/example.arc.gz").read_bytes()
    good, bad = split(read_content(content[: len(content) // 10], name="example.arc.gz"))
    assert 1 <= len(good) < 90
    assert all(each.id.startswith("example.arc.gz#http://") for each in good)
    assert bad[-1].reason == "truncated_archive"
