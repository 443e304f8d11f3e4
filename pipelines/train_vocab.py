"""Stage 2: a clean corpus to a SentencePiece vocabulary with ALBERT's special pieces."""

import hashlib
from dataclasses import replace

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import IntegrityError, VocabularyError
from albert_core.stage.lineage import VOCAB
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.text.tokenizer import Tokenizer
from pipelines.config import VocabularySettings

STAGE = VOCAB


def run(vocabulary: VocabularySettings, corpus: str, work: str) -> str:
    """Make the corpus's vocabulary, or take the one given; return its manifest.

    Raises:
        VocabularyError: the text cannot carry a vocabulary of this size, or the model given is
            not one of ALBERT's of this size.
    """
    given = given_model(vocabulary)
    plan = _plan(vocabulary, corpus, given)
    if done := plan.find(work):
        return done
    from pipelines.vocabulary_training import make_vocabulary

    return make_vocabulary(plan, work, vocabulary, corpus, given)


def find_done(vocabulary: VocabularySettings, corpus: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan(vocabulary, corpus, given_model(vocabulary)).done(work)


def _plan(vocabulary: VocabularySettings, corpus: str, given: bytes | None) -> StagePlan:
    plan = plan_of(vocabulary, given, corpus=read_manifest(corpus).content)
    return replace(plan, input_manifests={"corpus": corpus})


def plan_of(vocabulary: VocabularySettings, given: bytes | None, **inputs: str) -> StagePlan:
    """Return what a vocabulary depends on.

    Args:
        vocabulary: settings.
        given: the model that they name.
        inputs: name of each other input -> digest of its content.
    """
    digests = {"model": hashlib.sha256(given).hexdigest()} if given else {}
    return StagePlan(
        stage=STAGE,
        settings=vocabulary.model_dump(),
        inputs={**inputs, **digests},
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece"),
    )


def given_model(vocabulary: VocabularySettings) -> bytes | None:
    """Return the model that the settings name, after a look at it; None: one is to be trained.

    Raises:
        VocabularyError: it can't be read, has other special pieces or another size.
    """
    uri = vocabulary.model
    if not uri:
        return None
    try:
        model = storage.read_bytes(uri)
        vocab_size = Tokenizer(model).vocab_size
    except (OSError, IntegrityError) as error:
        raise VocabularyError(
            f"vocabulary.model is {uri!r}, which can't be used: {error}"
        ) from error
    if vocabulary.vocab_size not in (vocab_size, "auto"):
        raise VocabularyError(
            f"vocabulary.vocab_size is {vocabulary.vocab_size}, but vocabulary.model, {uri}, has "
            f"{vocab_size} pieces. Set vocabulary.vocab_size={vocab_size}, or give no model."
        )
    return model


if __name__ == "__main__":
    stage_main(run)
