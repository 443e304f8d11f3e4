"""Files of minimal pairs that mean nothing."""

import json
from pathlib import Path

from tests.albert_core.tiny_vocab import tiny_sentences

PARADIGMS = {"first": "one", "second": "one", "third": "other"}
"""Paradigm -> phenomenon."""


def write_pairs(folder: Path, number: int = 12, seed: int = 0, name: str = "made") -> Path:
    """Write ``number`` pairs to ``folder``/minimal_pairs/``name``.jsonl; return ``folder``."""
    path = folder / "minimal_pairs" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for place, sentence in enumerate(tiny_sentences(number, seed)):
        first, *others = sentence.split()[:3]
        paradigm = list(PARADIGMS)[place % len(PARADIGMS)]
        rows.append(
            {
                "sentence_good": " ".join([first, *others]),
                "sentence_bad": " ".join([*others, first]),
                "UID": paradigm,
                "linguistics_term": PARADIGMS[paradigm],
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
