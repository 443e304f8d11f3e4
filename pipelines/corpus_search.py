"""Looks for the n-grams of downstream sets in the shards of a corpus, on Beam's workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from albert_core.contract import storage
from albert_core.contract.arrow_files import read_arrow, write_arrow
from albert_core.contract.loaded_once import loaded_once
from albert_core.contract.manifest import (
    Manifest,
    Shard,
    check_shard,
)
from albert_core.tasks.examples import Examples
from pipelines.decontamination import TestNgrams, ngram_hashes, shared_ngrams
from pipelines.engine import run_pipeline
from pipelines.example_overlaps import parts_of
from pipelines.progress import Progress, report_done

STAGE = "contamination"


@dataclass(frozen=True)
class CorpusSearch:
    """Looks for the n-grams of downstream sets in the shards of a corpus."""

    corpus_folder: str
    num_words: int
    """In an n-gram."""
    scratch: str
    """A folder for passing files."""

    @property
    def wanted(self) -> str:
        """URI of the n-grams to look for."""
        return storage.join(self.scratch, "wanted.arrow")

    def run(self, corpus: Manifest, sets: Sequence[Examples]) -> list[dict[str, Any]]:
        """Search all shards; return of each its documents and where its n-grams are written."""
        texts = (text for each in sets for part in parts_of(each) for text in part.texts)
        _write_ngrams(ngram_hashes(list(texts), self.num_words), self.wanted)
        shards = corpus.shards_of("documents")
        notes = storage.join(self.scratch, "progress")
        progress = Progress(STAGE, notes, sum(shard.num_bytes for shard in shards))
        numbered = sorted(enumerate(shards), key=lambda each: -each[1].num_bytes)
        return run_pipeline(SearchCorpus(self).expand, numbered, self.scratch, progress)

    def found(self, reports: Sequence[dict[str, Any]]) -> NDArray[np.uint64]:
        """Return the n-grams found in any shard, ascending, each once."""
        arrays = [read_arrow(report["found"])["ngram"].to_numpy() for report in reports]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *arrays]))

    def search_shard(self, numbered: tuple[int, Shard]) -> tuple[int, dict[str, Any]]:
        """Write the wanted n-grams that are in one shard."""
        number, shard = numbered
        check_shard(shard, self.corpus_folder)
        texts = read_arrow(storage.join(self.corpus_folder, shard.path))["text"].to_pylist()
        uri = storage.join(self.scratch, "found", f"{number:06d}.arrow")
        _write_ngrams(shared_ngrams(texts, _look_up(self.wanted), self.num_words), uri)
        report_done(
            storage.join(self.scratch, "progress"),
            f"{number:06d}",
            num_bytes=shard.num_bytes,
            num_documents=len(texts),
            num_files=1,
        )
        return number, {"found": uri, "documents": len(texts)}


class SearchCorpus(beam.PTransform):
    """PCollection[(number, Shard)] -> PCollection[(number, what was found in it)]."""

    def __init__(self, search: CorpusSearch) -> None:
        super().__init__()
        self.search = search

    def expand(
        self, shards: PCollection[tuple[int, Shard]]
    ) -> PCollection[tuple[int, dict[str, Any]]]:
        """Look for the n-grams in each shard."""
        return shards | "Search" >> beam.Map(self.search.search_shard)


def _write_ngrams(ngrams: NDArray[np.uint64], uri: str) -> None:
    write_arrow(pa.table({"ngram": ngrams}), uri)


@loaded_once
def _look_up(uri: str) -> TestNgrams:
    return TestNgrams.of(read_arrow(uri)["ngram"].to_numpy())
