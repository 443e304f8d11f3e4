"""Stage: a pretrained model and sets of minimal pairs -> how often it is right, without training.

It writes the outcome of every pair, a file for each set.
"""

from albert_core.conversion.model_files import check_model, manifest_beside, model_digest
from albert_core.stage.command import stage_main
from albert_core.stage.errors import TaskError
from albert_core.stage.lineage import ZERO_SHOT
from albert_core.stage.manifest import StagePlan
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.tasks.minimal_pairs import find_pairs, pair_digests


def run(model_folder: str, task_folder: str, work: str) -> str:
    """Score the model on every set of minimal pairs that is there; return the manifest.

    Args:
        model_folder: the pretrained model, in Hugging Face's layout.
        task_folder: the folder that the sets are in; see `find_pairs`.
        work: folder for all results.

    Raises:
        IntegrityError: a file of the model is missing, or changed after it was written.
        TaskError: there are no pairs, a file of them is malformed, or the model has no masked LM
            head.
    """
    plan = stage_plan(model_folder, task_folder)
    if done := plan.find(work):
        return done
    check_model(model_folder, plan.inputs["model"])
    from albert_core.scores.pair_outcomes import write_outcomes

    return write_outcomes(plan, work, model_folder, find_pairs(task_folder))


def stage_plan(model_folder: str, task_folder: str) -> StagePlan:
    """Return what the scores depend on."""
    files = find_pairs(task_folder)
    if not files:
        raise TaskError(
            f"{task_folder} has no minimal pairs: expected blimp/*.jsonl, zorro/*.txt or "
            "minimal_pairs/*.jsonl. Give the folder that they are in."
        )
    folders = {"pretraining": model_folder, "task": task_folder}
    digests = {f"{name}-pairs": digest for name, digest in pair_digests(files).items()}
    return StagePlan(
        stage=ZERO_SHOT,
        settings={},
        inputs={"model": model_digest(model_folder), **digests},
        code=code_digest(__name__),
        libraries=library_versions("torch"),
        input_manifests={n: uri for n, each in folders.items() if (uri := manifest_beside(each))},
    )


if __name__ == "__main__":
    stage_main(run)
