"""The steps of a stage, described without Beam, and the Beam transform that they make.

A stage is a chain of functions of each element, groupings by key and gatherings, which every engine
does alike. Nothing else can be expressed here, so the bytes are the same everywhere.

A worker must have the code and libraries of the process that started the stage, or it would write
other bytes. And an error must keep its type, although some runners pass on only its text: a store
that is unavailable for some time is not a defect.

One worker processes elements of several bundles in threads. A step function may use only what is
immutable, owned by its thread, or protected by a lock.
"""

import gc
import hashlib
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from importlib.metadata import requires
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import albert_core
import pipelines
from albert_core.stage.errors import ConfigError, OutageError, explained, is_transient
from albert_core.stage.manifest import Account
from albert_core.stage.provenance import library_versions

if TYPE_CHECKING:
    import apache_beam as beam

PROJECT = "albert-pretraining"
_NEW_OBJECTS = 100_000
"""That a worker may make, some 10 MB, before Python looks for garbage."""


@dataclass(frozen=True)
class Step:
    """One step; if it has a function, it is called with each element."""

    label: str
    kind: Literal["each", "group", "gather", "deal"]
    function: Callable[..., Iterable[Any]] = iter
    """Takes an element and the arguments; gives elements of the next step."""
    arguments: tuple[Any, ...] = ()
    installed: dict[str, str] = field(default_factory=dict)
    """Versions in the process that started the stage; see `installed`."""

    def __call__(self, element: Any) -> Iterator[Any]:
        """Yield what the function gives, if this worker has the code of the driver."""
        _collect_less_garbage()
        here = installed()
        for name, version in self.installed.items():
            if here.get(name) != version:
                raise ConfigError(
                    f"the worker on {socket.gethostname()} has {name} {here.get(name)}, but the "
                    f"stage was started with {version}. Install the same versions on all machines, "
                    "and restart their workers."
                )
        try:
            yield from self.function(element, *self.arguments)
        except Exception as error:
            if not is_transient(error):
                raise
            said = explained(error) or f"{type(error).__name__}: {error}"
            raise OutageError(said) from error


def each(label: str, function: Callable[..., Any], *arguments: Any) -> Step:
    """Return the step that gives ``function(element, *arguments)`` for each element."""
    return Step(label, "each", _one, (function, *arguments))


def each_to_many(label: str, function: Callable[..., Iterable[Any]], *arguments: Any) -> Step:
    """Return the step that gives all of ``function(element, *arguments)`` for each element."""
    return Step(label, "each", function, arguments)


def group(label: str) -> Step:
    """Return the step from (key, value) to (key, values); keys are str, bytes, int or tuples."""
    return Step(label, "group")


def gather(label: str) -> Step:
    """Return the step that gives one list of all elements."""
    return Step(label, "gather")


def deal() -> Step:
    """Return the step that deals the elements out to all workers, evenly even if they are few."""
    return Step("Deal", "deal")


def as_transform(steps: Sequence[Step]) -> "beam.PTransform[Any, Any]":
    """Return the Beam transform that runs these steps, one after the other."""
    import apache_beam as beam
    from apache_beam.transforms import combiners

    def of(step: Step) -> "beam.PTransform[Any, Any]":
        if step.kind == "group":
            return beam.GroupByKey()
        if step.kind == "gather":
            return combiners.ToList().without_defaults()
        if step.kind == "deal":
            return beam.Reshuffle()
        return beam.FlatMap(replace(step, installed=installed()))

    return reduce(or_, (step.label >> of(step) for step in steps))


def count(stage: str, account: Account) -> None:
    """Add an account to Beam's counters, where the pages of Flink, Spark and Dataflow show it.

    The namespace is ``albert.STAGE.WHAT``; the counters are ``kept`` and the reasons. Called once
    for each piece of work, by the step that has its final account. Outside of a step it does
    nothing.
    """
    from apache_beam.metrics.metric import Metrics

    namespace = f"albert.{stage}.{account.what.partition(',')[0].replace(' ', '_')}"
    for name, number in {"kept": account.kept, **account.dropped}.items():
        if number:
            Metrics.counter(namespace, name).inc(number)


def _one(element: Any, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    yield function(element, *arguments)


@cache
def _collect_less_garbage() -> None:
    """Exempt the modules of this worker from garbage collection, and collect less often.

    They and Beam's are a million objects; scanning them took a tenth of a stage's time. By default
    Python collects at every 700 objects more, and the pieces of a batch's words are lists by the
    ten thousand: that took a fifth of the time to make examples.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


@cache
def installed() -> dict[str, str]:
    """Return the versions that must be equal on all machines: of our code and its libraries."""
    digest = hashlib.sha256()
    for package in (albert_core, pipelines):
        for folder in map(Path, package.__path__):
            for path in sorted(folder.rglob("*.py")):
                digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    of_project = [
        line
        for line in requires(PROJECT) or []
        if "extra ==" not in line or re.search(r"extra == .pipelines", line)
    ]
    names = sorted(re.split(r"[^\w.-]", line)[0] for line in of_project)
    return {PROJECT: f"code {digest.hexdigest()[:12]}"} | library_versions(*names)
