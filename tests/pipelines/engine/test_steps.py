"""Beam transforms of a stage's steps hold only what every runner does alike."""

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.common import DoFnSignature

from pipelines.engine import steps


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


def test_the_steps_are_what_every_runner_does_alike() -> None:
    """Beam 2.77: Dask's runner merges tagged outputs, drops what finish_bundle gives, runs one of
    several ends and knows neither state nor timers; others differ in side inputs.
    """
    chain = [
        steps.each("Keyed", divmod, 2),
        steps.group("ByHalf"),
        steps.each_to_many("Halves", lambda keyed: keyed[1]),
        steps.deal(),
        steps.gather("Together"),
    ]
    running = beam.Pipeline()
    _ = running | beam.Create([1, 2, 3]) | "All" >> steps.as_transform(chain)
    leaves = Leaves()
    running.visit(leaves)
    assert len(leaves.found) > len(chain)  # Beam's own steps of the gathering among them
    for leaf in leaves.found:
        assert isinstance(leaf.transform, beam.ParDo | beam.GroupByKey), leaf.full_label
        assert not leaf.side_inputs
        assert set(leaf.outputs) == {None}
        if isinstance(leaf.transform, beam.ParDo):
            function = leaf.transform.fn
            assert type(function).finish_bundle is beam.DoFn.finish_bundle
            assert not DoFnSignature(function).is_stateful_dofn()
