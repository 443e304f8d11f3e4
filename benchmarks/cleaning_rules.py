"""Speed of the functions that clean text, in MB of UTF-8 a CPU second, one thread.

    python benchmarks/cleaning_rules.py [wiki-folder-or-file ...]

Prints one line of JSON. The text is WikiExtractor output, that of CORPUS unless some is given.
`rules_and_language` is all groups of rules and the language filter together, on documents of
2,000 to 40,000 characters. `peer` is the same with datatrove's filters, null where datatrove
is not installed; `peer_published` is the published range of them.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.config import CleaningSettings
from pipelines.corpus.cleaning import content_hash, normalise_text, reject_reasons
from pipelines.corpus.language import detect_languages
from pipelines.corpus.sentences import sentence_lines, split_sentences

CORPUS = Path(__file__).parents[2] / "shared/data/corpora/wiki_extracted/enwiki2018"
PEER_PUBLISHED = [0.41, 0.58]
EVERY_GROUP = CleaningSettings(
    quality_rules=["gopher", "gopher-repetition", "c4"], keep_languages=["en"]
)


def texts_of(paths: Sequence[Path]) -> list[str]:
    """Return the documents in files of WikiExtractor output."""
    files = [f for path in paths for f in ([path] if path.is_file() else sorted(path.rglob("*")))]
    content = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    return re.findall(r"(?s)<doc [^\n]*>\n(.*?)</doc>", content)


def megabytes(texts: Sequence[str]) -> float:
    """Return the size of the texts in UTF-8."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / 1e6


def speed(function: Callable[[Sequence[str]], object], texts: Sequence[str]) -> float:
    """Return MB a CPU second, the best of three."""
    function(texts[:1])  # loads tables and models
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        function(texts)
        seconds.append(time.process_time() - begin)
    return round(megabytes(texts) / min(seconds), 1)


def peer_speed(texts: Sequence[str]) -> float | None:
    """Return the speed of datatrove's Gopher, repetition, C4 and language filters, or None."""
    try:
        from datatrove.data import Document
        from datatrove.pipeline import filters
    except ImportError:
        return None
    steps = [
        filters.GopherQualityFilter(),
        filters.GopherRepetitionFilter(),
        filters.C4QualityFilter(),
        filters.LanguageFilter(),
    ]
    documents = [Document(text=text, id=str(i)) for i, text in enumerate(texts[:200])]
    begin = time.process_time()
    for document in documents:
        all(step.filter(document) is True for step in steps)
    return round(megabytes(texts[:200]) / (time.process_time() - begin), 2)


def main() -> None:
    """Print the speeds."""
    raw = texts_of([Path(path) for path in sys.argv[1:]] or [CORPUS])
    clean = [text for text in map(normalise_text, raw) if text]
    middling = [text for text in clean if 2_000 <= len(text) <= 40_000]

    def rules(*groups: str) -> Callable[[Sequence[str]], object]:
        settings = CleaningSettings.model_validate({"quality_rules": list(groups)})
        return lambda texts: reject_reasons(texts, settings)

    result = {
        "mb": round(megabytes(raw), 1),
        "normalise_text": speed(lambda texts: [normalise_text(t) for t in texts], raw),
        "content_hash": speed(lambda texts: [content_hash(t) for t in texts], clean),
        "reject_reasons_default": speed(rules("gopher"), clean),
        "gopher_repetition": speed(rules("gopher-repetition"), clean),
        "c4": speed(rules("c4"), clean),
        "detect_languages": speed(detect_languages, middling),
        "split_sentences": speed(lambda texts: [split_sentences(t, "en") for t in texts], clean),
        "sentence_lines": speed(lambda texts: [sentence_lines(t, "en") for t in texts], clean),
        "rules_and_language_mean_kb": round(1000 * megabytes(middling) / len(middling), 1),
        "rules_and_language": speed(lambda t: reject_reasons(t, EVERY_GROUP), middling),
        "peer": peer_speed(middling),
        "peer_published": PEER_PUBLISHED,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
