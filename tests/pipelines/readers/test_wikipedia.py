"""MediaWiki's dumps and the output of WikiExtractor, whole and broken."""

import bz2
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import SourceSettings
from pipelines.readers import Unreadable, wikipedia
from pipelines.readers.record import Record
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    WIKI,
    ids,
    needs,
    read,
    read_content,
    reasons,
    split,
    texts,
)

HEADER = """<mediawiki xml:lang="xx">
  <siteinfo>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Bildchen</namespace>
      <namespace key="14" case="first-letter">Fach &amp; Art</namespace>
    </namespaces>
  </siteinfo>
"""
FOOTER = "</mediawiki>\n"


def page(number: int, text: str = "Some ''text''.", **changes: str) -> str:
    fields = {"ns": "0", "redirect": "", "model": "wikitext", "format": "text/x-wiki"} | changes
    return f"""  <page>
    <title>Title {number}</title>
    <ns>{fields["ns"]}</ns>
    <id>{number}</id>
{fields["redirect"]}    <revision>
      <id>{number}000</id>
      <model>{fields["model"]}</model>
      <format>{fields["format"]}</format>
      <text bytes="9" xml:space="preserve">{text}</text>
    </revision>
  </page>
"""


def read_pages(content: str | bytes, **settings: Any) -> list[Record]:
    raw = content.encode() if isinstance(content, str) else content
    return list(wikipedia.read_dump(io.BytesIO(raw), SourceSettings(**settings)))


def dump(*pages: str) -> str:
    return HEADER + "".join(pages) + FOOTER


def outcomes(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.key, record.unreadable) for record in records]


def test_a_page_is_its_title_and_its_text() -> None:
    content = dump(page(7, "'''A''' &lt;i&gt;b&lt;/i&gt; &amp;amp; c.\n\n[[D|d]]"))
    (record,) = read_pages(content)
    assert record.text == "Title 7\n\nA b & c.\nd"
    assert record.key == "7"
    assert content.encode()[record.offset :].startswith(b"<page>")


def test_a_page_without_text_is_empty() -> None:
    no_text = page(2).replace(">Some ''text''.</text>", ' deleted="deleted" />')
    assert [record.text for record in read_pages(dump(page(1, "{{x}}"), no_text))] == ["", ""]


def test_names_of_the_dump_tell_files_and_categories() -> None:
    text = "A. [[Bildchen:b|thumb|c]] [[Fach &amp; Art:d]]"
    assert read_pages(dump(page(1, text)))[0].text == "Title 1\n\nA."


def test_pages_left_out_are_counted_with_their_reason() -> None:
    records = read_pages(
        dump(
            page(1, ns="1"),
            page(2, redirect='    <redirect title="X" />\n'),
            page(3, "{}", model="wikibase-item", format="application/json"),
            page(4),
        )
    )
    expected = [("1", "other_namespace"), ("2", "redirect"), ("3", "not_wikitext"), ("4", "")]
    assert outcomes(records) == expected
    assert all(record.content == b"" for record in records)


def test_other_namespaces_are_read_when_asked_for() -> None:
    records = read_pages(dump(page(1, ns="1"), page(2, ns="14"), page(3)), wiki_namespaces=[1, 14])
    assert outcomes(records) == [("1", ""), ("2", ""), ("3", "other_namespace")]


def test_the_last_revision_counts() -> None:
    revision = "    <revision><text>Newer.</text></revision>\n  </page>"
    history = page(1, "Older.").replace("  </page>", revision)
    assert read_pages(dump(history))[0].text == "Title 1\n\nNewer."


def test_a_page_without_namespace_or_model_is_an_article() -> None:
    old = "<page><title>T</title><id>5</id><revision><id>6</id><text>A.</text></revision></page>"
    assert read_pages(dump(old))[0].text == "T\n\nA."


@pytest.mark.parametrize(
    "broken",
    [
        page(2).replace("</revision>", ""),
        page(2).replace("</page>\n", ""),
        page(2, "a & b"),
        page(2, "<b>").replace("</text>", "</b>"),
    ],
)
def test_a_broken_page_is_counted_and_the_next_is_read(broken: str) -> None:
    content = dump(page(1), broken, page(3))
    records = read_pages(content)
    assert outcomes(records) == [("1", ""), ("2", "broken_xml"), ("3", "")]
    assert records[1].content.startswith(b"<page>")
    assert content.encode()[records[1].offset :].startswith(records[1].content)


def test_bytes_that_are_no_utf8_break_one_page() -> None:
    content = dump(page(1), page(2, "caf\xe9"), page(3)).encode("latin-1")
    assert outcomes(read_pages(content)) == [("1", ""), ("2", "broken_xml"), ("3", "")]


@pytest.mark.parametrize("length", [1, 30, 200, len(page(2)) - 10])
def test_a_dump_cut_off_gives_the_pages_before(length: int) -> None:
    records = read_pages(HEADER + page(1) + page(2)[: length + 2])
    assert outcomes(records)[0] == ("1", "")
    assert [record.unreadable for record in records[1:]] == ["broken_xml"]


@pytest.mark.parametrize("rest", ["", "\n", FOOTER])
def test_an_end_between_pages_is_no_break(rest: str) -> None:
    assert outcomes(read_pages(page(1) + rest)) == [("1", "")]


@pytest.mark.parametrize("content", [HEADER, HEADER + FOOTER, "<?xml version='1.0'?>\n" + HEADER])
def test_a_header_alone_has_no_pages(content: str) -> None:
    assert read_pages(content) == []


def test_what_is_no_dump_is_broken() -> None:
    assert outcomes(read_pages("Hello.")) == [("", "broken_xml")]
    assert read_pages("") == []


def test_a_page_too_large_is_not_held_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wikipedia, "_BLOCK_BYTES", 512)
    huge = page(2, "word " * 500)
    records = read_pages(dump(page(1), huge, page(3)), max_document_mb=0.001)
    assert outcomes(records)[:2] == [("1", ""), ("2", "too_large")]
    assert outcomes(records)[-1] == ("3", "")
    assert max(len(record.content) for record in records) < 3000
    assert outcomes(read_pages(dump(huge), max_document_mb=0.001)) == [
        ("2", "too_large"),
        ("", "broken_xml"),
    ]


class Breaking(io.BytesIO):
    """A file that fails once its content has been read, as a broken archive does."""

    def read1(self, size: int | None = -1) -> bytes:
        block = super().read1(size)
        if not block:
            raise EOFError("ended before the end-of-stream marker")
        return block


def test_the_error_of_a_broken_archive_comes_after_the_pages_before() -> None:
    file = Breaking((HEADER + page(1) + page(2) + page(3)[:99]).encode())
    records: Iterator[Record] = wikipedia.read_dump(file, SourceSettings())
    assert outcomes([next(records), next(records)]) == [("1", ""), ("2", "")]
    with pytest.raises(EOFError, match="end-of-stream"):
        next(records)


def test_a_truncated_archive_gives_the_pages_that_it_holds() -> None:
    packed = bz2.compress(dump(*(page(number) for number in range(100))).encode(), 1)
    records: list[Record] = []
    with bz2.open(io.BytesIO(packed[:-8])) as file, pytest.raises(EOFError):
        records.extend(wikipedia.read_dump(cast(BinaryIO, file), SourceSettings()))
    assert outcomes(records) == [(str(number), "") for number in range(100)]


@given(st.lists(st.sampled_from([page(1), page(2, ns="1"), page(3, "&")]), max_size=6), st.data())
def test_ranges_give_what_the_whole_gives(pages: list[str], data: st.DataObject) -> None:
    whole = dump(*pages).encode()
    starts = [at for at in range(len(whole)) if whole.startswith(b"  <page>", at)]
    cuts = sorted(data.draw(st.sets(st.sampled_from(starts)))) if starts else []
    records = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        records += [
            (begin + record.offset, record.key, record.unreadable, record.text)
            for record in read_pages(whole[begin:end])
        ]
    assert records == [(r.offset, r.key, r.unreadable, r.text) for r in read_pages(whole)]


@given(block=st.integers(1, 64))
def test_the_size_of_a_read_changes_nothing(block: int) -> None:
    content = dump(page(1), page(2, "a & b"), page(3, ns="2"), page(4))
    expected = read_pages(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wikipedia, "_BLOCK_BYTES", block)
        assert read_pages(content) == expected


@given(st.lists(st.sampled_from(["<page>", "</page>", "<id>1</id>", "<ns>x</ns>", "a", "<", "&"])))
def test_anything_is_read_without_an_error(parts: list[str]) -> None:
    read_pages("".join(parts))


def test_the_full_parser_reads_the_same_pages() -> None:
    pytest.importorskip("mwparserfromhell")
    content = dump(page(1, "'''A''' {{b}} [[c|d]].&lt;ref&gt;e&lt;/ref&gt;"), page(2, ns="1"))
    assert read_pages(content, wiki_parser="full") == read_pages(content)


# Real dumps


@needs("mediawiki_dumps")
def test_a_real_dump_leaves_no_markup() -> None:
    (path,) = (CORPORA / "mediawiki_dumps").glob("full/*pages-articles*")
    records = read_pages(bz2.decompress(path.read_bytes()))
    found = Counter(record.unreadable for record in records)
    assert found == {"": 106, "redirect": 99, "other_namespace": 1}
    text = "\n".join(record.text for record in records)
    for mark in ("{{", "}}", "[[", "]]", "thumb|", "<ref", "''", "&nbsp;"):
        assert mark not in text
    assert text.count("|") < 10
    assert "Anarchism is a political philosophy that advocates self-governed societies" in text


@needs("mediawiki_dumps")
def test_dumps_of_ninety_wikis_leave_no_markup() -> None:
    paths = sorted((CORPORA / "mediawiki_dumps").glob("mini/*.bz2"))
    records = [record for path in paths for record in read_pages(bz2.decompress(path.read_bytes()))]
    text = "\n".join(record.text for record in records)
    assert sum(bool(record.text) for record in records) > 70
    for mark in ("{{", "}}", "[[", "]]", "|", "<ref", "''"):
        assert mark not in text


# WikiExtractor


@pytest.mark.parametrize("ending", ["", *PACKERS])
def test_blocks_of_wiki_extractor_are_documents_by_their_ids(tmp_path: Path, ending: str) -> None:
    packed = PACKERS[ending](WIKI) if ending else WIKI
    records = read_content(tmp_path, f"wiki_00{ending}", packed)
    assert ids(records) == [f"wiki_00{ending}#12", f"wiki_00{ending}#25"]
    assert texts(records) == ["Anarchism\n\nIt is a philosophy.\n", "Autism &amp; others.\n"]


def test_a_title_may_hold_quotes_and_angles(tmp_path: Path) -> None:
    content = b'<doc id="1" url="u" title=""A" > <B>">\nOne.\n</doc>\n'
    assert ids(read_content(tmp_path, "wiki_00", content)) == ["wiki_00#1"]


def test_a_block_that_is_not_closed_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    content = b'<doc id="1">\nLost.\n' + WIKI + b'<doc id="3">\nCut of'
    good, bad = split(read_content(tmp_path, "wiki_00", content))
    assert [document.id for document in good] == ["wiki_00#12", "wiki_00#25"]
    uri = str(tmp_path / "wiki_00")
    assert bad == [
        Unreadable(uri, 0, "doc_not_closed", b"Lost.\n"),
        Unreadable(uri, 19 + len(WIKI), "doc_not_closed", b"Cut of"),
    ]


def test_text_between_blocks_is_reported(tmp_path: Path) -> None:
    content = b'<doc id="a">\nOne.\n</doc>\n\nstray\n\nlines\n<doc id="b">\nTwo.\n</doc>\n'
    one, stray, two = read_content(tmp_path, "wiki_00", content)
    assert texts([one, two]) == ["One.\n", "Two.\n"]
    expected = Unreadable(str(tmp_path / "wiki_00"), 26, "text_outside_doc", b"stray\n\nlines\n")
    assert stray == expected


def test_a_block_that_is_not_utf8_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    content = b'<doc id="1">\n\xff\n</doc>\n' + WIKI
    bad, *good = read_content(tmp_path, "wiki_00", content)
    assert bad == Unreadable(str(tmp_path / "wiki_00"), 0, "not_utf8", b"\xff\n")
    assert len(texts(good)) == 2


@needs("wiki_extracted")
@pytest.mark.parametrize(
    "name", ["enwiki2016/AA/wiki_00", "kowiki2022/AA/wiki_00", "zhwiki2024/AA/wiki_01"]
)
def test_every_article_of_wikipedia_is_read(name: str) -> None:
    path = CORPORA / "wiki_extracted" / name
    records = read(path)
    assert len(texts(records)) == path.read_bytes().count(b"</doc>")
    assert len(set(ids(records))) == len(records)


@needs("wiki_extracted")
def test_an_article_cut_off_at_the_end_of_its_file_is_reported() -> None:
    path = CORPORA / "wiki_extracted/enwiki2016/AA/wiki_03"
    assert reasons(read(path)) == ["doc_not_closed"]
