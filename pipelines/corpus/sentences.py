"""Pure: the sentences of a text, by the rules of its language.

sentencex knows full stops and abbreviations, but takes a quotation for one sentence. So quotes are
hidden from it: one that closes after a full stop becomes an exclamation mark, one that opens a
sentence a blank, and any other a letter. Positions stay the same, and where sentencex ends a
sentence the text is cut. Then what is no end is taken back: after an abbreviation that sentencex
does not know, and before a lower-case letter (``"Oh!" cried she``).
"""

import re
from collections.abc import Iterator
from typing import Final

import sentencex

_ENDS: Final = ".!?…。！？؟"
_QUOTES: Final = '"“”„«»‹›「」『』'
_CLOSING: Final = re.compile(
    rf"""[)\]"'“’”»«›‹」』](?<=[{_ENDS}].)[)\]"'“’”»«›‹」』]*(?=\s|\Z)"""
    rf"|[”」』](?<=[{_ENDS}].)"  # no blank follows in Chinese and Japanese
)
_CLOSING_IN_FRENCH: Final = re.compile(rf"[ \xa0\u202f](?<=[{_ENDS}].)»(?=\s|\Z)")
_OPENING: Final = re.compile(
    rf"""["'“„‘‚«»‹›「『(](?<![^\s{_ENDS}”」』].)["'“„‘‚«»‹›「『(]*[\xa0\u202f ]?(?=[^\W_])"""
)
_FIRST_LETTER: Final = re.compile(r"""[ \xa0\u202f"'“„‘‚«»‹›(—–-]*([^\W\d_])""")
_ABBREVIATIONS: Final = {
    "ar": "د أ م",
    "de": "Hr Hrn Fr S",
    "en": "vol",
    "fr": (
        "M MM Mme Mlle Mgr Dr Pr St Ste Cie janv févr avr juil sept oct nov déc h p pp vol chap "
        "fig cf éd n art al suiv av apr env"
    ),
    "ru": (
        "г гг в вв ул д кв стр с п пп гл рис см ср т е н э им обл р руб коп тыс млн млрд ок чел "
        "др пр янв февр апр авг сент окт нояб дек"
    ),
}
"""Words that a full stop abbreviates in the middle of a sentence, beside those of sentencex."""
_KNOWN: Final = {code: frozenset(words.split()) for code, words in _ABBREVIATIONS.items()}
_WORDS: Final = {
    "de": ("Art", "art"),
    "en": ("ark", "art", "con", "id", "ill", "may", "me", "miss", "no", "ore"),
    "es": ("mar", "no"),
    "fr": ("art", "sec"),
    "it": ("fin", "no", "re", "si", "via"),
}
"""Ordinary words that sentencex takes for abbreviations, such as ``me`` for Maine."""
_WITH_ORDINALS: Final = frozenset({"de"})
"""Languages in which a full stop makes a small number an ordinal: ``im 19. Jahrhundert``."""


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of ``text``, stripped; a line end always ends one.

    Args:
        text: paragraphs, one a line.
        language: ISO 639 code; an unknown one is split by general rules.
    """
    # An empty line separates paragraphs for sentencex, which is faster on a whole text.
    text = text.replace("\n", "\n\n")
    return list(filter(None, map(str.strip, _parts(text, language))))


def _parts(text: str, language: str) -> Iterator[str]:
    """Yield ``text``, cut where a sentence ends."""
    hidden = _hidden(text, language)
    begin = end = 0
    for part in filter(None, map(str.strip, sentencex.segment(language, hidden))):
        end = hidden.index(part, end) + len(part)  # it leaves out some blanks
        if _is_end(text, end, language):
            yield text[begin:end]
            begin = end
    yield text[begin:]


def _hidden(text: str, language: str) -> str:
    """Return ``text`` without what misleads sentencex; each sentence ends where it did."""
    for word in _WORDS.get(language, ()):
        text = text.replace(f" {word}. ", f" {'x' * len(word)}. ")
    text = _CLOSING.sub(lambda found: "!" * len(found[0]), text)
    if language == "fr":
        text = _CLOSING_IN_FRENCH.sub("!!", text)
    text = _OPENING.sub(lambda found: " " * len(found[0]), text)
    for quote in _QUOTES:
        text = text.replace(quote, "x")
    return text


def _is_end(text: str, end: int, language: str) -> bool:
    """Return whether a sentence ends at ``end``, where sentencex sees one end."""
    following = text[end : end + 2]
    if following[:1] == "\n":
        return True
    if not following[1:].isupper():
        first = _FIRST_LETTER.match(text, end)
        if first and first[1].islower():
            return False
    if text[end - 1] != ".":
        return True
    word = text[text.rfind(" ", 0, end) + 1 : end - 1]
    if word.isdecimal():
        return len(word) > 2 or language not in _WITH_ORDINALS
    if word in _WORDS.get(language, ()):
        return not following[1:].isdecimal()
    return word.lstrip("(\"'«“„»") not in _KNOWN.get(language, ())
