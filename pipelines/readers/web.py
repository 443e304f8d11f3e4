"""Prose of the web: HTML pages, alone or in web archives.

What is kept is headings, paragraphs and the items of lists. Menus, comments, tables and quoted
messages are left out.
"""

import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Final, cast

import brotli  # type: ignore[import-untyped]
from lxml import html  # type: ignore[import-untyped]
from warcio import exceptions, recordloader, statusandheaders  # type: ignore[import-untyped]

from pipelines.config import SourceSettings
from pipelines.readers import record
from pipelines.readers.record import Record

_HEAD_BYTES: Final = 4096
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_DECLARED: Final = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]+)"
    rb"|\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE | re.DOTALL,
)
_BLANKS: Final = re.compile(r"\s+")
_WIDE: Final = "\u3001-\u30ff\u3400-\u9fff\uff01-\uff5e"
_LINE_END: Final = re.compile(rf"(?<=[{_WIDE}])[^\S\n]*+\n\s*+(?=[{_WIDE}])")
"""That between Chinese or Japanese characters, which is no blank. Source: CSS Text Module Level 4,
"Segment Break Transformation Rules"."""
_LEAST_ARTICLE: Final = 250
"""Characters. Of a shorter text trafilatura keeps no paragraphs."""
_IS_DOCBOOK: Final = "boolean(//div[@class='titlepage'])"
_HEADINGS: Final = "self::h1 or self::h2 or self::h3 or self::h4 or self::h5 or self::h6"
_BLOCKS: Final = (
    f"{_HEADINGS} or self::p or self::div or self::ul or self::ol or self::dl or self::table "
    "or self::pre or self::blockquote or self::form or self::section"
)
_DROPPED: Final = (
    "//a[contains(@class, 'headerlink') or contains(@class, 'copiable-')] "
    "| //div[@class='header' or @class='nav-panel'][.//a[@accesskey]] "
    "| //div[@class='toc' or contains(@class, 'gmail_quote')] | //blockquote[@type='cite'] "
    "| //rt | //rp | //template"
)
"""Links of headings to themselves, and of pages of Texinfo to others; tables of contents, messages
that a message quotes, how words of Japanese are read, and what pages hold but do not show."""
_LAYOUT: Final = (
    f"//table[.//*[{_HEADINGS} or self::table] or .//td[count(p) > 1 or string-length() > 200]]"
    "/descendant-or-self::*[self::table or self::tbody or self::tr or self::td]"
)
"""Tables that place the parts of a page, and what they are made of."""
_DEEP: Final = "boolean(//*[ancestor::*[250]])"
_TOO_DEEP: Final = "boolean(//*[ancestor::*[512]])"
"""What takes the square of its depth would take minutes."""
_BREAK: Final = "\u2e4f"
"""Stands for a line end within a paragraph; the divider of verses is hardly ever used."""

for _name in ("trafilatura", "warcio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def declared_encoding(content: bytes, content_type: str = "") -> str:
    """Return the encoding that the server, the page or the XML declares, or an empty string."""
    if found := _CHARSET.search(content_type):
        return found[1]
    declared = _DECLARED.search(content, 0, _HEAD_BYTES)
    return (declared[1] or declared[2]).decode("ascii", "replace") if declared else ""


def decode_declared(content: bytes, encoding: str) -> str:
    """Return a page or XML decoded as it declares, unless ``encoding`` is another than auto."""
    return record.decode_file(content, encoding, declared_encoding(content))


# HTML


def decode_page(content: bytes, encoding: str, content_type: str = "") -> str:
    """Return a page or a text from the web as browsers read it.

    Args:
        content: its bytes.
        encoding: a declared one; auto: that of the server or the page, or a guess from the bytes.
        content_type: as the server sent it.

    Raises:
        UnreadableError: "not_decodable".
    """
    declared = declared_encoding(content, content_type)
    if encoding == record.AUTO and declared.lower() in ("utf-8", "utf8"):
        text = content.decode(errors="replace")
        num_foreign = len(text) - len(text.encode("ascii", "ignore"))
        if 2 * text.count("\ufffd") <= num_foreign:  # else the declaration is wrong
            return text
    return record.decode_file(content, encoding, declared)


def text_of_page(content: bytes, encoding: str, content_type: str = "") -> str:
    """Return the text of a page without menus, comments and tables; empty if there is none.

    Args: see `decode_page`.

    Raises:
        UnreadableError: "not_decodable", or "not_extractable": a parser failed, or elements are
            nested more than 512 deep.
    """
    from trafilatura import extract  # takes a second: others need not wait for it

    page = decode_page(content, encoding, content_type)
    if not page.strip():
        return ""
    # All threads share its HTML parser and its XPaths, which lxml locks. Its caches hold pure
    # results, except that of `deduplicate`, which is off.
    try:
        text = ""
        for is_retry in (False, True):
            tree = _tree_of(page)
            is_part = page.lstrip().startswith("<") if tree is None else tree.tag != "html"
            if is_part:  # trafilatura refuses a single element, and short parts
                tree = _tree_of("<html>" + page)
            if tree is None:
                return ""
            is_docbook = tree.xpath(_IS_DOCBOOK)
            is_made = _separate_blocks(tree, make_article=not is_retry)
            text = extract(tree, fast=True, include_comments=False, include_tables=False) or ""
            if not is_made or ("\n" in text if is_docbook else len(text) >= _LEAST_ARTICLE):
                break
    except Exception as error:  # whatever it is, the next page may be sound
        raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    # A line end of the text is the end of a block, but where a page says <br>.
    text = text.replace("\n", "\n\n").replace("\n\n" + _BREAK, "\n").replace(_BREAK, "")
    return text.encode(errors="replace").decode()


def _tree_of(page: str) -> Any | None:
    """Return the elements of a page, or None if it is none.

    trafilatura's parser drops the rest of a page behind elements that are nested 256 deep.
    """
    from trafilatura import load_html, utils

    tree = load_html(page)
    if tree is None or not tree.xpath(_DEEP):
        return tree
    parser = html.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True
    )
    page = utils.repair_faulty_html(page, page[:50].lower())
    tree = html.fromstring(page.encode("utf-8", "surrogatepass"), parser=parser)
    if tree.xpath(_TOO_DEEP):
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    return tree


def _separate_blocks(tree: Any, *, make_article: bool) -> bool:
    """Prepare a page for trafilatura, which keeps the line ends of its source.

    It would also join blocks in an item of a list: these get line ends of their own. What is in
    `_DROPPED` goes. trafilatura keeps the headings of what it takes for an article. If
    ``make_article``, what DocBook calls a book or a chapter becomes one, and a page without any is
    one as a whole. Return whether one was made.
    """
    from trafilatura import xpaths

    wholes = tree.xpath("(//div[@class='titlepage'])[1]/parent::div") if make_article else []
    for whole in wholes:
        whole.tag = "article"
    for around in tree.xpath("//div[@class='titlepage']/descendant-or-self::div"):
        around.drop_tag()
    is_made = make_article and not any(found(tree) for found in xpaths.BODY_XPATH)
    if is_made:
        _make_article(tree)
    for element in tree.xpath(_DROPPED):
        element.drop_tree()
    inside = frozenset(tree.xpath("//pre//node()[not(self::text())]"))
    for node in tree.iter():
        if isinstance(node.tag, str):
            node.text = _lines(node.text, node in inside or node.tag == "pre")
        node.tail = _lines(node.tail, node in inside)
        if node.tag == "br" and (node.tail or "").strip():
            node.tail = _BREAK + node.tail.lstrip()
    for block in tree.xpath("//li/p | //li/div | //dd/p | //dd/div"):
        if block.getprevious() is not None or (block.getparent().text or "").strip():
            block.addprevious(tree.makeelement("br"))
            block.drop_tag()
    return is_made or bool(wholes)


def _make_article(tree: Any) -> None:
    """Put the body of a page in one article, of headings and paragraphs."""
    for element in tree.xpath(_LAYOUT):
        element.tag = "div"
    for element in tree.xpath(f"//*[self::div or self::body][.//*[{_BLOCKS}]]"):
        _wrap_words(element)
    for element in tree.xpath(f"//div[not(.//*[{_BLOCKS}])]"):
        element.tag = "p"
    for body in tree.xpath("descendant-or-self::body[1]"):
        article = tree.makeelement("article")
        article.text, body.text, article[:] = body.text, None, body[:]
        body.append(article)


def _wrap_words(around: Any) -> None:
    """Make a paragraph of each run of words that stands beside the blocks in ``around``."""
    words = around.makeelement("p")
    words.text, around.text = around.text, None
    for child in [*around, None]:
        if child is not None and not child.xpath(f"self::*[{_BLOCKS}] or .//*[{_BLOCKS}]"):
            words.append(child)
            continue
        if "".join(words.itertext()).strip():
            around.insert(len(around) if child is None else around.index(child), words)
        if child is not None:
            words = around.makeelement("p")
            words.text, child.tail = child.tail, None


def _lines(text: str | None, is_preformatted: bool) -> str | None:
    if not text:
        return text
    if is_preformatted:
        return text.replace("\n", "\n" + _BREAK)
    return _BLANKS.sub(" ", text if text.isascii() else _LINE_END.sub("", text))


# Web archives

_MAX_LINE_BYTES = 1 << 14
_SKIP_BYTES = 1 << 20
_FLAGS = re.IGNORECASE | re.DOTALL
_ARC_LINE = re.compile(rb"[a-z]+:\S+ \S+ [0-9]{8,14} .*[0-9]+\s*$")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_HTML_BEGINS = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head)\b", _FLAGS)
_WARC_ERRORS = (
    *(exceptions.ArchiveLoadFailed, statusandheaders.StatusAndHeadersParserException),
    EOFError,
    OverflowError,  # of a length beyond what a file can have
    ValueError,
    AttributeError,  # raised for a response without an address
)


def read_warc(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each page in HTML, and for each text of a WET file.

    Other records (requests, metadata, name look-ups, the archive's description) are not documents
    and not counted. Responses of another type are "not_html", unsuccessful ones "http_error". After
    a broken record, reading continues at the next one.
    """
    after_broken = False
    while line := file.readline(_MAX_LINE_BYTES):
        offset = file.tell() - len(line)
        if line.isspace():
            continue
        found = _parse(file, line)
        if found is not None:
            yield from _records(found, offset, settings)
        elif not after_broken:
            yield record.unreadable("broken_record", offset, line)
        after_broken = found is None


def _parse(file: BinaryIO, line: bytes) -> Any | None:
    """Return the record that begins with ``line``, or None if none does."""
    kind = "warc" if line.startswith(b"WARC/") else "arc" if _ARC_LINE.match(line) else ""
    if not kind:
        return None
    loader = recordloader.ArcWarcRecordLoader(verify_http=False, arc2warc=False)
    try:
        found = loader.parse_record_stream(file, line, kind)
    except _WARC_ERRORS:
        return None
    # A record without a length would be all the rest of the file.
    return None if found.raw_stream is file else found


def _records(found: Any, offset: int, settings: SourceSettings) -> Iterator[Record]:
    """Yield the document of a record, if it is one, and read to the record's end."""
    uri = found.rec_headers.get_header("uri" if found.format == "arc" else "WARC-Target-URI") or ""
    max_bytes = settings.max_document_bytes
    is_answer = found.rec_type == "response" and uri.lower().startswith(("http:", "https:"))
    is_wanted = is_answer or found.rec_type in ("resource", "conversion")
    content = _content(found, max_bytes) if is_wanted else b""
    while found.raw_stream.read(_SKIP_BYTES):
        pass
    if not is_wanted:
        return
    content_type = _content_type(found, content)
    if found.raw_stream.limit > 0:
        yield record.unreadable("truncated_record", offset, content, uri)
    elif reason := _left_out(found, content_type):
        yield record.unreadable(reason, offset, content, uri)
    else:
        decode = decode_page if found.rec_type == "conversion" else text_of_page
        yield record.text_record(
            content, settings, offset, uri, partial(decode, content_type=content_type)
        )


def _content(found: Any, max_bytes: int) -> bytes:
    """Return the record's content, decompressed; if it is too large, its beginning."""
    if found.length > max_bytes:  # not decompressed: that would hold a whole chunk
        return cast(bytes, found.raw_stream.read(max_bytes + 1))
    coded = found.http_headers.get_header("Content-Encoding", "") if found.http_headers else ""
    if coded.strip().lower() != "br":
        return cast(bytes, found.content_stream().read(max_bytes + 1))
    found.http_headers.remove_header("Content-Encoding")  # warcio fails with brotli 1.2
    packed = found.content_stream().read()
    try:
        return brotli.Decompressor().process(packed, output_buffer_limit=max_bytes + 1)
    except brotli.error:  # some archives store the page decompressed and keep its header
        return cast(bytes, packed)


def _content_type(found: Any, content: bytes) -> str:
    """Return the content type from the server or the archive, in lower case."""
    if found.http_headers is not None:
        declared = found.http_headers.get_header("Content-Type")
    else:
        declared = found.content_type
    return (declared or ("text/html" if _HTML_BEGINS.match(content) else "")).strip().lower()


def _left_out(found: Any, content_type: str) -> str:
    """Return why the record is not a page, or an empty string if it is one."""
    if found.rec_type == "conversion":
        return ""
    if found.rec_type == "response":
        status = found.http_headers.get_statuscode() if found.http_headers else ""
        if not status.startswith("2"):
            return "http_error"
    return "" if content_type.startswith(_HTML_TYPES) else "not_html"
