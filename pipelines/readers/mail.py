"""Mail: the words of each message, without what it quotes, and without its signature."""

import email
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage, MIMEPart
from typing import BinaryIO, Final

from pipelines.config import SourceSettings
from pipelines.readers import record, web
from pipelines.readers.record import Record

_ESCAPED_FROM: Final = re.compile(r"(\A|^\n|^[^>\n].*\n)>(?=From .*\n(?!>))", re.MULTILINE)
"""A line of an mbox that would otherwise begin the next message."""
_QUOTES: Final = re.compile(
    r"(?:(?:^(?:On|Am|Le|El|Il|Op|Em|Den|In) .{0,200}\n)?"
    r"^(?!>).{0,100}(?:@|\d:\d\d|\d{4}|wrote|writes|schr[ei]+b|écrit|escri|scritt|skrev|пис|写道)"
    r".{0,100}[:：][ \t]*\n(?:[ \t]*\n){0,2})?"
    r"(?:^(?:[ \t]|[A-Z]{2,3})?>.*(?:\n|\Z))+",
    re.MULTILINE,
)
"""Quoted lines, with the line before them that says whose they are."""
_HEADER_OF_QUOTE: Final = re.compile(
    r"^(?P<mark>[ \t]*(?:-{2,20} ?[^\n-]{1,60}-{2,20}|_{10,80}|[^\W\d].{0,60}:)[ \t]*\n\s{0,9})"
    r"(?=\*?(?:From|Sent|Date|Subject|Von|Datum|Betreff|De|Da|Van|Från|Fra|Od|От|发件人|寄件者|差出人"
    r"|보낸 ?사람)\b)"
    r"(?:\*?[^\W\d][\w .]{0,20}\*?[ \xa0]?[:：].*\n(?:[ \t]+\S.*\n)*){3,}",
    re.MULTILINE,
)
"""The mark and the fields with which mailers begin a message that they quote or forward."""
_FORWARDED: Final = re.compile(
    r"forward|weitergeleitet|transf|reenv|inoltr|encaminh|doorgestuurd|пересыла|转发|轉寄|転送"
    r"|\A(?:fwd?|wg|tr|rv|i|enc)\s*:",
    re.IGNORECASE,
)
_PGP: Final = re.compile(
    r"^-----BEGIN PGP SIGNED MESSAGE-----\n(?:[\w-]+: .*\n)*"
    r"|^-----BEGIN PGP SIGNATURE-----\n(?:(?!-----).*\n){0,99}-----END PGP SIGNATURE-----\n?",
    re.MULTILINE,
)
_SIGNATURE: Final = re.compile(
    r"^(?:- )?-- \n.*\Z"
    r"|^--\n[^\n]{0,39}[^\s.!?:;,…。！？](?:\n[^\n]{1,80}){0,4}\s*\Z"
    r"|^_{30,}\n(?:[^\n]*\n){0,8}[^\n]*\Z"
    r"|^(?:Sent from my|Von meinem|Envoyé de mon) [^\n]*\s*\Z",
    re.MULTILINE | re.DOTALL,
)
"""That of the writer, or of the list: the last lines after a mark.

Two dashes without the blank behind them may also part texts. They mark up to five lines without a
blank one between them, of which the first is short and ends like a name.
"""
_HEADER_BYTES: Final = 4096
_POST_LINE: Final = re.compile(rb"From \S+ .*\d:\d\d.*\d{4}\s*$")
_PART: Final = re.compile(rb'(?i)\bboundary\s*=\s*"?([^\s";]+)|^--(\S+)--\s*$', re.MULTILINE)
"""Declares the boundary of a message's parts, or ends the last one."""
_LONG_FIELD: Final = re.compile(
    rb"(?i)^(?:subject|content-[\w-]+):(?:[^\n]|\n[ \t]){16384}", re.MULTILINE
)
"""A field of a header that no mailer writes: Python takes the square of its length."""
_MOST_COMPARED: Final = 5_000_000
"""Lines of a message times the parts in parts that it has: Python compares each line with the
boundaries of all parts around it, a million in a second."""


def read_mail(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the text of each message of an eml file or an mbox.

    Quoted lines, messages quoted below the writer's own, signatures and attachments are left out.
    Of a forwarded message the text is kept.
    """
    max_bytes = settings.max_document_bytes
    block = record.Block(0, max_bytes)
    after_blank = True
    for offset, line in record.bounded_lines(file, max_bytes):
        if after_blank and _POST_LINE.match(line):
            if block.content:
                yield _message(block, settings)
            block = record.Block(offset, max_bytes)
        else:
            block.add(line)
        after_blank = line.isspace()
    yield _message(block, settings)


def _message(block: record.Block, settings: SourceSettings) -> Record:
    content = block.content
    header = content[:_HEADER_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    message_id = re.search(rb"^message-id:\s*<?([^>\s]+)", header, re.IGNORECASE | re.MULTILINE)
    key = message_id[1].decode("ascii", "replace") if message_id else ""
    return record.text_record(content, settings, block.offset, key, _body)


def _body(content: bytes, encoding: str) -> str:
    """Return the text of a message.

    Raises:
        UnreadableError: "not_extractable": it has no text or is broken.
    """
    try:
        subject, parts = record.from_the_top(_text_parts, content)
        texts = [_text_of_part(part, encoding, subject) for part in parts]
    except (LookupError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    if not texts:
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    return "\n\n".join(filter(None, texts))


def _text_of_part(part: MIMEPart, encoding: str, subject: str) -> str:
    """Return what the writer of a message says in a part of it."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    charset = part.get_content_charset("")
    if part.get_content_subtype() == "html":
        return web.text_of_page(payload, encoding, f"charset={charset}" if charset else "")
    text = record.decode_file(payload, encoding, charset).replace("\r\n", "\n")
    return _own_words(text, subject)


def _own_words(text: str, subject: str) -> str:
    """Return what the writer of a message says or forwards."""
    text = _PGP.sub("", _ESCAPED_FROM.sub(r"\1", text))
    if header := _HEADER_OF_QUOTE.search(text):
        is_forwarded = _FORWARDED.search(header["mark"]) or _FORWARDED.match(subject)
        rest = text[header.end() :] if is_forwarded else ""
        text = text[: header.start()] + rest
    return _SIGNATURE.sub("", _QUOTES.sub("", text))


def _text_parts(content: bytes) -> tuple[str, list[MIMEPart]]:
    """Return the subject of a message, and the parts that hold its text.

    Raises:
        RecursionError: parts are nested so deeply that it can't be read, or not in minutes.
    """
    around, deepest = set[bytes](), 0
    for begun, ended in _PART.findall(content):
        (around.add if begun else around.discard)(begun or ended)
        deepest = max(deepest, len(around))
    if deepest * content.count(b"\n") > _MOST_COMPARED or _LONG_FIELD.search(content):
        raise RecursionError
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return str(message["subject"] or ""), _shown(message) or _main_part(message)


def _shown(part: MIMEPart) -> list[MIMEPart]:
    """Return the parts of text in ``part`` that a mailer shows below each other.

    Named ones are files. Of alternatives it is the first that has plain text.
    """
    kind = part.get_content_type()
    if part.is_attachment() or part.get_filename():
        return []
    if not kind.startswith("multipart/") or kind == "multipart/related":
        return _main_part(part)
    found = [_shown(each) for each in part.iter_parts()]
    if kind == "multipart/alternative":
        return min(filter(None, found), key=_is_html, default=[])
    return [shown for each in found for shown in each]


def _is_html(parts: list[MIMEPart]) -> bool:
    return all(part.get_content_subtype() == "html" for part in parts)


def _main_part(part: MIMEPart) -> list[MIMEPart]:
    body = part.get_body(("plain", "html"))
    return [] if body is None else [body]
