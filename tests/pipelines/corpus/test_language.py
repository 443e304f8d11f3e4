import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.quality import SAMPLE_CHARACTERS, UNKNOWN, detect_languages

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
