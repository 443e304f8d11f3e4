"""Makes texts fit to be shown: credentials are hidden, control characters made visible.

Credentials belong in the environment: in variables that are named as secrets, in the URIs of
servers, in fsspec's configuration, or in files that these name. Recipes and options must not
contain them, because those are saved and shown; see `Settings.read`.
"""

import json
import logging
import os
import re
import sys
import traceback
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"

_NO_END = r"""[^\s/?#'"<>]"""
_USERINFO = f"(?:https?://{_NO_END}+|://{_NO_END}*:{_NO_END}*)@"
_PARAMETER = (
    r"[?&;](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|auth|"
    r"authorization|\w*token|\w*password|passwd|pwd|\w*secret|(?:\w+_)?api_?key|key|"
    r"awsaccesskeyid)="
)
IN_URI = re.compile(f"{_USERINFO}|{_PARAMETER}[^&\\s]", re.IGNORECASE)
"""Matches only in URIs with credentials."""


def _in_either_case(pattern: str) -> str:
    """Return a lower-case pattern that matches in either case."""
    return re.sub(r"(?<!\\)[a-z]", lambda found: f"[{found[0]}{found[0].upper()}]", pattern)


WITHOUT_CREDENTIALS = rf"^(?![\s\S]*(?:{_in_either_case(IN_URI.pattern)}))"
"""Matches texts without credentials. JSON schemas use it, whose patterns have no flags.

Both Python and JavaScript in its strict ("u") mode accept it.
"""

_USERINFO_OF_URI = re.compile(r"(https?://|://)([^\s/?#'\"<>:]*:)?([^\s/?#'\"<>]*)@", re.IGNORECASE)
_VALUE_OF_PARAMETER = re.compile(rf"({_PARAMETER})([^&\s'\"<>)]+)", re.IGNORECASE)
_HEADER = re.compile(r"(authorization\W{1,4}(?:basic|bearer|token)?\s*)([^\s'\",]+)", re.IGNORECASE)
_SECRET_NAME = re.compile(
    "password|passwd|secret|token|credential|api_?key|access_?key|private_?key|auth_string|"
    "authorization|webhook",
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(f"^(?:key|auth|{_SECRET_NAME.pattern})", re.IGNORECASE)
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: repr(chr(code))[1:-1] for code in _CONTROLS if chr(code) not in "\t\n"}
"""Characters that move a terminal's cursor, colour it, name its window or turn text around."""
_MIN_CHARACTERS = 6
"""Shorter secrets are not searched for by value, because they occur within other words."""


def has_credentials(text: str) -> bool:
    """Return whether ``text`` contains a URI with a password, a token or a signature."""
    return IN_URI.search(text) is not None


def texts_in(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text in tables and lists, at any depth, with the names that lead to it."""
    if isinstance(values, str):
        yield path, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from texts_in(value, (*path, str(name)))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from texts_in(value, path)


def visible(text: str) -> str:
    """Return ``text`` with escapes, as in a Python literal, in place of what is not for a terminal.

    That is control characters but tabs and line ends, and invalid Unicode. The name of a file or a
    document may have them.
    """
    return text.translate(_VISIBLE).encode(errors="backslashreplace").decode()


def redacted(text: str) -> str:
    """Return ``text`` as in `visible`, with ``***`` in place of credentials.

    These are credentials in URIs and headers, and the secrets of the environment: the values of
    variables that are named as secrets, and those in its URIs and in fsspec's configuration.
    """
    for secret in sorted(secrets_of(os.environ), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _USERINFO_OF_URI.sub(_without_userinfo, visible(text))
    text = _VALUE_OF_PARAMETER.sub(rf"\1{HIDDEN}", text)
    return _HEADER.sub(rf"\1{HIDDEN}", text)


def hide_credentials_in_logs() -> None:
    """Hide credentials in every log record of this process, and in the traceback that ends it.

    The arguments of a record add no line to it: the name of a file may have line ends.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "hides_credentials", False):
        return

    def make_redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = redacted(record.getMessage())
            if record.args and "\n" not in str(record.msg):  # a name must not begin a line
                text = text.replace("\n", r"\n")
            record.msg, record.args = text, ()
        except (TypeError, ValueError):
            return record  # a wrong format, which logging reports itself
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info))[:-1])
        return record

    make_redacted.hides_credentials = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)
    sys.excepthook = lambda *raised: sys.stderr.write(
        redacted("".join(traceback.format_exception(*raised)))
    )


def secrets_of(environment: Mapping[str, str]) -> set[str]:
    """Return the secrets in environment variables, in every form that a text may contain."""
    found: set[str] = set()
    for name, value in environment.items():
        found.update(_secrets_in_uris(value))
        if name.startswith("FSSPEC_"):
            found.update(_secrets_in_json(value, name))
        elif _SECRET_NAME.search(name) and not _is_of_a_file(name, value):
            found.update((value, value.rpartition(":")[2]))
    forms = {form for each in found for form in (each, unquote(each), quote(each, safe=""))}
    return set(filter(_may_be_secret, forms))


def _secrets_in_uris(text: str) -> Iterator[str]:
    for _, user, password in _USERINFO_OF_URI.findall(text):
        if user or "http" in text:
            yield password
    for _, value in _VALUE_OF_PARAMETER.findall(text):
        yield value


def _secrets_in_json(text: str, name: str) -> Iterator[str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for path, inner in texts_in(value):
        setting = path[-1] if path else name.removeprefix("FSSPEC_").partition("_")[2]
        if _SECRET_KEY.search(setting):
            secret = inner.rpartition(" ")[2]
            yield secret
            with suppress(ValueError):
                yield b64decode(secret, validate=True).decode().partition(":")[2]  # of basic auth


def _is_of_a_file(name: str, value: str) -> bool:
    return name.upper().endswith(("_FILE", "_PATH")) or value.startswith(("/", "~"))


def _may_be_secret(text: str) -> bool:
    return len(text) >= _MIN_CHARACTERS and not text.isdecimal()


def _without_userinfo(match: re.Match[str]) -> str:
    scheme, user, _ = match.groups()
    has_password = bool(user) or scheme.lower().startswith("http")
    return f"{scheme}{HIDDEN}@" if has_password else match.group()
