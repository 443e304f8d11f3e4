"""The same short text as a file of each format, made here."""

import io
import subprocess
import tarfile
import zipfile
from email.message import EmailMessage
from functools import cache
from pathlib import Path

import pypandoc  # type: ignore[import-untyped]
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

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
PROSE = "A heading\n\nDie Größe des Meeres kostet $5 and $6 by code.\n\nAn item\n\nThe end.\n"
"""What is kept of it."""


@cache
def by_pandoc(format: str) -> bytes:
    """Return the text as a file of a format."""
    if format == "markdown":
        return MARKDOWN.encode()
    written = {"docbook": "docbook5"}.get(format, format)
    source = MARKDOWN.replace("$", "\\$")
    if format in ("docx", "epub", "odt", "pptx"):
        path = Path(pypandoc.__file__).with_name("files") / "pandoc"
        command = [str(path), "--standalone", "--from=markdown", f"--to={written}", "--output=-"]
        done = subprocess.run(command, input=source.encode(), capture_output=True, check=True)
        return done.stdout
    return str(pypandoc.convert_text(source, written, "markdown", ["--standalone"])).encode()


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


def mail(text: str, *, subtype: str = "plain", number: int = 1, charset: str = "utf-8") -> bytes:
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
