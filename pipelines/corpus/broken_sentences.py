"""Pure: make English sentences ungrammatical by rules about words, others by another order.

The rules do not parse. Each looks at a few neighbouring words and applies only if the changed
sentence is wrong under every reading; a doubtful sentence is left alone. Little or nothing of text
in other languages, of lists and of code is changed.

A model that knows only word frequencies prefers the shorter sentence and the more frequent form. So
some kinds drop a word and others add one, some write "is" for "be" and others "be" for "is": what
such a model gains on one kind it loses on another.

In other languages three neighbouring words are reversed, which is wrong in nearly all of them. The
same pieces are in both then, so that their frequencies say nothing.
"""

import re
from collections.abc import Callable, Mapping

from albert_core.text.seeds import derive_seed
from pipelines.corpus.passage_sources import words_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SINGULAR = re.compile("[a-z]{2,}(?:tion|sion|ment|ness|[^aeiou]ity|[ae]nce|ism|ship|ology)")
_PLURAL = re.compile(
    "[a-z]{2,}(?:tions|sions|ments|nesses|[^aeiou]ities|[ae]nces|isms|ships|ologies)"
)
_NO_NOUNS = _words("hence thence whence pence augments implements supplements")
_NOUNS = _words(
    "answer argument array author battle book boy brother building button captain chapter "
    "character city class column country daughter day decision decorator device dictionary "
    "directory doctor door element error event example exception factor father field file filter "
    "flag floor folder friend function game garden generator girl group handler horse house "
    "husband index integer iterator key king kingdom language layer letter list loop lord machine "
    "man member message method minute model module morning mother name night node number object "
    "operator option package page parameter parser path pattern picture plan player poem prince "
    "problem process program project protocol queen question reader reason region request response "
    "result river road room rule school sentence server sister soldier song stone story stranger "
    "street string student subclass system table teacher team template tensor test thing thread "
    "token tool tree tuple type user value variable vector version vessel village wall warning "
    "week widget wife window woman word wrapper writer year"
)
_IRREGULAR = {"index": "indices", "wife": "wives", "man": "men", "woman": "women"}
_PLURALS = frozenset(_IRREGULAR.values()) | {
    re.sub("([^aeiou])ys$", r"\1ies", re.sub("(s|x|ch)s$", r"\1es", f"{noun}s"))
    for noun in _NOUNS - _IRREGULAR.keys()
}
_PLURAL_OF = {"is": "are", "was": "were", "has": "have", "does": "do"}
_SINGULAR_OF = {"are": "is", "were": "was", "have": "has", "do": "does"}
_OTHER_FORM = _PLURAL_OF | _SINGULAR_OF
_MODALS = _words("can could may might must should will would")
_PREPOSITIONS = _words("at by for from in into of on with")
_CLOSING = _words("are as at by for from has in into is of on or that was were which with")
"""Words that end the noun phrase before them."""
_CONJUNCTIONS = _words("although because if that unless until when whether while")
_QUANTITIES = _words(
    "bunch couple few fraction handful host hundred lot lots majority million minority myriad "
    "number pair plethora range series set thousand total variety"
)
_NO_PARTICIPLES = _words("embed exceed indeed naked proceed sacred succeed wicked")
_NUMBERS = _words("two three four five six several many")
_NEED_TO = _words(
    "according belongs corresponding due equal identical prior proportional refers related "
    "relative similar"
)
_NEED_THE = _words(
    "beginning building captain country door floor garden girl king kingdom library middle moon "
    "queen river road soldier stranger street sun user village wall window world"
)
_NOMINATIVE = {"him": "he", "me": "I", "them": "they", "us": "we"}


class _Sentence:
    """The words of a sentence; a first word with an initial capital is in lower case."""

    def __init__(self, sentence: str) -> None:
        self.words = sentence.split(" ")
        first = self.words[0]
        self.begins_large = first[:1].isupper() and first[1:] == first[1:].lower()
        if self.begins_large:
            self.words[0] = first.lower()

    def __getitem__(self, place: int) -> str:
        """Return the word at ``place``, or an empty string."""
        return self.words[place] if 0 <= place < len(self.words) else ""

    def bare(self, place: int) -> str:
        """Return the word at ``place`` without the stop or comma after it."""
        return self[place].rstrip(".,;")

    def closes(self, place: int) -> bool:
        """Return whether a noun phrase ends with the word at ``place``."""
        return self.bare(place) != self[place] or self[place + 1] in _CLOSING

    def changed(self, place: int, number: int, *new: str) -> str:
        """Return the sentence with ``new`` instead of ``number`` words from ``place`` on."""
        text = " ".join([*self.words[:place], *new, *self.words[place + number :]])
        return text[0].upper() + text[1:] if self.begins_large else text


def _is_singular(word: str) -> bool:
    return word in _NOUNS or (word not in _NO_NOUNS and bool(_SINGULAR.fullmatch(word)))


def _is_plural(word: str) -> bool:
    return word in _PLURALS or (word not in _NO_NOUNS and bool(_PLURAL.fullmatch(word)))


def _is_noun(word: str) -> bool:
    return _is_singular(word) or _is_plural(word)


_CONSONANT = re.compile(
    "(?:[bcdfgjklmnprstvwyz][aeiou]|[bcdfgpt]r|[bcfgps]l|qu|ch|wh|th|s[kmnptw][aeiour])[a-z]{2,}"
)
_VOWEL = re.compile("(?:a[b-df-z]|i[b-z]|e[a-tvx-z]|o[b-mp-tv-z]|un[b-hj-z]|up)[a-z]{2,}")


def _article_of(word: str) -> str:
    """Return a or an for the word's first sound; empty if the letters leave it open."""
    if _CONSONANT.fullmatch(word):
        return "a"
    return "an" if _VOWEL.fullmatch(word) else ""


def _neighbours_swapped(of: _Sentence, i: int) -> str | None:
    """Swap a preposition and its article, an article and a short phrase's noun, or can and be."""
    first, second = of[i], of[i + 1]
    is_wrong = (
        (i > 0 and first in _PREPOSITIONS and second in ("the", "an"))
        or (first in _MODALS and second == "be")
        or (first == "the" and _is_noun(second) and of[i + 2] in _CLOSING)
    )
    return of.changed(i, 2, second, first) if is_wrong else None


def _this_and_these(of: _Sentence, i: int) -> str | None:
    """Put "these" before a singular noun, or "this" before a plural one that has a verb."""
    noun, after = of[i + 1], of[i + 2]
    if of[i] == "this" and _is_singular(of.bare(i + 1)):
        is_alone = noun != of.bare(i + 1) or after in _CLOSING or after in _MODALS
        return of.changed(i, 1, "these") if is_alone else None
    if of[i] == "these" and _is_plural(noun) and after in _SINGULAR_OF.keys() | _MODALS:
        return of.changed(i, 1, "this")
    return None


def _pronoun_and_verb(of: _Sentence, i: int) -> str | None:
    """Make a verb disagree in number with its pronoun."""
    pronoun, verb, before = of[i], of[i + 1], of[i - 1]
    if before in ("and", "of", "or", "nor"):
        return None
    one = pronoun in ("he", "she", "it") and verb in _PLURAL_OF
    several = pronoun in ("they", "we", "you") and verb in _SINGULAR_OF
    if several or (one and verb != "was"):  # "if it were" is right
        return of.changed(i + 1, 1, _OTHER_FORM[verb])
    return None


def _noun_and_verb(of: _Sentence, i: int) -> str | None:
    """Make a verb disagree in number with the noun at the beginning of its clause."""
    noun, verb = of[i + 1], of[i + 2]
    if of[i] != "the" or (i and of[i - 1] not in _CONJUNCTIONS):
        return None
    one = _is_singular(noun) and verb in _PLURAL_OF and (verb != "was" or i == 0)
    several = _is_plural(noun) and verb in _SINGULAR_OF
    return of.changed(i + 2, 1, _OTHER_FORM[verb]) if one or several else None


def _there_is(of: _Sentence, i: int) -> str | None:
    """Write "there are a" for "there is a", or "there is" before several."""
    verb, first, noun = of[i + 1], of[i + 2], of.bare(i + 3)
    phrase = {of.bare(place) for place in range(i + 3, i + 7)}
    one = verb == "is" and first in ("a", "an") and phrase.isdisjoint(_QUANTITIES)
    none = verb == "is" and first == "no" and _is_singular(noun)
    several = verb == "are" and first in _NUMBERS and _is_plural(noun)
    if of[i] == "there" and (one or none or several):
        return of.changed(i + 1, 1, _OTHER_FORM[verb])
    return None


def _a_and_an(of: _Sentence, i: int) -> str | None:
    """Write a for an, or an for a."""
    if of[i] in ("a", "an") and _article_of(of.bare(i + 1)) == of[i]:
        return of.changed(i, 1, "an" if of[i] == "a" else "a")
    return None


def _article_of_several(of: _Sentence, i: int) -> str | None:
    """Write a or an for the, before a plural."""
    noun = of.bare(i + 1)
    article = _article_of(noun)
    if of[i] == "the" and article and _is_plural(noun) and of.closes(i + 1):
        return of.changed(i, 1, article)
    return None


def _of_dropped(of: _Sentence, i: int) -> str | None:
    """Drop "of" between two short noun phrases that are not followed by a verb."""
    end = i + 2
    is_wrong = (
        of[i] == "of"
        and of[i - 2] in ("the", "a", "an")
        and _is_noun(of[i - 1])
        and of[i + 1] in ("the", "a", "an", "this", "these")
        and _is_noun(of.bare(end))
        and (of.bare(end) != of[end] or of[i + 3] in _PREPOSITIONS)
    )
    return of.changed(i, 1) if is_wrong else None


def _to_dropped(of: _Sentence, i: int) -> str | None:
    """Drop "to" after an adjective that needs it."""
    before, after = of[i - 1], of.bare(i + 1)
    needs_verb = before in ("able", "unable", "supposed", "ought") or (
        before == "order" and of[i - 2] == "in"
    )
    is_infinitive = needs_verb and re.fullmatch("[a-z]+", after) is not None
    is_dative = before in _NEED_TO and after in ("the", "a", "an")
    return of.changed(i, 1) if of[i] == "to" and (is_infinitive or is_dative) else None


def _the_dropped(of: _Sentence, i: int) -> str | None:
    """Drop "the" between a preposition and a word that needs it."""
    noun = of.bare(i + 1)
    is_wrong = (
        i > 0
        and of[i] == "the"
        and of[i - 1] in _PREPOSITIONS
        and (
            (noun in ("entire", "rest", "same") and of[i - 1] not in ("of", "with"))
            or (noun in _NEED_THE and of.closes(i + 1))
        )
    )
    return of.changed(i, 1) if is_wrong else None


def _be_dropped(of: _Sentence, i: int) -> str | None:
    """Drop "be" between a modal verb or "to" and a participle."""
    participle = of.bare(i + 2)
    is_participle = bool(re.fullmatch("[a-z]{3,}[^e]ed", participle))
    if (of[i] in _MODALS or of[i] == "to") and of[i + 1] == "be" and is_participle:
        return of.changed(i + 1, 1) if participle not in _NO_PARTICIPLES else None
    return None


def _to_added(of: _Sentence, i: int) -> str | None:
    """Add "to" between a modal verb and be or have."""
    if i > 0 and of[i] in _MODALS and of[i + 1] in ("be", "have"):
        return of.changed(i + 1, 0, "to")
    return None


def _the_added(of: _Sentence, i: int) -> str | None:
    """Add "the" between a preposition and another determiner."""
    if of[i] in _PREPOSITIONS and of[i + 1] in ("an", "its", "their", "these", "this"):
        return of.changed(i + 1, 0, "the")
    return None


def _infinitive_changed(of: _Sentence, i: int) -> str | None:
    """Write is or has where a modal verb or "to" needs be or have; "May is" may be right."""
    if of[i + 1] in ("be", "have") and ((i > 0 and of[i] in _MODALS) or of[i] == "to"):
        return of.changed(i + 1, 1, "is" if of[i + 1] == "be" else "has")
    return None


def _finite_changed(of: _Sentence, i: int) -> str | None:
    """Write be where a sentence begins with a pronoun that needs is."""
    is_wrong = i == 0 and of[i] in ("he", "it", "she", "there", "this") and of[i + 1] == "is"
    return of.changed(i + 1, 1, "be") if is_wrong else None


def _pronoun_case(of: _Sentence, i: int) -> str | None:
    """Write he, I, they or we after a preposition."""
    pronoun = of.bare(i + 1)
    if of[i] in _PREPOSITIONS - {"for"} | {"to"} and pronoun in _NOMINATIVE:
        mark = of[i + 1][len(pronoun) :]
        return of.changed(i + 1, 1, _NOMINATIVE[pronoun] + mark)
    return None


_RULES: Mapping[str, tuple[Callable[[_Sentence, int], str | None], ...]] = {
    "word_order": (_neighbours_swapped,),
    "agreement": (_this_and_these, _pronoun_and_verb, _noun_and_verb, _there_is),
    "articles": (_a_and_an, _article_of_several),
    "function_words": (
        *(_of_dropped, _to_dropped, _the_dropped, _be_dropped),
        *(_to_added, _the_added),
    ),
    "verb_and_pronoun_forms": (_infinitive_changed, _finite_changed, _pronoun_case),
}
_KIND_OF = {rule: rule.__name__.lstrip("_") for rules in _RULES.values() for rule in rules}
REVERSED = "reversed_words"
KINDS: dict[str, str] = {_KIND_OF[rule]: of for of, rules in _RULES.items() for rule in rules}
KINDS[REVERSED] = REVERSED
"""The group of each way to break a sentence."""


def broken(sentence: str, seed: int) -> dict[str, str]:
    """Return ``sentence`` broken in each way that applies, by its kind, a key of `KINDS`.

    Args:
        sentence: its words are separated by single blanks.
        seed: chooses, together with the sentence, one of several places.
    """
    of = _Sentence(sentence)
    found = {}
    for rule, kind in _KIND_OF.items():
        ways = [way for i in range(len(of.words)) if (way := rule(of, i)) is not None]
        if ways:
            found[kind] = ways[derive_seed(seed, kind, sentence) % len(ways)]
    return found


def with_words_reversed(sentence: str, seed: int) -> str:
    """Return ``sentence``, in any language, with three neighbouring words in reverse order.

    The last character, a full stop for example, stays the last. The sentence is the same only if
    it has fewer words, or the outer ones of the three are the same.

    Args:
        sentence: its words are separated by single blanks, or by none in scripts without them.
        seed: chooses the place, together with the sentence.
    """
    found = words_of(sentence[:-1])
    words = [word.rstrip() for word in found]
    blanks = [word[len(bare) :] for word, bare in zip(found, words, strict=True)]
    if len(words) >= 3:
        first = derive_seed(seed, REVERSED, sentence) % (len(words) - 2)
        words[first : first + 3] = words[first : first + 3][::-1]
    return "".join(map(str.__add__, words, blanks)) + sentence[-1]
