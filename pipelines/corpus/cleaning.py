"""Pure: repair and normalise a text; hash its words.

Mojibake is repaired by ftfy, which reads 4 to 10 MB of text a CPU second and changes hardly a line
of a good corpus, so it is given only the lines that it could change. Such a line holds a character
that ftfy always replaces, an HTML entity, or two neighbours that its heuristic
(``ftfy.badness.BADNESS_RE``) calls unlikely. Tables over the characters find these in one pass:
each character has roles as the left and as the right of a pair, one bit an alternative of the
heuristic, and a line is suspect where a left role meets its right role.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import ftfy
import numpy as np
import numpy.typing as npt
import xxhash
from ftfy.badness import MOJIBAKE_CATEGORIES
from ftfy.chardata import CONTROL_CHARS, HTML_ENTITY_RE, LIGATURES, WIDTH_MAP

from pipelines.corpus.wrapped_lines import NOT_NARROW, join_wrapped
from pipelines.engine import loaded_once

_PRINTABLE_ASCII: Final = bytes(range(0x20, 0x7F)) + b"\n"
_ASCII: Final = bytes(range(0x80))
_MUCH: Final = 0.1
"""Share of the bytes that are not ASCII from which folding the case of all is faster."""
_LOWER_ON_ONE_LINE: Final = bytes(range(0x100)).lower().replace(b"\n", b" ")
_STRUCK_OVER: Final = re.compile(r"[^\n]\x08")
"""A character that the next one is printed upon, to make it bold or to underline it."""
_BLANK_RUN: Final = re.compile("  +")
LINE_ENDS: Final = frozenset("\r\x0b\x0c\x85\u2028\u2029")
CONTROLS: Final = (
    frozenset(map(chr, [*range(9), *range(14, 32), *range(0x7F, 0xA0), *range(0x200B, 0x2010)]))
    | frozenset(map(chr, [*range(0x202A, 0x202F), *range(0xD800, 0xE000), 0xFEFF, 0xFFFD]))
) - LINE_ENDS
"""Controls, zero-width characters, direction marks, lone surrogates and U+FFFD."""
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
_ODD: Final = frozenset(_REPLACEMENTS)


def normalise_text(text: str, *, lines_are_sentences: bool = False) -> str:
    """Return ``text`` repaired (mojibake), NFC, without control characters and extra blanks.

    Wrapped lines are joined, unless ``lines_are_sentences``; paragraphs are separated by one line
    end.
    """
    if "\x08" in text:
        text = _STRUCK_OVER.sub("", text)
    is_wide = False
    if text.isascii():
        odd = set(map(chr, text.encode().translate(None, _PRINTABLE_ASCII)))
        composing = False
    else:
        text, odd, composing, is_wide = repair_mojibake(text)
    if odd:
        text = _without(text, odd)
        if composing and not CONTROLS.isdisjoint(odd):
            text = unicodedata.normalize("NFC", text)
    has_blanks = _has_blanks(text)
    if not lines_are_sentences:
        text = join_wrapped(text, is_indented=has_blanks, is_wide=is_wide)
    text = "\n".join(filter(None, map(str.strip, text.split("\n"))))
    return _BLANK_RUN.sub(" ", text) if has_blanks else text


def _has_blanks(text: str) -> bool:
    """Return whether a blank precedes another one or a line end."""
    if len(text) < 4000:
        return "  " in text or " \n" in text
    codes = np.frombuffer(text.encode(), np.uint8)
    return bool(((codes[:-1] == 0x20) & (codes[1:] <= 0x20)).any())


def _without(text: str, odd: Iterable[str]) -> str:
    """Replace each character of ``odd`` by a line end, a blank or nothing."""
    for character in sorted(odd):
        if character == "\r":
            text = text.replace("\r\n", "\n")
        if character in JOINERS:
            text = _STRAY_JOINER.sub("", text)
        else:
            text = text.replace(character, _REPLACEMENTS[character])
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
_ALL: Final = "\0-\uffff"
_ACCENTED: Final = "{lower_accented}{upper_accented}"
_CLOSING: Final = "{box}{end_punctuation}{currency}{numeric}"
_UNLIKELY_PAIRS: Final = [
    # (left, right) for each alternative of BADNESS_RE, as character classes in which {name} is a
    # category of ftfy; of an alternative of three characters or more, two neighbours.
    (
        _ACCENTED + _CLOSING + "{bad}{start_punctuation}{law}{lower_common}{upper_common}",
        "{bad}",
    ),
    ("{bad}", _ACCENTED + _CLOSING + "{start_punctuation}{law}"),
    ("{lower_accented}{lower_common}" + _CLOSING, "{upper_accented}"),
    (_CLOSING, "{lower_accented}"),
    (_ACCENTED + "{box}{end_punctuation}", "{currency}"),
    ("{upper_accented}{box}", "{numeric}{law}"),
    (_ACCENTED + _CLOSING, "{start_punctuation}"),
    (_ACCENTED + "{currency}{numeric}{box}{law}", "{end_punctuation}"),
    ("{box}", "{kaomoji}"),
    (_ACCENTED + "{currency}{numeric}{start_punctuation}{end_punctuation}{law}", "{box}"),
    ("{upper_accented}", "°"),
    ("ÂÃÎÐ", " ¡€œŠš¢£Ÿž\xa0\xad®©°·»´–—{start_punctuation}{end_punctuation}"),
    ("×", "²³"),
    ("ØÙ", "{common}{currency}{bad}{numeric}{start_punctuation}ŸŠ®°µ»"),
    ("à", "²µ¹¼½¾"),
    ("√", "±∂†≠®™´≤≥¥µø"),
    ("≈", "°¢"),
    ("‚", "Äâó"),
    ("в", "Ђ"),
    ("ВГРСΒΓΞΟ", "{c1}{bad}{start_punctuation}{end_punctuation}{currency}°µ"),
    ("Г", "ў"),
    ("βā", "€"),
    ("Œœ", "^A-Za-z"),
    ("{c1}" + "".join(map(chr, CONTROL_CHARS)), _ALL),  # each is replaced wherever it stands
]
_NOT_NARROW, _COMPOSING, _SPECIAL = 1 << 29, 1 << 30, 1 << 31
"""Bits of the left roles: the character is of `NOT_NARROW`; it may compose; it may, or is in
_NARROW or _ODD."""


_fix = partial(ftfy.fix_text, uncurl_quotes=False)


class Repaired(NamedTuple):
    """A repaired text, and what the pass over it found."""

    text: str
    odd: set[str]
    """The LINE_ENDS, CONTROLS and BLANKS in ``text``, and some that were in it before."""
    composing: bool
    """Whether a character may compose with its neighbour, so that removing others breaks NFC."""
    is_wide: bool
    """Whether one is of `NOT_NARROW`."""


class _Scan(NamedTuple):
    suspects: list[int]
    """Positions in the lines that ftfy may change, in ascending order."""
    narrow: list[str]
    """The characters of _NARROW in the text."""
    odd: set[str]
    composing: bool
    is_wide: bool


def repair_mojibake(text: str) -> Repaired:
    r"""Return ``ftfy.fix_text(text, uncurl_quotes=False)``.

    >>> repair_mojibake("sch\u00c3\u00b6n").text
    'schön'
    """
    scan, repaired = _scan(text), text
    suspects = scan.suspects if scan else []
    if scan and scan.narrow:
        for character in scan.narrow:
            repaired = repaired.replace(character, _NARROW[character])
        scan = _scan(repaired)
        suspects = sorted({*suspects, *(scan.suspects if scan else ())})
    if suspects:
        parts = _repaired_parts(text, repaired, suspects)
        # The places in both texts are the same, unless a ligature became several characters.
        repaired = "".join(parts) if len(repaired) == len(text) else _fix(text)
        scan = _scan(repaired)
    if scan is None:
        repaired = _fix(text)
        return Repaired(repaired, set(repaired) & _ODD, composing=True, is_wide=True)
    for end in ("\r\n", "\r", "\u2028", "\u2029"):
        if end[0] in scan.odd:
            repaired = repaired.replace(end, "\n")
    return Repaired(repaired, scan.odd, scan.composing, scan.is_wide)


def _repaired_parts(text: str, narrowed: str, suspects: Iterable[int]) -> Iterator[str]:
    """Yield ``narrowed`` in parts, and ftfy's repair of ``text`` for lines with a suspect position.

    ftfy repeats both repairs until nothing changes.
    """
    done = 0
    first_tag = text.find("<")
    for begin, end in _lines_with(text, suspects):
        # After the first "<" of a text, ftfy takes it for HTML and leaves entities alone.
        unescape = "auto" if first_tag < 0 or begin <= first_tag else False
        yield narrowed[done:begin]
        yield _fix(text[begin:end], unescape_html=unescape)
        done = end
    yield narrowed[done:]


def _lines_with(text: str, positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield once the begin and end of each line with one of the ascending ``positions``."""
    end = 0
    for position in positions:
        if position >= end:
            end = text.find("\n", position) + 1 or len(text)
            yield text.rfind("\n", 0, position) + 1, end


def _scan(text: str) -> _Scan | None:
    """Return what needs work in ``text``, or None for a text with lone surrogates."""
    try:
        codes: npt.NDArray = np.frombuffer(text.encode("utf-16-le"), "<u2")
        if len(codes) != len(text):
            wide = np.frombuffer(text.encode("utf-32-le"), "<u4")
            codes = np.minimum(wide, 0xFFFF).astype(np.uint16)
    except UnicodeEncodeError:
        return None
    left_roles, right_roles, composing_characters = _tables()
    places = np.flatnonzero((codes - np.uint16(0x20)) > 0x5E)  # all but printable ASCII
    found = codes[places]
    left = left_roles[found]
    right = right_roles[codes.take(places + 1, mode="clip")]
    suspects = places[(left & right) != 0].tolist()
    special = set(map(chr, found[left >= _SPECIAL].tolist()))
    composing = not special.isdisjoint(composing_characters)
    if composing:
        composing_places = places[(left & _COMPOSING) != 0]
        suspects += [
            begin
            for begin, end in _lines_with(text, composing_places.tolist())
            if not unicodedata.is_normalized("NFC", text[begin:end])
        ]
    if "&" in text:
        suspects += [match.start() for match in HTML_ENTITY_RE.finditer(text)]
    return _Scan(
        sorted(suspects),
        [character for character in special if character in _NARROW],
        special & _ODD,
        composing,
        bool((left & _NOT_NARROW).any()),
    )


@loaded_once
def _tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], frozenset[str]]:
    """Return the left and right roles of each character of the basic plane, and those that compose.

    U+FFFF, which is not a character, stands for those of the other planes.
    """
    composing = frozenset(map(chr, [*_composing_codes(), 0xFFFF]))
    left_roles, right_roles = np.zeros((2, 0x10000), np.uint32)
    for bit, (left, right) in enumerate(_UNLIKELY_PAIRS):
        left_roles[_members(left)] |= np.uint32(1 << bit)
        right_roles[_members(right)] |= np.uint32(1 << bit)
    left_roles[_members(NOT_NARROW)] |= np.uint32(_NOT_NARROW)
    left_roles[list(map(ord, composing))] |= np.uint32(_COMPOSING)
    left_roles[list(map(ord, composing | _ODD | _NARROW.keys()))] |= np.uint32(_SPECIAL)
    return left_roles, right_roles, composing


def _composing_codes() -> Iterator[int]:
    """Yield a superset of the characters that NFC changes or composes with the one before."""
    for code in range(0x10000):
        character = chr(code)
        is_hangul = 0x1160 <= code <= 0x11FF  # vowels and finals
        changes = unicodedata.normalize("NFC", character) != character
        if unicodedata.combining(character) or is_hangul or changes:
            yield code
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            yield min(int(parts[1], 16), 0xFFFF)


def _members(character_class: str) -> npt.NDArray[np.bool]:
    """Return bool (0x10000,): which characters are in a class written as in a regex."""
    inside = character_class.format(**MOJIBAKE_CATEGORIES)
    members = np.zeros(0x10000, bool)
    for first, last in re.findall(r"(?s)([^^])(?:-(.))?", inside):
        members[ord(first) : ord(last or first) + 1] = True
    return ~members if inside.startswith("^") else members
