"""Flow: a registered or local model -> scores on a downstream task."""

import sys
from typing import Any

from prefect import flow

from albert_core.contract import storage
from albert_core.contract.errors import TaskError
from albert_core.contract.manifest import newest_manifest
from flows.command_line import recipe_parser, run_by_hand
from flows.stage_task import RecipeRun, read_stage, run_stage, stage_task, start_run


@stage_task("find-model")
def find_model(model: str, work: str) -> str:
    """Return the model's folder: itself, or that of a registered version."""
    if not model.startswith("models:/"):
        return storage.absolute(model)
    from albert_core.model_versions import model_folder_of

    return model_folder_of(model, work)


@stage_task("finetune")
def finetune(run: RecipeRun, model_folder: str, task_folder: str) -> str:
    """Stage: model + task -> fine-tuned model and its scores."""
    return run_stage(
        "albert_core.finetuning", run, model_folder=model_folder, task_folder=task_folder
    )


@flow(name="evaluate-albert")
def evaluate_albert(
    model: str,
    task_folder: str | None = None,
    recipe: str = "tiny",
    work: str | None = None,
    overrides: list[str] | None = None,
) -> dict[str, Any]:
    """Fine-tune a model on a task and score it.

    Args:
        model: folder of a model, or `models:/name@alias` or `models:/name/version`.
        task_folder: folder with the task's files, as GLUE lays them out. Without it, the task
            generated last in the work folder.
        recipe: whose [finetuning] settings: a shipped recipe, or path or URI of a TOML file.
        work: folder for all results. Without it, ALBERT_WORK, else `work`.
        overrides: settings that differ from the recipe's, `section.field=value` each.

    Returns:
        The scores, by name.
    """
    run = start_run(recipe, None, work, overrides)
    task_files = storage.absolute(task_folder) if task_folder else newest_task_folder(run.work)
    manifest, _ = read_stage(finetune(run, find_model(model, run.work), task_files))
    scores: dict[str, Any] = manifest.facts["scores"]
    return scores


def task_folder_of(task: str) -> str:
    """Return the folder with the files of the generated task of this manifest."""
    _, folder = read_stage(task)
    return storage.join(folder, "CoLA")


def newest_task_folder(work: str) -> str:
    """Return the folder of the task generated last in ``work``.

    Raises:
        TaskError: none was generated.
    """
    manifest = newest_manifest(storage.join(work, "task"))
    if manifest is None:
        raise TaskError(
            f"{work} holds no generated task: give task_folder, the folder with a task's files, "
            "or run the flow pretrain-albert first"
        )
    return storage.join(work, "task", manifest.key, "CoLA")


if __name__ == "__main__":
    parser = recipe_parser(evaluate_albert, with_source=False)
    parser.add_argument("--model", required=True, help="folder, or models:/name@alias")
    parser.add_argument("--task-folder", help="default: the task generated last")
    sys.exit(run_by_hand(evaluate_albert, **vars(parser.parse_args())))
