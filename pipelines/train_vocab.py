"""Stage 2: a clean corpus to a SentencePiece vocabulary with ALBERT's special pieces."""

import hashlib
import json
import logging
from dataclasses import replace
from typing import Any

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import IntegrityError, VocabularyError
from albert_core.stage.lineage import VOCAB, place_in
from albert_core.stage.manifest import (
    MANIFEST,
    Manifest,
    StagePlan,
    checked,
    newest_manifest,
    read_manifest,
)
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import CorpusResult
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.config import VocabularySettings

STAGE = VOCAB
KEPT = "kept"
"""In the settings of a result: the place of the vocabulary that was kept, for `lineage` too."""

log = logging.getLogger(STAGE)


def run(vocabulary: VocabularySettings, corpus: str, work: str) -> str:
    """Make the corpus's vocabulary, or take the one given or kept; return its manifest.

    Raises:
        IntegrityError: the model that is kept is not the one that was written.
        VocabularyError: the text cannot carry a vocabulary of this size, or the model given is
            not one of ALBERT's of this size.
    """
    given = given_model(vocabulary)
    plan = _plan(vocabulary, corpus, given, work)
    if done := plan.find(work):
        return done
    from pipelines.vocabulary_report import describe_misfit
    from pipelines.vocabulary_training import make_vocabulary

    if KEPT not in plan.settings:
        return make_vocabulary(plan, work, vocabulary, corpus, given)
    before = storage.join(work, plan.settings[KEPT])
    log.info("%s: keeping %s; vocabulary.refresh = train makes another", STAGE, before)
    made = make_vocabulary(plan, work, vocabulary, corpus, _kept_model(before))
    if misfit := describe_misfit(_read_report(before), _read_report(plan.folder(work))):
        log.warning(
            "%s: the vocabulary that was kept, %s, no longer fits: %s. Set vocabulary.refresh = "
            "train for another; a run that goes on needs the one it began with",
            STAGE,
            before,
            misfit,
        )
    return made


def find_done(vocabulary: VocabularySettings, corpus: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan(vocabulary, corpus, given_model(vocabulary), work).done(work)


def plan_of(vocabulary: VocabularySettings, given: bytes | None, **inputs: str) -> StagePlan:
    """Return what a vocabulary that is trained, or given, depends on.

    Args:
        vocabulary: settings.
        given: the model that they name.
        inputs: name of each other input -> digest of its content.
    """
    digests = {"model": hashlib.sha256(given).hexdigest()} if given else {}
    return StagePlan(
        stage=STAGE,
        settings=vocabulary.of_result,
        inputs={**inputs, **digests},
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece"),
    )


def _plan(vocabulary: VocabularySettings, corpus: str, given: bytes | None, work: str) -> StagePlan:
    """Return the plan to train a vocabulary, or to take over one.

    Which one is kept is a part of the plan, so of the key. What was trained on this very text
    stays its vocabulary.
    """
    made_of = read_manifest(corpus)
    plan = replace(
        plan_of(vocabulary, given, corpus=made_of.content), input_manifests={"corpus": corpus}
    )
    if given or vocabulary.refresh == "train" or plan.done(work):
        return plan
    trained = _trained_before(vocabulary, made_of, work)
    if trained is None:
        return plan
    [model] = trained.shards_of(SPIECE_MODEL)
    kept = {KEPT: f"{STAGE}/{trained.key}"}
    return replace(
        plan, settings=plan.settings | kept, inputs=plan.inputs | {"model": model.sha256}
    )


def _trained_before(vocabulary: VocabularySettings, corpus: Manifest, work: str) -> Manifest | None:
    """Return the vocabulary that was trained or kept last of this source with these settings."""
    source = corpus.result_as(CorpusResult).source

    def is_of_this_recipe(made: Manifest) -> bool:
        settings = {name: value for name, value in made.settings.items() if name != KEPT}
        uri = storage.join(work, place_in(made.input_manifests["corpus"]), MANIFEST)
        return (
            settings == vocabulary.of_result
            and storage.exists(uri)
            and read_manifest(uri).result_as(CorpusResult).source == source
        )

    newest = newest_manifest(storage.join(work, STAGE), is_of_this_recipe)
    if newest is None or KEPT not in newest.settings:
        return newest
    return read_manifest(storage.join(work, newest.settings[KEPT], MANIFEST))


def _kept_model(folder: str) -> bytes:
    [model] = read_manifest(storage.join(folder, MANIFEST)).shards_of(SPIECE_MODEL)
    return storage.read_bytes(checked(storage.join(folder, model.path)))


def _read_report(folder: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(
        storage.read_bytes(checked(storage.join(folder, "report.json")))
    )
    return report


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
