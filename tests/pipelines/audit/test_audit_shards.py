"""The audit as a stage."""

from pathlib import Path

import pytest

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import AuditResult
from pipelines import audit_shards
from tests.pipelines.conftest import Made


def test_the_stage_writes_what_is_found_and_is_then_done(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = audit_shards.run(made.examples, str(tmp_path))
    assert audit_shards.find_done(made.examples, str(tmp_path)) == manifest
    found = read_manifest(manifest).result_as(AuditResult)
    lines = Path(manifest).with_name("findings.txt").read_text().splitlines()
    assert found.num_checks == len(lines) > 40
    assert len(found.failed) == sum(line.startswith("FAIL") for line in lines)
    for check in found.failed:
        assert f"audit: {check}: " in caplog.text


def test_more_shards_than_a_refresh_has_time_for_are_left_to_a_person(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_shards, "_MOST_BYTES", 1)
    found = read_manifest(audit_shards.run(made.examples, str(tmp_path)))
    assert found.result_as(AuditResult) == AuditResult(num_checks=0, failed=[])
    assert f"`albert audit {made.examples}` reads them" in caplog.text
