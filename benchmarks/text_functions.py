"""The parts of the text stages and of SQuAD's windows and answers, each alone in one thread.

    python -m benchmarks.text_functions [--cases masks rules ...] [--rounds 5] [--results FOLDER]

The text is Wikipedia of 2018, and the dump is the first that is found (`ALBERT_BENCH_DATA`).
Cases whose data are absent are left out. Peers that are installed run in the same rounds; of the
others the published or once measured rates are beside the goal.

SQuAD's windows have targets, maximal contexts and character offsets. Its answers are those of the
official dev set in number, made by repeating the file's questions; a window's 20 best starts and
ends lie within 25 pieces, as those of a trained model do, so that most of the 400 pairs are valid.
"""

import argparse
import html
import io
import re
import tempfile
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa

from albert_core.config import SpanSettings
from albert_core.tasks import catalogue, spans, squad
from albert_core.tasks.examples import SpanExamples
from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, NUM_SPECIAL, SEP
from albert_core.text.seeds import random_bits
from albert_core.text.tokenizer import Tokenizer
from benchmarks import harness, stages
from benchmarks.harness import DATA, PUBLISHED_MODEL, Work, units
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus import cleaning, quality
from pipelines.corpus.duplicates import band_hashes, bands_for, signatures
from pipelines.examples.tfrecord import tf_examples, write_tfrecord
from pipelines.readers import wikipedia

VOCAB_SIZE, LENGTH, PREDICTIONS, NUM_ROWS = 30_000, 512, 77, 1000
SQUAD = DATA / "tasks/squad/squad-v1.1-articles-0-35.json"
SQUAD_LENGTH, DEV_QUESTIONS, SPREAD = 384, 10_570, 25
PEER_DOCUMENTS = 100
"""Documents that suffice for a slow peer."""
_OPENS_WORD = np.random.default_rng(1).random(VOCAB_SIZE) < 0.89  # 1.12 pieces a word


@cache
def masks() -> Work:
    """Contestant: n-gram masks of full examples."""
    random = np.random.default_rng(0)
    ids = random.integers(NUM_SPECIAL, VOCAB_SIZE, (NUM_ROWS, LENGTH)).astype(np.uint16)
    b_starts = random.integers(20, LENGTH - 20, NUM_ROWS)
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[np.arange(NUM_ROWS), b_starts - 1] = SEP
    lengths, seeds = np.full(NUM_ROWS, LENGTH), random_bits(1, np.arange(NUM_ROWS))
    given = (ids.ravel(), lengths, b_starts, _OPENS_WORD, seeds, 0.15, 3)
    return units(ids.size / 1e6, mask_examples, *given)


@cache
def tfrecord() -> Work:
    """Contestant: a TFRecord shard of full examples, framing and checksums included."""
    random = np.random.default_rng(0)
    # Common pieces have low ids, as in a real vocabulary.
    ids = NUM_SPECIAL + (VOCAB_SIZE - NUM_SPECIAL) * random.random((NUM_ROWS, LENGTH)) ** 3
    positions = np.sort(random.random((NUM_ROWS, LENGTH)).argsort(axis=1)[:, :PREDICTIONS])
    labels = np.take_along_axis(ids, positions, axis=1)
    columns = {
        "input_ids": list(ids.astype(np.uint16)),
        "segment_b_start": random.integers(20, LENGTH - 20, NUM_ROWS),
        "masked_lm_positions": list(positions.astype(np.uint16)),
        "masked_lm_labels": list(labels.astype(np.uint16)),
        "sentence_order_label": random.integers(0, 2, NUM_ROWS),
        "document_id": [str(i) for i in range(NUM_ROWS)],
        "first_sentence": np.arange(NUM_ROWS),
        "last_sentence": np.arange(NUM_ROWS) + 1,
        "copy": np.zeros(NUM_ROWS, np.uint16),
    }
    examples = pa.table(columns, schema=EXAMPLE_SCHEMA)

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            records = tf_examples(examples, LENGTH, PREDICTIONS, _OPENS_WORD)
            write_tfrecord(records, str(Path(folder) / "x.tfrecord"))

    return units(NUM_ROWS, write)


@cache
def texts(shortest: int = 0, longest: int = 10**9) -> list[str]:
    """Return the clean articles whose numbers of characters are within these limits."""
    clean = cleaning.normalise_texts([text for _, text in stages.articles("enwiki2018")])
    return [text for text in clean if shortest <= len(text) <= longest]


def _megabytes(some: list[str]) -> float:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in some) / 1e6


@cache
def rules() -> Work:
    """Contestant: every group of rules and the language filter, together."""
    settings = CleaningSettings(
        quality_rules=["gopher", "gopher-repetition", "c4"], keep_languages=["en"]
    )
    some = texts(2_000, 40_000)

    def judge() -> None:
        for text in some:
            quality.reject_reason(quality.Profile(text, settings.language), settings)

    return units(_megabytes(some), judge)


@cache
def datatrove_rules() -> Work:
    """Contestant: datatrove's filters but that of the language, which fetches its model."""
    from datatrove.data import Document
    from datatrove.pipeline import filters

    kinds = ("GopherQuality", "GopherRepetition", "C4Quality")
    steps = [getattr(filters, f"{kind}Filter")() for kind in kinds]
    some = texts(2_000, 40_000)[:PEER_DOCUMENTS]
    documents = [Document(text=text, id=str(i)) for i, text in enumerate(some)]

    def judge() -> None:
        for document in documents:
            all(step.filter(document) is True for step in steps)

    return units(_megabytes(some), judge)


@cache
def near_duplicates() -> Work:
    """Contestant: signatures and the hashes of their bands."""
    some = texts()
    return units(_megabytes(some), lambda: band_hashes(signatures(some), *bands_for(0.8)))


@cache
def dump() -> Work:
    """Contestant: a MediaWiki dump to text, reading and cleaning together."""
    content = _dump_content()
    return units(
        len(content) / 1e6,
        lambda: deque(wikipedia.read_dump(io.BytesIO(content), SourceSettings()), maxlen=0),
    )


@cache
def mwparserfromhell_dump() -> Work:
    """Contestant: the same by mwparserfromhell, of some pages."""
    import mwparserfromhell

    pages = re.findall(rb"<text[^>]*>(.*?)</text>", _dump_content(), re.DOTALL)[:PEER_DOCUMENTS]
    texts = [html.unescape(page.decode()) for page in pages]

    def strip() -> None:
        for text in texts:
            mwparserfromhell.parse(text).strip_code()

    return units(sum(map(len, pages)) / 1e6, strip)


def _dump_content() -> bytes:
    with fsspec.open(str(_dumps()[0]), "rb", compression="infer") as file:
        return bytes(file.read())


def _dumps() -> list[Path]:
    return sorted(stages.CORPORA.glob("mediawiki_dumps/full/*pages*.bz2"))


def _squad() -> tuple[spans.SpanProblem, SpanExamples, Tokenizer]:
    problem = spans.SpanProblem(catalogue.TASKS["squad-1.1"], SpanSettings())
    tokenizer = Tokenizer(PUBLISHED_MODEL.read_bytes())
    return problem, squad.read_squad(str(SQUAD), has_answerless=False), tokenizer


def windows() -> Work:
    """Contestant: SQuAD's texts to input sequences."""
    problem, examples, tokenizer = _squad()
    return units(len(examples), problem.inputs, examples, tokenizer, SQUAD_LENGTH)


@cache
def answers() -> Work:
    """Contestant: the answers and scores of as many questions as the dev set has."""
    problem, examples, tokenizer = _squad()
    rows = np.arange(DEV_QUESTIONS) % len(examples)
    many = SpanExamples(
        ids=[str(number) for number in range(DEV_QUESTIONS)],
        paragraphs=examples.paragraphs,
        paragraph_of=examples.paragraph_of[rows],
        clusters=examples.clusters[rows],
        questions=[examples.questions[row] for row in rows],
        answers=[examples.answers[row] for row in rows],
    )
    inputs = problem.inputs(many, tokenizer, SQUAD_LENGTH)
    random, of, number = np.random.default_rng(0), inputs.details, problem.settings.n_best
    size = len(of.first)
    region = (random.random(size) * np.maximum(of.lengths - SPREAD, 1)).astype(int)
    outputs = {"null_scores": np.zeros(size, np.float32)}
    for name in ("start", "end"):
        places = random.random((size, SPREAD)).argsort(axis=1)[:, :number]
        outputs[f"{name}s"] = of.offsets[:, None] + region[:, None] + places
        scores = np.sort(random.normal(size=(size, number)))[:, ::-1]
        outputs[f"{name}_scores"] = scores.astype(np.float32)
    return units(DEV_QUESTIONS, problem.score, outputs, inputs, many)


CASES: dict[str, tuple[Callable[[], Work], str, str]] = {
    "masks": (
        masks,
        "million pieces",
        "10; reference 0.13, Megatron 0.09, LDDL 2.0 (single pieces)",
    ),
    "tfrecord": (tfrecord, "examples", "33,000; protobuf 17,000"),
    "rules": (rules, "MB", "25; datatrove 0.4 to 0.6"),
    "near-duplicates": (near_duplicates, "MB", "100; datatrove 0.5"),
    "dump": (dump, "MB of XML", "30; mwparserfromhell 2.0"),
    "windows": (windows, "questions", "1,100; the reference's alignment search 56"),
    "answers": (answers, "questions", "530"),
}
"""Name -> our contestant, the unit of its work, the goal and the rates of others."""
PEERS = {
    "rules": (["datatrove", "spacy"], datatrove_rules),
    "dump": (["mwparserfromhell"], mwparserfromhell_dump),
}
"""Name -> the packages that the peer needs, its own first, and the contestant."""


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure the cases whose data are present."""
    present = {"masks", "tfrecord"}
    if (stages.CORPORA / "wiki_extracted").is_dir():
        present |= {"rules", "near-duplicates"}
    if _dumps():
        present.add("dump")
    if SQUAD.is_file() and PUBLISHED_MODEL.is_file():
        present |= {"windows", "answers"}
    cases: dict[str, dict[str, harness.Contestant]] = {}
    goals = {}
    for name in (name for name in options.cases if name in present):
        contestant, unit, goals[f"{name}, {unit}"] = CASES[name]
        case = cases[f"{name}, {unit}"] = {"ours": (contestant,)}
        needed, peer = PEERS.get(name, ([], None))
        if needed and all(map(find_spec, needed)):
            case[needed[0]] = (peer,)
    return harness.compare(cases, options.rounds, "units", goals)


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__, rounds=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    harness.run(parser, {"text_functions": measure})


if __name__ == "__main__":
    main()
