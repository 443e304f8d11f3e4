"""The stages keep to what every Beam runner does alike.

Measured on Beam 2.77: Dask's runner merges tagged outputs, drops what finish_bundle gives, runs
only one of several ends and knows neither state nor timers; others differ in side inputs. So the
graph of each stage is walked, and the keys that are grouped are looked at while it runs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.pvalue import PCollection, PValue
from apache_beam.runners.common import DoFnSignature
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms import userstate

from albert_core.config import EvaluationSettings
from pipelines import contamination
from pipelines.config import ContaminationSettings
from pipelines.engine import runner
from pipelines.transforms import CleanDocuments, MakeExamples, ReadDocuments, WriteExamples
from tests.albert_core.tasks.task_files import write
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import EXAMPLES, Made, make

GROUP_BY_KEY = beam.GroupByKey
COUNT = userstate.ReadModifyWriteStateSpec("count", beam.coders.VarIntCoder())
COUNT_PARAMETER = beam.DoFn.StateParam(COUNT)


class Graph(PipelineVisitor):
    """What a pipeline consists of, but for the inside of Create and Reshuffle."""

    def __init__(self) -> None:
        self.leaves: list[AppliedPTransform] = []
        self.made: set[PValue] = set()
        self.used: set[PValue] = set()
        self._inside = 0

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self._inside += isinstance(transform_node.transform, beam.Create | beam.Reshuffle)

    def leave_composite_transform(self, transform_node: AppliedPTransform) -> None:
        self._inside -= isinstance(transform_node.transform, beam.Create | beam.Reshuffle)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.made.update(transform_node.outputs.values())
        self.used.update(transform_node.inputs)
        if not self._inside:
            self.leaves.append(transform_node)

    def faults(self) -> Iterator[str]:
        """Say what not every runner does alike."""
        for leaf in self.leaves:
            for fault in faults_of(leaf):
                yield f"{leaf.full_label}: {fault}"
        if (ends := len(self.made - self.used)) != 1:
            yield f"{ends} ends"


def faults_of(leaf: AppliedPTransform) -> Iterator[str]:
    if isinstance(leaf.transform, GROUP_BY_KEY):
        return
    if not isinstance(leaf.transform, beam.ParDo):
        yield f"a {type(leaf.transform).__name__}"
        return
    function = leaf.transform.fn
    if leaf.side_inputs:
        yield "side inputs"
    if set(leaf.outputs) != {None}:
        yield f"outputs {set(leaf.outputs)}"
    if type(function).finish_bundle is not beam.DoFn.finish_bundle:
        yield "finish_bundle"
    if any(userstate.get_dofn_specs(function)) or DoFnSignature(function).is_stateful_dofn():
        yield "state or timers"
    if DoFnSignature(function).is_splittable_dofn():
        yield "splittable"


def faults(pipeline: beam.Pipeline) -> list[str]:
    graph = Graph()
    pipeline.visit(graph)
    return list(graph.faults())


def plain(key: object) -> bool:
    if isinstance(key, tuple):
        return all(map(plain, key))
    return type(key) in (str, bytes, int)


class CheckedGroupByKey(beam.PTransform[Any, Any]):
    """GroupByKey that refuses keys of which a runner might think otherwise than Python."""

    def expand(self, keyed: PCollection[Any]) -> PCollection[Any]:
        grouped: PCollection[Any]
        grouped = keyed | "Check" >> beam.Map(checked) | "Group" >> GROUP_BY_KEY()
        return grouped


def checked(keyed: tuple[Any, Any]) -> tuple[Any, Any]:
    assert plain(keyed[0]), f"a {type(keyed[0]).__name__} in the key {keyed[0]!r}"
    return keyed


def test_the_stages_build_portable_pipelines_and_group_by_plain_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []

    def build_and_walk(pipeline: beam.Pipeline, *arguments: Any) -> None:
        build(pipeline, *arguments)
        found.append(faults(pipeline))

    build = runner.build
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    monkeypatch.setattr(runner, "build", build_and_walk)
    monkeypatch.setattr(beam, "GroupByKey", CheckedGroupByKey)
    made = make(write_jsonl(tmp_path / "source.jsonl", range(40)), tmp_path / "work")
    write(tmp_path / "CoLA/dev.tsv", "gj04\t1\t\tText of a test set.\n")
    settings = ContaminationSettings(), EvaluationSettings()
    contamination.run(*settings, made.corpus, str(tmp_path), made.work)
    assert found == [[], [], [], []]


def test_the_transforms_for_others_are_portable_and_named_by_scope(made: Made) -> None:
    pipeline = beam.Pipeline(FnApiRunner(), PipelineOptions(temp_location=made.work))
    documents = pipeline | ReadDocuments(str(made.source)) | CleanDocuments()
    parts = documents | MakeExamples(EXAMPLES, made.vocab)
    _ = parts | WriteExamples(EXAMPLES, made.vocab, made.work)
    graph = Graph()
    pipeline.visit(graph)
    assert list(graph.faults()) == []
    scopes = [leaf.full_label.split("/")[0] for leaf in graph.leaves]
    assert list(dict.fromkeys(scopes)) == [
        "ReadDocuments",
        "CleanDocuments",
        "MakeExamples",
        "WriteExamples",
    ]


class InFinishBundle(beam.DoFn):
    def process(self, element: int) -> Iterator[int]:
        yield element

    def finish_bundle(self) -> None:
        pass


class WithState(beam.DoFn):
    def process(self, element: Any, count: Any = COUNT_PARAMETER) -> Iterator[Any]:
        yield element


IN_FINISH_BUNDLE: beam.DoFn = InFinishBundle()  # type: ignore[no-untyped-call]
WITH_STATE: beam.DoFn = WithState()  # type: ignore[no-untyped-call]


@dataclasses.dataclass(frozen=True)
class Fault:
    """Steps that not every runner does alike."""

    steps: Callable[[PCollection[int]], Any]
    found: str


FAULTS = [
    Fault(lambda p: p | "A" >> beam.ParDo(IN_FINISH_BUNDLE), "finish_bundle"),
    Fault(lambda p: p | beam.WithKeys(0) | "A" >> beam.ParDo(WITH_STATE), "state or timers"),
    Fault(lambda p: p | "A" >> beam.Map(max, beam.pvalue.AsSingleton(p)), "side inputs"),
    Fault(lambda p: (p | beam.Map(abs), p | "A" >> beam.Map(abs)), "2 ends"),
    Fault(lambda p: (p, p) | "A" >> beam.Flatten(), "a Flatten"),
    Fault(lambda p: p | "A" >> beam.ParDo(IN_FINISH_BUNDLE).with_outputs("x"), "outputs"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.found)
def test_steps_that_differ_between_runners_are_found(fault: Fault) -> None:
    pipeline = beam.Pipeline(runner="apache_beam.runners.runner.PipelineRunner")
    fault.steps(pipeline | beam.Create([1, 2, 3]))
    assert any(fault.found in text for text in faults(pipeline))


@pytest.mark.parametrize("key", ["a", b"a", 1, ("a", 1), (("a", 1), b"c")])
def test_only_strings_integers_and_tuples_of_them_are_plain_keys(key: object) -> None:
    assert plain(key)
    others: list[object] = [None, 1.5, True, frozenset(), {"a": 1}]
    assert not any(plain((key, other)) for other in others)
