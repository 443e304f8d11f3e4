import gzip
import json
import re
import socket
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import CleaningSettings
from pipelines.corpus import quality
from pipelines.corpus.cleaning import normalise_texts
from pipelines.corpus.quality import (
    MAX_DUPLICATE_NGRAMS,
    MAX_TOP_NGRAM,
    RULES,
    Profile,
    count_letters,
    detect_language,
    ngram_repetition,
    reject_reason,
    too_few_letters,
)
from tests.pipelines.corpus.normalised import normalise_text

CORPORA = Path(__file__).parents[4] / "shared/data/corpora"
needs_corpora = pytest.mark.skipif(not CORPORA.exists(), reason=f"{CORPORA} is absent")
FEW_RULES = CleaningSettings(
    min_words=3, min_letter_share=0.6, max_word_characters=8.0, quality_rules=[]
)
RULE = {rule.__name__: rule for rules in RULES.values() for rule in rules}
MENU = "Startseite Produkte Kontakt Warenkorb Anmelden Impressum Datenschutz Hilfe Versand Suche"
PROSE = "The keeper of the lamp said that it was to be lit with care, and went to bed."
FEW = st.sampled_from("aB é—字가 .1#\n")
MIXED = st.text(FEW | st.characters(), max_size=60)
NOT_DENSE = st.text(FEW | st.characters(max_codepoint=0xDFF), max_size=60)
"""But for 字 and 가: Thai, whose characters say more, begins after it."""
SENTENCES = {
    "en": "The keeper of the lighthouse lit the lamp and went down to the sea.",
    "de": "Der Wächter des Leuchtturms zündete die Lampe an und ging hinunter zum Meer.",
    "fr": "Le gardien du phare alluma la lampe et descendit vers la mer avec son chien.",
    "es": "El guardián del faro encendió la lámpara y bajó al mar con su perro.",
    "ru": "Смотритель маяка зажёг лампу и спустился к морю вместе с собакой.",
    "ko": "등대지기는 등불을 켜고 개와 함께 바다로 내려갔다.",
    "zh": "灯塔看守人点亮了灯，然后和他的狗一起下到海边。",
    "ja": "灯台守は灯りをともし、犬と一緒に海へ降りていった。",
}


def reason_of(text: str, rules: CleaningSettings) -> str | None:
    return reject_reason(Profile(text, rules.language), rules)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("two words", "too_short"),
        ("three good words", None),
        ("longwords longwords longwords", "words_too_long"),
        ("eightlet eightlet eightlet", None),
        ("aaaaaa 1111 aaaaaa 2222", None),
        ("aaaaa 1111 aaaaa 2222", "too_few_letters"),
        ("1 2 3 4", "too_few_letters"),
        ("größe größe größe", None),
        ("слова слова слова", None),
    ],
)
def test_a_text_is_dropped_for_a_reason(text: str, reason: str | None) -> None:
    assert reason_of(text, FEW_RULES) == reason


def test_texts_in_other_languages_are_dropped_last() -> None:
    rules = FEW_RULES.model_copy(update={"keep_languages": ["en", "fr"]})
    texts = [*(SENTENCES[language] for language in ("en", "fr", "de")), "zu kurz"]
    reasons = [reason_of(text, rules) for text in texts]
    assert reasons == [None, None, "other_language", "too_short"]


def test_the_language_of_a_text_is_detected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def detect(text: str) -> tuple[str, float]:
        asked.append(text)
        return detect_language(text)

    monkeypatch.setattr(quality, "detect_language", detect)
    profile = Profile("Mon 1 Tue 2 Wed 3 Thu 4", "en")
    assert RULE["few_alphabetic_words"](profile)
    assert RULE["no_stop_words"](profile)
    assert profile.detected == detect_language(profile.text)
    assert asked.count(profile.text) == 1


@needs_corpora
def test_letter_noise_is_dropped_by_default_and_novels_are_kept() -> None:
    paths = sorted((CORPORA / "messy/random_letter_garbage").glob("*.txt"))
    noise = [normalise_text(path.read_text(encoding="utf-8")) for path in paths]
    assert [reason_of(text, CleaningSettings()) for text in noise] == ["no_stop_words"] * 2
    with gzip.open(CORPORA / "novels.jsonl.gz", "rt", encoding="utf-8") as file:
        novels = [normalise_text(json.loads(line)["text"]) for line in file]
    assert [reason_of(text, CleaningSettings()) for text in novels] == [None] * 45


# The rules


def words(count: int) -> str:
    """Return ``count`` words, all different and of equal length."""
    return " ".join(f"w{i:04}" for i in range(count))


@pytest.mark.parametrize(
    ("rule", "dropped", "kept"),
    [
        ("mean_word_length", "xq zv kj wq", "xqz zvk kjw"),
        ("mean_word_length", "abcdefghijk abcdefghijk", "abcdefghij abcdefghij"),
        ("symbols", "# and # and eight or nine more words of text", f"# {words(9)}"),
        ("symbols", "so... then... " + words(8), f"{words(9)} so......"),
        ("symbols", "# # " + words(8), f"#### {words(9)}"),
        ("bullet_lines", "\n".join(["- item"] * 10), "\n".join(["- item"] * 9 + ["text"])),
        ("bullet_lines", "• one\n* two", "• one\ntwo"),
        ("bullet_lines", "- one\n- two", "-차원 공간에서\n-차원 공간이다"),
        ("bullet_lines", "- one\n- two", "- What, said he?"),
        ("ellipsis_lines", "more...\n" * 4 + "text\n" * 5 + "text", "more…\n" * 3 + "text\n" * 7),
        ("ellipsis_lines", "more…\nmore…", "兩個尖兵之間的戰鬥就此展開……\n真相是……"),
        ("ellipsis_lines", "more…\nmore…", "They went on, and on, and on…"),
        ("few_alphabetic_words", "lamp wick flame 4 5", "lamp wick flame oil 5"),
        ("few_alphabetic_words", "Mon 1 Tue 2 Wed 3 Thu 4", "It was 2 to 1 in the year 1999."),
        (
            "few_alphabetic_words",
            "가위 1 망 2 베기 3",
            "생화학(生化學)은 단백질(蛋白質), 핵산(核酸)을 다룬다.",
        ),
        ("few_alphabetic_words", "lamp wick flame — —", "lamp wick flame é 5"),
        ("few_alphabetic_words", "𐌲 lamp wick 😀 😀", "𐌲 lamp 𐌰𐌱 wick 😀"),
        ("no_stop_words", "Lamp keeper went upstairs, lit lamp, ate bread, slept well.", PROSE),
        ("no_stop_words", MENU, "Bury (born 23 July 1995) is a Polish skier. He won in 2018."),
        ("no_stop_words", MENU, "Er kam, sah, siegte: So war er eben, sagte man später über ihn."),
        (
            "no_stop_words",
            MENU,
            "Berlin je glavni i najveći grad države, a nalazi se na rijeci.",
        ),
        ("no_stop_words", MENU, "Se on kaupungin suurin järvi, mutta ei niin syvä kuin muut ovat."),
        (
            "mean_word_length",
            "Donaudampfschiff Kapitänsmütze",
            "Kaupunkijunaliikenne on liikelaitoksen vastuulla, mutta myös kaupungin.",
        ),
        ("duplicate_lines", "a\na\nb", "a\na\nb\nc"),
        ("duplicate_line_characters", "one line\none line\nother", "x\nx\n" + PROSE),
        ("curly_bracket", "f() { return }", "f() return"),
        ("lorem_ipsum", f"{PROSE} Lorem ipsum dolor.", f"{PROSE} Ipsum lorem."),
    ],
)
def test_a_rule_drops_a_text_and_keeps_one_like_it(rule: str, dropped: str, kept: str) -> None:
    assert RULE[rule](Profile(normalise_text(dropped, lines_are_sentences=True), "en"))
    assert not RULE[rule](Profile(normalise_text(kept, lines_are_sentences=True), "en"))


@pytest.mark.parametrize(
    ("reason", "dropped", "kept"),
    [
        ("too_few_sentences", "There is one here. And two here.", "It is. It was. It will be."),
        (
            "unterminated_lines",
            "One is here. Two is here. Three is here. And so on",
            "One is here. Two is here. Three too.",
        ),
        (
            "unterminated_lines",
            "It is. We go.\nYou go. They go.",
            "It is so. We go.\nYou go too. They go.",
        ),
        (
            "boilerplate_lines",
            "This site uses cookies. Read more. Accept them all.",
            "This site uses biscuits. Read more. Accept them all.",
        ),
        ("boilerplate_lines", "Enable JavaScript. Then reload. It will do.", f"{PROSE} " * 3),
    ],
)
def test_c4_keeps_a_text_with_three_sentences_in_good_lines(
    reason: str, dropped: str, kept: str
) -> None:
    rules = CleaningSettings(min_words=0, min_letter_share=0, quality_rules=["c4"])
    assert reason_of(dropped, rules) == reason
    assert reason_of(kept.strip(), rules) is None


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "é", "dddd", "ee"]), min_size=1, max_size=60))
def test_ngram_rules_agree_with_counting_one_by_one(text_words: list[str]) -> None:
    assert ngram_repetition(Profile(" ".join(text_words), "en")) == by_counting(text_words)


def by_counting(text_words: list[str]) -> str | None:
    """Return what `ngram_repetition` returns, from lists of tuples."""
    sizes = [len(word.encode()) + 1 for word in text_words]
    for n, most in MAX_TOP_NGRAM.items():
        grams = [tuple(text_words[i : i + n]) for i in range(len(text_words) - n + 1)]
        top = max(map(grams.count, grams), default=1)
        length = max(
            (sum(len(w.encode()) + 1 for w in g) for g in grams if grams.count(g) == top), default=0
        )
        if top > 1 and top * length > most * sum(sizes):
            return f"top_{n}gram"
    for n, most in MAX_DUPLICATE_NGRAMS.items():
        grams = [tuple(text_words[i : i + n]) for i in range(len(text_words) - n + 1)]
        covered = {i + k for i, g in enumerate(grams) if g in grams[:i] for k in range(n)}
        if sum(sizes[i] for i in covered) > most * sum(sizes):
            return f"duplicate_{n}grams"
    return None


@pytest.mark.parametrize(
    "text",
    [
        "서울은 대한민국의 수도이다. 한강을 끼고 있는 도시로서 정치와 경제의 중심이다. 크다.",
        "北京是中华人民共和国的首都。它位于华北平原的北部。这座城市有三千多年的历史。",
        "東京は日本の首都である。人口は約千四百万人である。世界最大の都市の一つでもある。",
        "Москва — столица России. Она стоит на реке Москве. В ней живёт много людей.",
    ],
)
def test_english_rules_drop_no_other_script(text: str) -> None:
    rules = CleaningSettings(min_words=0, quality_rules=["gopher", "gopher-repetition", "c4"])
    assert reason_of(text, rules) is None


@pytest.mark.parametrize("language", ["en", "auto"])
def test_a_text_in_another_language_is_asked_for_its_own_stop_words(language: str) -> None:
    german = "Die alte Lampe stand auf dem Tisch und der Wächter ging mit seinem Hund nach Hause."
    assert reason_of(german, CleaningSettings(min_words=0, language=language)) is None


@given(MIXED, st.sampled_from([1, 500]))
def test_the_profile_counts_what_it_says(text: str, times: int) -> None:
    text = normalise_text(text * times)
    if not text:
        return
    profile = Profile(text, "en")
    text_words = text.split()
    assert profile.num_characters == sum(map(len, text_words))
    assert profile.num_words >= len(text_words)
    assert profile.lines == text.split("\n")
    maybe = [c for c in text if not c.isspace() and (c.isalpha() or not c.isascii())]
    assert profile.most_letters == len(maybe)
    alphabetic = sum(any(c.isalpha() or not c.isascii() for c in word) for word in text_words)
    assert profile.most_alphabetic_words == alphabetic


@given(st.lists(MIXED, max_size=5))
def test_letters_are_counted_in_each_of_several_texts(texts: list[str]) -> None:
    texts = normalise_texts(texts)
    assert count_letters(texts) == [count_letters([text])[0] for text in texts]
    for text, found in zip(texts, count_letters(texts), strict=True):
        assert found.letters == sum(is_letter(c) for c in text)
        assert found.alphabetic_words == sum(any(map(str.isalpha, word)) for word in text.split())


def is_letter(character: str) -> bool:
    return character.isalpha() or unicodedata.category(character) in ("Mn", "Mc")


def share_of_letters(text: str) -> float:
    """Return the share of letters among what is not white space; 字 and 가 count twice."""
    if len(text.encode()) > 1.4 * len(text):
        text = re.sub("([字가])", r"\1\1", text)
    characters = [c for c in text if not c.isspace()]
    return sum(map(is_letter, characters)) / len(characters)


@given(NOT_DENSE, st.floats(0.01, 0.99))
def test_letters_of_every_script_count(text: str, min_share: float) -> None:
    text = normalise_text(text)  # which may repair what was no letter to one that is dense
    is_known = not re.search("[^\u0000-\u0dff—字가]", text)
    if text and is_known and abs(share_of_letters(text) - min_share) > 1e-9:
        profile = Profile(text, "en")
        expected = share_of_letters(text) < min_share and not profile.is_prose
        assert too_few_letters(profile, min_share) == expected


# Languages


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_enough_to_know_its_language(language: str) -> None:
    detected, probability = detect_language(SENTENCES[language])
    assert detected == language
    assert 0 < probability <= 1


@pytest.mark.parametrize("text", ["", " ", "123 456", "...\n!"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect_language(text) == ("und", 0.0)


def test_the_middle_of_a_text_decides() -> None:
    german = " ".join([SENTENCES["de"]] * 10)
    text = f"{SENTENCES['en']}\n{german}\n{SENTENCES['en']}"
    assert detect_language(text)[0] == "de"


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert detect_language(SENTENCES["fr"])[0] == "fr"
