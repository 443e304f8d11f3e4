"""What the machine of a run does: processor, memory, disk, network and GPUs, as MLflow measures it.

The collectors are MLflow's own. Its thread that sends what they find is not used: it gives up when
the server is away. Here the numbers are points of the run's curves.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor

PREFIX = "system/"
"""MLflow's pages show such metrics on a tab of their own."""


class SystemMetrics:
    """Measures now and then; the processor's load is the mean since the time before."""

    def __init__(self) -> None:
        # MLflow takes a second or two to load, and a run that is done already measures nothing.
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with suppress(ImportError, RuntimeError):  # no nvidia-ml-py, or no GPU
            self._monitors.append(GPUMonitor())
        self.measure()

    def measure(self) -> dict[str, float]:
        """Return the metrics of this moment, by the names of MLflow's own."""
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found.update(monitor.aggregate_metrics())
            monitor.clear_metrics()
        return {f"{PREFIX}{name}": float(value) for name, value in found.items()}
