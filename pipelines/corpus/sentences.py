"""Pure: text to sentences, in order."""

import sentencex


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of ``text``, stripped; a line end always ends one.

    Args:
        text: paragraphs, one a line.
        language: ISO 639 code; an unknown one is split by general rules.
    """
    # To sentencex an empty line parts paragraphs, and it takes a text faster than its paragraphs.
    sentences = map(str.strip, sentencex.segment(language, text.replace("\n", "\n\n")))
    return list(filter(None, sentences))


def sentence_lines(text: str, language: str) -> str:
    """Return the sentences of ``text``, one a line."""
    return "\n".join(split_sentences(text, language))
