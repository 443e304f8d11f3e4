"""Beam's counters say what became of everything, as the manifests do."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from albert_core.stage.manifest import read_manifest
from pipelines import clean_corpus
from pipelines.clean_corpus import FILES
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.engine import runner
from pipelines.engine.engines import Engine
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import Made, make

IN_THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=4"]


def counters(result: Any) -> dict[str, dict[str, int]]:
    """Return what Beam counted: namespace -> name -> number."""
    found: dict[str, dict[str, int]] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.namespace.startswith("albert."):
            by_name = found.setdefault(name.namespace, {})
            by_name[name.name] = by_name.get(name.name, 0) + counter.committed
    return found


def accounts(manifest: str) -> dict[str, dict[str, int]]:
    """Return the accounts of a manifest that pipelines count, as the counters name them."""
    made = read_manifest(manifest)
    return {
        f"albert.{made.stage}.{account.what.partition(',')[0].replace(' ', '_')}": dict(
            +Counter(kept=account.kept, **account.dropped)
        )
        for account in made.accounts
        if account.what != FILES
    }


def test_the_stages_count_in_threads_what_their_manifests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    engine = Engine(FnApiRunner(), IN_THREADS, wait=results.append)
    monkeypatch.setattr(runner, "choose_engine", lambda *_: engine)
    source = write_jsonl(tmp_path / "source.jsonl", [*range(40), 3, 4])
    with source.open("a") as file:
        file.write('{"text": "Oh."}\n{broken\n')
    done = make(source, tmp_path / "work")
    found = [counters(result) for result in results]
    assert found == [accounts(each) for each in (done.corpus, done.vocab, done.examples)]
    expected = {"kept": 40, "duplicate": 2, "too_short": 1, "not_json": 1}
    assert found[0] == {"albert.corpus.documents": expected}


def test_a_work_that_was_done_before_is_counted_like_any_other(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    engine = Engine(FnApiRunner(), wait=results.append)
    monkeypatch.setattr(runner, "choose_engine", lambda *_: engine)
    settings = SourceSettings(uri=str(made.source), max_unreadable_share=0.4)
    corpus = clean_corpus.run(settings, CleaningSettings(), made.work)
    assert counters(results[0]) == accounts(corpus)
