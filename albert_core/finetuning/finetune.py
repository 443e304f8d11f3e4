"""Stage: a pretrained model and a task -> the fine-tuned model, its scores and predictions."""

from albert_core.config import EvaluationSettings, FinetuningSettings
from albert_core.conversion.model_files import model_digest
from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.lineage import FINETUNING
from albert_core.stage.manifest import MANIFEST, StagePlan
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.tasks.catalogue import TaskFiles, find_task, predicted_with
from albert_core.training.preemption import ending_when_told_to

STAGE = FINETUNING


def run(
    finetuning: FinetuningSettings,
    evaluation: EvaluationSettings,
    model_folder: str,
    task_folder: str,
    task: str,
    seed: str,
    work: str,
) -> str:
    """Fine-tune the model on the task, keep the best on dev, predict; return the manifest.

    Args:
        finetuning: settings.
        evaluation: settings, of which the own tasks count here.
        model_folder: the pretrained or otherwise fine-tuned model, in Hugging Face's layout.
        task_folder: where the public files lie, or the task's own folder.
        task: its name.
        seed: a number, of the head's first weights, the order and dropout.
        work: folder for all results.

    Raises:
        ConfigError: max_seq_length exceeds the model's positions, or there is no such task.
        IntegrityError: a file of the model is missing.
        TaskError: a file of the task is missing or malformed.
        TrainingError: the loss is not finite.
    """
    files = find_task(task, task_folder, evaluation.own_tasks)
    also = predicted_with(task, task_folder)
    plan = _plan(finetuning, files, also, model_folder, task_folder, seed)
    if done := plan.find(work):
        return done
    from albert_core.finetuning.finetuning import Finetuning

    return Finetuning(plan, work, finetuning, files, also, model_folder).run()


def find_done(
    finetuning: FinetuningSettings,
    evaluation: EvaluationSettings,
    model_folder: str,
    task_folder: str,
    task: str,
    seed: str,
    work: str,
) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    files = find_task(task, task_folder, evaluation.own_tasks)
    also = predicted_with(task, task_folder)
    return _plan(finetuning, files, also, model_folder, task_folder, seed).done(work)


def _plan(
    finetuning: FinetuningSettings,
    files: TaskFiles,
    also: list[TaskFiles],
    model_folder: str,
    task_folder: str,
    seed: str,
) -> StagePlan:
    task = files.task.name
    return StagePlan(
        stage=STAGE,
        settings={
            "finetuning": finetuning.of_task(task),
            "task": task,
            "seed": int(seed),
        },
        inputs={
            "model": model_digest(model_folder),
            **files.digests(),
            **{f"{each.task.name}-files": each.digest() for each in also},
        },
        code=code_digest(__name__),
        libraries=library_versions("torch"),
        input_manifests=_manifests_beside(pretraining=model_folder, task=task_folder),
    )


def _manifests_beside(**folders: str) -> dict[str, str]:
    """Return the manifests of the stages that wrote ``folders``, where there are any."""
    found = {}
    for name, folder in folders.items():
        parent = folder.rstrip("/").rpartition("/")[0]
        for place in (folder, parent):
            uri = storage.join(place, MANIFEST)
            if place and storage.exists(uri):
                found[name] = uri
                break
    return found


if __name__ == "__main__":
    with ending_when_told_to():
        stage_main(run)
