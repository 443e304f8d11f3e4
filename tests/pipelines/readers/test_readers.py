import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.contract import storage
from albert_core.contract.errors import SourceError
from albert_core.contract.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import READERS, Unreadable, read_documents
from tests.generated_text import document

CORPORA = Path(__file__).parents[4] / "shared/data/corpora"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
WIKI = b"""<doc id="12" url="https://x/wiki?curid=12" title="Anarchism">
Anarchism

It is a philosophy.
</doc>
<doc id="25" url="https://x/wiki?curid=25" title="Autism">
Autism &amp; others.
</doc>
"""

Read = list[Document | Unreadable]


def read(
    path: Path, declared: SourceFormat = "auto", name: str | None = None, **settings: Any
) -> Read:
    source = SourceSettings(uri=str(path.parent), format=declared, **settings)
    return list(read_documents(str(path), path.name if name is None else name, source))


def read_content(folder: Path, name: str, content: bytes, declared: SourceFormat = "auto") -> Read:
    (folder / name).write_bytes(content)
    return read(folder / name, declared)


def texts(records: Read) -> list[str]:
    assert all(isinstance(record, Document) for record in records), records
    return [record.text for record in records if isinstance(record, Document)]


def ids(records: Read) -> list[str]:
    return [r.id if isinstance(r, Document) else r.where for r in records]


def lines(*objects: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in objects).encode()


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (CORPORA / name).exists(), reason=f"{CORPORA / name} is absent")


# Every format, by hand and as it is packed


@pytest.mark.parametrize("ending", PACKERS)
def test_json_lines_are_documents_by_their_ids(tmp_path: Path, ending: str) -> None:
    content = lines({"id": "a", "text": "One."}, {"id": 7, "text": "Two.", "url": "x"})
    records = read_content(tmp_path, f"d.jsonl{ending}", PACKERS[ending](content))
    uri = str(tmp_path / f"d.jsonl{ending}")
    assert records == [
        Document(f"d.jsonl{ending}#a", "One.", uri),
        Document(f"d.jsonl{ending}#7", "Two.", uri),
    ]


@pytest.mark.parametrize("ending", PACKERS)
def test_blocks_of_wiki_extractor_are_documents_by_their_ids(tmp_path: Path, ending: str) -> None:
    records = read_content(tmp_path, f"wiki_00{ending}", PACKERS[ending](WIKI))
    assert ids(records) == [f"wiki_00{ending}#12", f"wiki_00{ending}#25"]
    assert texts(records) == ["Anarchism\n\nIt is a philosophy.\n", "Autism &amp; others.\n"]


@pytest.mark.parametrize("ending", PACKERS)
def test_a_text_file_is_one_document(tmp_path: Path, ending: str) -> None:
    records = read_content(tmp_path, f"a.txt{ending}", PACKERS[ending]("Größe.\n\nTwo.".encode()))
    assert ids(records) == [f"a.txt{ending}#0"]
    assert texts(records) == ["Größe.\n\nTwo."]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert texts(read_content(tmp_path, "a.txt", b"\xef\xbb\xbfText.")) == ["Text."]
    marked = b"\xef\xbb\xbf" + lines({"text": "Text."})
    assert texts(read_content(tmp_path, "a.jsonl", marked)) == ["Text."]
    assert texts(read_content(tmp_path, "wiki_00", b"\xef\xbb\xbf" + WIKI, "wiki-extracted"))


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


def test_a_python_file_is_its_docstrings_in_order(tmp_path: Path) -> None:
    assert texts(read_content(tmp_path, "m.py", MODULE.encode())) == [
        "The module.\n\nIndented.\n\nThe class.\n\nThe method.\n\nThe inner one.\n\nThe last one."
    ]


def test_a_python_file_is_parsed_and_not_run(tmp_path: Path) -> None:
    source = b'"""Text."""\nraise SystemExit("run")\n'
    assert texts(read_content(tmp_path, "m.py", source)) == ["Text."]


def test_a_python_file_may_declare_its_encoding(tmp_path: Path) -> None:
    source = "# -*- coding: latin-1 -*-\n'''Größe.'''\n".encode("latin-1")
    assert texts(read_content(tmp_path, "m.py", source)) == ["Größe."]


METADATA = b"""Metadata-Version: 2.1
Name: x
Classifier: Operating System :: OS Independent

# The package

It is for gr\xc3\xb6\xc3\x9fe.
"""


@pytest.mark.parametrize("declared", ["installed-python", "auto"])
def test_a_packages_metadata_is_its_description(tmp_path: Path, declared: SourceFormat) -> None:
    records = read_content(tmp_path, "METADATA", METADATA, declared)
    assert texts(records) == ["# The package\n\nIt is for größe.\n"]


def test_another_field_can_hold_the_text_and_another_the_id(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"content": "One.", "url": "u/1", "text": "no"}))
    records = read(tmp_path / "a.jsonl", text_field="content", id_field="url")
    assert ids(records) == ["a.jsonl#u/1"]
    assert texts(records) == ["One."]


def test_a_file_in_memory_is_read_like_one_on_disk() -> None:
    storage.write_bytes("memory://readers/wiki_00.gz", gzip.compress(WIKI))
    source = SourceSettings(uri="memory://readers")
    records = list(read_documents("memory://readers/wiki_00.gz", "wiki_00.gz", source))
    assert ids(records) == ["wiki_00.gz#12", "wiki_00.gz#25"]


@pytest.mark.parametrize("declared", READERS)
def test_an_empty_file_ends_nothing(tmp_path: Path, declared: SourceFormat) -> None:
    assert set(texts(read_content(tmp_path, "empty", b"", declared))) <= {""}


# What a file is, when nobody says so


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", lines({"text": "T."}), "T."),
        ("a.JSON.gz", gzip.compress(lines({"text": "T."})), "T."),
        ("a.ndjson.xz", lzma.compress(lines({"text": "T."})), "T."),
        ("a.py", b'"""T."""', "T."),
        ("a.txt", b"T.", "T."),
        ("no_ending", b'{"text": "T."}', '{"text": "T."}'),
        ("a.txt", b'\n\n<doc id="1" url="u" title="t">\nT.\n</doc>\n', "T.\n"),
        ("wiki_00.bz2", bz2.compress(b'<doc id="1">\nT.\n</doc>\n'), "T.\n"),
        ("a.txt", b"<document>\nT.", "<document>\nT."),
    ],
)
def test_the_format_is_told_by_name_and_beginning(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    readable = [r.text for r in read_content(tmp_path, name, content) if isinstance(r, Document)]
    assert readable == [expected]


def test_a_declared_format_comes_before_what_the_name_tells(tmp_path: Path) -> None:
    content = lines({"text": "T."})
    assert texts(read_content(tmp_path, "a.jsonl", content, "text")) == [content.decode()]


# Bad records


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{broken", "not_json"),
        (b'{"text": "\xff"}', "not_utf8"),
        (b'{"title": "no text"}', "no_text_field"),
        (b'{"text": 5}', "no_text_field"),
        (b'{"text": null}', "no_text_field"),
        (b'["text"]', "no_text_field"),
        (b"[" * 100_000, "not_json"),
        (b'{"text": "T.", "n": ' + b"1" * 5000 + b"}", "not_json"),
        (b"\x00\x01", "not_json"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else value,
)
def test_a_bad_line_is_reported_with_its_number_and_ends_nothing(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    content = lines({"text": "Before."}) + line + b"\n" + lines({"text": "After."})
    before, bad, after = read_content(tmp_path, "a.jsonl", content)
    assert texts([before, after]) == ["Before.", "After."]
    assert bad == Unreadable("a.jsonl#1", reason)


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    content = b"\n" + lines({"text": "One."}) + b"  \r\n" + lines({"text": "Two."}) + b"\n"
    assert ids(read_content(tmp_path, "a.jsonl", content)) == ["a.jsonl#0", "a.jsonl#1"]


def test_a_last_line_without_an_end_is_a_record(tmp_path: Path) -> None:
    content = lines({"text": "One."}, {"text": "Two."}).rstrip()
    assert texts(read_content(tmp_path, "a.jsonl", content)) == ["One.", "Two."]


def test_a_block_that_is_not_closed_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    content = b'<doc id="1">\nLost.\n' + WIKI + b'<doc id="3">\nCut of'
    first, *closed, last = read_content(tmp_path, "wiki_00", content)
    assert first == Unreadable("wiki_00#1", "doc_not_closed")
    assert ids(closed) == ["wiki_00#12", "wiki_00#25"]
    assert texts(closed)
    assert last == Unreadable("wiki_00#3", "doc_not_closed")


def test_text_between_blocks_is_reported(tmp_path: Path) -> None:
    content = b'<doc id="a">\nOne.\n</doc>\n\nstray\n<doc id="b">\nTwo.\n</doc>\n'
    one, stray, two = read_content(tmp_path, "wiki_00", content)
    assert texts([one, two]) == ["One.\n", "Two.\n"]
    assert stray == Unreadable("wiki_00#1", "text_outside_doc")


def test_a_block_that_is_not_utf8_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    content = b'<doc id="1">\n\xff\n</doc>\n' + WIKI
    bad, *good = read_content(tmp_path, "wiki_00", content)
    assert bad == Unreadable("wiki_00#1", "not_utf8")
    assert len(texts(good)) == 2


def test_text_in_another_encoding_is_reported(tmp_path: Path) -> None:
    records = read_content(tmp_path, "a.txt", "Größe".encode("latin-1"))
    assert records == [Unreadable("a.txt#0", "not_utf8")]


@pytest.mark.parametrize(
    "source", [b'"""unclosed', b'print "two" """x"""', b'"""x"""\x00', b'"""x"""' + b"(" * 9999]
)
def test_a_file_that_is_no_python_is_reported(tmp_path: Path, source: bytes) -> None:
    assert read_content(tmp_path, "a.py", source) == [Unreadable("a.py#0", "not_python")]


@given(content=st.binary(max_size=200), declared=st.sampled_from(list(READERS)))
def test_no_content_ends_a_reader(content: bytes, declared: SourceFormat) -> None:
    storage.write_bytes("memory://readers/any", content)
    records = list(read_documents("memory://readers/any", "any", SourceSettings(format=declared)))
    for record in records:
        assert isinstance(record, Document) or record.reason


# Ids

KEYS = st.lists(st.sampled_from(["", "a", "a~2", "a~3", "b", "0", "1"]) | st.text(), max_size=8)


@given(KEYS)
def test_ids_are_unique(keys: list[str]) -> None:
    content = lines(*({"id": key, "text": "T."} for key in keys))
    storage.write_bytes("memory://readers/ids.jsonl", content)
    records = read_documents("memory://readers/ids.jsonl", "x", SourceSettings())
    found = ids(list(records))
    assert len(set(found)) == len(keys)


def test_repeated_ids_are_numbered(tmp_path: Path) -> None:
    content = lines(*({"id": key, "text": "T."} for key in "aba"))
    assert ids(read_content(tmp_path, "x.jsonl", content)) == [
        "x.jsonl#a",
        "x.jsonl#b",
        "x.jsonl#a~2",
    ]


def test_zero_is_an_id_like_any_other(tmp_path: Path) -> None:
    content = lines({"id": 5, "text": "T."}, {"id": 0, "text": "T."})
    assert ids(read_content(tmp_path, "x.jsonl", content)) == ["x.jsonl#5", "x.jsonl#0"]


def test_every_id_can_be_written_as_utf8(tmp_path: Path) -> None:
    for record in read_content(tmp_path, "x.jsonl", b'{"id": "\\ud800", "text": "T."}\n'):
        assert ids([record])[0].encode()


def test_ids_do_not_change_when_the_source_moves(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        (folder / "AA").mkdir(parents=True)
        (folder / "AA" / "wiki_00").write_bytes(WIKI)
        found.append(ids(read(folder / "AA" / "wiki_00", name="AA/wiki_00")))
    assert found[0] == found[1] == ["AA/wiki_00#12", "AA/wiki_00#25"]


# Files that can't be read


def packed_lines(pack: Callable[[bytes], bytes]) -> bytearray:
    random = Random(0)
    return bytearray(
        pack(lines(*({"text": document(n) + random.randbytes(99).hex()} for n in range(200))))
    )


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_truncated_file_names_itself_and_what_to_do(tmp_path: Path, ending: str) -> None:
    content = packed_lines(PACKERS[ending])
    with pytest.raises(SourceError, match=rf"a.jsonl{ending} can't be read: .*Mend or remove"):
        read_content(tmp_path, f"a.jsonl{ending}", bytes(content[: len(content) // 2]))


@pytest.mark.parametrize("at", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_damaged_file_names_itself_and_what_to_do(tmp_path: Path, ending: str, at: float) -> None:
    content = packed_lines(PACKERS[ending])
    begin = int(len(content) * at)
    content[begin : begin + 64] = b"\xff" * 64
    with pytest.raises(SourceError, match=rf"a.jsonl{ending} can't be read: .*Mend or remove"):
        read_content(tmp_path, f"a.jsonl{ending}", bytes(content))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_file_that_is_not_packed_as_its_name_says_is_refused(tmp_path: Path, ending: str) -> None:
    with pytest.raises(SourceError, match=rf"a.txt{ending} can't be read"):
        read_content(tmp_path, f"a.txt{ending}", b"plain text")


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone.txt can't be read: .*Mend or remove"):
        read(tmp_path / "gone.txt")


# Real files


@needs("wiki_extracted")
@pytest.mark.parametrize(
    "name", ["enwiki2016/AA/wiki_00", "kowiki2022/AA/wiki_00", "zhwiki2024/AA/wiki_01"]
)
def test_every_article_of_wikipedia_is_read(name: str) -> None:
    path = CORPORA / "wiki_extracted" / name
    records = read(path)
    assert len(texts(records)) == path.read_bytes().count(b"</doc>")
    assert len(set(ids(records))) == len(records)


@needs("novels.jsonl.gz")
def test_every_novel_is_read() -> None:
    records = read(CORPORA / "novels.jsonl.gz")
    assert len(texts(records)) == 45
    assert min(map(len, texts(records))) > 10_000
    assert len(set(ids(records))) == 45


@needs("jsonl_dolma")
@pytest.mark.parametrize("name", ["cc_en_head-0091.jsonl", "cc_en_head-0174.jsonl"])
def test_a_packed_file_of_dolma_holds_the_documents_of_the_plain_one(name: str) -> None:
    plain, packed = (
        read(CORPORA / "jsonl_dolma" / file, name=name) for file in (name, f"{name}.gz")
    )
    assert texts(plain) == texts(packed)
    assert ids(plain) == ids(packed)
    assert plain


@needs("gutenberg")
def test_a_book_in_latin_1_is_reported_and_its_utf8_edition_read() -> None:
    books = CORPORA / "gutenberg"
    assert read(books / "Die-Verwandlung_22367/22367-8.txt") == [
        Unreadable("22367-8.txt#0", "not_utf8")
    ]
    [book] = texts(read(books / "Pride-and-Prejudice_1342/1342-0.txt"))
    assert "It is a truth universally acknowledged" in book
