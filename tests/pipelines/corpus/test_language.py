import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.cleaning import normalise_text
from pipelines.corpus.language import (
    SAMPLE_CHARACTERS,
    UNKNOWN,
    detect_languages,
    sentence_lines,
    split_sentences,
)

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


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_enough(language: str) -> None:
    detected, probability = detect_languages([SENTENCES[language]])[0]
    assert detected == language
    assert 0 < probability <= 1


@pytest.mark.parametrize("text", ["", " ", "123 456", "...\n!"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect_languages([text]) == [(UNKNOWN, 0.0)]


def test_the_middle_of_a_text_decides() -> None:
    german = " ".join([SENTENCES["de"]] * 10)
    assert len(german) > SAMPLE_CHARACTERS
    text = f"{SENTENCES['en']}\n{german}\n{SENTENCES['en']}"
    assert detect_languages([text])[0][0] == "de"


@given(st.lists(st.sampled_from(list(SENTENCES.values())) | st.text(), max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_its_texts_one_by_one(texts: list[str]) -> None:
    assert detect_languages(texts) == [detect_languages([text])[0] for text in texts]


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert detect_languages([SENTENCES["fr"]])[0][0] == "fr"


# Sentences

LANGUAGES = st.sampled_from(["en", "de", "fr", "ru", "zh", "hi", "xx"])
PROSE = st.text(
    st.sampled_from("aA1 .!?,;:'\"()«»…。।—\n\u2018\u2019\uff1f\uff01\u3000\xa0\u200b\x85\u2028é字")
    | st.characters()
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four.", ["One.", "Two!", "Three?", "Four."]),
        ("Dr. Smith went home. He slept.", ["Dr. Smith went home.", "He slept."]),
        ("It cost 3.5 million. He paid.", ["It cost 3.5 million.", "He paid."]),
        ('He said "Go!" Then he left.', ['He said "Go!"', "Then he left."]),
        ("A heading\nThe text below it.", ["A heading", "The text below it."]),
        ("  blanks round it.  ", ["blanks round it."]),
        ("no full stop", ["no full stop"]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_sentences_are_found_in_order(text: str, expected: list[str]) -> None:
    assert split_sentences(text, "en") == expected


def test_chinese_is_split_by_its_own_full_stop() -> None:
    assert split_sentences("第一句。第二句。", "zh") == ["第一句。", "第二句。"]


def test_an_unknown_language_is_split_by_general_rules() -> None:
    assert split_sentences("One thing. Another.", "no-such") == ["One thing.", "Another."]


@given(PROSE, LANGUAGES)
@settings(max_examples=200, deadline=None)
def test_no_character_is_lost_and_no_sentence_is_empty_or_has_a_line_end(
    text: str, language: str
) -> None:
    text = normalise_text(text)
    sentences = split_sentences(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    for sentence in sentences:
        assert sentence == sentence.strip() != ""
        assert "\n" not in sentence


@given(st.lists(PROSE, max_size=4), LANGUAGES)
@settings(max_examples=200, deadline=None)
def test_a_text_is_split_as_its_paragraphs_are(paragraphs: list[str], language: str) -> None:
    text = normalise_text("\n".join(paragraphs), lines_are_sentences=True)
    alone = [s for p in text.split("\n") for s in split_sentences(p, language)]
    assert split_sentences(text, language) == alone
    assert sentence_lines(text, language).split("\n") == (alone or [""])
