"""Pure: join the lines that an editor or a mailer has wrapped.

Scripts with blanks are wrapped between words, and a blank takes the place of the line end. Chinese
and Japanese are wrapped anywhere, and nothing takes its place. Korean has blanks, but is wrapped
anywhere by some programs: see `_cuts_words`.

Source of what stands between the joined lines: CSS Text Module Level 4, "Segment Break
Transformation Rules".
"""

import re
from typing import Final

from albert_core.text.scripts import UNSPACED_SCRIPTS

_EAST_ASIAN: Final = 0x3000
_LOWER_CASE: Final = "".join(c for c in map(chr, range(0x10000)) if c.isalpha() and c.islower())
_RANGES: Final = [
    (first > _EAST_ASIAN, f"{chr(first)}-{chr(last)}") for first, last in UNSPACED_SCRIPTS
]
_ALPHABETS: Final = "".join(each for is_east_asian, each in _RANGES if not is_east_asian)
"""Of the scripts without blanks from Thai to Khmer."""
_UNSPACED: Final = "\u3001-\u3015" + "".join(
    each for is_east_asian, each in _RANGES if is_east_asian
)
"""Chinese characters, kana, and those of their marks that ftfy does not replace by ASCII."""
_HANGUL: Final = "\uac00-\ud7a3"
_WIDE: Final = _UNSPACED + _HANGUL
"""Characters that take two columns."""

_WRAPPED: Final = re.compile(
    r"\n(?<=[^\n]{40}\n)"  # \n first: a fast search
    rf"(?:(?![\n\s*+\-|>#=.:{_WIDE}]|\d+[.)]|[^\w\n]+(?:\n|\Z))(?<![.!?:;{_WIDE}]\n)"
    rf"|[ \t]*(?=[{_LOWER_CASE}])(?!\w{{1,4}}[.)])(?<![{_WIDE}]\n))"
)
"""A line end after a long line and before its continuation: a line in lower case, or one that is no
list item, has a letter or digit, and does not follow the end of a sentence."""
_WRAPPED_UNSPACED: Final = re.compile(rf"\n(?<=[^\n]{{39}}[{_ALPHABETS}]\n)(?=[{_ALPHABETS}])")
_WIDE_END: Final = re.compile(
    rf"\n(?<=[^\n]{{20}}\n)(?<![.!?:;。…]\n)(?<![.!?。…][”’」』)]\n)"
    r"(?!(?<=[”」』]\n)[ \t]*[“「『])"
    rf"(?:(?<=[{_WIDE}]\n)[ \t]*|(?<=[{_WIDE}][ ,)”]\n)[ \t]*|[ \t]*(?=[{_WIDE}]))"
    r"(?=[\w「『“《〈(、。」』》〉),])"
    r"(?![\da-z一二三四五六七八九十]{1,3}[、.)]|第[一二三四五六七八九十百\d]+[章节節回条條])"
)
"""A line end within 20 characters or more, 40 columns, beside a wide character, if the line does
not end a sentence, and the next one is no item of a list and not what somebody answers."""
_INDENTED: Final = re.compile(r"\n( {2,})\S[^\n]*(?:\n\1\S[^\n]*)++")
_LEAST_WIDTH: Final = 55
"""Columns of an indented paragraph. Lines of verse are shorter."""
_AFTER_BLANK: Final = re.compile(rf" (?<=[{_UNSPACED}] ) *\n")
_FIRST_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_MOVED_COLUMNS: Final = 4
"""Columns that stay free where a mark, which may not begin a line, takes a character with it."""
_PARTICLE: Final = r"(?:[가을를은는의]|에서|에게|으로|라고)(?=[\s,.])|(?:습?니|었|였|이)?다(?=\.)"
_HANGUL_END: Final = re.compile(rf"\n(?<=[{_HANGUL}]\n)[ \t]*(?=[{_HANGUL}])({_PARTICLE})?")
"""A line end between syllables, and a particle or ending after it that is never a word."""
_UNSPACED_END: Final = re.compile(
    rf"\n(?:(?<=[{_UNSPACED}]\n)|(?<=[{_UNSPACED}][,)”]\n))[ \t]*(?=[{_UNSPACED}(“),])"
)
"""A line end whose neighbours are written without a blank."""
_LEAST_CUTS: Final = 3
_LEAST_CUT_SHARE: Final = 0.08
"""Of the lines of Korean cut anywhere, 0.16 begin with such a particle; of those cut at blanks
none, but who wraps by hand may cut a word."""


def join_wrapped(text: str, *, is_indented: bool = True, is_wide: bool = True) -> str:
    """Return ``text`` with the line ends of wrapped lines removed; the others are paragraphs'.

    Args:
        text: its blanks are those of ASCII.
        is_indented: whether a line may begin with two blanks.
        is_wide: whether it may have Hangul, or characters of scripts without blanks.
    """
    if is_indented:
        text = _INDENTED.sub(_without_indent, f"\n{text}")[1:]
    if is_wide:
        text = _WRAPPED_UNSPACED.sub("", text)
        if _WIDE_END.search(text):
            text = _join_wide(text)
    return _WRAPPED.sub(" ", text)


def _join_wide(text: str) -> str:
    """Return ``text`` with wrapped lines of Chinese, Japanese and Korean joined.

    A line was wrapped if the next word did not fit into it, judging by its neighbours.
    """
    if " \n" in text:
        text = _AFTER_BLANK.sub("\n", text)
    cuts_words = _cuts_words(text)
    widths: dict[int, int] = {}

    def width(begin: int) -> int:
        if begin not in widths:
            end = text.find("\n", begin)
            widths[begin] = _columns(text[begin : end if end >= 0 else None])
        return widths[begin]

    def joined(found: re.Match[str]) -> str:
        begin, end = found.span()
        line = text.rfind("\n", 0, begin) + 1
        word = _FIRST_WORD.match(text, end)
        room = width(line) + _MOVED_COLUMNS + 1 + (_columns(word[0]) if word else 0)
        if room < width(begin + 1) or (line and room < width(text.rfind("\n", 0, line - 1) + 1)):
            return found[0]
        if syllables := _HANGUL_END.match(text, begin):
            return "" if cuts_words or syllables[1] else " "
        return "" if _UNSPACED_END.match(text, begin) else " "

    return _WIDE_END.sub(joined, text)


def _without_indent(found: re.Match[str]) -> str:
    """Return a paragraph whose lines begin in the same column, with that column as the first.

    Verse and code keep theirs: each line but the last of a paragraph has no room for the next word.
    """
    lines = found[0].split("\n")[1:]
    words = [line.split(None, 1)[0] for line in lines[1:]]
    widest = max(map(len, lines))
    full = (len(line) + 1 + len(word) > widest for line, word in zip(lines, words, strict=False))
    if widest < _LEAST_WIDTH or not all(full):
        return found[0]
    return "\n" + "\n".join(map(str.lstrip, lines))


def _columns(line: str) -> int:
    return (len(line) + len(line.encode("utf-8", "surrogatepass"))) // 2  # of three bytes each


def _cuts_words(text: str) -> bool:
    """Return whether lines of Korean end within words: then enough of them begin with particles.

    The blanks at which such a line ended by chance are lost with its end: a quarter of the cuts,
    so that to add a blank to none is more often right than to add one to all.
    """
    particles = _HANGUL_END.findall(text)
    return sum(map(bool, particles)) >= max(_LEAST_CUTS, _LEAST_CUT_SHARE * len(particles))
