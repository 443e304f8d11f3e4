"""Pure: repair and normalise a text; say why it is not worth training on."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import xxhash

from pipelines.config import CleaningSettings
from pipelines.corpus.language import detect_languages
from pipelines.corpus.mojibake import BLANKS, CONTROLS, LINE_ENDS, repair_mojibake
from pipelines.corpus.quality import failed_rule, profile_of, too_few_letters

_PRINTABLE_ASCII: Final = bytes(range(0x20, 0x7F)) + b"\n"
_ASCII: Final = bytes(range(0x80))
_LOWER_ON_ONE_LINE: Final = bytes(range(0x100)).lower().replace(b"\n", b" ")
_WRAPPED: Final = re.compile(
    r"\n(?![\n\s*+\-|>#=.:]|\d+[.)])(?<![.!?:;]\n)(?<=[^\n]{40}\n)"  # \n first: it is searched for
)
"""A line end after a long line that ends no sentence and before one that begins no list item."""


def normalise_text(text: str, *, lines_are_sentences: bool = False) -> str:
    """Return ``text`` repaired (mojibake), NFC, without control characters and extra blanks.

    Lines that were only wrapped are joined, unless ``lines_are_sentences``; paragraphs stay apart,
    by one line end.
    """
    if text.isascii():
        odd = set(map(chr, text.encode().translate(None, _PRINTABLE_ASCII)))
        composing = False
    else:
        text, odd, composing = repair_mojibake(text)
    if odd:
        text = _without(text, odd)
        if composing and not CONTROLS.isdisjoint(odd):
            text = unicodedata.normalize("NFC", text)
    if not lines_are_sentences:
        text = _WRAPPED.sub(" ", text)
    text = "\n".join(filter(None, map(str.strip, text.split("\n"))))
    while _has_double_blank(text):
        text = text.replace("  ", " ")
    return text


def _has_double_blank(text: str) -> bool:
    """Return ``"  " in text``, which in long texts is three times as slow as counting here."""
    if len(text) < 4000:
        return "  " in text
    is_blank = np.frombuffer(text.encode(), np.uint8) == 0x20
    return bool((is_blank[1:] & is_blank[:-1]).any())


def _without(text: str, odd: Iterable[str]) -> str:
    """Return ``text`` with each character of ``odd`` made a line end or a blank, or taken out."""
    for character in sorted(odd):
        if character == "\r":
            text = text.replace("\r\n", "\n")
        if character in LINE_ENDS:
            text = text.replace(character, "\n")
        elif character in BLANKS:
            text = text.replace(character, " ")
        elif character in CONTROLS:
            text = text.replace(character, "")
    return text


def content_hash(text: str) -> bytes:
    """Return 16 bytes that are equal for texts with the same words, whatever case and layout.

    The text is normalised: its white space is single blanks and line ends, which are the same
    here. Not for text by somebody who wants two documents to collide: xxh3 is no cryptographic
    hash.
    """
    content = text.encode("utf-8", "surrogatepass")
    if not text.isascii():
        foreign = content.translate(None, _ASCII).decode("utf-8", "surrogatepass")
        if foreign != foreign.casefold():
            for character in set(foreign):
                folded = character.casefold()
                if folded != character:
                    content = content.replace(
                        character.encode("utf-8", "surrogatepass"), folded.encode()
                    )
    return xxhash.xxh3_128_digest(content.translate(_LOWER_ON_ONE_LINE))


def reject_reasons(texts: Sequence[str], rules: CleaningSettings) -> list[str | None]:
    """Return for each text why it is not worth training on, or None to keep it.

    The first reason counts, in this order: empty, too_short, words_too_long, too_few_letters, the
    groups of ``quality_rules`` in their order with the rules of `quality.RULES`, other_language.
    A text is judged alone: another batch changes nothing.

    Args:
        texts: as `normalise_text` leaves them.
        rules: which rules, and the limits that a user sets.
    """
    reasons = [_reject_reason(text, rules) for text in texts]
    if rules.keep_languages:
        kept = [place for place, reason in enumerate(reasons) if reason is None]
        languages = detect_languages([texts[place] for place in kept])
        for place, (language, _) in zip(kept, languages, strict=True):
            if language not in rules.keep_languages:
                reasons[place] = "other_language"
    return reasons


def _reject_reason(text: str, rules: CleaningSettings) -> str | None:
    if not text:
        return "empty"
    profile = profile_of(text, rules.language)
    if profile.num_words < rules.min_words:
        return "too_short"
    if profile.num_characters > rules.max_word_characters * profile.num_words:
        return "words_too_long"
    if too_few_letters(profile, rules.min_letter_share):
        return "too_few_letters"
    for group in rules.quality_rules:
        if reason := failed_rule(profile, group):
            return reason
    return None
