"""The flows pretrain-albert and refresh-corpus, from stage to stage."""

import logging
import re
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event
from prefect.states import Cancelled, Completed, Crashed, Failed

from albert_core.stage import errors, storage
from flows import recipe, refresh_corpus, stage_process
from flows.evaluate_albert import PlannedTasks
from flows.pretrain_albert import pretrain_albert
from tests.albert_core.tiny_model import save_tiny_model
from tests.flows.conftest import STAGE_OF, FakeStages, made_manifest

AT = {stage: f"{stage}/0/manifest.json" for stage in STAGE_OF.values()}


@pytest.mark.usefixtures("prefect_server")
def test_the_whole_way_goes_from_stage_to_stage(stages: FakeStages, tmp_path: Path) -> None:
    text = pretrain_albert("tiny", work=str(tmp_path), overrides=["evaluation.num_seeds=2"])
    assert stages.calls[:5] == [
        ("corpus", {}),
        ("vocab", {"corpus": AT["corpus"]}),
        ("examples", {"corpus": AT["corpus"], "vocab": AT["vocab"]}),
        ("task", {"examples": AT["examples"], "corpus": AT["corpus"]}),
        ("pretraining", {"examples": AT["examples"], "task_folder": "task/0"}),
    ]
    names = [stage for stage, _ in stages.calls[5:]]
    assert names == ["zero-shot", "finetuning", "finetuning", "scores", "registration"]
    finetuning = {"model_folder": "pretraining/0/model", "task_folder": "task/0"}
    assert stages.of("finetuning") == [
        finetuning | {"task": "passage-source", "seed": seed} for seed in ("12345", "12346")
    ]
    assert stages.of("zero-shot") == [
        {"model_folder": "pretraining/0/model", "task_folder": "task/0"}
    ]
    assert stages.of("scores")[0]["model"] == "0/model"
    assert stages.of("scores")[0]["zero_shot"] == AT["zero-shot"]
    assert stages.of("registration") == [
        {"pretraining": AT["pretraining"], "scores": AT["scores"], "champion_scores": ""}
    ]
    assert text.startswith("tiny: albert-tiny, version 3")
    assert f"export MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db" in text


@pytest.mark.usefixtures("prefect_server")
def test_the_recipes_own_tasks_go_before_the_generated_one(
    stages: FakeStages, tmp_path: Path
) -> None:
    for split in ("train", "dev"):
        storage.write_bytes(f"{tmp_path}/tasks/GLUE/RTE/{split}.tsv", b"")
    settings = [f"evaluation.task_folder={tmp_path}/tasks", "evaluation.num_seeds=1"]
    pretrain_albert("tiny", work=f"{tmp_path}/work", overrides=settings)
    assert stages.of("task") == stages.of("zero-shot") == []
    [finetuning] = stages.of("finetuning")
    assert (finetuning["task"], finetuning["task_folder"]) == ("rte", f"{tmp_path}/tasks")


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "there is no task to fine-tune on"),
        (['evaluation.tasks=["sst-2"]'], r"are missing; .*\n  sst-2: there is no train\.tsv"),
        (['evaluation.from_mnli=["rte"]'], "names rte, but the files of MNLI are not there"),
        (["evaluation.task_folder=/no/tasks"], "the task folder /no/tasks does not exist"),
    ],
)
def test_tasks_that_are_not_there_are_named_before_anything_is_made(
    settings: list[str], message: str, stages: FakeStages, tmp_path: Path
) -> None:
    for split in ("train", "dev") if "from_mnli" in str(settings) else ("test",):
        storage.write_bytes(f"{tmp_path}/tasks/GLUE/RTE/{split}.tsv", b"")
    overrides = [f"evaluation.task_folder={tmp_path}/tasks", *settings]
    with pytest.raises(errors.AlbertError, match=message):
        pretrain_albert("tiny", work=f"{tmp_path}/work", overrides=overrides)
    assert stages.of("corpus") == stages.of("pretraining") == []


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["vocabulary.model=/no/spiece.model"], r"vocabulary\.model is '/no/spiece\.model', which"),
        (["vocabulary.model=MODEL/spiece.model", "vocabulary.vocab_size=9"], "Set vocabulary.voc"),
        (["training.initial_model=/no/model"], "/no/model is nothing to start from"),
        (["training.initial_model=MODEL"], "hidden_size is 32 there and 128 here"),
        (["training.continue_from=/no/run"], "there is no good checkpoint at /no/run"),
    ],
)
def test_what_a_run_starts_from_is_checked_before_anything_is_made(
    settings: list[str], message: str, stages: FakeStages, tmp_path: Path
) -> None:
    save_tiny_model(f"{tmp_path}/model")
    overrides = [each.replace("MODEL", f"{tmp_path}/model") for each in settings]
    flows = [pretrain_albert] + [refresh_corpus.refresh_corpus] * ("vocabulary" in settings[0])
    for flow in flows:
        with pytest.raises(errors.AlbertError, match=message):
            flow("tiny", work=f"{tmp_path}/work", overrides=overrides)
    assert stages.calls == []


@pytest.mark.parametrize(
    ("error", "is_registered"),
    [
        (stage_process.StageRefusedError("the model has 128 positions"), True),
        (errors.StageError("memory ran out"), False),
        (errors.RegistryError("version 1 has lost its files"), True),
        (stage_process.InterruptedStageError("was killed"), False),
        (errors.OutageError("the registry does not answer"), False),
    ],
)
def test_a_model_whose_champion_can_not_be_scored_is_registered_unless_a_retry_may_help(
    error: errors.AlbertError,
    is_registered: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def evaluate(*given: Any) -> str:
        assert not given[3].has_pairs
        raise error

    flow = import_module("flows.pretrain_albert")
    monkeypatch.setattr("flows.stage_task.find_stage", lambda *_, **__: None)
    monkeypatch.setattr(flow, "read_manifest", lambda _: made_manifest("pretraining"))
    monkeypatch.setattr(flow, "champion_to_beat", lambda *_, **__: "models:/m/1")
    monkeypatch.setattr(flow, "register", lambda _, **inputs: inputs["champion_scores"])
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("a flow"))
    monkeypatch.setattr(flow, "evaluate", evaluate)
    of_run = (run_in(tmp_path), "pretraining", "scores", "tasks")
    pairs_alone, wanted = (PlannedTasks(names, {}, has_pairs=True) for names in ([], ["rte"]))
    assert flow.compare_and_register(*of_run, pairs_alone) == ""
    if is_registered:
        assert flow.compare_and_register(*of_run, wanted) == ""
        assert re.search(rf"models:/m/1 can't be fine-tuned .*: {error}", caplog.text)
    else:
        with pytest.raises(type(error)):
            flow.compare_and_register(*of_run, wanted)


@pytest.mark.usefixtures("prefect_server")
def test_a_refresh_ends_with_the_examples_and_what_was_removed_and_is_then_done(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(recipe.NotDoneError):  # the server was not told of the change yet
        refresh_corpus.refresh_corpus.fn("tiny", work=str(tmp_path))
    text = refresh_corpus.refresh_corpus("tiny", work=str(tmp_path))
    made = ["corpus", "vocab", "examples", "audit", "removal"]
    assert [stage for stage, _ in stages.calls[5:]] == made
    assert "53 checks, failed: shuffle" in text
    assert f"{tmp_path}/{AT['examples']}" in text
    assert "documents read    " in text
    assert re.search(r"\n    read as pdf +2\n    read as html +1\n", text)
    assert "No document of an earlier corpus is gone." in text
    # The server confirmed that it was told.
    assert refresh_corpus.refresh_corpus.fn("tiny", work=str(tmp_path)) == text
    monkeypatch.setattr("flows.commands.document_trace.name_affected_versions", lambda *_: [])
    receipt = tmp_path / "removal-1.json"
    receipt.write_text('{"registered_versions": {"made_of_them": ["models:/m/1 @champion"]}}')
    stages.receipt = str(receipt)
    text = refresh_corpus.refresh_corpus.fn("tiny", work=str(tmp_path))
    assert f"the receipt is {receipt}" in text
    assert "Registered versions made of them: models:/m/1 @champion." in text


GIVEN = {"recipe": "tiny", "source": "text.txt", "overrides": ["a.b=1"], "work": None}


def run_in(work: Path) -> recipe.RecipeRun:
    return recipe.RecipeRun(recipe.load_recipe("tiny"), "recipe.json", str(work), GIVEN)


@pytest.mark.parametrize(
    ("ready", "state", "why"),
    [
        ([True], Completed(), ""),
        ([False, True], Completed(), ""),
        ([False], Crashed(), "OutageError: .*run loud-toad, was killed"),
        ([False], Failed(message="no text"), "StageError: .*run loud-toad: Failed. no text"),
        ([False], Cancelled(), "StageError: .*run loud-toad: Cancelled"),
        ([False, False], Completed(), "OutageError: .*its text is not in .*same version of the c"),
    ],
)
def test_text_from_another_pool_is_waited_for_unless_it_is_there(
    ready: list[bool], state: State[Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any], list[str]]] = []

    def run_deployment(name: str, parameters: dict[str, Any], tags: list[str]) -> FlowRun:
        asked.append((name, parameters, tags))
        return FlowRun(flow_id=uuid4(), name="loud-toad", state=state)

    answers = iter(ready)
    monkeypatch.setattr("flows.stage_task.in_flow_run", lambda: True)
    monkeypatch.setattr(refresh_corpus, "_is_elsewhere", lambda: True)
    monkeypatch.setattr(refresh_corpus, "_has_text", lambda _: next(answers))
    monkeypatch.setattr(refresh_corpus, "run_deployment", run_deployment)
    told = ""
    try:
        refresh_corpus.refresh_in_its_pool.fn(run_in(tmp_path))
    except errors.AlbertError as raised:
        told = f"{type(raised).__name__}: {raised}"
    assert re.match(why, told) if why else not told
    call = ("refresh-corpus/refresh-corpus", GIVEN, ["waited-for"])
    assert asked == ([] if ready == [True] else [call])


Told = list[tuple[str, dict[str, str], dict[str, Any]]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The events that Prefect's server, which confirms all, was told."""
    told: Told = []

    def emit(name: str, resource: dict[str, str], payload: dict[str, Any]) -> Event:
        told.append((name, resource, payload))
        return Event(event=name, resource=resource, occurred=datetime.now(UTC))

    monkeypatch.setattr("flows.stage_task.in_flow_run", lambda: True)
    monkeypatch.setattr(refresh_corpus, "emit_event", emit)
    monkeypatch.setattr(refresh_corpus, "_has_arrived", lambda _: True)
    return told


def tell(work: Path, key: str) -> bool:
    manifest = made_manifest("examples").model_copy(update={"key": key})
    uri = f"{work}/examples/{key}/manifest.json"
    storage.write_bytes(uri, manifest.model_dump_json().encode())
    return refresh_corpus.tell_of_change(run_in(work), uri)


def test_the_server_is_told_once_of_each_set_of_examples(tmp_path: Path, events: Told) -> None:
    assert [tell(tmp_path, key) for key in ("first", "second", "first")] == [True, True, False]
    (name, resource, payload), (_, second, _) = events
    assert name == "albert.corpus.changed"
    assert resource["prefect.resource.id"] == "albert.examples.first"
    assert resource["albert.manifest"] == f"{tmp_path}/examples/first/manifest.json"
    assert second["prefect.resource.id"] == "albert.examples.second"
    assert payload == GIVEN | {"work": str(tmp_path)}


def test_nobody_is_told_of_what_a_waiting_run_knows(
    tmp_path: Path, events: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        waiting = SimpleNamespace(tags=["albert", "waited-for"])
        patch.setattr(refresh_corpus, "this_flow_run", waiting)
        assert not tell(tmp_path, "first")
    assert not tell(tmp_path, "first")
    assert events == []


def test_what_was_not_told_or_did_not_arrive_is_told_by_the_next_run(
    tmp_path: Path, events: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(refresh_corpus, "emit_event", killed)
        with pytest.raises(KeyboardInterrupt):
            tell(tmp_path, "first")
        patch.setattr(refresh_corpus, "emit_event", lambda *_, **__: None)
        assert not tell(tmp_path, "first")
    with monkeypatch.context() as patch:
        patch.setattr(refresh_corpus, "_has_arrived", lambda _: False)
        assert not tell(tmp_path, "first")
    assert tell(tmp_path, "first")
    assert len(events) == 2
