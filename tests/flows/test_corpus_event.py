from typing import Any

import pytest

from albert_core.contract import storage
from flows import corpus_event
from flows.recipe import load_recipe
from flows.stage_task import RecipeRun
from tests.flows.made_manifests import made_manifest

Emitted = list[tuple[str, dict[str, str], dict[str, Any]]]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Emitted:
    events: Emitted = []

    def emit(name: str, resource: dict[str, str], payload: dict[str, Any]) -> None:
        events.append((name, resource, payload))

    monkeypatch.setattr(corpus_event, "emit_event", emit)
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
