import re
import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from albert_core.stage.log import StageProgress
from flows import stage_page as page
from flows.stage_page import ProgressPage, artifact_key
from tests.flows.made_manifests import made_manifest


@pytest.mark.parametrize("stage", ["corpus", "examples", "pretraining", "registration"])
def test_a_page_has_the_numbers_files_and_links_of_a_manifest(stage: str) -> None:
    made = made_manifest(stage)
    text = page.stage_page(made, f"/work/{stage}/0/manifest.json", "http://127.0.0.1:5000")
    assert text.startswith(f"# {stage}\n")
    assert f"- manifest: `/work/{stage}/0/manifest.json`" in text
    for account in made.accounts:
        assert f"| {account.what} | {str(account).partition(': ')[2]} |" in text
    numbers = {k: v for k, v in made.facts.items() if isinstance(v, int)}
    for name, value in numbers.items():
        shown = str(value) if isinstance(value, bool) else f"{value:,}"
        assert f"| {name.replace('_', ' ')} | {shown} |" in text
    if "mlflow_run_id" in made.facts:
        run = made.facts["mlflow_run_id"]
        assert f"- [MLflow run](http://127.0.0.1:5000/#/runs/{run})" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in tables)


def test_estimates_are_shown_with_their_intervals() -> None:
    text = page.stage_page(made_manifest("pretraining"), "/m/manifest.json", "sqlite:///x")
    assert re.search(r"\| after, masked lm loss \| \d\.\d{4} \[\d\.\d{4}, \d\.\d{4}\] \|", text)


@pytest.mark.parametrize(
    ("name", "key"), [("clean_corpus", "clean-corpus"), ("Training", "training"), ("_a__b", "a-b")]
)
def test_keys_are_as_prefect_wants_them(name: str, key: str) -> None:
    assert artifact_key(name) == key


class Artifacts:
    """Stands for Prefect: notes what it is told, and is away the first time."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.num_created = 0
        self.is_away = True

    def create(self, share: float, **_: Any) -> UUID:
        if self.is_away:
            self.is_away = False
            raise ConnectionError
        self.num_created += 1
        self.calls.append(share)
        return uuid4()

    def update(self, _: UUID, share: float) -> None:
        self.calls.append(share)


def test_progress_is_told_now_and_then_and_at_the_end_also_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifacts = Artifacts()
    monkeypatch.setattr(page, "create_progress_artifact", artifacts.create)
    monkeypatch.setattr(page, "update_progress_artifact", artifacts.update)
    monkeypatch.setattr(page, "_SECONDS_BETWEEN", 0.02)
    with ProgressPage("training") as told:
        for step in range(1, 100):
            told.report(StageProgress(step, 100.0, "steps"))
            time.sleep(0.005)
        told.report(StageProgress(100.0, 100.0, "steps"))
    assert artifacts.num_created == 1
    assert artifacts.calls == sorted(artifacts.calls)
    assert 2 <= len(artifacts.calls) < 60
    assert artifacts.calls[-1] == 100.0


def test_a_stage_that_reports_nothing_has_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = Artifacts()
    monkeypatch.setattr(page, "create_progress_artifact", artifacts.create)
    with ProgressPage("training"):
        pass
    assert artifacts.is_away
