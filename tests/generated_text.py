"""Text that the tests generate: English-like, ordered, and different in every document."""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

_SUBJECTS = ["the river", "a teacher", "our engine", "the old clock", "her brother", "the market"]
_VERBS = ["follows", "repairs", "describes", "forgets", "carries", "answers", "measures", "paints"]
_OBJECTS = ["the bridge", "a letter", "the numbers", "every window", "some music", "the garden"]
_THINGS = ["ship", "sonata", "theorem", "harvest", "statue", "glacier"]
"""What documents are about: each twenty of them about the same."""
_ENDINGS = ["in the morning", "without a word", "before winter", "near the harbour", "again"]


def sentence(random: Random, about: str) -> str:
    """Return one sentence that names what it is ``about``."""
    number = random.randrange(10_000)
    words = (random.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS))
    return f"{' '.join(words).capitalize()} and {about} {number}."


def document(number: int, num_sentences: int = 30) -> str:
    """Return the text of document ``number``: paragraphs of five sentences."""
    random = Random(number)
    about = _THINGS[number // 20 % len(_THINGS)]
    sentences = [sentence(random, about) for _ in range(num_sentences)]
    paragraphs = (" ".join(sentences[i : i + 5]) for i in range(0, num_sentences, 5))
    return "\n\n".join(paragraphs)


def write_jsonl(path: Path, numbers: Iterable[int]) -> Path:
    """Write documents to ``path``, one JSON object a line."""
    lines = (json.dumps({"id": f"d{n}", "text": document(n)}) for n in numbers)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_source(folder: Path, num_documents: int = 20) -> Path:
    """Write three files of so many documents each; return the folder."""
    folder.mkdir(exist_ok=True)
    for number in range(3):
        first = number * num_documents
        write_jsonl(folder / f"{number}.jsonl", range(first, first + num_documents))
    return folder
