"""Pure: repair and normalise texts; hash their words.

Mojibake is repaired by ftfy, which reads 4 to 10 MB of text a CPU second and changes hardly a line
of a good corpus, so it is given only the lines that it could change. Such a line holds a character
that ftfy always replaces, an HTML entity, or two neighbours that its heuristic
(``ftfy.badness.BADNESS_RE``) calls unlikely. Arrow's regular expressions (RE2) find these, for many
texts at once, at 400 MB a CPU second.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Final

import ftfy
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from ftfy.badness import BADNESS_RE
from ftfy.chardata import CONTROL_CHARS, HTML_ENTITY_RE, LIGATURES, WIDTH_MAP

from pipelines.corpus.wrapped_lines import join_wrapped
from pipelines.engine import loaded_once

_PRINTABLE_ASCII: Final = bytes(range(0x20, 0x7F)) + b"\n"
_ASCII: Final = bytes(range(0x80))
_MUCH: Final = 0.1
"""Share of the bytes that are not ASCII from which folding the case of all is faster."""
_LOWER_ON_ONE_LINE: Final = bytes(range(0x100)).lower().replace(b"\n", b" ")
_STRUCK_OVER: Final = re.compile(r"[^\n]\x08")
"""A character that the next one is printed upon, to make it bold or to underline it."""
_LONG: Final = 4000
"""Characters of a text for which NumPy is faster."""
_BLANK_RUN: Final = re.compile("  +")
LINE_ENDS: Final = frozenset("\r\x0b\x0c\x85\u2028\u2029")
CONTROLS: Final = (
    frozenset(map(chr, [*range(9), *range(14, 32), *range(0x7F, 0xA0), *range(0x200B, 0x2010)]))
    | frozenset(map(chr, [0xAD, *range(0x202A, 0x202F), *range(0xD800, 0xE000), 0xFEFF, 0xFFFD]))
) - LINE_ENDS
"""Controls, zero-width characters, soft hyphens, direction marks, lone surrogates and U+FFFD."""
JOINERS: Final = frozenset("\u200c\u200d")
"""Zero-width characters that are part of the spelling in scripts from Arabic to Mongolian."""
_STRAY_JOINER: Final = re.compile(
    "(?<![\u0600-\u1cff])[\u200c\u200d]|[\u200c\u200d](?![\u0600-\u1cff])"
)
BLANKS: Final = (
    frozenset(c for c in map(chr, range(0x10000)) if c.isspace()) - LINE_ENDS - CONTROLS
) - frozenset(" \n")
_REPLACEMENTS: Final = {
    **dict.fromkeys(CONTROLS, ""),
    **dict.fromkeys(BLANKS, " "),
    **dict.fromkeys(LINE_ENDS, "\n"),
}
_FREQUENT: Final = "\t\r\xa0"
"""The most frequent of these, which are replaced without a look whether a text has them."""
_SURROGATES: Final = frozenset(range(0xD800, 0xE000))
_RARE: Final = {odd: by for odd, by in _REPLACEMENTS.items() if odd not in _FREQUENT}


def normalise_texts(
    texts: Sequence[str], *, lines_are_sentences: Sequence[bool] | None = None
) -> list[str]:
    """Return each text repaired (mojibake), NFC, without control characters and extra blanks.

    Wrapped lines are joined, unless the text's ``lines_are_sentences``; paragraphs are separated by
    one line end.
    """
    found = [_STRUCK_OVER.sub("", text) if "\x08" in text else text for text in texts]
    suspects = _suspects_of(found)
    repaired = _with_replaced(repair_mojibake([found[place] for place in suspects]), _RARE)
    for place, text in zip(suspects, repaired, strict=True):
        # What stood between two characters may have kept them from composing.
        found[place] = unicodedata.normalize("NFC", text)
    are_sentences = lines_are_sentences or [False] * len(found)
    return list(map(_laid_out, found, are_sentences))


def _laid_out(text: str, lines_are_sentences: bool) -> str:
    """Return a text's paragraphs; if it is not in ASCII, it has no characters of `_RARE`."""
    is_ascii = text.isascii()
    odd = text.encode().translate(None, _PRINTABLE_ASCII).decode() if is_ascii else _FREQUENT
    text = _without(text, set(odd), _REPLACEMENTS)
    has_blanks, may_be_wide = _layout_of(text)
    if not lines_are_sentences:
        text = join_wrapped(text, is_indented=has_blanks, is_wide=may_be_wide)
    text = "\n".join(filter(None, map(str.strip, text.split("\n"))))
    return _BLANK_RUN.sub(" ", text) if has_blanks and "  " in text else text


def _layout_of(text: str) -> tuple[bool, bool]:
    """Return whether a blank precedes another one or a line end; False if no character is wide."""
    if len(text) < _LONG:
        return "  " in text or " \n" in text, not text.isascii()
    codes = np.frombuffer(text.encode(), np.uint8)
    has_blanks = ((codes[:-1] == 0x20) & (codes[1:] <= 0x20)).any()
    # Thai and all of East Asia begin with these bytes.
    may_be_wide = codes.max() >= 0xE3 or ((codes == 0xE0) | (codes == 0xE1)).any()
    return bool(has_blanks), bool(may_be_wide)


def _without(text: str, odd: Iterable[str], by: Mapping[str, str]) -> str:
    """Replace each character of ``odd``."""
    for character in sorted(odd):
        if character == "\r":
            text = text.replace("\r\n", "\n")
        if character in JOINERS:
            text = _STRAY_JOINER.sub("", text)
        else:
            text = text.replace(character, by[character])
    return text


def content_hash(text: str) -> bytes:
    """Return 16 bytes that are equal for texts with the same words in any case and layout.

    The text is normalised: its white space is single blanks and line ends, which count as the same.
    Not safe against deliberate collisions: xxh3 is not a cryptographic hash.
    """
    content = text.encode("utf-8", "surrogatepass")
    foreign = b"" if text.isascii() else content.translate(None, _ASCII)
    if len(foreign) > _MUCH * len(content):
        content = text.casefold().encode("utf-8", "surrogatepass")
    elif foreign:  # faster for a few characters
        characters = foreign.decode("utf-8", "surrogatepass")
        for character in set(characters) - set(characters.casefold()):
            content = content.replace(character.encode(), character.casefold().encode())
    return xxhash.xxh3_128_digest(content.translate(_LOWER_ON_ONE_LINE))


# Mojibake

_NARROW: Final = {chr(code): to for code, to in {**LIGATURES, **WIDTH_MAP}.items()}
"""Full-width forms and ligatures, and what ftfy replaces them with."""

_fix = partial(ftfy.fix_text, uncurl_quotes=False)


def _suspects_of(texts: Sequence[str]) -> list[int]:
    """Return the places of the texts that ftfy may change, or that have characters of `_RARE`.

    In ASCII ftfy finds only entities and the escapes of terminals.
    """
    asked = [
        place
        for place, text in enumerate(texts)
        if not text.isascii() or "&" in text or "\x1b" in text
    ]
    is_found = _matches([texts[place] for place in asked], _suspicious_text())
    return [place for place, found in zip(asked, is_found, strict=True) if found]


def repair_mojibake(texts: Sequence[str]) -> list[str]:
    r"""Return ``ftfy.fix_text(text, uncurl_quotes=False)`` of each text.

    >>> repair_mojibake(["sch\u00c3\u00b6n"])
    ['schön']
    """
    lines = [line for text in texts for line in _lines(text)]
    narrow = [line for text in _with_replaced(texts, _NARROW) for line in _lines(text)]
    # ftfy repeats its repairs until nothing changes: a line may be suspect before or after one.
    both = [a if a == b else a + b for a, b in zip(lines, narrow, strict=True)]
    found = zip(lines, narrow, _matches(both, _SUSPICIOUS_LINE), strict=True)
    return [_repaired(islice(found, text.count("\n") + 1)) for text in texts]


def _repaired(lines: Iterable[tuple[str, str, bool]]) -> str:
    """Return a text of which each line is given, as it was and narrowed, and if it is suspect."""
    parts, has_tag = list[str](), False
    for line, narrow, is_suspect in lines:
        if is_suspect or not unicodedata.is_normalized("NFC", narrow):
            # After the first "<" of a text, ftfy takes it for HTML and leaves entities alone.
            parts.append(_fix(line, unescape_html=False if has_tag else "auto"))
        else:
            parts.append(narrow)
        has_tag = has_tag or "<" in line
    text = "".join(parts)
    for end in ("\r\n", "\r", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    return text


def _lines(text: str) -> list[str]:
    """Return the lines with their ends."""
    *lines, last = text.split("\n")
    return [*(line + "\n" for line in lines), last]


def _with_replaced(texts: Sequence[str], by: Mapping[str, str]) -> list[str]:
    """Return the texts with each character that is a key of ``by`` replaced."""
    characters = "".join(by)
    found = _matches(texts, _class(characters))
    character = re.compile(f"[{characters}]")
    return [
        _without(text, set(character.findall(text)), by) if is_found else text
        for text, is_found in zip(texts, found, strict=True)
    ]


def _matches(texts: Sequence[str], pattern: str) -> list[bool]:
    """Return which texts match a pattern of RE2, or hold a lone surrogate."""
    if not texts:
        return []
    try:
        column = pa.array(texts, pa.large_string())
    except UnicodeEncodeError:
        if len(texts) == 1:
            return [True]
        half = len(texts) // 2
        return _matches(texts[:half], pattern) + _matches(texts[half:], pattern)
    found: list[bool] = pc.match_substring_regex(column, pattern).to_pylist()
    return found


@cache
def _class(characters: str) -> str:
    """Return a class of characters as a pattern of RE2, which knows no surrogates."""
    ranges = list[list[int]]()
    for code in sorted({*map(ord, characters)} - _SURROGATES):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


_OUTSIDE_CLASSES: Final = re.compile(r"(\[[^\]]*\]|\\.)|[ \t\n]+|#.*")
"""Blanks and comments, which RE2 knows in no pattern, and what must stay."""
_BAD: Final = re.sub(r"\\[sw]", ".", _OUTSIDE_CLASSES.sub(r"\1", BADNESS_RE.pattern))
"""ftfy's heuristic; any character may be where it has a blank or a letter of any script, which to
RE2 is one of ASCII."""
_SUSPICIOUS_LINE: Final = (
    f"(?ms){_BAD}|{HTML_ENTITY_RE.pattern}|{_class(''.join(map(chr, CONTROL_CHARS)))}"
)


@loaded_once
def _suspicious_text() -> str:
    """Return the pattern of a text with a suspect line, or with a character to be replaced."""
    characters = "".join([*_RARE, *_NARROW, *map(chr, _composing_codes())])
    return rf"{_SUSPICIOUS_LINE}|{_class(characters)}|[\x{{10000}}-\x{{10ffff}}]"


def _composing_codes() -> Iterator[int]:
    """Yield the characters of the basic plane that NFC may change, or compose with another."""
    for code in range(0x10000):
        character = chr(code)
        is_hangul = 0x1160 <= code <= 0x11FF  # vowels and finals
        changes = unicodedata.normalize("NFC", character) != character
        if unicodedata.combining(character) or is_hangul or changes:
            yield code
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            yield int(parts[1], 16)
