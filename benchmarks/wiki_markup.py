"""A MediaWiki dump to text: how fast, and against the text that mwparserfromhell gives.

    python benchmarks/wiki_markup.py [DUMP.xml.bz2 [pages]]

Prints MB of unpacked XML per CPU second of both parsers, reading and cleaning together, and on the
first 50 articles (or so many) how their words agree and what markup is left in the text of each.
F1 is of the words as a multiset, in which mwparserfromhell's text stands for the truth.
"""

import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice

import fsspec
from _english_text import CORPORA

from pipelines.config import SourceSettings
from pipelines.readers import mediawiki_dump

RESIDUE = ("{{", "[[", "|", "thumb|", "<ref", "''")


def articles(content: bytes, parser: str, pages: int | None = None) -> tuple[dict[str, str], float]:
    """Return the first texts of a dump by page, and the CPU seconds that all of them took."""
    settings = SourceSettings.model_validate({"wiki_parser": parser})
    begin = time.process_time()
    found = (r for r in mediawiki_dump.read(io.BytesIO(content), settings) if not r.unreadable)
    texts = {record.key: record.text for record in islice(found, pages)}
    return texts, time.process_time() - begin


def word_f1(text: str, truth: str) -> float:
    """Return the harmonic mean of precision and recall of the words of ``text``."""
    words, expected = (Counter(re.findall(r"\w+", each)) for each in (text, truth))
    return 2 * (words & expected).total() / max(1, words.total() + expected.total())


def residue(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each mark is left."""
    joined = "\n".join(texts)
    return {mark: joined.count(mark) for mark in RESIDUE}


def main() -> None:
    """Read the dump with both parsers and print a line of JSON."""
    dumps = sys.argv[1:2] or sorted(map(str, CORPORA.glob("mediawiki_dumps/full/*pages*.bz2")))
    if not dumps:
        print(json.dumps({"skipped": "give a dump of MediaWiki"}))
        return
    with fsspec.open(dumps[0], "rb", compression="infer") as file:
        content = file.read()
    pages = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    fast, fast_seconds = min(
        (articles(content, "fast") for _ in range(3)), key=lambda result: result[1]
    )
    everything, full_seconds = articles(content, "full")
    full = dict(islice(everything.items(), pages))
    scores = [word_f1(fast[key], text) for key, text in full.items()]
    megabytes = len(content) / 1e6
    result = {
        "xml_mb": round(megabytes, 1),
        "fast_mb_per_cpu_s": round(megabytes / fast_seconds, 1),
        "full_mb_per_cpu_s": round(megabytes / full_seconds, 2),
        "ratio": round(full_seconds / fast_seconds, 1),
        "pages": len(scores),
        "word_f1_mean": round(sum(scores) / len(scores), 4),
        "word_f1_min": round(min(scores), 4),
        "residue_fast": residue(fast[key] for key in full),
        "residue_full": residue(full.values()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
