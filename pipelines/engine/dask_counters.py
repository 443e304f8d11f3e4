"""Beam's counters on Dask, whose Beam runner has none: workers send them as Dask's events."""

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metric import MetricResults
from apache_beam.metrics.metricbase import MetricName

_ANNOTATION = "albert_counters"
"""Of the tasks: the topic that their counters are sent to."""
_END = "end"
_END_SECONDS = 30


def send(namespace: str, numbers: Mapping[str, int]) -> None:
    """Send what a task has counted; called by workers, and without effect outside of a task."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is None:
        return
    try:
        worker = distributed.get_worker()
    except ValueError:
        return
    task = worker.state.tasks[worker.get_current_task()]
    if topic := (task.annotations or {}).get(_ANNOTATION):
        message = {"task": str(task.key), "run": task.run_id, "in": namespace, "numbers": numbers}
        worker.log_event(topic, message)


class DaskCounters(MetricResults):
    """The sums of what the tasks of one pipeline count. A task that ran again counts once.

    Args:
        address: the scheduler's.
        running: ends the connection.
    """

    def __init__(self, address: str, running: ExitStack) -> None:
        from dask.base import annotate
        from distributed import Client

        self._topic = f"albert-counters-{uuid4().hex}"
        self._is_over = threading.Event()
        self._runs: dict[str, int] = {}
        self._counted: dict[str, Counter[tuple[str, str]]] = {}
        new_client: Any = Client  # untyped
        self._client = running.enter_context(new_client(address, set_as_default=False))
        self._client.subscribe_topic(self._topic, self._add)
        running.enter_context(annotate(**{_ANNOTATION: self._topic}))

    def end(self) -> None:
        """Wait until all that the finished tasks sent is here."""
        self._client.log_event(self._topic, _END)
        self._is_over.wait(_END_SECONDS)

    def query(self, filter: Any = None) -> dict[str, list[MetricResult]]:  # noqa: A002
        """Return the counters that match ``filter``, as Beam's other runners do."""
        total = sum(self._counted.values(), Counter())
        found = [
            MetricResult(MetricKey("", MetricName(*name)), number, number)
            for name, number in sorted(total.items())
        ]
        matching = [each for each in found if self.matches(filter, each.key)]
        return {self.COUNTERS: matching, self.DISTRIBUTIONS: [], self.GAUGES: []}

    def _add(self, event: tuple[float, Any]) -> None:
        _, message = event
        if message == _END:
            self._is_over.set()
            return
        task, run = message["task"], message["run"]
        if run > self._runs.get(task, -1):
            self._runs[task], self._counted[task] = run, Counter()
        if run == self._runs[task]:
            names = {(message["in"], name): number for name, number in message["numbers"].items()}
            self._counted[task].update(names)
