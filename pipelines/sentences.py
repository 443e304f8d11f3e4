"""Pure: text to sentences, in order."""

import sentencex


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of ``text``, stripped; a line end always ends one.

    Args:
        text: paragraphs, one a line.
        language: ISO 639 code; an unknown one is split by general rules.
    """
    sentences = (
        sentence.strip()
        for paragraph in text.split("\n")
        if paragraph
        for sentence in sentencex.segment(language, paragraph)
    )
    return [sentence for sentence in sentences if sentence]
