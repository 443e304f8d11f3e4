"""Start here: the whole way, from raw text to a registered ALBERT, in one flow."""

import logging
from dataclasses import replace

from prefect import flow, get_run_logger

from albert_core.stage import errors
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import model_folder_of
from albert_core.stage.servers import shown_tracking_uri
from flows import flow_run, stage_task
from flows.evaluate_albert import TASK_RUNNER, PlannedTasks, evaluate, find_tasks
from flows.recipe import NO_CHANGES, Address, RecipeChanges, RecipeName, RecipeRun
from flows.refresh_corpus import clean_corpus, make_examples, refresh_in_its_pool, train_vocab
from flows.report import build_report
from flows.stage_process import StageRefusedError

make_task = stage_task.stage("make-task", "pipelines.make_task")
"""Held-out documents -> minimal pairs, and a task to fine-tune on."""
pretrain = stage_task.stage(
    "pretrain", "albert_core.training.pretrain", "pretrain {run.recipe.name}"
)
"""Examples -> pretrained model, resumed from its last checkpoint. At each evaluation a sample of
the task folder's minimal pairs is scored, if it has any."""
register = stage_task.stage("register", "albert_core.registry.register")
"""Model + scores -> model version, champion if the gate says so."""
_SEEDS = 1_000_000
"""Seeds are drawn from so many: few digits, because tables show them."""


@flow(name="pretrain-albert", task_runner=TASK_RUNNER, **flow_run.FLOW_OPTIONS)
def pretrain_albert(
    recipe: RecipeName = "tiny",
    source: Address | None = None,
    settings: RecipeChanges = NO_CHANGES,
    overrides: list[Address] | None = None,
    work: Address | None = None,
) -> str:
    """Clean the text, train a vocabulary, pretrain, fine-tune, score and register an ALBERT.

    It becomes champion if the gate finds it better than the present one on the same tasks.

    A stage that was done before, with the same settings and inputs, is not done again.

    Args:
        recipe: name of a shipped recipe, or path or URI of a TOML file.
        source: your own text: a file, folder, glob or URI. Default: the recipe's.
        settings: the usual settings that differ from the recipe's; left empty, one is as there.
        overrides: any settings that differ, `section.field=value` each; they take precedence.
        work: folder for all results. Default: ALBERT_WORK, else `work`.

    Returns:
        The report.
    """
    run = flow_run.start_run(recipe, source, work, overrides, settings)
    tell_power(run)
    # What the recipe names and is not there, or does not fit, is said before any text is read.
    check_start(run)
    own = find_tasks(run, run.recipe.evaluation.task_folder) if has_own_tasks(run) else None
    refresh_in_its_pool(run)
    corpus = clean_corpus(run)
    vocab = train_vocab(run, corpus=corpus)
    examples = make_examples(run, corpus=corpus, vocab=vocab)
    task_folder = folder_of_tasks(run, examples, corpus)
    wanted = own or find_tasks(run, task_folder)
    tell_power(run, task_folder)
    pretraining = pretrain(run, examples=examples, task_folder=task_folder)
    scores = evaluate(run, model_folder_of(pretraining), task_folder, wanted)
    registration = compare_and_register(run, pretraining, scores, task_folder, wanted)
    made = {"corpus": corpus, "examples": examples, "pretraining": pretraining, "scores": scores}
    return report(run, **made, registration=registration)


@stage_task.task("check-start")
def check_start(run: RecipeRun) -> None:
    """Refuse a vocabulary, or weights to start from, that are not there or do not fit."""
    from albert_core.training import pretrain
    from pipelines.train_vocab import given_tokenizer

    vocabulary = given_tokenizer(run.recipe.vocabulary)
    pretrain.check_start(run.recipe.model, run.recipe.training, vocabulary)


def folder_of_tasks(run: RecipeRun, examples: str, corpus: str) -> str:
    """Return the folder of the tasks to score on: the recipe's, else that of a generated one.

    It is empty if the recipe has tasks of its own only.
    """
    if has_own_tasks(run):
        return run.recipe.evaluation.task_folder
    return make_task(run, examples=examples, corpus=corpus).rpartition("/")[0]


def has_own_tasks(run: RecipeRun) -> bool:
    """Return whether the recipe names tasks, or a folder of them."""
    return bool(run.recipe.evaluation.task_folder or run.recipe.evaluation.own_tasks)


def tell_power(run: RecipeRun, task_folder: str | None = None) -> None:
    """Log which gain the gate can find, before the model that it decides about is trained.

    Args:
        run: its recipe names tasks and seeds.
        task_folder: as of `evaluate`; None: at the start, where only a single seed can be
            recognized as too few.
    """
    evaluation, is_start = run.recipe.evaluation, task_folder is None
    # Outside of a flow run nothing is made, but what was made is found.
    if not stage_task.in_flow_run() or is_start != (evaluation.num_seeds == 1):
        return
    from albert_core.registry.gate import power
    from albert_core.tasks.catalogue import dev_clusters

    clusters = {}
    if task_folder is not None:
        clusters = dev_clusters(task_folder, evaluation.own_tasks, evaluation.tasks)
    if clusters or is_start:
        said = power(run.recipe.registry, evaluation.num_seeds, clusters)
        get_run_logger().log(logging.WARNING if is_start else logging.INFO, "gate: %s", said)


def compare_and_register(
    run: RecipeRun, pretraining: str, scores: str, task_folder: str, wanted: PlannedTasks
) -> str:
    """Register the model, after scoring the champion on the same tasks; return the manifest.

    The champion is fine-tuned with new seeds: it was chosen by its old ones, which were more often
    lucky than not. If it can't do what the candidate's recipe asks for, or is damaged, the gate has
    only the scores that it was registered with. A model that the gate has decided about is not
    compared again.
    """
    inputs = {"pretraining": pretraining, "scores": scores}
    if done := stage_task.find_stage("albert_core.registry.register", run, **inputs):
        return done
    champion_scores = ""
    if wanted.tasks and (champion := champion_to_beat(run, **inputs)):
        afresh = with_other_seeds(run, read_manifest(pretraining).key)
        try:
            without_pairs = replace(wanted, has_pairs=False)
            champion_scores = evaluate(afresh, champion, task_folder, without_pairs)
        except (StageRefusedError, errors.RegistryError, errors.IntegrityError) as error:
            if errors.is_transient(error):
                raise
            get_run_logger().warning(
                "gate: %s can't be fine-tuned like the candidate, so that only the scores that it "
                "was registered with count, if they are of the same files and settings: %s",
                champion,
                error,
            )
    return register(run, champion_scores=champion_scores, **inputs)


def with_other_seeds(run: RecipeRun, name: str) -> RecipeRun:
    """Return the run with fine-tuning seeds of its own for each ``name``."""
    from albert_core.text.seeds import derive_seed

    evaluation = run.recipe.evaluation
    seed = derive_seed(evaluation.seed, "champion", name) % _SEEDS
    with_seed = {"evaluation": evaluation.model_copy(update={"seed": seed})}
    return replace(run, recipe=run.recipe.model_copy(update=with_seed))


@stage_task.task("champion")
def champion_to_beat(run: RecipeRun, pretraining: str, scores: str) -> str:
    """Return the address of the model to beat; empty if there is none, or none is to be beaten."""
    from albert_core.registry import register

    return register.champion_to_beat(run.recipe.registry, pretraining, scores, run.work)


def report(run: RecipeRun, **manifests: str) -> str:
    """Show what was done on Prefect's and MLflow's pages, and return it as text."""
    made = {stage: read_manifest(manifest) for stage, manifest in manifests.items()}
    done = build_report(run.recipe.name, made, shown_tracking_uri(run.work), run.work)
    return flow_run.show_report(done, "pretrain-albert")
