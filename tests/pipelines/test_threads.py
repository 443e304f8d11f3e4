"""Every step gives in several threads what it gives in one, and loads once what they share."""

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from albert_core.text.arrow_files import write_arrow
from pipelines import clean_corpus, clean_unit, contamination, make_examples, train_vocab
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings
from pipelines.corpus import cleaning, quality
from pipelines.engine import loaded_once
from pipelines.engine.steps import Step
from pipelines.examples import part as example_part
from tests.generated_text import document, write_jsonl
from tests.pipelines.conftest import VOCABULARY
from tests.pipelines.conftest import Made as MadeByBeam
from tests.pipelines.readers.reading import json_lines
from tests.threads import NUM_THREADS, at_once, forget_what_is_kept, in_threads

NUM_FILES = 2 * NUM_THREADS
TIMED = {"manifest.json", "begun.json"}
"""Files that say when they were written; what the manifests name is compared itself."""
FOREIGN = (
    "GrÃ¶ÃŸere FlÃ¼sse fÃ¼hren Ã¼ber weite Felder, und die BÃ¤ume grÃ¼nen Ã¼berall in der Sonne. "
    "Der alte Mann trägt den Brief mit der Uhr ins Dorf und ist froh, denn es ist Abend. "
    "Die Brücke über den ﬂachen Bach hält noch, aber das Geländer ist mit Moos bewachsen."
)
"""Mojibake, a ligature and letters that compose, in German."""
EXAMPLES = [
    ExampleSettings(
        max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.006, tfrecord=True
    ),
    ExampleSettings(
        max_seq_length=64, dupe_factor=1, held_out_share=0.2, shard_mb=0.006, fidelity="google"
    ),
]


@dataclass(frozen=True)
class Made:
    """What the three text stages have made."""

    files: dict[str, bytes]
    """By their paths in the work folder."""
    given: list[Any]
    """What each step gave for each element, in plain lists and numbers."""


def is_plain(key: object) -> bool:
    """Return whether no runner thinks otherwise than Python of whether two such keys are equal."""
    if isinstance(key, tuple):
        return all(map(is_plain, key))
    return type(key) in (str, bytes, int)


def make_in_threads(source: Path, work: Path, num_threads: int, cold: bool) -> Made:
    """Run the three text stages, each step in threads."""
    given: list[Any] = []

    def run_pipeline(_: str, steps: list[Step], elements: Iterable[Any], *__: object) -> list[Any]:
        taken = list(elements)
        for step in steps:
            if step.kind == "gather":
                taken = [taken]
            elif step.kind == "group":
                assert all(is_plain(key) for key, _ in taken)
                groups: dict[Any, list[Any]] = {}
                for key, value in taken:
                    groups.setdefault(key, []).append(value)
                taken = list(groups.items())
            elif step.kind == "each":
                if cold:
                    forget_what_is_kept()
                taking = cast(Callable[[Any], list[Any]], lambda each, take=step: list(take(each)))
                many = in_threads(taking, taken, num_threads)
                given.append(many)
                taken = [result for results in many for result in results]
        keyed = json.loads(json.dumps(taken))
        return [value for _, value in sorted(keyed, key=lambda each: str(each[0]).zfill(20))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.engine.runner.run_pipeline", run_pipeline)
        patch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
        cleaning = CleaningSettings(
            quality_rules=["gopher", "c4"],
            language="auto",
            keep_languages=["en", "de"],
            near_duplicate_similarity=0.8,
            test_texts=[str(source.parent / "test.txt")],
            min_test_overlaps=100,
            keep_rejected=True,
        )
        corpus = clean_corpus.run(SourceSettings(uri=str(source)), cleaning, str(work))
        vocab = train_vocab.run(VOCABULARY, corpus, str(work))
        for examples in EXAMPLES:
            make_examples.run(examples, corpus, vocab, str(work))
    files = [path for path in work.rglob("*") if path.is_file() and path.name not in TIMED]
    return Made(
        {str(path.relative_to(work)): path.read_bytes() for path in files}, _plain(given, str(work))
    )


def _plain(value: Any, work: str) -> Any:
    """Return ``value`` so that it can be compared with that of another work folder."""
    if isinstance(value, str):
        return re.sub(r"\.scratch-[^/]+", "", value.removeprefix(work))
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(each, work) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, work) for each in value]
    if is_dataclass(value):
        return [_plain(getattr(value, field.name), work) for field in fields(value)]
    return value


def write_source(folder: Path) -> Path:
    """Write files that share documents, with text to repair and in two languages."""
    source = folder / "source"
    source.mkdir()
    for number in range(NUM_FILES):
        path = write_jsonl(source / f"{number:02d}.jsonl", range(number * 6, number * 6 + 7))
        texts = [f"{FOREIGN} {number}.", document(number * 6).replace("a letter", "a thought", 1)]
        with path.open("ab") as file:
            file.write(json_lines(*({"text": text} for text in texts)))
    (folder / "test.txt").write_text(document(20), encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def in_one_thread(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_in_threads(source, tmp_path_factory.mktemp("one"), 1, cold=False)


@pytest.mark.parametrize("cold", [True, False])
def test_the_steps_of_all_stages_give_in_threads_what_they_do_in_one(
    source: Path, in_one_thread: Made, tmp_path: Path, cold: bool
) -> None:
    made = make_in_threads(source, tmp_path, NUM_THREADS, cold)
    assert made.files.keys() == in_one_thread.files.keys()
    others = [name for name in made.files if made.files[name] != in_one_thread.files[name]]
    assert others == []
    assert made.given == in_one_thread.given


def test_threads_load_once_what_they_share(made: MadeByBeam, tmp_path: Path) -> None:
    ngrams, parts = str(tmp_path / "ngrams.arrow"), str(tmp_path / "list")
    write_arrow(pa.table({"ngram": np.arange(1 << 12, dtype=np.uint64)}), ngrams)
    example_part.write_part_list((f"{n}.arrow" for n in range(5000)), parts)
    loads: list[Callable[[], object]] = [
        lambda: clean_unit._test_ngrams(ngrams),
        lambda: contamination._look_up(ngrams),
        lambda: example_part.load_tokenizer(made.vocab.rpartition("/")[0], True, False),
        lambda: example_part.read_part_list(parts),
        quality._detector,
        cleaning._suspicious_text,
        quality._frequent_words,
        quality._powers,
    ]
    for load in loads:
        forget_what_is_kept()
        assert len(set(map(id, at_once(load)))) == 1


class Shelf:
    """What can be loaded, and what was."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.loading = 0

    def load(self, name: str) -> list[str]:
        assert self.loading == 0
        self.loading += 1
        threading.Event().wait(0.01)
        self.loading -= 1
        self.asked.append(name)
        return [name]


def test_one_thread_loads_for_all() -> None:
    shelf = Shelf()
    load = loaded_once(shelf.load)
    given = at_once(lambda: load("a"))
    assert given == [["a"]] * NUM_THREADS
    assert len(set(map(id, given))) == 1
    assert shelf.asked == ["a"]


def test_what_could_not_be_loaded_is_tried_again() -> None:
    failures = [OSError("gone")]

    @loaded_once
    def load() -> str:
        if failures:
            raise failures.pop()
        return "there"

    with pytest.raises(OSError, match="gone"):
        load()
    assert at_once(load) == ["there"] * NUM_THREADS


def test_a_loader_may_call_another_and_itself() -> None:
    inner = loaded_once(str)

    @loaded_once
    def outer(number: int) -> str:
        return inner(number) + (outer(number - 1) if number else "")

    assert in_threads(outer, [3, 2] * NUM_THREADS) == ["3210", "210"] * NUM_THREADS
