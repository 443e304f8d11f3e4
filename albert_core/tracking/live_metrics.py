"""The latest metrics of a run, for Prometheus, and those of its machine.

If a port is given, Prometheus reads a run's latest metrics at ``http://127.0.0.1:PORT/metrics``.

MLflow's collectors measure the machine: processor, memory, disk, network, GPUs. MLflow's own thread
gives up when the server does not answer, so here their numbers are points of the run's curves.
"""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from albert_core.stage.machine import whole_number

_PORT, _HOST = "ALBERT_METRICS_PORT", "ALBERT_METRICS_HOST"

log = logging.getLogger("tracking")


class MetricsEndpoint:
    """A page with a gauge ``albert_NAME`` for each metric, with the run's key as a label.

    Args:
        host: address to listen on.
        port: a free port.
        run: key of the run.
    """

    def __init__(self, host: str, port: int, run: str) -> None:
        self._registry, self._run = CollectorRegistry(), run
        self._gauges: dict[str, Gauge] = {}
        self._server, self._thread = start_http_server(port, host, self._registry)

    @classmethod
    def of_environment(cls, run: str) -> Self | None:
        """Return the endpoint that the environment asks for, or None if it asks for none.

        If the port is taken, a warning is logged and there is no endpoint: the run continues.

        Raises:
            ConfigError: the port is not a number.
        """
        if not os.environ.get(_PORT):
            return None
        port, host = whole_number(_PORT, 0), os.environ.get(_HOST) or "127.0.0.1"
        try:
            return cls(host, port, run)
        except (OSError, OverflowError) as error:
            log.warning("no metrics at %s:%s (%s); the run continues without", host, port, error)
            return None

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show ``metrics`` of ``step`` from now on."""
        for name, value in {**metrics, "step": float(step)}.items():
            if name not in self._gauges:
                safe = re.sub(r"\W", "_", name)
                self._gauges[name] = Gauge(f"albert_{safe}", name, ["run"], registry=self._registry)
            self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SystemMetrics:
    """Measures the machine on demand; the processor's load is the mean since the last time."""

    def __init__(self) -> None:
        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with suppress(ImportError, RuntimeError):  # no nvidia-ml-py, or no GPU
            self._monitors.append(GPUMonitor())
        self.measure()

    def measure(self) -> dict[str, float]:
        """Return the metrics of this moment, by MLflow's own names below "system/".

        MLflow's pages show metrics with this prefix on a tab of their own.
        """
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found |= {
                f"system/{name}": value for name, value in monitor.aggregate_metrics().items()
            }
            monitor.clear_metrics()
        return found
