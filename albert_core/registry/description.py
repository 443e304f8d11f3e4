"""What a person reads of a version who has only MLflow: what it was made of, and how it does.

Pure: manifests go in, texts come out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from albert_core.registry.gate import Decision, Measured
from albert_core.stage.lineage import (
    CORPUS,
    EXAMPLES,
    FINETUNING,
    PRETRAINING,
    VOCAB,
    Lineage,
    place_in,
)
from albert_core.stage.manifest import Manifest
from albert_core.stage.results import (
    CorpusResult,
    Estimate,
    ExamplesResult,
    FinetuningResult,
    PretrainingResult,
    VocabularyResult,
)

HELD_OUT = "held_out"


def made_of(lineage: Lineage, trained: str) -> dict[str, str]:
    """Return what a model was made of and how, a short text each, in the order of the making.

    Args:
        lineage: of its version.
        trained: manifest of the stage that made it.
    """
    places = lineage.before(place_in(trained))
    results = (each.manifest for place, each in lineage.results.items() if place in places)
    return {name: said for manifest in results for name, said in _facts(manifest)}


def _facts(made: Manifest) -> Iterator[tuple[str, str]]:
    if made.stage == CORPUS:
        corpus = made.result_as(CorpusResult)
        names = [corpus.source] if isinstance(corpus.source, str) else corpus.source
        size = f"{corpus.num_documents:,} documents, {corpus.text_bytes / 1e6:,.1f} MB"
        yield "text", f"{', '.join(names)}: {size}"
    elif made.stage == VOCAB:
        vocabulary = made.result_as(VocabularyResult)
        yield "vocabulary", f"{vocabulary.vocab_size:,} pieces"
    elif made.stage == EXAMPLES:
        examples = made.result_as(ExamplesResult)
        yield "examples", f"{examples.num_train:,} of up to {examples.max_seq_length} pieces"
    elif made.stage == PRETRAINING:
        trained = made.result_as(PretrainingResult)
        settings: Mapping[str, Any] = trained.settings.get("training", {})
        how = f", {settings['optimizer']}" if "optimizer" in settings else ""
        batch = f" of {settings['batch_size']:,} examples" if "batch_size" in settings else ""
        yield "size", f"{trained.num_parameters:,} parameters"
        yield "training", f"{trained.step:,} updates{batch}{how}"
        yield HELD_OUT, _estimates(trained.after)
    elif made.stage == FINETUNING:
        tuned = made.result_as(FinetuningResult)
        updates = f"{tuned.num_train:,} examples, {tuned.num_steps:,} updates"
        yield "fine_tuning", f"{tuned.title}, {updates}"


def _estimates(after: Mapping[str, Estimate]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {each}" for name, each in after.items())


def describe_version(
    uri: str, facts: Mapping[str, str], measured: Mapping[str, Measured], decision: Decision
) -> str:
    """Return the text of a version's page, as Markdown.

    Args:
        uri: models:/<name>/<version>.
        facts: what it was made of, by name.
        measured: how it does, by the tasks' names.
        decision: of the gate.
    """
    rows = [f"| {name.replace('_', ' ')} | {_in_cell(said)} |" for name, said in facts.items()]
    scores = ", ".join(f"{task} {each.score:.4f}" for task, each in measured.items())
    return (
        "| made of | |\n| --- | --- |\n" + "\n".join(rows) + "\n\n"
        f"On dev: {scores or 'no task'}.\n\n"
        f"The gate: {decision.verdict}, {decision.reason}.\n\n"
        "The files of this version have the manifests of all of it in `lineage`; "
        f"`albert lineage {uri}` prints them."
    )


def describe_model(name: str) -> str:
    """Return the text of a registered model's page, as Markdown."""
    return (
        "A version is a model that was trained and scored; its page says what it was made of, and "
        "its source run is the training. The alias `champion` is the best one so far, `previous` "
        "the champion before, `candidate` the newest that is not champion.\n\n"
        f'`mlflow.pyfunc.load_model("models:/{name}@champion")` serves it, '
        f'`mlflow.transformers.load_model("models:/{name}@champion")` is its pipeline.'
    )


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
