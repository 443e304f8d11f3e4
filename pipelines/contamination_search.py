"""The search of the stage `contamination`: which n-grams of downstream sets a corpus contains.

Only n-grams of the downstream sets travel to the workers, and only those found there come back.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.loaded_once import loaded_once
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.seeds import UInt64s
from pipelines.corpus.overlaps import NgramIndex, ngram_hashes, shared_ngrams
from pipelines.corpus_shards import each_shard


def find_ngrams(
    corpus: str, texts: Iterable[str], num_words: int, scratch: str
) -> tuple[NgramIndex, int]:
    """Return the n-grams of ``texts`` that a corpus contains, and how many documents it has.

    Args:
        corpus: URI of its manifest.
        texts: of the downstream sets.
        num_words: words in an n-gram.
        scratch: a folder that the workers can write to.
    """
    wanted = storage.join(scratch, "wanted.arrow")
    _write_ngrams(ngram_hashes(list(texts), num_words), wanted)
    what = "contamination"
    reports = each_shard(
        _search_shard, wanted, num_words, scratch, corpus=corpus, what=what, scratch=scratch
    )
    found = [_read_ngrams(report["found"]) for report in reports]
    ngrams = np.unique(np.concatenate([np.empty(0, np.uint64), *found]))
    return NgramIndex.of(ngrams), sum(report["documents"] for report in reports)


def _search_shard(
    documents: pa.Table, name: str, wanted: str, num_words: int, scratch: str
) -> dict[str, Any]:
    """Write the wanted n-grams that are in one shard."""
    texts = documents["text"].to_pylist()
    uri = storage.join(scratch, "found", f"{name}.arrow")
    _write_ngrams(shared_ngrams(texts, _look_up(wanted), num_words), uri)
    return {"found": uri, "documents": len(texts)}


def _write_ngrams(ngrams: UInt64s, uri: str) -> None:
    write_arrow(pa.table({"ngram": ngrams}), uri)


def _read_ngrams(uri: str) -> UInt64s:
    ngrams: UInt64s = read_arrow(uri)["ngram"].to_numpy()
    return ngrams


@loaded_once
def _look_up(uri: str) -> NgramIndex:
    return NgramIndex.of(_read_ngrams(uri))
