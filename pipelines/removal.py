"""Receipt for documents that were removed: what they are, and that nothing current holds them.

    python -m pipelines.removal --recipe=R --work=W --examples=MANIFEST [--purge=yes]

Removed are the documents of source files that are gone, those that a changed file has no more,
and those in ``cleaning.excluded_ids``. What only other settings leave out, such as a smaller
sample of the files or stricter rules, is not removed. Which files there were is known from the
lists in the corpora of the work folder.

Everything below the work folder that holds text is looked through: corpora, examples, tasks,
cleaned units and parts. With ``--purge=yes`` what holds a removed document is deleted, except
vocabularies and models, which are named.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.stage import storage
from albert_core.stage.command import NO_RESULT, stage_main
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.lineage import CORPUS, EXAMPLES, SOURCE_FILES, Lineage, Result
from albert_core.stage.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    check_shard,
    digest_of,
    newest_manifest,
    read_manifest,
)
from albert_core.text.arrow_files import open_arrow
from pipelines.clean_unit import UNIT_DONE, ids_of
from pipelines.config import ExampleSettings
from pipelines.examples.pairs import is_held_out
from pipelines.source_files import SourceFile, read_excluded_ids, read_files

ID_COLUMNS = ("id", "document_id", "other_document_id")
OF_REPEATED_ID = "~[0-9a-f]{8}$"
"""The end of a document's id when an earlier document has the same one; see `ids_of`."""


def results_in(work: str, stage: str) -> dict[str, list[str]]:
    """Return the folders and files right below a stage's folder, each with the files in it."""
    folder = storage.join(work, stage)
    results: dict[str, list[str]] = {}
    for uri in files_below(folder):
        first = uri.removeprefix(folder).lstrip("/").partition("/")[0]
        results.setdefault(storage.join(folder, first), []).append(uri)
    return results


def folders_in(work: str, stage: str) -> list[str]:
    """Return the folders right below a stage's folder."""
    folder = storage.join(work, stage)
    entries = storage.list_folder(folder)
    return [storage.join(folder, name_of(e["name"])) for e in entries if e["type"] == "directory"]


def files_below(folder: str, *, passing: bool = False) -> list[str]:
    """Return all files below ``folder``, or itself; only finished or only temporary ones."""
    fs, path = storage.filesystem(folder)
    fs.invalidate_cache()
    inner = (str(file).removeprefix(path).lstrip("/") for file in fs.find(path))
    files = [storage.join(folder, each) if each else folder for each in inner]
    return [file for file in sorted(files) if is_passing(file.removeprefix(folder)) == passing]


def is_passing(uri: str) -> bool:
    """Return whether ``uri`` is, or is in, a temporary file or folder of a process."""
    return any(
        part.startswith(".scratch-") or (part.startswith(".") and part.endswith(".tmp"))
        for part in uri.split("/")
    )


def name_of(uri: str) -> str:
    """Return the last part of ``uri``."""
    return str(uri).rpartition("/")[2]


def batches_of(uri: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file; of any other file, none.

    Raises:
        IntegrityError: it is damaged.
    """
    if uri.endswith(".arrow"):
        try:
            reader = open_arrow(uri)
        except pa.ArrowInvalid as error:
            raise IntegrityError(f"{uri} can't be read: {error}. Delete its folder.") from error
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


def text_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of text, of any total length."""
    return batch.column(name).cast(pa.large_string())


def is_in(values: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return for each value whether it is among ``wanted``."""
    return pc.is_in(values, value_set=wanted)


def without_ending(ids: pa.Array) -> pa.Array:
    """Return the ids as their documents gave them, without `OF_REPEATED_ID`."""
    return pc.replace_substring_regex(ids, OF_REPEATED_ID, "")


NOTHING_REMOVED = NO_RESULT
VERSIONS = "registered_versions"
"""What `flows.affected_versions` adds to a receipt."""
_STAGES = ("task", "examples", "parts", "units", "corpus")
"""Folders with text, in the order of deletion: what tells that a document is removed goes last."""
_DONE = (MANIFEST, UNIT_DONE)
"""What makes a folder whole."""

log = logging.getLogger("removal")


@dataclass(frozen=True)
class Removed:
    """What is looked for."""

    files: pa.Array
    """URIs of source files that are gone."""
    ids: pa.Array
    """Documents that are removed though their file is there, without endings of repeated ids."""
    ids_of_files: pa.Array
    """Documents of ``files``, also those that were only ever dropped."""

    @cached_property
    def documents(self) -> pa.Array:
        """All ids, in order, each once."""
        return _unique([self.ids, self.ids_of_files])

    @cached_property
    def names(self) -> frozenset[str]:
        """What the lists beside the shards tell by: ids and files."""
        return frozenset(self.ids.to_pylist() + self.files.to_pylist())


def run(work: str, examples: str, purge: str = "no") -> str:
    """Write the receipt; return its URI, or `NOTHING_REMOVED`.

    Args:
        work: folder of all results.
        examples: manifest of the examples that are current.
        purge: yes to delete the texts of earlier results that hold a removed document.

    Raises:
        IntegrityError: a removed document is still in a current result, or a shard is not the one
            that was written.
    """
    if purge not in ("yes", "no"):
        raise ConfigError(f"--purge={purge}: give yes or no")
    current = read_manifest(examples)
    made_of = current.input_manifests["corpus"]
    corpus_uri = _current_corpus(work, made_of)
    removed = find_removed(work, corpus_uri)
    if not len(removed.documents) and not len(removed.files):
        return _nothing()
    protected = {_key(uri) for uri in (corpus_uri, made_of, examples)}
    checked = [_check(uri, removed) for uri in (corpus_uri, examples)]
    holding = _still_holding(work, removed, protected)
    if not len(removed.documents) and all(is_passing(name_of(uri)) for uri in holding):
        return _nothing()
    receipt = {
        "documents": removed.documents.to_pylist(),
        "files": removed.files.to_pylist(),
        "in_no_shard_of": checked,
        "earlier_results_with_them": holding,
        "purged": purge == "yes",
        "models_made_of_them": _made_of(work, "pretraining", holding),
        "vocabularies_made_of_them": _made_of(work, "vocab", holding),
    }
    if purge == "yes":
        _write(work, receipt | {"purged": False})  # a killed purge leaves a receipt as well
        for uri in holding:
            _delete(uri)
        receipt["left_after_purge"] = _still_holding(work, removed, protected)
    uri = _write(work, receipt)
    log.info(
        "removal: %d documents are gone from the corpus and its examples; %d earlier results %s; "
        "receipt in %s",
        len(removed.documents),
        len(holding),
        "with them were deleted"
        if purge == "yes"
        else "still hold some (--purge=yes deletes them)",
        uri,
    )
    return uri


def _nothing() -> str:
    log.info("removal: every document of earlier corpora is still there")
    return NOTHING_REMOVED


def find_removed(work: str, corpus_uri: str) -> Removed:
    """Return what was in the source once, by the lists of ``work``'s corpora, and is removed now.

    A file of the same name and content is the same one, wherever it lies, so that a source may
    move. Of a changed file those documents are removed that an earlier corpus has, and no corpus
    of the file as it is now.
    """
    folder = corpus_uri.rpartition("/")[0]
    now = read_files(storage.join(folder, SOURCE_FILES))
    lists = {uri: files for uri, files in _source_lists(work) if name_of(uri) != name_of(folder)}
    gone = {file.uri for file in _not_there(lists, now)}
    now_at = {file.uri: file for file in now} | {file.name: file for file in now}
    versions = [
        (uri, file, as_now)
        for uri, files in [*lists.items(), (folder, now)]
        for file in files
        if file.uri not in gone
        and (as_now := now_at.get(file.uri) or now_at.get(file.name))
        and _is_version_of(file, as_now)
    ]
    changed = {as_now.uri for _, file, as_now in versions if file.sha256 != as_now.sha256}
    before: dict[str, set[str]] = {}
    after: dict[str, set[str]] = {}
    for uri, file, as_now in versions:
        if as_now.uri in changed:
            version = after if file.sha256 == as_now.sha256 else before
            version.setdefault(uri, set()).add(file.uri)
    removed = _ids_in(before)
    if len(removed):
        there = _ids_in(after)
        removed = removed.filter(pc.invert(pc.is_in(removed, value_set=there)))
    files = _strings(sorted(gone))
    of_files = [_ids_of(work, stage, files) for stage in ("corpus", "units") if gone]
    return Removed(
        files=files,
        ids=_unique([removed, _strings(_excluded_ids(read_manifest(corpus_uri)))]),
        ids_of_files=_unique(of_files),
    )


def _current_corpus(work: str, made_of: str) -> str:
    """Return of the corpora with the same documents the one whose list of files is true now.

    Examples name the corpus that they were made of first; a file of duplicates more or less
    makes another corpus, but the same examples.
    """
    content = read_manifest(made_of).content
    uris = [storage.join(folder, MANIFEST) for folder in folders_in(work, "corpus")]
    others = [uri for uri in uris if storage.exists(uri) and _key(uri) != _key(made_of)]
    same = [made_of, *(uri for uri in others if read_manifest(uri).content == content)]
    if len(same) == 1:
        return made_of
    newest = newest_manifest(storage.join(work, "corpus"))

    def rank(uri: str) -> tuple[int, bool]:
        files = read_files(storage.join(uri.rpartition("/")[0], SOURCE_FILES))
        missing = sum(not storage.exists(file.uri) for file in files)
        return missing, newest is None or _key(uri) != newest.key

    return min(same, key=rank)


def _source_lists(work: str) -> Iterator[tuple[str, list[SourceFile]]]:
    for folder in folders_in(work, "corpus"):
        uri = storage.join(folder, SOURCE_FILES)
        if storage.exists(uri):
            yield folder, read_files(uri)


def _not_there(
    lists: Mapping[str, list[SourceFile]], now: list[SourceFile]
) -> Iterator[SourceFile]:
    """Yield the listed files that exist no more, under names that the source has no more."""
    names, uris = {file.name for file in now}, {file.uri for file in now}
    others = {file.uri: file for files in lists.values() for file in files}
    for uri, file in others.items():
        if uri not in uris and file.name not in names and not storage.exists(uri):
            yield file


def _is_version_of(file: SourceFile, now: SourceFile) -> bool:
    """Return whether ``file`` is what ``now`` was, and not a file of another source."""
    return file.uri == now.uri or file.sha256 == now.sha256 or not storage.exists(file.uri)


def _excluded_ids(corpus: Manifest) -> list[str]:
    uri = corpus.settings["cleaning"]["excluded_ids"]
    ids = read_excluded_ids(uri)
    if digest_of(ids) != corpus.inputs["excluded_ids"]:
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} changed after the corpus was made. Refresh it first."
        )
    return ids


def _ids_in(sources: Mapping[str, set[str]]) -> pa.Array:
    """Return the ids of the documents in ``sources``: folder -> URIs of files."""
    found = [
        ids
        for folder, uris in sources.items()
        for file in files_below(folder)
        for ids in _ids_from(file, _strings(sorted(uris)))
    ]
    return _unique(found)


def _ids_of(work: str, stage: str, sources: pa.Array) -> pa.Array:
    files = [file for files in results_in(work, stage).values() for file in files]
    return _unique([ids for file in files for ids in _ids_from(file, sources)])


def _ids_from(uri: str, sources: pa.Array) -> Iterator[pa.Array]:
    """Yield the ids of the documents in an Arrow file that are of ``sources``."""
    for batch in batches_of(uri):
        if "source" in batch.schema.names:
            is_wanted = is_in(text_column(batch, "source"), sources)
            yield pc.unique(without_ending(text_column(batch, "id").filter(is_wanted)))


def _check(manifest_uri: str, removed: Removed) -> dict[str, Any]:
    """Look through every file; a TFRecord shard has the rows of its Arrow twin and no ids."""
    folder, manifest = manifest_uri.rpartition("/")[0], read_manifest(manifest_uri)
    for shard in manifest.shards:
        check_shard(shard, folder)
    for uri in files_below(folder):
        if _holds(uri, removed):
            raise IntegrityError(
                f"{uri} holds a removed document. This is a defect of the stage "
                f"{manifest.stage}: delete {folder} and run it again."
            )
    arrow = [shard for shard in manifest.shards if shard.path.endswith(".arrow")]
    return {
        "manifest": manifest_uri,
        "content": manifest.content,
        "num_shards": len(manifest.shards),
        "num_rows": sum(shard.num_rows for shard in arrow),
    }


def _still_holding(work: str, removed: Removed, protected: set[str]) -> list[str]:
    """Return the results in which a removed document is or may be, in the order of deletion.

    Args:
        work: folder of all results.
        removed: what is looked for.
        protected: keys of the results that are current.
    """
    found: list[str] = []
    for stage in _STAGES[1:]:
        for uri, files in results_in(work, stage).items():
            if name_of(uri) in protected:  # its shards hold none; a list beside them may
                found += [file for file in files if _holds(file, removed)]
            elif any(_holds(file, removed) for file in files) or _has_lone_tfrecord(files):
                found.append(uri)
    sources = {name_of(uri) for uri in found}
    tasks = [uri for uri in folders_in(work, "task") if _may_be_made_of(work, uri, sources)]
    return [*_passing(work), *tasks, *found]


def _holds(uri: str, removed: Removed) -> bool:
    if uri.endswith(".arrow"):
        return any(_has_row(batch, removed) for batch in batches_of(uri))
    if uri.endswith(".jsonl") and name_of(uri) != SOURCE_FILES:
        return _has_line(uri, removed)
    return False


def _has_row(batch: pa.RecordBatch, removed: Removed) -> bool:
    names = batch.schema.names
    has_source = "source" in names
    wanted = removed.ids if has_source else removed.documents
    if has_source and pc.any(is_in(text_column(batch, "source"), removed.files)).as_py():
        return True
    for name in ID_COLUMNS:
        if name in names and len(wanted):
            ids = text_column(batch, name)
            if has_source:  # without one: a fingerprint of another work folder's document
                ids = ids.filter(pc.is_valid(batch.column("source")))
            if any(pc.any(is_in(i, wanted)).as_py() for i in (ids, without_ending(ids))):
                return True
    return "content_hash" in names and _has_renamed(batch, wanted)


def _has_renamed(batch: pa.RecordBatch, wanted: pa.Array) -> bool:
    """Return whether a document of a unit is one that the corpus has under another id."""
    renamed = wanted.filter(pc.match_substring_regex(wanted, OF_REPEATED_ID))
    if not len(renamed):
        return False
    rows = batch.filter(is_in(text_column(batch, "id"), without_ending(renamed)))
    pairs = zip(rows["id"].to_pylist(), rows["content_hash"].to_pylist(), strict=True)
    ids = {ids_of(document_id, hashed)[1] for document_id, hashed in pairs}
    return not ids.isdisjoint(renamed.to_pylist())


def _has_line(uri: str, removed: Removed) -> bool:
    """Look through a list of unreadable records, or of overlaps with test sets."""
    fs, path = storage.filesystem(uri)
    with fs.open(path, "rb") as lines:
        for line in lines:
            entry = json.loads(line)
            told = (entry.get(key) for key in ("file", "source", "document"))
            if not removed.names.isdisjoint(told):
                return True
    return False


def _has_lone_tfrecord(files: list[str]) -> bool:
    """Return whether there is a TFRecord file without the Arrow file that tells what it holds."""
    ending = ".tfrecord"
    return any(
        file.endswith(ending) and file.removesuffix(ending) + ".arrow" not in files
        for file in files
    )


def _may_be_made_of(work: str, task: str, sources: set[str]) -> bool:
    """Return whether a task has sentences of ``sources``, or of what is gone; it names no ids."""
    uri = storage.join(task, MANIFEST)
    if not storage.exists(uri):
        return True
    inputs = read_manifest(uri).input_manifests
    return any(
        _key(made_of) in sources
        or not (
            storage.exists(made_of)
            or storage.exists(storage.join(work, stage, _key(made_of), MANIFEST))
        )
        for stage, made_of in inputs.items()
    )


def _made_of(work: str, stage: str, holding: list[str]) -> list[str]:
    """Return the manifests of a stage that are made of ``holding``, or of another such one."""
    sources = {name_of(uri) for uri in holding}
    uris = [storage.join(folder, MANIFEST) for folder in folders_in(work, stage)]
    inputs = {
        uri: {_key(made_of) for made_of in read_manifest(uri).input_manifests.values()}
        for uri in uris
        if storage.exists(uri)
    }
    found: dict[str, None] = {}
    while more := [u for u in inputs if u not in found and not sources.isdisjoint(inputs[u])]:
        found |= dict.fromkeys(more)
        sources |= {_key(uri) for uri in more}
    return [uri for uri in inputs if uri in found]


def _delete(uri: str) -> None:
    """Delete a result: first what makes it whole, last what tells that it must go."""
    if is_passing(name_of(uri)):
        storage.remove_abandoned(uri.rpartition("/")[0])
        return
    for name in _DONE:
        storage.remove(storage.join(uri, name))
    for file in files_below(uri):
        if name_of(file) != SOURCE_FILES:
            storage.remove(file)
    storage.remove(uri)


def _write(work: str, receipt: dict[str, Any]) -> str:
    """Write the receipt, unless one is there that says the same or that nothing was left."""
    what = [
        receipt["documents"],
        receipt["files"],
        sorted(checked["content"] for checked in receipt["in_no_shard_of"]),
    ]
    uri = storage.join(work, "receipts", f"removal-{digest_of(what)[:16]}.json")
    if storage.exists(uri):
        before = json.loads(storage.read_bytes(uri))
        before.pop("written")
        before.pop(VERSIONS, None)
        is_clean = before.get("left_after_purge") == []
        if before == receipt or (is_clean and not receipt["earlier_results_with_them"]):
            return uri
    written = {"written": datetime.now(UTC).isoformat(timespec="seconds"), **receipt}
    storage.write_bytes(uri, (json.dumps(written, indent=1) + "\n").encode())
    return uri


def _passing(work: str) -> list[str]:
    """Return temporary files and scratch folders: they may hold any text."""
    found: dict[str, None] = {}
    for stage in (*_STAGES, "vocab"):
        folder = storage.join(work, stage)
        for file in files_below(folder, passing=True):
            parts = file.removeprefix(folder).lstrip("/").split("/")
            end = next(i for i, part in enumerate(parts, 1) if is_passing(part))
            found[storage.join(folder, *parts[:end])] = None
    return list(found)


def _key(uri: str) -> str:
    """Return the name of the folder that a manifest is in: the same in every moved work folder."""
    return uri.split("/")[-2]


def _strings(values: list[str]) -> pa.Array:
    return pa.array(values, pa.large_string())


def _unique(arrays: Iterable[pa.Array]) -> pa.Array:
    """Return the values in order, each once; of any total length."""
    return pc.unique(pa.chunked_array(list(arrays), pa.large_string())).drop_null().sort()


@dataclass(frozen=True)
class Occurrence:
    """Rows of one shard that have text of a document."""

    place: str
    """Of the result: stage and key."""
    uri: str
    kind: str
    """Of the shard."""
    rows: list[int]
    """In the shard, from 0."""
    first_row: int
    """Of the shard, among all rows of its kind."""


def find_document(document_id: str, lineage: Lineage) -> list[Occurrence]:
    """Return where the document is in the corpora and the examples, by looking through them.

    Raises:
        IntegrityError: a shard is damaged.
    """
    return [
        occurrence
        for stage in (CORPUS, EXAMPLES)
        for result in lineage.of_stage(stage)
        for occurrence in _in_result(document_id, result)
    ]


def may_be_in_task(document_id: str, task: Result, lineage: Lineage) -> bool:
    """Return whether a generated task may have sentences of a document that its corpus has.

    Its rows name no documents; it takes of those that its examples hold out.
    """
    examples = [lineage.results[place] for place in task.inputs if place in lineage.results]
    settings = [each.manifest.settings for each in examples if each.manifest.stage == EXAMPLES]
    if not settings:
        return True
    return any(is_held_out(document_id, ExampleSettings(**each)) for each in settings)


def _in_result(document_id: str, result: Result) -> Iterator[Occurrence]:
    first_row = dict.fromkeys((shard.kind for shard in result.manifest.shards), 0)
    for shard in result.manifest.shards:
        uri = storage.join(result.folder, shard.path)
        if rows := _rows(document_id, shard, uri):
            yield Occurrence(result.place, uri, shard.kind, rows, first_row[shard.kind])
        first_row[shard.kind] += shard.num_rows


def _rows(document_id: str, shard: Shard, uri: str) -> list[int]:
    if not (shard.path.endswith(".arrow") and storage.exists(uri)):
        return []
    wanted, rows, begin = pa.array([document_id], pa.large_string()), [], 0
    for batch in batches_of(uri):
        columns = [name for name in ID_COLUMNS if name in batch.schema.names]
        masks = [is_in(text_column(batch, name), wanted) for name in columns]
        found = {row.as_py() for mask in masks for row in pc.indices_nonzero(mask)}
        rows += [begin + row for row in sorted(found)]
        begin += batch.num_rows
    return rows


if __name__ == "__main__":
    stage_main(run)
