"""Stage 3: clean documents to example shards, globally shuffled, in Arrow and TFRecord."""

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
    plan = _plan(examples, corpus, vocab)
    if done := plan.find(work):
        return done
    from pipelines.example_pipeline import make_shards

    return make_shards(plan, work, examples, corpus, vocab)


def find_done(examples: ExampleSettings, corpus: str, vocab: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan(examples, corpus, vocab).done(work)


def _plan(examples: ExampleSettings, corpus: str, vocab: str) -> StagePlan:
    return StagePlan(
        stage=STAGE,
        settings=examples.model_dump(exclude={"keep_parts"}),
        inputs={
            "corpus": read_manifest(corpus).content,
            "vocab": _pieces_digest(read_manifest(vocab)),
        },
        code=code_digest(__name__),
        libraries=library_versions(*_LIBRARIES),
        input_manifests={"corpus": corpus, "vocab": vocab},
    )


def _pieces_digest(vocab: Manifest) -> str:
    """Return a digest of what splits text into pieces, without the report on it."""
    [model] = vocab.shards_of(SPIECE_MODEL)
    return digest_of([model.sha256, vocab.result_as(VocabularyResult).lower_case])


if __name__ == "__main__":
    stage_main(run)
