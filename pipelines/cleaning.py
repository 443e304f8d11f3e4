"""Pure: repair and normalise a text; say why it is not worth training on."""

import hashlib
import re
import unicodedata

import ftfy

from pipelines.config import CleaningSettings

_BLANKS = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]")
_BLANK_LINES = re.compile(r"\n\s*\n+")
_WRAPPED = re.compile(r"(?<=[^\n]{40})(?<![.!?:;])\n(?![\n\s*+\-|>#=.:]|\d+[.)])")
"""A line end after a long line that ends no sentence and before one that begins no list item."""
_CONTROL = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\ufeff\ufffd\ud800-\udfff]"
)


def normalise_text(text: str) -> str:
    """Return ``text`` repaired (mojibake), NFC, without control characters and extra blanks.

    Lines that were only wrapped are joined; paragraphs stay apart, by one line end.
    """
    if not text.isascii():
        text = ftfy.fix_text(text, uncurl_quotes=False)
    text = unicodedata.normalize("NFC", _CONTROL.sub("", _LINE_ENDS.sub("\n", text)))
    text = _WRAPPED.sub(" ", _BLANK_LINES.sub("\n\n", text))
    lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def reject_reason(text: str, rules: CleaningSettings) -> str | None:
    """Return why ``text`` is not worth training on, or None to keep it."""
    words = text.split()
    if not words:
        return "empty"
    if len(words) < rules.min_words:
        return "too_short"
    num_characters = sum(map(len, words))
    if num_characters > rules.max_word_characters * len(words):
        return "words_too_long"
    if sum(map(str.isalpha, text)) < rules.min_letter_share * num_characters:
        return "too_few_letters"
    return None


def content_hash(text: str) -> bytes:
    """Return 16 bytes that are equal for texts with the same words, whatever case and layout."""
    words = " ".join(text.lower().split())
    return hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()
