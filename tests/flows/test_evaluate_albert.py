"""The flow evaluate-albert: which fine-tunings it takes, from which models, several at a time."""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from safetensors.torch import save_file

from albert_core.config import EvaluationSettings, RegistrySettings
from albert_core.finetuning.finetuning import Hyperparameters, hyperparameters_of
from albert_core.registry import register
from albert_core.stage import errors, storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.machine import FINETUNING_PROCESSES
from albert_core.stage.manifest import StagePlan
from albert_core.stage.provenance import Call, called_as
from flows.commands.main import main
from flows.evaluate_albert import (
    evaluate_albert,
    find_tasks,
    free_slots,
    num_processes,
    planned,
)
from flows.recipe import RecipeRun, load_recipe
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.made_scores import model_of, pretrained, scored
from tests.albert_core.tasks.task_files import write_glue, write_race, write_squad
from tests.albert_core.tiny_model import save_tiny_model
from tests.flows.conftest import FakeStages
from tests.made_results import made_result


@pytest.fixture
def task_folder(tmp_path: Path) -> str:
    """A folder of which only the names count."""
    for name in ("CoLA", "RTE", "MNLI"):
        dev = "dev_matched" if name == "MNLI" else "dev"
        for split in ("train", dev):
            storage.write_bytes(f"{tmp_path}/tasks/GLUE/{name}/{split}.tsv", b"")
    return f"{tmp_path}/tasks"


SEEDS = (12345, 12346)
DOWNSTREAM = "Downstream, the median seed (95 % interval)"


def tasks_and_report(subject: str, wanted: set[str]) -> tuple[set[str], list[dict[str, str]]]:
    """Return the names of the task runs of the flow run about ``subject``, and its report.

    The server learns of task runs and their names a little later, until when it is asked again.
    """
    of_run = FlowRunFilter.model_validate({"name": {"like_": subject}})
    report = ArtifactFilter.model_validate({"key": {"any_": ["evaluate-albert"]}})
    names: set[str] = set()
    with get_client(sync_client=True) as client:
        deadline = time.monotonic() + 30
        while names != wanted and time.monotonic() < deadline:
            names = {task.name for task in client.read_task_runs(flow_run_filter=of_run)}
        [artifact] = client.read_artifacts(flow_run_filter=of_run, artifact_filter=report)
    assert artifact.type == "table"
    return names, json.loads(str(artifact.data))


@pytest.mark.usefixtures("prefect_server")
def test_each_task_that_is_there_is_done_with_each_seed_and_the_rest_is_named(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    work = f"{tmp_path}/work"
    text = evaluate_albert("models:/albert-tiny@champion", task_folder, seeds=2, work=work)
    assert text.startswith("the table\n")
    assert f"{work}/scores/0/scores.html" in text
    finetunings = stages.of("finetuning")
    assert [(each["task"], each["seed"]) for each in finetunings] == [
        (task, seed) for task in ("mnli", "cola", "rte") for seed in ("12345", "12346")
    ]
    assert {each["model_folder"] for each in finetunings} == {"/found/albert-tiny@champion"}
    assert {each["task_folder"] for each in finetunings} == {task_folder}
    (scoring,) = stages.of("scores")
    assert scoring["model"] == "albert-tiny@champion"
    assert len(json.loads(scoring["finetunings"])) == 6
    assert scoring["contamination"] == ""
    finetuned = {f"finetune {task}, seed {n}" for task in ("mnli", "cola", "rte") for n in SEEDS}
    wanted = {"find-recipe", "find-model", "find-tasks", "score", *finetuned}
    names, table = tasks_and_report("albert-tiny@champion", wanted)
    assert names == wanted
    assert {"part": DOWNSTREAM, "what": "cola, matthews", "value": "0.125 [0.062, 0.188]"} in table
    missing = json.loads(scoring["missing"])
    assert {"race", "sst-2", "squad-1.1"} <= missing.keys()
    assert not {"mnli", "cola", "rte"} & missing.keys()


@pytest.mark.usefixtures("prefect_server")
def test_what_starts_from_mnli_starts_from_the_run_of_the_same_seed(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    evaluate_albert(
        f"{tmp_path}/some/model",
        task_folder,
        tasks=["rte"],
        seeds=2,
        work=f"{tmp_path}/work",
        overrides=['evaluation.from_mnli=["rte"]'],
    )
    assert [(each["task"], each["model_folder"]) for each in stages.of("finetuning")] == [
        ("mnli", f"{tmp_path}/some/model"),
        ("mnli", f"{tmp_path}/some/model"),
        ("rte", "finetuning/mnli-12345/model"),
        ("rte", "finetuning/mnli-12346/model"),
    ]
    assert stages.of("scores")[0]["model"] == "some/model"


@pytest.mark.usefixtures("prefect_server")
def test_several_run_at_a_time_and_with_the_corpus_known_the_overlap_is_looked_for(
    stages: FakeStages, task_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FINETUNING_PROCESSES, "2")
    with pytest.raises(IntegrityError, match=f"{tmp_path} is a folder. Give the manifest"):
        evaluate_albert("/m", task_folder, work=f"{tmp_path}/w", corpus=str(tmp_path))
    assert stages.calls == []
    plan = StagePlan("corpus", {}, {}, "code", {})
    corpus = plan.write(str(tmp_path), [], [], made_result("corpus"))
    evaluate_albert("/m", task_folder, ["cola", "rte"], 2, work=f"{tmp_path}/w", corpus=corpus)
    names = [stage for stage, _ in stages.calls]
    assert names == [*["finetuning"] * 4, "contamination", "scores"]
    [scoring] = stages.of("scores")
    assert [Path(uri).parent.name for uri in json.loads(scoring["finetunings"])] == [
        f"{task}-{seed}" for task in ("cola", "rte") for seed in (12345, 12346)
    ]
    assert stages.of("contamination") == [{"corpus": corpus, "task_folder": task_folder}]
    assert scoring["contamination"] == "contamination/0/manifest.json"


@pytest.mark.usefixtures("prefect_server")
def test_without_a_folder_the_task_generated_last_is_done_and_there_must_be_one(
    stages: FakeStages, tmp_path: Path
) -> None:
    with pytest.raises(errors.TaskError, match="holds no generated task: give task_folder"):
        evaluate_albert.fn("/m", work=str(tmp_path))
    stages.run_stage("pipelines.make_task", RecipeRun(load_recipe("tiny"), "", str(tmp_path)))
    evaluate_albert("/m", seeds=1, work=str(tmp_path))
    (finetuning,) = stages.of("finetuning")
    assert (finetuning["task"], finetuning["task_folder"]) == ("passage-source", "task/0")
    assert json.loads(stages.of("scores")[0]["missing"]) == {}


def test_an_own_task_that_is_missing_is_named_beside_the_generated_one_too(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "A.", "source": "{n}", "document": "{n}"}}\n' for n in range(2))
    for split in ("train", "dev"):
        storage.write_bytes(f"{tmp_path}/passage-source/{split}.jsonl", rows.encode())
    storage.write_bytes(f"{tmp_path}/manifest.json", b"{}")
    own = '[{name="mine", train="no.tsv", dev="no.tsv", text_columns=["text"]}]'
    recipe = load_recipe("tiny", (f"evaluation.own_tasks={own}",))
    found = find_tasks.fn(RecipeRun(recipe, "", str(tmp_path)), str(tmp_path))
    assert (found.tasks, list(found.missing)) == (["passage-source"], ["mine"])


TABLE_14 = {
    "cola": (1e-5, 16, 0.0, 5336, 320, 512),
    "sts-b": (2e-5, 16, 0.0, 3598, 214, 512),
    "sst-2": (1e-5, 32, 0.0, 20935, 1256, 512),
    "mnli": (3e-5, 128, 0.0, 10000, 1000, 512),
    "qnli": (1e-5, 32, 0.0, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, 0.0, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 2000, 250, 512),
    "squad-1.1": (5e-5, 48, 0.0, 3649, 365, 384),
    "squad-2.0": (3e-5, 48, 0.0, 8144, 814, 512),
    "race": (2e-5, 32, 0.1, 12000, 1000, 512),
}
"""Learning rate, batch, encoder's dropout, updates, warm-up, length. Source: paper, Table 14."""


@pytest.fixture(scope="module")
def registered(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A work folder with a stand-in of a few weights that was registered by the recipe base."""
    work = str(tmp_path_factory.mktemp("registered"))
    shutil.copy(empty_database, work)
    recipe = load_recipe("base").model_dump(mode="json")
    with called_as(Call(module="a stage", recipe={}, options={}, rest=recipe)):
        pretraining = pretrained(work, 0)
        scores = scored(work, pretraining, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        register.run(RegistrySettings(model_name="albert-base"), pretraining, scores, work=work)
        yield work


@pytest.fixture(scope="module")
def all_tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the files of every task."""
    folder = tmp_path_factory.mktemp("tasks")
    write_glue(folder / "GLUE")
    write_race(folder / "RACE")
    for name in ("train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"):
        write_squad(folder / "SQuAD" / f"{name}.json", [])
    return str(folder)


@pytest.fixture
def finetunings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Hyperparameters]:
    """Stand for the stages; task -> the settings with which each was to be fine-tuned."""
    asked: dict[str, Hyperparameters] = {}
    fake = FakeStages()

    def run_stage(module: str, run: RecipeRun, _: Any = None, **inputs: str) -> str:
        if task := inputs.get("task"):
            asked[task] = hyperparameters_of(task, run.recipe.finetuning, 512, 10_000)
        return fake.run_stage(module, run, **inputs)

    monkeypatch.setattr("flows.stage_task.run_stage", run_stage)
    return asked


def evaluated(*words: str) -> None:
    """Type `albert evaluate` with these words."""
    assert main(["evaluate", *words]) == 0


def test_a_model_that_is_not_there_is_on_the_page_of_a_run_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    with pytest.raises(errors.RegistryError, match="there is no registry") as raised:
        evaluate_albert.fn("models:/no-such@champion", work=str(tmp_path))
    given = (type(raised.value), raised.value, None)
    record = logger.makeRecord(logger.name, logging.ERROR, "", 0, "failed", (), given)
    assert logger.filter(record)
    assert record.exc_info is None


@pytest.mark.parametrize("options", [(), ("--set=finetuning.learning_rate=0.5",)])
def test_a_version_is_fine_tuned_as_its_own_recipe_says_unless_told_otherwise(
    options: tuple[str, ...],
    registered: str,
    all_tasks: str,
    finetunings: dict[str, Hyperparameters],
) -> None:
    folder = f"--task-folder={all_tasks}"
    evaluated("models:/albert-base@champion", folder, f"--work={registered}", *options)
    assert finetunings.keys() == TABLE_14.keys()
    for task, (rate, *others) in TABLE_14.items():
        used = finetunings[task]
        assert used.learning_rate == (0.5 if options else rate)
        assert [
            used.batch_size,
            used.encoder_dropout_prob,
            used.num_steps,
            used.warmup_steps,
            used.max_seq_length,
        ] == others
        assert used.classifier_dropout_prob == 0.1


def test_another_recipe_can_be_given_and_a_folder_has_its_own_too(
    registered: str, all_tasks: str, finetunings: dict[str, Hyperparameters], tmp_path: Path
) -> None:
    model, tasks = "models:/albert-base/1", [f"--task-folder={all_tasks}", "--task=rte"]
    evaluated(model, *tasks, f"--work={registered}", "--recipe=tiny")
    assert finetunings["rte"].num_steps == 120
    mine = {"name": "mine", "finetuning": {"num_steps": 7, "warmup_steps": 1}}
    with called_as(Call(module="a stage", recipe={}, options={}, rest=mine)):
        made = pretrained(str(tmp_path), 0)
    evaluated(model_of(made), *tasks, f"--work={tmp_path}")
    assert finetunings["rte"].num_steps == 7
    save_tiny_model(f"{tmp_path}/downloaded")
    evaluated(f"{tmp_path}/downloaded", *tasks, f"--work={tmp_path}")
    assert finetunings["rte"].num_steps == 800


PRESENT, MISSING = ["cola", "rte", "mnli"], {"race": "train/N.txt in /data", "ax": "mnli"}


def settings(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings.read({"num_seeds": 2, "seed": 7} | changes, "test")


@pytest.mark.parametrize(
    ("changes", "present", "message"),
    [
        (
            {"tasks": ["rte", "colla"]},
            PRESENT,
            r"no task 'colla' to fine-tune on; did you mean 'cola'\?",
        ),
        (
            {"tasks": ["rte", "race"]},
            PRESENT,
            r"asked for are missing; .*\n  race: there is no train",
        ),
        ({}, [], "there is no task to fine-tune on"),
        ({"from_mnli": ["rte"]}, ["rte"], "names rte, but the files of MNLI are not there"),
    ],
)
def test_what_can_not_be_done_is_said(
    changes: dict[str, Any], present: list[str], message: str
) -> None:
    with pytest.raises(errors.TaskError, match=message):
        planned(settings(**changes), present, MISSING, has_pairs=False)


def test_minimal_pairs_are_enough_unless_a_missing_task_was_asked_for() -> None:
    assert planned(settings(), [], {}, has_pairs=True).tasks == []
    with pytest.raises(errors.TaskError, match="files of tasks that were asked for are missing"):
        planned(settings(tasks=["race"]), [], MISSING, has_pairs=True)


def test_what_is_left_out_is_logged_before_anything_is_trained(
    task_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flow = import_module("flows.evaluate_albert")
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("a flow"))
    monkeypatch.setattr("flows.stage_task.in_flow_run", lambda: True)
    found = find_tasks.fn(RecipeRun(load_recipe("base"), "", ""), task_folder)
    assert found.tasks == ["mnli", "cola", "rte"]
    assert re.search(
        rf"not scored:\n(.*\n)*  sst-2: .* train\.tsv, .* in {task_folder}", caplog.text
    )


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nowhere", "nowhere does not exist"),
        ("empty", "empty has nothing in it"),
        ("file", "file has nothing in it"),
        ("memory://nowhere", "memory://nowhere has nothing in it"),
    ],
)
def test_a_task_folder_without_anything_is_named_once_and_not_for_each_task(
    folder: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    task_folder = folder if "://" in folder else f"{tmp_path}/{folder}"
    with pytest.raises(errors.ConfigError, match=f"{said}: expected the tasks' files") as raised:
        find_tasks.fn(RecipeRun(load_recipe("base"), "", ""), task_folder)
    assert "train.tsv" not in str(raised.value)


def test_minimal_pairs_are_scored_unless_the_command_names_tasks(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    write_pairs(Path(task_folder))
    options: dict[str, Any] = {"seeds": 1, "work": f"{tmp_path}/work"}
    evaluate_albert.fn("/m", task_folder, ["rte"], **options)
    assert stages.of("zero-shot") == []
    evaluate_albert.fn("/m", task_folder, overrides=['evaluation.tasks=["rte"]'], **options)
    assert stages.of("zero-shot") == [{"model_folder": "/m", "task_folder": task_folder}]
    assert [each["task"] for each in stages.of("finetuning")] == ["rte", "rte"]


def test_a_model_without_a_masked_lm_head_is_scored_on_the_tasks_alone(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    write_pairs(Path(task_folder))
    save_file({"albert.pooler.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    evaluate_albert.fn(str(tmp_path), task_folder, seeds=1, work=f"{tmp_path}/work")
    assert stages.of("zero-shot") == []
    [scoring] = stages.of("scores")
    missing = json.loads(scoring["missing"])
    assert missing["minimal pairs"] == "the model has no masked LM head"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a machine with eight cores on which nothing is set."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in (FINETUNING_PROCESSES, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def taken_together(number: int, devices: list[str]) -> list[dict[str, str]]:
    slots = free_slots(number, devices)
    return [slots.get() for _ in range(number)]


def test_processes_share_the_devices_or_else_the_cores(plain: pytest.MonkeyPatch) -> None:
    assert num_processes() == 1
    plain.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert num_processes() == 2
    plain.setenv(FINETUNING_PROCESSES, "two")
    with pytest.raises(errors.ConfigError, match="must be a whole number, at least 1"):
        num_processes()
    assert taken_together(1, ["0", "1"]) == [{}]
    environments = taken_together(3, ["4", "6"])
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["4", "6", "4"]
    assert taken_together(2, []) == [{"OMP_NUM_THREADS": "4"}] * 2
    plain.setenv("OMP_NUM_THREADS", "1")
    assert taken_together(2, []) == [{}] * 2
