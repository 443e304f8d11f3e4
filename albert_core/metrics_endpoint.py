"""A run's latest metrics for Prometheus: ``http://127.0.0.1:PORT/metrics``, if a port is given.

Prometheus asks, so that a run waits for nobody; OpenTelemetry would need a collector to send to.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Self

from albert_core.contract.errors import ConfigError

PORT, HOST = "ALBERT_METRICS_PORT", "ALBERT_METRICS_HOST"
_LOOPBACK = "127.0.0.1"

log = logging.getLogger("tracking")


class MetricsEndpoint:
    """A page with a gauge ``albert_NAME`` for each metric, with the run's key as a label.

    Args:
        host: address to listen on.
        port: a free one.
        run: key of the run.
    """

    def __init__(self, host: str, port: int, run: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry, self._run, self._make = CollectorRegistry(), run, Gauge
        self._gauges: dict[str, Gauge] = {}
        self._server, self._thread = start_http_server(port, host, self._registry)

    @classmethod
    def of_environment(cls, run: str) -> Self | None:
        """Return the endpoint that the environment asks for; None if it does not.

        A port that is taken is no reason to end a run: it is said, and there is no endpoint.

        Raises:
            ConfigError: the port is no number, or prometheus_client is not installed.
        """
        if not (text := os.environ.get(PORT)):
            return None
        if not text.isdecimal():
            raise ConfigError(f"{PORT}={text!r} must be a number, of a free port")
        host = os.environ.get(HOST) or _LOOPBACK
        try:
            return cls(host, int(text), run)
        except ImportError as error:
            raise ConfigError(f"{PORT} needs prometheus_client: pip install it") from error
        except OSError as error:
            log.warning("no metrics at %s:%s (%s); the run goes on without", host, text, error)
            return None

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show ``metrics`` of ``step`` from now on."""
        for name, value in {**metrics, "step": float(step)}.items():
            if name not in self._gauges:
                safe = re.sub(r"\W", "_", name)
                gauge = self._make(f"albert_{safe}", name, ["run"], registry=self._registry)
                self._gauges[name] = gauge
            self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
