"""Start here: the whole way, from raw text to a registered ALBERT, in one flow."""

import sys

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from albert_core.contract import storage
from albert_core.contract.manifest import read_manifest
from flows.command_line import interpreter, recipe_parser, run_by_hand
from flows.evaluate_albert import GENERATED_TASK, finetune, task_folder_of
from flows.orphaned_tasks import end_orphaned_tasks
from flows.recipe_form import NO_CHANGES, RecipeChanges, with_form
from flows.refresh_corpus import clean_corpus, make_examples, train_vocab
from flows.report import build_report, tracking_uri
from flows.run_names import run_name
from flows.stage_task import RecipeRun, read_stage, run_stage, stage_task, start_run


@flow(name="pretrain-albert", flow_run_name=run_name, on_running=[end_orphaned_tasks])
def pretrain_albert(
    recipe: str = "tiny",
    source: str | None = None,
    work: str | None = None,
    overrides: list[str] | None = None,
    settings: RecipeChanges = NO_CHANGES,
) -> str:
    """Clean the text, train a vocabulary, pretrain, fine-tune, score and register an ALBERT.

    Every stage that was done before, with the same settings and inputs, is done at once.

    Args:
        recipe: name of a shipped recipe, or path or URI of a TOML file.
        source: your own text: a file, folder, glob or URI. Without it, the recipe's.
        work: folder for all results. Without it, ALBERT_WORK, else `work`.
        overrides: settings that differ from the recipe's, `section.field=value` each.
        settings: the same as a form; what `overrides` names goes before it.

    Returns:
        The report.
    """
    overrides = with_form(settings, overrides)
    run = start_run(recipe, source, work, overrides)
    corpus = clean_corpus(run)
    vocab = train_vocab(run, corpus)
    examples = make_examples(run, corpus, vocab)
    task = make_task(run, examples, corpus)
    pretraining = pretrain(run, examples)
    finetuning = finetune_on(run, task, model_folder_of_run(pretraining))
    champion = champion_folder(run)
    champion_finetuning = finetune_on(run, task, champion) if champion else ""
    registration = register(run, pretraining, finetuning, champion_finetuning)
    return report(
        run,
        corpus=corpus,
        examples=examples,
        pretraining=pretraining,
        finetuning=finetuning,
        registration=registration,
    )


@stage_task("make-task")
def make_task(run: RecipeRun, examples: str, corpus: str) -> str:
    """Stage: held-out documents -> a small acceptability task."""
    return run_stage("pipelines.make_task", run, examples=examples, corpus=corpus)


@stage_task("pretrain")
def pretrain(run: RecipeRun, examples: str) -> str:
    """Stage: examples -> pretrained model, resumed from its last checkpoint."""
    return run_stage("albert_core.training", run, examples=examples)


def finetune_on(run: RecipeRun, task: str, model_folder: str) -> str:
    """Fine-tune the model once on the generated task; return the manifest."""
    return finetune(
        run, model_folder, task_folder_of(task), GENERATED_TASK, run.recipe.evaluation.seed
    )


@stage_task("champion")
def champion_folder(run: RecipeRun) -> str | None:
    """Return the folder of the model to beat, to be scored on the same task; None if none is."""
    from albert_core.model_registry import model_versions

    return model_versions.champion_folder(run.recipe.registry.model_name, run.work)


@stage_task("register")
def register(run: RecipeRun, pretraining: str, finetuning: str, champion_finetuning: str) -> str:
    """Stage: model + scores -> model version, champion if the rule says so."""
    return run_stage(
        "albert_core.registry",
        run,
        pretraining=pretraining,
        finetuning=finetuning,
        champion_finetuning=champion_finetuning,
    )


def report(run: RecipeRun, **manifests: str) -> str:
    """Save what was done as an artifact of the flow run, and return it as text."""
    made = {stage: read_manifest(manifest) for stage, manifest in manifests.items()}
    done = build_report(run.recipe.name, made, tracking_uri(run.work), interpreter())
    create_markdown_artifact(done.markdown(), key="pretrain-albert", description=done.title)
    return done.text()


def model_folder_of_run(pretraining: str) -> str:
    """Return the folder of the model that the pretraining of this manifest wrote."""
    manifest, folder = read_stage(pretraining)
    return storage.join(folder, manifest.facts["model_folder"])


if __name__ == "__main__":
    options = recipe_parser(pretrain_albert).parse_args()
    sys.exit(run_by_hand(pretrain_albert, **vars(options)))
