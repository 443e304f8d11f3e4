"""The transforms in a pipeline of one's own, and the counters of what became of everything."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.common import DoFnSignature
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.decorators import TypeCheckError

from albert_core.stage.errors import ConfigError, SourceError
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.results import CorpusResult
from albert_core.text.records import Document
from pipelines import clean_corpus
from pipelines.clean_corpus import FILES
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.engine import runner
from pipelines.engine.engines import Engine
from pipelines.transforms import (
    CleanDocuments,
    MakeExamples,
    ReadDocuments,
    TrainVocabulary,
    WriteExamples,
)
from tests.generated_text import document, write_jsonl
from tests.pipelines.conftest import EXAMPLES, VOCABULARY, Made, make, own_pipeline, rows_of

LOCAL = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
IN_THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=4"]
Pipeline = Callable[..., beam.Pipeline]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Make a pipeline on the local runner, with these options."""

    def new(*options: str) -> beam.Pipeline:
        with_place = PipelineOptions([f"--temp_location={tmp_path}/temp", *options])
        return test_pipeline.TestPipeline(FnApiRunner(), options=with_place)

    return new


def counters(result: Any) -> dict[str, dict[str, int]]:
    """Return what Beam counted: namespace -> name -> number."""
    found: dict[str, dict[str, int]] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.namespace.startswith("albert."):
            by_name = found.setdefault(name.namespace, {})
            by_name[name.name] = by_name.get(name.name, 0) + counter.committed
    return found


def accounts(*manifests: str) -> dict[str, dict[str, int]]:
    """Return the accounts of manifests that pipelines count, as the counters name them."""
    found = {}
    for manifest in map(read_manifest, manifests):
        for account in manifest.accounts:
            if account.what == FILES:
                continue
            what = account.what.partition(",")[0].replace(" ", "_")
            by_name = Counter(kept=account.kept, **account.dropped)
            found[f"albert.{manifest.stage}.{what}"] = dict(+by_name)
    return found


def texts(numbers: Iterable[int]) -> list[Document]:
    return [Document(f"d{n}", document(n), "memory://x") for n in numbers]


def test_files_of_any_format_are_read_and_what_cannot_be_is_counted(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "s").mkdir()
    lines = write_jsonl(tmp_path / "s" / "a.jsonl", range(3))
    lines.write_text(lines.read_text() + "{broken\n")
    (tmp_path / "s" / "b.txt").write_text("A book.")
    with pipeline() as running:
        documents = running | ReadDocuments(str(tmp_path / "s"))
        ids = documents | beam.Map(lambda document: document.id)
        assert_that(ids, equal_to(["a.jsonl#d0", "a.jsonl#d1", "a.jsonl#d2", "b.txt"]))
    assert counters(running.result) == {"albert.corpus.documents": {"not_json": 1}}


@pytest.mark.parametrize("options", [[], IN_THREADS], ids=["one thread", "threads"])
def test_a_pipeline_of_ones_own_writes_the_stages_shards_and_counts_the_same(
    options: list[str], pipeline: Pipeline, made: Made, tmp_path: Path
) -> None:
    expected = read_manifest(made.examples)
    num_shards = len(expected.shards_of("train")), len(expected.shards_of("held_out"))
    with pipeline(*options) as running:
        manifest = (
            running
            | ReadDocuments(str(made.source))
            | CleanDocuments(num_groups=3)
            | MakeExamples(EXAMPLES, made.vocab, num_groups=3)
            | WriteExamples(EXAMPLES, made.vocab, str(tmp_path / "work"), *num_shards)
        )
        assert_that(manifest | beam.Map(read_manifest), is_like(expected))
    found = counters(running.result)
    assert found == accounts(made.corpus, made.examples)
    assert found["albert.examples.documents"]["kept"] > 0


def test_a_vocabulary_is_trained_as_the_stage_trains_it(
    pipeline: Pipeline, made: Made, tmp_path: Path
) -> None:
    corpus, expected = read_manifest(made.corpus), read_manifest(made.vocab)
    clean = [
        Document(row["id"], row["text"], row["source"]) for row in rows_of(made.corpus, "documents")
    ]
    text_bytes = corpus.result_as(CorpusResult).text_bytes
    with pipeline() as running:
        train = TrainVocabulary(VOCABULARY, str(tmp_path / "work"), text_bytes, num_groups=3)
        manifest = running | beam.Create(clean) | train
        assert_that(manifest | beam.Map(read_manifest), is_like(expected))
    assert counters(running.result) == accounts(made.vocab)


def is_like(expected: Manifest) -> Callable[[list[Manifest]], None]:
    """Return the check that there is one manifest, of equal files, accounts and result."""

    def check(found: list[Manifest]) -> None:
        [manifest] = found
        assert manifest.shards == expected.shards
        assert manifest.accounts == expected.accounts
        assert manifest.result == expected.result

    return check


def test_the_stages_count_in_threads_what_their_manifests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    engine = Engine(FnApiRunner(), IN_THREADS, wait=results.append)
    monkeypatch.setattr(runner, "choose_engine", lambda *_: engine)
    source = write_jsonl(tmp_path / "source.jsonl", [*range(40), 3, 4])
    with source.open("a") as file:
        file.write('{"text": "Oh."}\n{broken\n')
    done = make(source, tmp_path / "work")
    found = [counters(result) for result in results]
    assert found == [accounts(each) for each in (done.corpus, done.vocab, done.examples)]
    expected = {"kept": 40, "duplicate": 2, "too_short": 1, "not_json": 1}
    assert found[0] == {"albert.corpus.documents": expected}


def test_a_work_that_was_done_before_is_counted_like_any_other(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    engine = Engine(FnApiRunner(), wait=results.append)
    monkeypatch.setattr(runner, "choose_engine", lambda *_: engine)
    settings = SourceSettings(uri=str(made.source), max_unreadable_share=0.4)
    corpus = clean_corpus.run(settings, CleaningSettings(), made.work)
    assert counters(results[0]) == accounts(corpus)


def test_what_a_transform_cannot_do_is_refused_when_the_pipeline_is_built(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    texts_of_others = beam.Create(["no document"]).with_output_types(str)
    with pytest.raises(TypeCheckError, match="Document"):
        _ = pipeline() | texts_of_others | CleanDocuments()
    excluding = CleaningSettings(excluded_ids="ids.txt")
    with pytest.raises(ConfigError, match=r"can't follow cleaning.excluded_ids, .* the stage"):
        _ = pipeline() | beam.Create(texts([1])) | CleanDocuments(excluding)
    with pytest.raises(SourceError, match="has no file"):
        _ = pipeline() | ReadDocuments(str(tmp_path / "nothing"))
    nowhere = beam.Pipeline(FnApiRunner(), PipelineOptions([]))
    with pytest.raises(ConfigError, match="Give --temp_location"):
        _ = nowhere | beam.Create(texts([1])) | CleanDocuments()


def test_the_pipeline_in_the_documentation_runs_as_it_stands_and_prints_its_counters(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    (tmp_path / "notes").mkdir()
    for number in range(60):
        (tmp_path / f"notes/{number}.txt").write_text(document(number))
    (tmp_path / "notes/draft.txt").write_text(document(60))
    (tmp_path / "notes/short.txt").write_text("Oh.")
    own = tmp_path / "own.py"
    own.write_text(own_pipeline())
    arguments = [sys.executable, str(own), "notes", made.vocab, "work"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^albert\.corpus\.documents (.*)$", done.stdout, re.MULTILINE)
    assert sorted(printed) == ["kept 60", "too_short 1"]
    [manifest] = (tmp_path / "work/examples").glob("*/manifest.json")
    assert read_manifest(str(manifest)).account("documents").total == 60


class Leaves(PipelineVisitor):
    """The steps of a pipeline, but for the inside of Create and Reshuffle."""

    def __init__(self) -> None:
        self.found: list[AppliedPTransform] = []
        self._inside = 0

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self._inside += isinstance(transform_node.transform, beam.Create | beam.Reshuffle)

    def leave_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self._inside -= isinstance(transform_node.transform, beam.Create | beam.Reshuffle)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        if not self._inside:
            self.found.append(transform_node)


def test_the_steps_are_what_every_runner_does_alike_and_named_by_scope(
    pipeline: Pipeline, made: Made
) -> None:
    """Beam 2.77: Dask's runner merges tagged outputs, drops what finish_bundle gives, runs one of
    several ends and knows neither state nor timers; others differ in side inputs.
    """
    running = pipeline()
    documents = running | ReadDocuments(str(made.source)) | CleanDocuments()
    parts = documents | MakeExamples(EXAMPLES, made.vocab)
    _ = parts | WriteExamples(EXAMPLES, made.vocab, made.work)
    leaves = Leaves()
    running.visit(leaves)
    for leaf in leaves.found:
        assert isinstance(leaf.transform, beam.ParDo | beam.GroupByKey), leaf.full_label
        assert not leaf.side_inputs
        assert set(leaf.outputs) == {None}
        if isinstance(leaf.transform, beam.ParDo):
            function = leaf.transform.fn
            assert type(function).finish_bundle is beam.DoFn.finish_bundle
            assert not DoFnSignature(function).is_stateful_dofn()
    scopes = [leaf.full_label.split("/")[0] for leaf in leaves.found]
    assert list(dict.fromkeys(scopes)) == [
        "ReadDocuments",
        "CleanDocuments",
        "MakeExamples",
        "WriteExamples",
    ]
