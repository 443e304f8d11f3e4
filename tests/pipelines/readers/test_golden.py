"""What is read of real files stays, to the byte, what it was when it was looked at."""

import hashlib

import pytest

from albert_core.text.records import Document
from pipelines.config import SourceFormat
from tests.pipelines.readers.reading import CORPORA, read

GOLDEN: list[tuple[str, SourceFormat, int, str]] = [
    ("wiki_extracted/enwiki2018/AA/wiki_00", "auto", 37, "fd798b92e543d168"),
    ("wiki_extracted/kowiki2022/AA/wiki_01", "auto", 139, "93542f9e61c2763a"),
    ("jsonl_dolma/000.json.gz", "auto", 10, "32e5c77469935bcf"),
    ("novels.jsonl.gz", "auto", 45, "ce2d0b9196f63c43"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "auto", 1, "eec150b27b2e9e7f"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "text", 1, "a5f79b23c27160de"),
    (
        "gutenberg/The-Adventures-of-Sherlock-Holmes_1661/old__advsh12.txt",
        "auto",
        1,
        "ac363b50de0a81b4",
    ),
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
