"""Stage: a pretrained model and a task -> the fine-tuned model, its scores and predictions."""

from albert_core.config import EvaluationSettings, FinetuningSettings
from albert_core.conversion.model_files import check_model, manifest_beside, model_digest
from albert_core.stage.command import stage_main
from albert_core.stage.manifest import StagePlan
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import FINETUNING
from albert_core.tasks.catalogue import find_task, predicted_with

_PLACES = {"train", "dev", "test"}
"""Settings of an own task that name files, whose content counts wherever they are."""


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
        evaluation: settings; only the own tasks are used here.
        model_folder: the pretrained or otherwise fine-tuned model, in Hugging Face's layout.
        task_folder: the folder of the public files, or the task's own folder.
        task: its name.
        seed: a number, for the head's initial weights, the order and dropout.
        work: folder for all results.

    Raises:
        ConfigError: max_seq_length exceeds the model's positions.
        IntegrityError: a file of the model is missing, or changed after it was written.
        TaskError: there is no such task, or a file of it is missing or malformed.
        TrainingError: the loss is not finite.
    """
    plan = stage_plan(finetuning, evaluation, model_folder, task_folder, task, seed)
    if done := plan.find(work):
        return done
    check_model(model_folder, plan.inputs["model"])
    from albert_core.finetuning.finetuning import Finetuning

    files = find_task(task, task_folder, evaluation.own_tasks)
    others = predicted_with(task, task_folder)
    return Finetuning(plan, work, finetuning, files, others, model_folder).run()


def stage_plan(
    finetuning: FinetuningSettings,
    evaluation: EvaluationSettings,
    model_folder: str,
    task_folder: str,
    task: str,
    seed: str,
) -> StagePlan:
    """Return what a fine-tuning depends on."""
    files = find_task(task, task_folder, evaluation.own_tasks)
    folders = {"pretraining": model_folder, "task": task_folder}
    return StagePlan(
        stage=FINETUNING,
        settings={
            "finetuning": finetuning.of_task(task, files.task.kind == "spans"),
            "task": task,
            "seed": int(seed),
            **({"own_task": files.own.model_dump(exclude=_PLACES)} if files.own else {}),
        },
        inputs={
            "model": model_digest(model_folder),
            **files.digests(),
            **{
                f"{each.task.name}-files": each.digest()
                for each in predicted_with(task, task_folder)
            },
        },
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece", "torch"),
        input_manifests={n: uri for n, each in folders.items() if (uri := manifest_beside(each))},
    )


if __name__ == "__main__":
    stage_main(run)
