"""Receipt for documents that are in the corpus no more: where they were, and that they are gone.

    python -m pipelines.removal --recipe=R --work=W --examples=MANIFEST [--purge=yes]

Compares the corpus that the examples were made of with all earlier ones of the same work folder
and source. For the documents that are gone it looks through every shard of the corpus and of the
examples, and names what earlier results and models still hold them. With ``--purge=yes`` it
deletes those results' texts (not the models).
"""

import json
import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.contract import storage
from albert_core.contract.arrow_files import open_arrow
from albert_core.contract.errors import ConfigError, IntegrityError
from albert_core.contract.manifest import (
    MANIFEST,
    Manifest,
    check_shard,
    digest_of,
    read_manifest,
)
from albert_core.contract.stage_command import stage_main

NOTHING_REMOVED = "none"
_ID_COLUMNS = ("id", "document_id", "other_document_id")

log = logging.getLogger("removal")


def run(work: str, examples: str, purge: str = "no") -> str:
    """Write the receipt; return its URI, or `NOTHING_REMOVED`.

    Args:
        work: folder of all results.
        examples: manifest of the examples that are current.
        purge: yes to delete the texts of earlier results that hold a removed document.

    Raises:
        IntegrityError: a removed document is still in a current shard, or a shard is not the one
            that was written.
    """
    if purge not in ("yes", "no"):
        raise ConfigError(f"--purge={purge}: give yes or no")
    current = read_manifest(examples)
    corpus_uri = current.input_manifests["corpus"]
    corpus = read_manifest(corpus_uri)
    earlier = [
        (uri, manifest)
        for uri, manifest in _manifests(work, "corpus")
        if manifest.content != corpus.content and manifest.facts["source"] == corpus.facts["source"]
    ]
    removed = _removed_ids(earlier, _ids(corpus_uri, corpus))
    if not len(removed):
        log.info("removal: every document of earlier corpora is still there")
        return NOTHING_REMOVED
    checked = [_check(uri, m, removed) for uri, m in ((corpus_uri, corpus), (examples, current))]
    current_folders = {corpus_uri.rpartition("/")[0], examples.rpartition("/")[0]}
    holding = _still_holding(work, removed, current_folders)
    receipt = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "documents": removed.to_pylist(),
        "in_no_shard_of": checked,
        "earlier_results_with_them": sorted(holding),
        "purged": purge == "yes",
        "models_made_of_them": sorted(_models(work, holding)),
    }
    if purge == "yes":
        for folder in holding:
            storage.remove(folder)
        receipt["left_after_purge"] = sorted(_still_holding(work, removed, current_folders))
    name = digest_of(receipt)[:16]
    uri = storage.join(work, "receipts", f"removal-{name}.json")
    storage.write_bytes(uri, (json.dumps(receipt, indent=1) + "\n").encode())
    log.info(
        "removal: %d documents are gone from the corpus and its examples; %d earlier results %s; "
        "receipt in %s",
        len(removed),
        len(holding),
        "with them were deleted"
        if purge == "yes"
        else "still hold some (--purge=yes deletes them)",
        uri,
    )
    return uri


def _removed_ids(earlier: Iterable[tuple[str, Manifest]], present: pa.Array) -> pa.Array:
    gone = [
        ids.filter(pc.invert(pc.is_in(ids, value_set=present)))
        for uri, manifest in earlier
        for ids in [_ids(uri, manifest)]
    ]
    return pc.unique(pa.concat_arrays(gone)).sort() if gone else pa.array([], pa.string())


def _ids(manifest_uri: str, corpus: Manifest) -> pa.Array:
    folder = manifest_uri.rpartition("/")[0]
    batches = [
        ids
        for shard in corpus.shards_of("documents")
        for ids in _id_batches(storage.join(folder, shard.path))
    ]
    return pa.concat_arrays(batches) if batches else pa.array([], pa.string())


def _id_batches(uri: str) -> Iterator[pa.Array]:
    """Yield the document ids of an Arrow file, column by column and batch by batch."""
    reader = open_arrow(uri)
    columns = [name for name in _ID_COLUMNS if name in reader.schema.names]
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        for name in columns:
            yield batch.column(name).cast(pa.string()).drop_null()


def _holds(uri: str, removed: pa.Array) -> bool:
    return any(pc.any(pc.is_in(ids, value_set=removed)).as_py() for ids in _id_batches(uri))


def _check(manifest_uri: str, manifest: Manifest, removed: pa.Array) -> dict[str, Any]:
    """Look through every shard; a TFRecord shard has the rows of its Arrow twin and no ids."""
    folder = manifest_uri.rpartition("/")[0]
    for shard in manifest.shards:
        check_shard(shard, folder)
        uri = storage.join(folder, shard.path)
        if shard.path.endswith(".arrow") and shard.kind != "rejected" and _holds(uri, removed):
            raise IntegrityError(
                f"{uri} holds a document that is in the corpus no more. This is a defect of the "
                f"stage {manifest.stage}: delete {folder} and run it again."
            )
    return {
        "manifest": manifest_uri,
        "content": manifest.content,
        "num_shards": len(manifest.shards),
        "num_rows": sum(shard.num_rows for shard in manifest.shards),
    }


def _still_holding(work: str, removed: pa.Array, current: set[str]) -> list[str]:
    """Return the folders and files of earlier results in which a removed document is."""
    found = []
    for stage in ("corpus", "examples", "units", "parts"):
        for entry in storage.list_folder(storage.join(work, stage)):
            uri = storage.join(work, stage, str(entry["name"]).rsplit("/", 1)[-1])
            if uri not in current and any(_holds(file, removed) for file in _arrow_files(uri)):
                found.append(uri)
    return found


def _arrow_files(uri: str) -> list[str]:
    fs, path = storage.filesystem(uri)
    files = fs.find(path) if fs.isdir(path) else [path]
    return [str(fs.unstrip_protocol(file)) for file in files if str(file).endswith(".arrow")]


def _models(work: str, holding: list[str]) -> list[str]:
    """Return the pretraining results whose examples are among ``holding``."""
    return [
        uri
        for uri, manifest in _manifests(work, "pretraining")
        if manifest.input_manifests.get("examples", "").rpartition("/")[0] in holding
    ]


def _manifests(work: str, stage: str) -> Iterator[tuple[str, Manifest]]:
    for entry in storage.list_folder(storage.join(work, stage)):
        uri = storage.join(work, stage, str(entry["name"]).rsplit("/", 1)[-1], MANIFEST)
        if storage.exists(uri):
            yield uri, read_manifest(uri)


if __name__ == "__main__":
    stage_main(run)
