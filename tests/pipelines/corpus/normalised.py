"""One text, normalised."""

from pipelines.corpus.cleaning import normalise_texts


def normalise_text(text: str, *, lines_are_sentences: bool = False) -> str:
    """Return what `normalise_texts` makes of it."""
    return normalise_texts([text], lines_are_sentences=[lines_are_sentences])[0]
