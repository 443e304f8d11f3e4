"""Flow: sources -> clean corpus -> vocabulary -> examples. This is what the schedule runs."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from albert_core.stage.command import NO_RESULT
from albert_core.stage.manifest import read_manifest
from flows.corpus_event import tell_of_change
from flows.done_before import RecipeRun
from flows.flow_options import FLOW_OPTIONS
from flows.recipe_form import NO_CHANGES, Address, RecipeChanges, with_form
from flows.report import build_text_report, interpreter
from flows.stage_task import run_stage, stage_task, start_run
from flows.tracked_flow import note_report


@stage_task("clean-corpus")
def clean_corpus(run: RecipeRun) -> str:
    """Stage 1: sources -> documents worth training on."""
    return run_stage("pipelines.clean_corpus", run)


@stage_task("train-vocab")
def train_vocab(run: RecipeRun, corpus: str) -> str:
    """Stage 2: documents -> SentencePiece vocabulary."""
    return run_stage("pipelines.train_vocab", run, corpus=corpus)


@stage_task("make-examples")
def make_examples(run: RecipeRun, corpus: str, vocab: str) -> str:
    """Stage 3: documents + vocabulary -> pretraining examples."""
    return run_stage("pipelines.make_examples", run, corpus=corpus, vocab=vocab)


@stage_task("removal-receipt")
def removal_receipt(run: RecipeRun, examples: str) -> str:
    """Certify that documents which are gone from the corpus are in no shard; name the versions."""
    receipt = run_stage("pipelines.removal", run, examples=examples)
    if receipt != NO_RESULT:
        from flows.affected_versions import name_affected_versions

        name_affected_versions(receipt, run.work)
    return receipt


@flow(name="refresh-corpus", **FLOW_OPTIONS)
def refresh_corpus(
    recipe: Address = "tiny",
    source: Address | None = None,
    work: Address | None = None,
    overrides: list[Address] | None = None,
    settings: RecipeChanges = NO_CHANGES,
) -> str:
    """Bring the corpus, its vocabulary and its examples up to date.

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
    receipt = removal_receipt(run, examples)
    tell_of_change(run, examples, recipe, source, overrides)
    return report(run, receipt, corpus=corpus, vocab=vocab, examples=examples)


def report(run: RecipeRun, receipt: str, **manifests: str) -> str:
    """Save what was done as an artifact of the flow run, and return it as text."""
    made = {stage: read_manifest(manifest) for stage, manifest in manifests.items()}
    uris = {**manifests, "receipt": receipt}
    affected = [] if receipt == NO_RESULT else _affected(receipt)
    done = build_text_report(run.recipe.name, made, uris, interpreter(), affected)
    note_report(done.markdown())
    create_markdown_artifact(done.markdown(), key="refresh-corpus", description=done.title)
    return done.text()


def _affected(receipt: str) -> list[str]:
    from flows.affected_versions import named_versions

    return named_versions(receipt)
