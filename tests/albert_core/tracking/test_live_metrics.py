"""The run's latest metrics, for Prometheus, and the machine's."""

import urllib.error
import urllib.request

import pytest

from albert_core.stage import errors
from albert_core.tracking.live_metrics import MetricsEndpoint, SystemMetrics
from tests.mlflow_server import free_port


def test_the_latest_metrics_are_shown_to_prometheus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    monkeypatch.setenv("ALBERT_METRICS_PORT", str(port))
    endpoint = MetricsEndpoint.of_environment("abc")
    assert endpoint is not None
    endpoint.show(5, {"held_out/masked_lm_loss": 3.0})
    endpoint.show(10, {"held_out/masked_lm_loss": 2.5})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    assert 'albert_held_out_masked_lm_loss{run="abc"} 2.5' in lines
    assert 'albert_step{run="abc"} 10.0' in lines
    for taken_or_none in (port, 99_999):
        monkeypatch.setenv("ALBERT_METRICS_PORT", str(taken_or_none))
        assert MetricsEndpoint.of_environment("def") is None
        assert f"no metrics at 127.0.0.1:{taken_or_none}" in caplog.text
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
    monkeypatch.setenv("ALBERT_METRICS_PORT", "many")
    with pytest.raises(errors.ConfigError, match="must be a whole number"):
        MetricsEndpoint.of_environment("abc")
    monkeypatch.delenv("ALBERT_METRICS_PORT")
    assert MetricsEndpoint.of_environment("abc") is None


def test_the_machine_is_measured_by_the_names_of_mlflow() -> None:
    found = SystemMetrics().measure()
    assert 0 < found["system/system_memory_usage_percentage"] <= 100
    assert found["system/cpu_utilization_percentage"] >= 0
