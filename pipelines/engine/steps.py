"""The steps of a pipeline: a function of each element, and what every engine needs with it.

A worker must have the code and libraries of the process that started the stage, or it would write
other bytes. And an error must keep its type, although some runners pass on only its text: a store
that is unavailable for some time is not a defect.

Elements of several bundles are processed in threads of one worker. A step function may use what is
immutable, of its own thread, or behind a lock, and nothing else.
"""

import hashlib
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics

import albert_core
import pipelines
from albert_core.stage.errors import ConfigError, OutageError, is_transient
from albert_core.stage.manifest import Account
from albert_core.stage.provenance import library_versions

PROJECT = "albert-pretraining"


def each(function: Callable[..., Any], *arguments: Any) -> beam.ParDo:
    """Return the step that gives ``function(element, *arguments)`` for each element."""
    return beam.ParDo(_Step(function, arguments, gives_many=False))


def each_to_many(function: Callable[..., Iterable[Any]], *arguments: Any) -> beam.ParDo:
    """Return the step that gives all of ``function(element, *arguments)`` for each element."""
    return beam.ParDo(_Step(function, arguments, gives_many=True))


def count(stage: str, account: Account) -> None:
    """Add an account to Beam's counters, where the pages of Flink, Spark and Dataflow show it.

    The namespace is ``albert.STAGE.WHAT``; the counters are ``kept`` and the reasons. Called once
    for each piece of work, by the step that has its final account. Outside of a step it does
    nothing.
    """
    what = account.what.partition(",")[0].replace(" ", "_")
    for name, number in {"kept": account.kept, **account.dropped}.items():
        if number:
            Metrics.counter(f"albert.{stage}.{what}", name).inc(number)


class _Step(beam.DoFn):
    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], gives_many: bool
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.gives_many = gives_many
        self.driver = installed()

    def default_label(self) -> str:
        return self.function.__name__

    def setup(self) -> None:
        """Refuse to work with other code than the driver's."""
        if differs := difference(self.driver, installed()):
            raise ConfigError(f"the worker on {socket.gethostname()} {differs}")

    def process(self, element: Any) -> Iterator[Any]:
        """Yield what the function gives."""
        try:
            if self.gives_many:
                yield from self.function(element, *self.arguments)
            else:
                yield self.function(element, *self.arguments)
        except Exception as error:
            if not is_transient(error):
                raise
            raise OutageError(f"{type(error).__name__}: {error}") from error


@cache
def installed() -> dict[str, str]:
    """Return what must be equal on all machines: this project's code and its libraries."""
    digest = hashlib.sha256()
    for package in (albert_core, pipelines):
        for folder in map(Path, package.__path__):
            for path in sorted(folder.rglob("*.py")):
                digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    code = {PROJECT: f"code {digest.hexdigest()[:12]}"}
    return code | library_versions(*_libraries())


def difference(driver: dict[str, str], worker: dict[str, str]) -> str | None:
    """Return how a worker differs from the driver, or None."""
    for name, version in driver.items():
        if worker.get(name) != version:
            return (
                f"has {name} {worker.get(name)}, but the stage was started with {version}. Install "
                "the same versions on all machines, and restart their workers."
            )
    return None


def _libraries() -> list[str]:
    """Return the libraries that text stages may use: the project's and those of its extra."""
    wanted = [line for line in requires(PROJECT) or [] if _is_for_pipelines(line)]
    return sorted(re.split(r"[^\w.-]", line)[0] for line in wanted)


def _is_for_pipelines(requirement: str) -> bool:
    return "extra ==" not in requirement or bool(re.search(r"extra == .pipelines", requirement))
