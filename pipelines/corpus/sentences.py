"""Pure: the sentences of a text, by the rules of its language.

sentencex knows full stops and abbreviations, but treats a quotation as one sentence. Characters
that mislead it are therefore replaced one for one: a full stop after an abbreviation that it does
not know and a quote that opens a sentence by a blank, a quote that closes after a full stop by an
exclamation mark, any other quote by an underscore. The text is cut where sentencex ends a sentence,
except before a lower-case letter (``"Oh!" cried she``) and inside a name (``changelog.Debian.gz``).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

import sentencex

_ENDS: Final = ".!?…。！？؟"
_QUOTES: Final = "'\"“”„‘‚`«»‹›「」『』《"
_OPENING: Final = "\"'“„‘‚«»‹›「『《"
_CLOSING: Final = r""")\]"'“’”»«›‹」』）*"""
_CLOSING_WITHOUT_BLANK: Final = "”」』"
"""Closing quotes that are not followed by a blank in Chinese and Japanese."""
_ENDS_WITHOUT_BLANK: Final = "。）" + _CLOSING_WITHOUT_BLANK
_LOWER: Final = "".join(filter(str.islower, map(chr, range(0x10000))))
_CONTINUES: Final = re.compile(
    rf"(?P<lower>[ {_OPENING}(—–-]*[{_LOWER}])| [;:,.?!]| \(\d{{4}}"
    r"| ?(?:[)\]]|[\"'”»’›](?=[\s),.;:]|\Z))"
)
"""What a sentence does not begin with: a lower-case letter, a mark, the year of a work, or what
closes a quotation."""
_QUOTED: Final = re.compile(
    "(?<=[」』])(?:と(?!ころ|うとう|ても|にかく|りあえず|もかく|もあれ|きどき)|って|[をの])"
)
"""What goes on after a quotation in Japanese: said, called, the object of, the quotation's."""
_LETTERS: Final = "[\u0590-\u1cff]{1,2}\\."
_ABBREVIATED: Final = re.compile(rf"\.{_LETTERS}\Z|(?<![\u0e00-\u0e7f])[\u0e00-\u0e7f]{{1,4}}\.\Z")
_GOES_ON: Final = re.compile(_LETTERS)
"""Abbreviations in scripts without capitals: a letter or two after a full stop, and in Thai, which
has no blanks between words, whatever is as short as that."""
_NO_CAPITALS: Final = re.compile("[\u0590-\u1cff\u3001-\ud7ff]")
"""The scripts from Hebrew to Mongolian, and those of East Asia: a lower-case letter in them is a
foreign word, which may begin a sentence."""
_NEAR: Final = 40
"""Characters before the end of a sentence that show its script."""
_WITHOUT_BLANK: Final = re.compile(rf"\w?[{_LOWER}]{{3,}}[.!?]\w[{_LOWER}]*[ ,'’]")
"""Words on both sides of the end of a sentence (``gods.The king``); not ``changelog.Debian.gz``."""
_BEST_ENDS: Final = (
    (". ", "。"),
    ("; ", "；", "؛ "),
    (": ", "："),
    (", ", "，", "、", "، "),
    (" ",),
)
"""Marks after which a long sentence is cut, best first."""
_MAX_PARAGRAPH: Final = 50_000
"""Characters. In a paragraph of several hundred thousand sentencex misses sentences."""
_BULLETS: Final = "•⁃⁌⁍■□▪▫▶▸►◆◇○●◦★☆➢➣➤"
_BULLET: Final = re.compile(f"\n[{_BULLETS}]")
"""A line that begins with a bullet is one sentence to sentencex."""
_HIDDEN: Final = dict.fromkeys("(<{（", " ") | dict.fromkeys(_QUOTES + ")）", "_")
"""A letter instead of a quote would be an initial before a full stop, and a bracket that closes
after a number would make it the number of an item in a list."""
_BRACKET: Final = re.compile(r"\[(?!\d)")
"""A bracket that does not begin a reference. sentencex treats the text up to any closing bracket as
one sentence."""
_ABBREVIATIONS: Final = {
    "ar": "د أ م ص ج",
    "da": "Kl bl dvs eks evt fx hhv inkl jf kap kl mht mia mio pga pr vedr",
    "de": (
        "Hr Hrn Fr S Abb Bd Abs Kap Tab Jg Okt Dez geb gest Anm Ausg Aufl Rn Nrn Ziff Az Tel Vers "
        "insg max mind zw"
    ),
    "en": "vol",
    "fr": (
        "M MM Mme Mlle Mgr Dr Pr St Ste Cie janv févr avr juil sept oct nov déc h p pp vol chap "
        "fig cf éd n art al suiv av apr env"
    ),
    "hi": "डॉ प्रो पं ई कि मी सं",
    "it": "avv cfr dott es pag",
    "ru": (
        "г в ул д кв стр с п пп гл Гл рис Рис табл Табл ст Ст см ср т е н им обл ок янв февр апр "
        "авг сент окт нояб дек"
    ),
    "zh": r"\d \d\d",
}
"""Abbreviations that occur in the middle of a sentence and that sentencex, by the rules used for
the language, does not know."""
_WORDS: Final = {
    "ca": "mar no",
    "da": "OK ark det fed i ind med op ord",
    "de": "Art art",
    "en": "ark art con id ill may me miss no No ore",
    "es": "mar no",
    "fr": "art etc sec",
    "it": "auto con extra macro no re sub",
}
"""Ordinary words that sentencex takes for abbreviations, such as ``me`` for Maine."""
_RULES_OF: Final = {"ca": "es", "oc": "es", "da": "en"} | dict.fromkeys(
    ("co", "eml", "it", "lmo", "nap", "pms", "scn", "vec"), "es"
)
"""Languages that are split by the rules of another: by their own sentencex compiles a pattern at
each full stop, which takes 10 to 300 times the time."""
_WITH_INITIALS: Final = frozenset({"fr", "ru"})
"""Languages in which sentencex takes the initial of a name, ``V. Hugo``, for a sentence's end."""
_WITH_ORDINALS: Final = frozenset({"de"})
"""Languages in which a full stop makes a small number an ordinal: ``im 19. Jahrhundert``. In these,
sentencex never begins a sentence with a number."""
_FIRST_DIGITS: Final = [re.compile(rf"\{mark}[ \t] ?\d") for mark in ".!?"]


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of ``text``, stripped; a line end always ends one.

    Args:
        text: paragraphs, one a line, as `normalise_texts` leaves them.
        language: ISO 639 code; an unknown one is split by general rules.
    """
    if len(text) > _MAX_PARAGRAPH:
        text = "\n".join(cut_long(text.split("\n"), _MAX_PARAGRAPH))
    # An empty line separates paragraphs for sentencex, which is faster on a whole text.
    hidden = _hidden(text, language).replace("\n", "\n\n")
    parts = sentencex.segment(_RULES_OF.get(language, language), hidden)
    return list(filter(None, map(str.strip, _cut(text, parts))))


def cut_long(sentences: Iterable[str], max_characters: int) -> Iterator[str]:
    """Yield the sentences, and in their place the parts of those with more than ``max_characters``.

    A part ends behind the last full stop of its second half, or else behind the last semicolon,
    colon, comma or blank there, and only where there is none of these inside a word.
    """
    for sentence in sentences:
        begin = 0
        while len(sentence) - begin > max_characters:
            end = _best_end(sentence, begin + max_characters // 2, begin + max_characters)
            yield sentence[begin:end].strip()
            begin = end
        yield sentence[begin:].strip()


def _best_end(text: str, low: int, high: int) -> int:
    """Return where to cut ``text`` after ``low`` and up to ``high``."""
    for marks in _BEST_ENDS:
        if end := max(text.rfind(mark, low, high) for mark in marks) + 1:
            return end
    return high


def _cut(text: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield ``text`` cut where a part of it ends, unless its sentence goes on."""
    begin = end = place = 0
    for part in parts:
        if part[0] == "\n":  # between paragraphs; sentencex leaves out some of these
            continue
        while text[place] == "\n":
            yield text[begin:place]
            begin = place = place + 1
        if begin < place and _is_end(text, end, place):
            yield text[begin:end]
            begin = end
        end = place + len(part.rstrip())
        place += len(part)
    yield text[begin:]


def _is_end(text: str, end: int, begin: int) -> bool:
    """Return whether a sentence ends at ``end``, where sentencex begins the next at ``begin``."""
    if text[end - 1] == "." and _ABBREVIATED.search(text, max(0, end - _NEAR), end):
        return False
    if end == begin:
        first = text[end]
        if _QUOTED.match(text, end) or (text[end - 1] == "." and _GOES_ON.match(text, end)):
            return False
        # Scripts without capitals are written without a blank between sentences.
        if first.isalpha() and not first.islower() and not first.isupper():
            return True
        if text[end - 1] not in _ENDS_WITHOUT_BLANK:
            word = text.rfind(" ", 0, end) + 1
            return first.isupper() and bool(_WITHOUT_BLANK.match(text, word))
    if text[begin].isupper() or not (found := _CONTINUES.match(text, end)):
        return True
    return bool(found.lastgroup and _NO_CAPITALS.search(text, max(0, end - _NEAR), end))


def _hidden(text: str, language: str) -> str:
    """Replace what misleads sentencex, character for character."""
    for mark in _ENDS:
        if mark in text:
            text = _after_mark(mark, language).sub(_instead, text)
    for quote in _OPENING:
        if quote in text:
            text = _opening(quote).sub(lambda found: " " * len(found[0]), text)
    for mark, instead in _HIDDEN.items():
        text = text.replace(mark, instead)
    text = _BULLET.sub("\n_", text)
    if text.startswith(tuple(_BULLETS)):
        text = "_" + text[1:]
    for first_digit in _FIRST_DIGITS if language in _WITH_ORDINALS else ():
        text = first_digit.sub(lambda found: found[0][:-1] + "X", text)
    return _BRACKET.sub(" ", text)


def _instead(found: re.Match[str]) -> str:
    """Return the replacement of a mark and what follows it."""
    if found.lastgroup:
        return " " if found.lastgroup == "no_end" else "。字"
    return "!".rjust(len(found[0]), "_")


@cache
def _after_mark(mark: str, language: str) -> re.Pattern[str]:
    """Return the pattern of a mark that ends no sentence, or that surely ends one.

    Its groups are ``no_end``, and ``first`` for what sentencex never begins a sentence with.

    The pattern begins with the mark, and a kind with a set of characters, not a repeated one, which
    makes the search fast.
    """
    without_blank = _ENDS_WITHOUT_BLANK if mark == "。" else _CLOSING_WITHOUT_BLANK
    kinds = [rf"[{_CLOSING}][{_CLOSING}]*(?:(?=\s|\Z)|(?<=[{without_blank}]))"]
    if language == "fr":
        kinds.append(r" »(?=\s|\Z)")
    if mark == "。":
        kinds.append("(?P<first>[\\da-z《〈])")
    if language == "en":  # before "I" sentencex knows a single mark only
        kinds.append(r"[.!?]{1,64}+(?= I\b)")
    if mark == "…":
        kinds.append(r"(?<![ ,\]].)(?= [^\W\d_])")
    if mark == ".":
        if language in _WORDS:
            kinds.append(_word_before(_WORDS[language].split(), " ") + r"(?= [^\d.])")
        abbreviations = _ABBREVIATIONS.get(language, "").split()
        if language in _WITH_INITIALS:
            abbreviations.append("[^\\W\\d_a-zß-ÿа-яё]")
        if language in _WITH_ORDINALS:
            abbreviations += [r"\d", r"\d\d"]
        if abbreviations:
            before = _word_before(abbreviations, " \n(\"'«“„»")
            kinds.append(f"(?P<no_end>{before}(?=.))")
    return re.compile(f"{re.escape(mark)}(?:{'|'.join(kinds)})")


def _word_before(words: Iterable[str], before: str) -> str:
    """Return a pattern that matches after one of the words and a mark.

    Args:
        words: patterns, all of a fixed width.
        before: characters that may precede the word.
    """
    of_width = defaultdict(list)
    for word in words:
        of_width["." * len(re.sub(r"\\d|\[.+\]", ".", word))].append(word)
    each = (
        rf"(?<=(?:{'|'.join(of)}).)(?<![^{before}]{any_}.)(?<!\w\w'{any_}.)"
        for any_, of in of_width.items()
    )
    return f"(?:{'|'.join(each)})"


@cache
def _opening(quote: str) -> re.Pattern[str]:
    return re.compile(rf"[{quote}](?<![^\s({_ENDS}”」』].)[{_OPENING}]* ?(?=[^\W_])")
