"""Web archives, whole and broken."""

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.text.records import Document
from pipelines.readers import LEFT_OUT, Unreadable
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    documents,
    ids,
    needs,
    read,
    read_content,
    read_in_memory,
    reasons,
    split,
    texts,
)

PARAGRAPH = "The old clock in the harbour follows the river, as it did before that winter. "


def page(words: str, head: str = "") -> str:
    return (
        f"<html><head><title>T</title>{head}</head><body><nav><a href='/'>Menu</a></nav><article>"
        f"<h1>The title</h1><p>{words} {PARAGRAPH * 5}</p><p>{PARAGRAPH * 5}</p></article>"
        "<footer>Copyright</footer></body></html>"
    )


class Archive:
    """An archive that is being written."""

    def __init__(self, packed: bool = False) -> None:
        self.content = b""
        self.packed = packed

    def add(
        self,
        uri: str,
        content: bytes,
        kind: str = "text/html; charset=utf-8",
        status: str = "200 OK",
        record: str = "response",
        **headers: str,
    ) -> "Archive":
        is_http = record in ("response", "request")
        if is_http:
            fields = {"Content-Type": kind} if kind else {}
            fields |= {name.replace("_", "-"): value for name, value in headers.items()}
            content = _block(f"HTTP/1.1 {status}", fields) + content
        head = {
            "WARC-Type": record,
            "WARC-Target-URI": uri,
            "Content-Type": f"application/http; msgtype={record}" if is_http else kind,
            "Content-Length": str(len(content)),
        }
        written = _block("WARC/1.0", head) + content + b"\r\n\r\n"
        self.content += gzip.compress(written) if self.packed else written
        return self


def _block(first: str, fields: dict[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


def two_pages(packed: bool = False) -> bytes:
    archive = Archive(packed)
    archive.add("http://a/1", page("Größe one.").encode())
    return archive.add("http://a/2", page("Words two.").encode()).content


@pytest.mark.parametrize("packed", [False, True])
def test_pages_are_documents_by_their_addresses(tmp_path: Path, packed: bool) -> None:
    name = "a.warc.gz" if packed else "a.warc"
    records = read_content(tmp_path, name, two_pages(packed))
    assert ids(records) == [f"{name}#http://a/1", f"{name}#http://a/2"]
    first, second = texts(records)
    assert "Größe one." in first
    assert "Words two." in second
    assert "Menu" not in first
    assert "Copyright" not in first


def test_a_page_has_the_same_text_each_time(tmp_path: Path) -> None:
    pages = Archive()
    for number in range(6):
        pages.add(f"http://a/{number}", page("Same words.").encode())
    assert len(set(texts(read_content(tmp_path, "a.warc", pages.content)))) == 1


def test_an_archive_packed_as_one_stream_is_read(tmp_path: Path) -> None:
    assert len(documents(read_content(tmp_path, "a.warc.gz", gzip.compress(two_pages())))) == 2
    assert len(documents(read_content(tmp_path, "a.warc.zst", PACKERS[".zst"](two_pages())))) == 2


def test_texts_of_a_wet_file_are_documents(tmp_path: Path) -> None:
    archive = Archive().add(
        "http://a/1", b"filename: x", "application/warc-fields", record="warcinfo"
    )
    archive.add("http://a/1", "Größe.\n\nTwo.".encode(), "text/plain", record="conversion")
    records = read_content(tmp_path, "CC-MAIN.warc.wet", archive.content)
    assert texts(records) == ["Größe.\n\nTwo."]
    assert ids(records) == ["CC-MAIN.warc.wet#http://a/1"]


def test_records_of_other_kinds_are_no_documents(tmp_path: Path) -> None:
    archive = Archive()
    archive.add("http://a/1", b"GET / HTTP/1.0", record="request")
    archive.add("http://a/1", b"fetched: 1", "application/warc-fields", record="metadata")
    archive.add("dns:a", b"a 1 IN A 1.2.3.4", "text/dns", record="resource")
    records = read_content(tmp_path, "a.warc", archive.content)
    assert reasons(records) == ["not_html"]


def test_answers_that_are_no_pages_are_left_out_by_name(tmp_path: Path) -> None:
    archive = Archive().add("http://a/1.png", b"\x89PNG", "image/png")
    archive.add("http://a/gone", page("Gone.").encode(), status="404 Not Found")
    records = read_content(tmp_path, "a.warc", archive.content)
    assert reasons(records) == ["not_html", "http_error"]
    assert set(reasons(records)) <= LEFT_OUT


def test_a_page_without_text_is_an_empty_document(tmp_path: Path) -> None:
    archive = Archive().add("http://a/1", b"<html></html>").add("http://a/2", b"")
    assert texts(read_content(tmp_path, "a.warc", archive.content)) == ["", ""]


@pytest.mark.parametrize(
    ("encoding", "kind", "head"),
    [
        ("utf-8", "text/html", ""),
        ("cp1252", "text/html; charset=ISO-8859-1", ""),
        ("cp1252", "text/html", '<meta charset="windows-1252">'),
        ("cp1251", "text/html;charset=windows-1251", ""),
        ("shift_jis", "text/html", '<meta http-equiv="x" content="text/html; charset=Shift_JIS">'),
        ("utf-16", "application/xhtml+xml", ""),
    ],
)
def test_the_server_or_the_page_tells_its_encoding(
    tmp_path: Path, encoding: str, kind: str, head: str
) -> None:
    words = {"cp1251": "Опять весна.", "shift_jis": "吾輩は猫である。"}.get(encoding, "Größe.")
    archive = Archive().add("http://a/1", page(words, head).encode(encoding), kind)
    [text] = texts(read_content(tmp_path, "a.warc", archive.content))
    assert words in text


def test_a_page_without_a_type_is_told_by_its_beginning(tmp_path: Path) -> None:
    archive = Archive().add("http://a/1", page("One.").encode(), "").add("http://a/2", b"x", "")
    good, bad = split(read_content(tmp_path, "a.warc", archive.content))
    assert (len(good), [each.reason for each in bad]) == (1, ["not_html"])


def test_an_answer_packed_or_in_chunks_is_unpacked(tmp_path: Path) -> None:
    content = page("One.").encode()
    archive = Archive().add("http://a/1", gzip.compress(content), Content_Encoding="gzip")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    archive.add("http://a/2", chunks, Transfer_Encoding="chunked")
    first, second = texts(read_content(tmp_path, "a.warc", archive.content))
    assert first == second
    assert "One." in first


def test_after_a_broken_record_reading_goes_on_with_the_next(tmp_path: Path) -> None:
    content = two_pages()
    second = content.rindex(b"WARC/1.0")
    junk = b"WARC/1.0\r\nWARC-Type: response\r\nno length\r\n\r\nsome\r\nlines\r\n\r\n"
    good, bad = split(read_content(tmp_path, "a.warc", content[:second] + junk + content[second:]))
    assert [each.id for each in good] == ["a.warc#http://a/1", "a.warc#http://a/2"]
    assert [(each.offset, each.reason) for each in bad] == [(second, "broken_record")]


def test_a_wrong_length_breaks_its_own_record_only(tmp_path: Path) -> None:
    content = two_pages()
    length = re.search(rb"Content-Length: [0-9]+", content)
    assert length
    broken = content.replace(length[0], b"Content-Length: 300", 1)
    good, bad = split(read_content(tmp_path, "a.warc", broken))
    assert good[-1].id == "a.warc#http://a/2"
    assert bad


def test_a_record_cut_off_at_the_end_is_reported(tmp_path: Path) -> None:
    content = two_pages()
    good, [bad] = split(read_content(tmp_path, "a.warc", content[:-200]))
    assert [each.id for each in good] == ["a.warc#http://a/1"]
    assert (bad.offset, bad.reason) == (content.rindex(b"WARC/1.0"), "truncated_record")


def test_a_packed_archive_cut_off_is_reported_with_the_pages_before(tmp_path: Path) -> None:
    packed = two_pages(packed=True)
    good, [bad] = split(read_content(tmp_path, "a.warc.gz", packed[:-50]))
    assert [each.id for each in good] == ["a.warc.gz#http://a/1"]
    assert bad.reason == "truncated_archive"


def test_a_page_too_large_is_passed_over(tmp_path: Path) -> None:
    archive = Archive().add("http://a/1", b"<html>" + b"x" * 20_000)
    archive.add("http://a/2", page("Two.").encode())
    records = read_content(tmp_path, "a.warc", archive.content, max_document_mb=0.01)
    good, [bad] = split(records)
    assert [each.id for each in good] == ["a.warc#http://a/2"]
    assert (bad.offset, bad.reason) == (0, "too_large")


@pytest.mark.parametrize(
    "content",
    ["<div>" * 50_000 + "x", "<html>\x00\x01" + page("x"), "<!DOCTYPE" * 99, "<table><tr>" * 9999],
)
def test_no_page_ends_the_reader(tmp_path: Path, content: str) -> None:
    archive = Archive().add("http://a/1", content.encode())
    archive.add("http://a/2", page("Two.").encode())
    *_, last = read_content(tmp_path, "a.warc", archive.content)
    assert "Two." in texts([last])[0]


def test_a_page_that_the_parsers_do_not_bear_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(*_: object, **__: object) -> str:
        raise RecursionError

    monkeypatch.setattr("trafilatura.extract", extract)
    assert reasons(read_content(tmp_path, "a.warc", two_pages())) == ["not_extractable"] * 2


@given(st.lists(st.sampled_from([two_pages(), b"WARC/1.0\r\n", b"\r\n"]) | st.binary(max_size=30)))
def test_no_content_ends_the_reader(parts: list[bytes]) -> None:
    for record in read_in_memory(b"".join(parts), "warc"):
        assert isinstance(record, Document) or record.reason


# Real files


@needs("warc")
def test_the_pages_of_a_real_arc_file_are_read() -> None:
    records = read(CORPORA / "warc/aut/example.arc.gz")
    good, bad = split(records)
    assert len(good) == 94
    assert set(Counter(each.reason for each in bad)) == {"not_html", "http_error"}
    assert all(each.id.startswith("example.arc.gz#http://") for each in good)
    assert sum(len(each.text) > 500 for each in good) > 40


@needs("warc")
def test_a_real_archive_of_office_files_has_no_page() -> None:
    assert set(reasons(read(CORPORA / "warc/aut/example.docs.warc.gz"))) == {"not_html"}


@needs("warc")
def test_a_real_archive_that_is_broken_says_where() -> None:
    good, bad = split(read(CORPORA / "warc/aut/badexample.arc.gz"))
    assert good == []
    assert [each.reason for each in bad] == ["not_html", "broken_record", "truncated_record"]


@needs("warc")
def test_a_real_archive_cut_in_the_middle_has_the_pages_before(tmp_path: Path) -> None:
    whole = (CORPORA / "warc/aut/example.arc.gz").read_bytes()
    good, bad = split(read_content(tmp_path, "a.arc.gz", whole[: len(whole) // 10]))
    assert good
    assert bad[-1] == Unreadable(
        str(tmp_path / "a.arc.gz"), bad[-1].offset, "truncated_archive", b""
    )
