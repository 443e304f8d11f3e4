"""Stage 3: clean documents to example shards, globally shuffled, in Arrow and TFRecord."""

from dataclasses import replace

from albert_core.stage.command import stage_main
from albert_core.stage.lineage import EXAMPLES
from albert_core.stage.manifest import Manifest, StagePlan, digest_of, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import VocabularyResult
from albert_core.text.tokenizer import SPIECE_MODEL
from pipelines.config import ExampleSettings

STAGE = EXAMPLES
_LIBRARIES = ("numpy", "pyarrow", "sentencepiece")


def run(examples: ExampleSettings, corpus: str, vocab: str, work: str) -> str:
    """Make pretraining examples of the corpus; return their manifest.

    Raises:
        SourceError: the corpus is too small to give training and held-out examples.
        AccountingError: documents or examples are missing, or there are too many.
    """
    plan = _plan_of_corpus(examples, corpus, vocab)
    if done := plan.find(work):
        return done
    from pipelines.example_pipeline import make_shards

    return make_shards(plan, work, examples, corpus, vocab)


def find_done(examples: ExampleSettings, corpus: str, vocab: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan_of_corpus(examples, corpus, vocab).done(work)


def _plan_of_corpus(examples: ExampleSettings, corpus: str, vocab: str) -> StagePlan:
    plan = plan_of(examples, vocab, corpus=read_manifest(corpus).content)
    return replace(plan, input_manifests={"corpus": corpus, **plan.input_manifests})


def plan_of(examples: ExampleSettings, vocab: str, **inputs: str) -> StagePlan:
    """Return what examples depend on.

    Args:
        examples: settings.
        vocab: the vocabulary's manifest.
        inputs: name of each other input -> digest of its content.
    """
    return StagePlan(
        stage=STAGE,
        settings=examples.model_dump(exclude={"keep_parts"}),
        inputs={**inputs, "vocab": _pieces_digest(read_manifest(vocab))},
        code=code_digest(__name__),
        libraries=library_versions(*_LIBRARIES),
        input_manifests={"vocab": vocab},
    )


def _pieces_digest(vocab: Manifest) -> str:
    """Return a digest of what splits text into pieces, without the report on it."""
    [model] = vocab.shards_of(SPIECE_MODEL)
    return digest_of([model.sha256, vocab.result_as(VocabularyResult).lower_case])


if __name__ == "__main__":
    stage_main(run)
