"""Every step gives in several threads what it gives in one, and loads once what they share."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import fasttext  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest

from albert_core.text.arrow_files import write_arrow
from albert_core.text.tokenizer import Tokenizer
from pipelines import clean_corpus, clean_unit, contamination, make_examples, train_vocab
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings
from pipelines.corpus import cleaning, language, quality
from pipelines.corpus.cleaning import normalise_text, reject_reasons
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
    ExampleSettings(max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.006),
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


def test_a_tokenizer_that_threads_share_splits_as_one_thread_does(made: MadeByBeam) -> None:
    folder = made.vocab.rpartition("/")[0]
    texts = [[document(number).encode()] for number in range(4 * NUM_THREADS)]
    once = Tokenizer.load(folder)
    expected = [[part.tolist() for part in once.encode_lines(each)] for each in texts]
    for _ in range(5):
        shared = Tokenizer.load(folder)
        for given in (in_threads(shared.encode_lines, texts) for _ in range(2)):
            assert [[part.tolist() for part in parts] for parts in given] == expected


def arrow_of_ngrams(folder: Path) -> str:
    uri = str(folder / "ngrams.arrow")
    write_arrow(pa.table({"ngram": np.arange(1 << 12, dtype=np.uint64)}), uri)
    return uri


@pytest.mark.parametrize("load", [clean_unit._test_ngrams, contamination._look_up])
def test_threads_load_ngrams_once(load: Callable[[str], object], tmp_path: Path) -> None:
    uri = arrow_of_ngrams(tmp_path)
    assert_one(lambda: load(uri))


def test_threads_load_a_tokenizer_once(made: MadeByBeam) -> None:
    folder = made.vocab.rpartition("/")[0]
    assert_one(lambda: example_part.load_tokenizer(folder, True, False))


def test_threads_read_the_list_of_parts_once(tmp_path: Path) -> None:
    example_part.write_part_list((f"{n}.arrow" for n in range(5000)), str(tmp_path / "list"))
    assert_one(lambda: example_part.read_part_list(str(tmp_path / "list")))


@pytest.mark.parametrize("load", [language._detector, cleaning._tables, quality._powers])
def test_threads_make_once_what_depends_on_nothing(load: Callable[[], object]) -> None:
    assert_one(load)


def assert_one(load: Callable[[], object]) -> None:
    """Assert that eight threads that ask at once are given one and the same thing."""
    for _ in range(3):
        forget_what_is_kept()
        given = at_once(load)
        assert len(set(map(id, given))) == 1


def test_threads_load_the_model_of_languages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load_model = fasttext.load_model

    def counting(path: str) -> Any:
        loaded.append(path)
        return load_model(path)

    monkeypatch.setattr(fasttext, "load_model", counting)
    forget_what_is_kept()
    texts = [document(1), FOREIGN] * NUM_THREADS
    found = in_threads(lambda text: language.detect_languages([text])[0][0], texts)
    assert found == ["en", "de"] * NUM_THREADS
    assert len(loaded) == 1


def test_threads_judge_texts_alike(source: Path) -> None:
    texts = [document(number) for number in range(2 * NUM_THREADS)] + [FOREIGN * 20]
    rules = CleaningSettings(quality_rules=["gopher", "gopher-repetition", "c4"])

    def judge(text: str) -> tuple[str, list[str | None]]:
        normal = normalise_text(text)
        return normal, reject_reasons([normal], rules)

    expected = list(map(judge, texts))
    forget_what_is_kept()
    assert in_threads(judge, texts) == expected
