"""What the tests of the readers share: files of each format, and short forms of what is read."""

import bz2
import gzip
import io
import json
import lzma
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import lz4.frame  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pypandoc  # type: ignore[import-untyped]
import zstandard
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import Unreadable, format_of, read_documents

CORPORA = Path(__file__).parents[4] / "shared/data/corpora"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".tgz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
    ".lz4": lambda content: lz4.frame.compress(content, content_checksum=True, block_checksum=True),
    ".zst": zstandard.ZstdCompressor().compress,
    ".br": brotli.compress,
}
Read = list[Document | Unreadable]
Outcome = tuple[str, Any] | tuple[int, str]
"""Of a document its id after the file's name, and its text; else the offset and the reason."""


def read(
    path: Path | str, declared: SourceFormat = "auto", name: str | None = None, **settings: Any
) -> Read:
    """Read all of a file as the corpus stage would."""
    source = SourceSettings(format=declared, **settings)
    name = str(path).rpartition("/")[2] if name is None else name
    return list(read_documents(str(path), name, source, format_of(str(path), source)))


def read_content(
    content: bytes, declared: SourceFormat = "auto", name: str = "f", **settings: Any
) -> Read:
    """Read ``content`` as a file in memory."""
    storage.write_bytes(f"memory://readers/{name}", content)
    return read(f"memory://readers/{name}", declared, **settings)


def outcomes(records: Read, name: str = "f") -> list[Outcome]:
    return [
        (record.id.removeprefix(name), record.text)
        if isinstance(record, Document)
        else (record.offset, record.reason)
        for record in records
    ]


def texts(records: Read) -> list[str]:
    """Return the documents' texts; there must be nothing but documents."""
    good, bad = split(records)
    assert bad == []
    return [document.text for document in good]


def split(records: Read) -> tuple[list[Document], list[Unreadable]]:
    """Return the documents and what could not be read."""
    good = [record for record in records if isinstance(record, Document)]
    return good, [record for record in records if isinstance(record, Unreadable)]


# Files


def json_lines(*objects: object) -> bytes:
    """Return one JSON object a line."""
    return "".join(json.dumps(value) + "\n" for value in objects).encode()


def parquet(columns: dict[str, Any] | pa.Table, **options: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content, **options)
    return content.getvalue()


def arrow(columns: dict[str, Any], *, kind: Any = pa.ipc.new_stream, rows: int = 40) -> bytes:
    """Return a table as an Arrow stream or file, in batches of some rows."""
    content = io.BytesIO()
    table = pa.table(columns)
    with kind(content, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return content.getvalue()


WIKI = b"""<doc id="12" url="https://x/wiki?curid=12" title="Anarchism">
Anarchism

It is a philosophy.
</doc>
<doc id="25" url="https://x/wiki?curid=25" title="Autism">
Autism &amp; others.
</doc>
"""
DUMP_HEADER = """<mediawiki xml:lang="xx">
  <siteinfo>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Bildchen</namespace>
      <namespace key="14" case="first-letter">Fach &amp; Art</namespace>
    </namespaces>
  </siteinfo>
"""
DUMP_END = "</mediawiki>\n"


def article(number: int, text: str = "Some ''text''.", **changes: str) -> str:
    """Return a page of a dump."""
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


def dump(*pages: str) -> bytes:
    return f"{DUMP_HEADER}{''.join(pages)}{DUMP_END}".encode()


PARAGRAPH = "The old clock in the harbour follows the river, as it did before that winter. "


def web_page(words: str, head: str = "") -> str:
    return (
        f"<html><head><title>T</title>{head}</head><body><nav><a href='/'>Menu</a></nav><article>"
        f"<h1>The title</h1><p>{words} {PARAGRAPH * 5}</p><p>{PARAGRAPH * 5}</p></article>"
        "<footer>Copyright</footer></body></html>"
    )


def web_text(words: str) -> str:
    """Return the text of `web_page`."""
    paragraph = (PARAGRAPH * 5).strip()
    return f"The title\n\n{words} {paragraph}\n\n{paragraph}"


def web_record(
    content: bytes,
    kind: str = "text/html; charset=utf-8",
    status: str = "200 OK",
    record: str = "response",
    uri: str = "http://a/1",
    **headers: str,
) -> bytes:
    """Return a record of a web archive."""
    is_http = record in ("response", "request")
    if is_http:
        fields = {"Content-Type": kind} if kind else {}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = _lines(f"HTTP/1.1 {status}", fields) + content
    head = {
        "WARC-Type": record,
        "WARC-Target-URI": uri,
        "Content-Type": f"application/http; msgtype={record}" if is_http else kind,
        "Content-Length": str(len(content)),
    }
    return _lines("WARC/1.0", head) + content + b"\r\n\r\n"


def _lines(first: str, fields: dict[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


MARKDOWN = """# A heading

Die *Größe* des **Meeres** kostet $5 and $6 by `code`.

- An item

| a | b |
|---|---|
| 1 | 2 |

```
x = 1
```

The end.
"""
ODT_NAMES = ("office", "text", "drawing")
PROSE = "A heading\n\nDie Größe des Meeres kostet $5 and $6 by code.\n\nAn item\n\nThe end.\n"
"""What is kept of it."""


@cache
def by_pandoc(format: str, markdown: str = MARKDOWN) -> bytes:
    """Return the text as a file of a format."""
    if format == "markdown":
        return markdown.encode()
    written = {"docbook": "docbook5"}.get(format, format)
    source = markdown.replace("$", "\\$")
    if format in ("docx", "epub", "odt", "pptx"):
        path = Path(pypandoc.__file__).with_name("files") / "pandoc"
        command = [str(path), "--standalone", "--from=markdown", f"--to={written}", "--output=-"]
        done = subprocess.run(command, input=source.encode(), capture_output=True, check=True)
        return done.stdout
    return str(pypandoc.convert_text(source, written, "markdown", ["--standalone"])).encode()


def odt(body: str) -> bytes:
    """Return an OpenDocument text."""
    names = " ".join(
        f"xmlns:{n}='urn:oasis:names:tc:opendocument:xmlns:{n}:1.0'" for n in ODT_NAMES
    )
    content = f"<office:body><office:text>{body}</office:text></office:body>"
    root = "<office:document-{0} {1}>{2}</office:document-{0}>"
    return archive(
        {
            "mimetype": b"application/vnd.oasis.opendocument.text",
            "content.xml": root.format("content", names, content).encode(),
            "styles.xml": root.format("styles", names, "<office:styles/>").encode(),
            "META-INF/manifest.xml": b"<manifest/>",
        }
    )


def pdf(*pages: str) -> bytes:
    """Return a file with a text layer, a page for each text; an empty one has no words."""
    content = io.BytesIO()
    with PdfPages(content) as file:
        for page in pages:
            figure = Figure(figsize=(8, 8))
            for place, line in enumerate(page.split("\n") if page else []):
                figure.text(0.05, 0.95 - 0.05 * place, line)
            file.savefig(figure)
    return content.getvalue()


def mail(
    text: str, *, subtype: str = "plain", number: int | str = 1, charset: str = "utf-8"
) -> bytes:
    message = EmailMessage()
    message["From"] = "a@example.com"
    message["Message-ID"] = f"<{number}@example.com>"
    message.set_content(text, subtype=subtype, charset=charset)
    message.add_attachment(b"\x00\x01", maintype="image", subtype="png")
    return message.as_bytes()


def parts_in_parts(number: int) -> bytes:
    """Return a message's parts, each in another one; in the innermost is a text."""
    parts = (f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(number))
    return f"{''.join(parts)}\nText.\n".encode()


def archive(files: dict[str, bytes], *, packing: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for name, file in files.items():
            packed.writestr(zipfile.ZipInfo(name), file, packing)
    return content.getvalue()


def tar(files: dict[str, bytes], **headers: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", pax_headers=headers) as packed:
        for name, file in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(file)
            packed.addfile(info, io.BytesIO(file))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(link)
    return content.getvalue()
