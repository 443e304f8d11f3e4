from datetime import UTC, datetime
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter

from albert_core.stage import storage
from flows import corpus_event
from flows.done_before import RecipeRun
from flows.recipe import load_recipe
from tests.flows.made_manifests import made_manifest

Emitted = list[tuple[str, dict[str, str], dict[str, Any]]]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Emitted:
    events: Emitted = []

    def emit(name: str, resource: dict[str, str], payload: dict[str, Any]) -> Event:
        events.append((name, resource, payload))
        return Event(event=name, resource=resource, occurred=datetime.now(UTC))

    monkeypatch.setattr(corpus_event, "emit_event", emit)
    monkeypatch.setattr(corpus_event, "_has_arrived", lambda event: True)
    return events


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> RecipeRun:
    return RecipeRun(load_recipe("tiny"), "recipe.json", str(tmp_path_factory.mktemp("work")))


def write_examples(run: RecipeRun, key: str) -> str:
    manifest = made_manifest("examples").model_copy(update={"key": key})
    uri = storage.join(run.work, "examples", key, "manifest.json")
    storage.write_bytes(uri, manifest.model_dump_json().encode())
    return uri


def test_new_examples_are_told_of_once(run: RecipeRun, emitted: Emitted) -> None:
    first = write_examples(run, "first")
    assert corpus_event.tell_of_change(run, first, "tiny", "text.txt", ["a.b=1"])
    assert not corpus_event.tell_of_change(run, first, "tiny", "text.txt", ["a.b=1"])
    [(name, resource, payload)] = emitted
    assert name == "albert.corpus.changed"
    assert resource["prefect.resource.id"] == "albert.examples.first"
    assert resource["albert.manifest"] == first
    assert payload == {
        "recipe": "tiny",
        "source": "text.txt",
        "work": run.work,
        "overrides": ["a.b=1"],
    }


def test_others_are_told_of_again(run: RecipeRun, emitted: Emitted) -> None:
    for key in ("first", "second", "first"):
        corpus_event.tell_of_change(run, write_examples(run, key), "tiny", None, None)
    assert [resource["prefect.resource.id"] for _, resource, _ in emitted] == [
        "albert.examples.first",
        "albert.examples.second",
    ]


def test_what_could_not_be_told_is_told_by_the_next_run(
    run: RecipeRun, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = write_examples(run, "first")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_event, "emit_event", killed)
        with pytest.raises(KeyboardInterrupt):
            corpus_event.tell_of_change(run, examples, "tiny", None, None)
    assert corpus_event.tell_of_change(run, examples, "tiny", None, None)
    assert len(emitted) == 1


def test_what_did_not_arrive_is_told_again(
    run: RecipeRun, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = write_examples(run, "first")
    with monkeypatch.context() as patch:
        patch.setattr(corpus_event, "_has_arrived", lambda event: False)
        assert not corpus_event.tell_of_change(run, examples, "tiny", None, None)
        patch.setattr(corpus_event, "emit_event", lambda *_, **__: None)
        assert not corpus_event.tell_of_change(run, examples, "tiny", None, None)
    assert corpus_event.tell_of_change(run, examples, "tiny", None, None)
    assert len(emitted) == 2


@pytest.mark.usefixtures("prefect_server")
def test_it_is_noted_once_the_server_has_the_event(run: RecipeRun) -> None:
    assert corpus_event.tell_of_change(run, write_examples(run, "real"), "tiny", None, None)
    wanted = EventFilter(event=EventNameFilter(name=[corpus_event.EVENT]))
    with get_client(sync_client=True) as client:
        found = client.read_events(wanted, limit=50).events
    assert "albert.examples.real" in {event.resource.id for event in found}
