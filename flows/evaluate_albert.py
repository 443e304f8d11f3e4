"""Flow: a registered or local model -> its scores on all downstream tasks whose files are there."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Annotated, Any, cast

from prefect import flow, get_run_logger
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import Field

from albert_core.config import EvaluationSettings
from albert_core.stage import errors, results, settings, storage
from albert_core.stage.machine import FINETUNING_PROCESSES, VISIBLE, visible_devices, whole_number
from albert_core.stage.manifest import MANIFEST, newest_manifest, read_manifest
from flows import flow_run, stage_task
from flows.recipe import Address, RecipeName, RecipeRun
from flows.report import Report, score_groups

MNLI = "mnli"
"""The task whose fine-tuned model others may start from."""
score_pairs = stage_task.stage("zero-shot", "albert_core.scores.zero_shot")
"""Model + minimal pairs -> how often it finds the acceptable sentence more likely."""
find_contamination = stage_task.stage("contamination", "pipelines.contamination")
"""Corpus + tasks -> how much of each dev and test set the corpus contains."""
tabulate = stage_task.stage("score", "albert_core.scores.tabulate")
"""All fine-tunings and the scores on minimal pairs -> one table of scores."""
_FINETUNING = "albert_core.finetuning.finetune"
_THREADS = "OMP_NUM_THREADS"


def num_processes() -> int:
    """Return how many fine-tunings run at a time: ALBERT_FINETUNING_PROCESSES, else one per GPU.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(FINETUNING_PROCESSES, max(1, len(visible_devices())))


def free_slots(number: int, devices: list[str]) -> SimpleQueue[dict[str, str]]:
    """Return the environment variables of each process that may run at the same time.

    Args:
        number: number of processes.
        devices: the GPUs, which they get in turn; without any, they share the CPU cores.
    """
    free = SimpleQueue[dict[str, str]]()
    threads = str(max(1, len(os.sched_getaffinity(0)) // number))
    for place in range(number):
        environment = {} if number == 1 or _THREADS in os.environ else {_THREADS: threads}
        if devices and number > 1:
            environment[VISIBLE] = devices[place % len(devices)]
        free.put(environment)
    return free


_threads = ThreadPoolTaskRunner[Any](max_workers=num_processes())
TASK_RUNNER = cast(TaskRunner[PrefectFuture[Any]], _threads)
SLOTS = free_slots(num_processes(), visible_devices())


@flow(name="evaluate-albert", task_runner=TASK_RUNNER, **flow_run.FLOW_OPTIONS)
def evaluate_albert(
    model: Address,
    task_folder: Address | None = None,
    tasks: list[str] | None = None,
    seeds: Annotated[int, Field(ge=1)] | None = None,
    corpus: Address | None = None,
    recipe: RecipeName | None = None,
    overrides: list[Address] | None = None,
    work: Address | None = None,
) -> str:
    """Fine-tune a model on every task that is there, several times, and score it.

    Args:
        model: folder of a model, or `models:/name@alias` or `models:/name/version`.
        task_folder: folder with the public files of GLUE, SQuAD and RACE, as they are
            distributed. Default: the recipe's evaluation.task_folder; without that, the task
            generated last in the work folder, if the recipe has no own tasks.
        tasks: names of the tasks, and nothing else is scored. Default: those of the recipe, or else
            all that are there; and the minimal pairs.
        seeds: fine-tunings of each task. Default: the recipe's evaluation.num_seeds.
        corpus: manifest of the corpus that the model was pretrained on, to report how much of each
            dev set it contains.
        recipe: name of a shipped recipe, or path or URI of a TOML file. Default: the model's own,
            which its manifests note; for a model without any, the paper's settings.
        overrides: settings that differ from the recipe's, `section.field=value` each.
        work: folder for all results. Default: ALBERT_WORK, else `work`.

    Returns:
        The table.
    """
    flow_run.tell_in_sentences()
    overrides = [
        *(overrides or []),
        *([f"evaluation.tasks={json.dumps(tasks)}"] if tasks else []),
        *([f"evaluation.num_seeds={seeds}"] if seeds else []),
    ]
    if corpus:
        read_manifest(storage.absolute(corpus))  # rather than after all training
    given = recipe or own_recipe(model, storage.work_folder(work))
    run = flow_run.start_run(given, None, work, overrides)
    task_folder = folder_of_tasks(run, task_folder)
    wanted = find_tasks(run, task_folder)
    if tasks:
        wanted = replace(wanted, has_pairs=False)
    scored = evaluate(run, model, task_folder, wanted, corpus)
    manifest, folder = stage_task.read_stage(scored)
    scores = manifest.result_as(results.ScoresResult)
    page = storage.join(folder, scores.page)
    note = f"Beside the paper's, with a plot: {page}"
    report = Report(f"{scores.model}: scores", score_groups(scores), note=note)
    flow_run.show_report(report, "evaluate-albert")
    return f"{scores.text}\n\nThe same as a page: {page}"


@dataclass(frozen=True)
class PlannedTasks:
    """The tasks of an evaluation, and those that it leaves out."""

    tasks: list[str]
    """MNLI comes first, because others may start from it."""
    missing: dict[str, str]
    """Task -> why it is left out."""
    has_pairs: bool
    """Whether there are minimal pairs to score, which need no fine-tuning."""


def evaluate(
    run: RecipeRun, model: str, task_folder: str, wanted: PlannedTasks, corpus: str | None = None
) -> str:
    """Score the model on minimal pairs and, fine-tuned, on all tasks; return the manifest.

    A model without a masked LM head is scored on the tasks alone.

    Args:
        run: its recipe names tasks and seeds.
        model: folder of a model, or an address in the registry.
        task_folder: folder of the public tasks; empty if the recipe has tasks of its own only.
        wanted: from `find_tasks`.
        corpus: manifest of the model's corpus, to look for dev sets in; None: do not look.
    """
    from albert_core.scores.zero_shot import has_head

    folders = {"model_folder": find_model(model, run.work), "task_folder": task_folder}
    pairs, missing = "", wanted.missing
    if wanted.has_pairs and wanted.tasks and not has_head(folders["model_folder"]):
        missing = missing | {"minimal pairs": "the model has no masked LM head"}
        if stage_task.in_flow_run():
            get_run_logger().warning("no minimal pairs are scored: the model has no masked LM head")
    elif wanted.has_pairs:
        pairs = score_pairs(run, **folders)
    finetunings = finetune_all(run, wanted, **folders)
    contamination = ""
    if corpus and wanted.tasks:
        texts = {"corpus": storage.absolute(corpus), "task_folder": task_folder}
        contamination = find_contamination(run, **texts)
    title = model.removeprefix("models:/")
    if title == model:
        title = "/".join(storage.absolute(model).rstrip("/").split("/")[-2:])
    return tabulate(
        run,
        model=title,
        finetunings=json.dumps(finetunings),
        missing=json.dumps(missing),
        contamination=contamination,
        zero_shot=pairs,
    )


@stage_task.task("find-recipe")
def own_recipe(model: str, work: str) -> dict[str, Any]:
    """Return the recipe of the model from its manifests; empty if they have none."""
    from albert_core.conversion.model_files import manifest_beside

    if model.startswith("models:/"):
        from albert_core.registry.version_files import read_version

        made = [result.manifest for result in read_version(model, work)[1].results.values()]
    else:
        beside = manifest_beside(storage.absolute(model))
        made = [read_manifest(beside)] if beside else []
    calls = filter(None, (each.provenance.call for each in made))
    return {name: value for call in calls for name, value in (call.rest | call.recipe).items()}


@stage_task.task("find-model")
def find_model(model: str, work: str) -> str:
    """Return the model's folder: itself, or that of a registered version."""
    if not model.startswith("models:/"):
        return storage.absolute(model)
    from albert_core.registry.version_files import model_folder_of

    return model_folder_of(model, work)


@stage_task.task("find-tasks")
def find_tasks(run: RecipeRun, task_folder: str) -> PlannedTasks:
    """Return the tasks to fine-tune on, and why others are left out, which is logged.

    In the folder of a stage's result, which has the generated task, public tasks are missed only if
    they were asked for.

    Raises:
        ConfigError: the folder does not exist, or has nothing in it.
        TaskError: see `planned`; or a file is malformed.
    """
    from albert_core.tasks.catalogue import SCORED_WITH, present_tasks
    from albert_core.tasks.minimal_pairs import find_pairs

    if task_folder and not storage.list_folder(task_folder):
        # In other stores a folder is no more than the names of its files.
        is_local = storage.local_path(task_folder) is not None
        is_absent = is_local and not storage.exists(task_folder)
        found = "does not exist" if is_absent else "has nothing in it"
        raise errors.ConfigError(
            f"the task folder {task_folder} {found}: expected the tasks' files, or folders with "
            "them. Correct evaluation.task_folder or --task-folder, or leave it out."
        )
    evaluation = run.recipe.evaluation
    present, missing = present_tasks(task_folder, evaluation.own_tasks)
    is_generated = task_folder and storage.exists(storage.join(task_folder, MANIFEST))
    if is_generated and not evaluation.tasks:
        own = [task.name for task in evaluation.own_tasks]
        missing = {name: what for name, what in missing.items() if name in own}
    there = [files.task.name for files in present if files.task.name not in SCORED_WITH]
    wanted = planned(evaluation, there, missing, bool(find_pairs(task_folder)))
    if wanted.missing and stage_task.in_flow_run():
        get_run_logger().warning("tasks that are not scored:\n  %s", _listed(wanted.missing))
    return wanted


def planned(
    evaluation: EvaluationSettings,
    present: Sequence[str],
    missing: Mapping[str, str],
    has_pairs: bool,
) -> PlannedTasks:
    """Return the tasks to fine-tune on.

    Args:
        evaluation: settings.
        present: tasks whose files are there, in order.
        missing: other tasks -> the files that were not found.
        has_pairs: see `PlannedTasks`.

    Raises:
        TaskError: a task that was asked for does not exist or has no files, there is nothing to do,
            or others start from MNLI and its files are missing.
    """
    known = [*present, *missing]
    asked = evaluation.tasks or known
    if unknown := [name for name in asked if name not in known]:
        raise errors.TaskError(
            f"there is no task {unknown[0]!r} to fine-tune on{settings.near(unknown[0], known)}"
        )
    tasks = [name for name in present if name in asked]
    reasons = {name: f"there is no {what}" for name, what in missing.items() if name in asked}
    if reasons and evaluation.tasks:
        raise errors.TaskError(
            "files of tasks that were asked for are missing; add them, or leave these tasks out:"
            f"\n  {_listed(reasons)}"
        )
    if not (tasks or has_pairs):
        raise errors.TaskError(f"there is no task to fine-tune on:\n  {_listed(reasons)}")
    starting = [name for name in tasks if name in evaluation.from_mnli]
    if starting and MNLI not in present:
        raise errors.TaskError(
            f"evaluation.from_mnli names {', '.join(starting)}, but the files of MNLI are not "
            "there. Add them, or remove these tasks from the setting."
        )
    first = [MNLI] if starting or MNLI in tasks else []
    return PlannedTasks([*first, *(n for n in tasks if n != MNLI)], reasons, has_pairs)


def _listed(reasons: Mapping[str, str]) -> str:
    return "\n  ".join(f"{name}: {reason}" for name, reason in reasons.items())


@stage_task.task("finetune", "finetune {task}, seed {seed}")
def finetune(run: RecipeRun, model_folder: str, task_folder: str, task: str, seed: int) -> str:
    """Stage: model + task + seed -> fine-tuned model and its scores."""
    inputs = {"model_folder": model_folder, "task_folder": task_folder, "task": task}
    slot = SLOTS.get()
    try:
        return stage_task.run_stage(_FINETUNING, run, slot, **inputs, seed=str(seed))
    finally:
        SLOTS.put(slot)


def finetune_all(
    run: RecipeRun, wanted: PlannedTasks, model_folder: str, task_folder: str
) -> list[str]:
    """Fine-tune on every task with every seed, MNLI first; return the manifests."""
    evaluation = run.recipe.evaluation
    seeds = range(evaluation.seed, evaluation.seed + evaluation.num_seeds)
    mnli_models: dict[int, str] = {}

    def finetune_each(tasks: list[str]) -> list[str]:
        starts = {task: mnli_models if task in evaluation.from_mnli else {} for task in tasks}
        calls = [
            (run, starts[task].get(seed, model_folder), task_folder, task, seed)
            for task in tasks
            for seed in seeds
        ]
        if num_processes() == 1 or not stage_task.in_flow_run():  # here, where Ctrl-C arrives
            return [finetune(*call) for call in calls]
        with stage_task.stopping_other_threads():
            return [future.result() for future in [finetune.submit(*call) for call in calls]]

    first = finetune_each([task for task in wanted.tasks if task == MNLI])
    mnli_models |= zip(seeds, map(results.model_folder_of, first), strict=False)
    return [*first, *finetune_each([task for task in wanted.tasks if task != MNLI])]


def folder_of_tasks(run: RecipeRun, task_folder: str | None) -> str:
    """Return the folder of the public tasks: as given, the recipe's, or the last generated task's.

    It is empty if the recipe has tasks of its own only.

    Raises:
        TaskError: no task was generated.
    """
    evaluation = run.recipe.evaluation
    if given := task_folder or evaluation.task_folder:
        return storage.absolute(given)
    if evaluation.own_tasks:
        return ""
    manifest = newest_manifest(storage.join(run.work, results.TASK))
    if manifest is None:
        raise errors.TaskError(
            f"{run.work} holds no generated task: give task_folder, the folder with the tasks' "
            "files, or run the flow pretrain-albert first"
        )
    return storage.join(run.work, results.TASK, manifest.key)
