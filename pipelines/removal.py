"""Stage: the receipt for removed documents, which proves that no current result holds them.

    python -m pipelines.removal --recipe=R --work=W --corpus=MANIFEST --examples=MANIFEST \
        [--purge=yes]

A document is removed if its source file is gone, if its changed file no longer has it, or if it is
in ``cleaning.excluded_ids``. A changed file has a document if it has its id, or, for one that is
named after its position or has the id of another, its content. Documents that only other settings
leave out, such as a smaller sample of the files or stricter rules, or that now repeat another one,
are not removed. The lists in the corpora of the work folder, of any source, tell which files there
were, and so do the cleaned units that no corpus names.

Everything below the work folder that holds text is searched: corpora, examples, tasks, the minimal
pairs beside zero-shot scores, cleaned units and parts. With ``--purge=yes`` results that hold a
removed document are deleted, but not vocabularies and models: the receipt names those, also
unfinished models, and apart those of which nobody can tell, because the text that they were made of
is gone.
"""

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.stage import manifest as manifests
from albert_core.stage import storage
from albert_core.stage.command import NO_RESULT, stage_main
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.lineage import Lineage, Result, place_in, read_made_with, read_work
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest
from albert_core.stage.results import (
    CORPUS,
    EXAMPLES,
    MODEL_RESULTS,
    PARTS,
    RECEIPTS,
    SOURCE_FILES,
    TASK,
    UNIT_DONE,
    UNITS,
    VOCAB,
    ZERO_SHOT,
    CorpusResult,
)
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import Document
from pipelines.clean_unit import records_of, repeated_id
from pipelines.config import ExampleSettings, SourceSettings
from pipelines.corpus.cleaning import content_hash, normalise_texts
from pipelines.examples.held_out import is_held_out
from pipelines.readers.record import names_in
from pipelines.source_files import (
    SourceFile,
    SourceRange,
    read_excluded_ids,
    read_files,
    roots_of,
)

NOTHING_REMOVED = NO_RESULT
MAY_BE_MADE_OF_THEM = "may_be_made_of_them"
"""Field of a receipt: vocabularies and models that were made of text that is gone."""
VERSIONS = "registered_versions"
"""Field that `flows.commands.document_trace` adds to a receipt."""
ID_COLUMNS = ("id", "document_id", "other_document_id")
_REPEATED_ID = "~[0-9a-f]{8}$"
"""How a document's id ends when an earlier document has the same one; see `repeated_id`."""
_POSITION = r"#(?:row-\d+|@\d+)$"
"""How the id ends of a document without one of its own."""
_HOLDERS = (EXAMPLES, PARTS, UNITS, CORPUS)
"""Folders with text and ids, in the order of deletion: the lists that tell which files there were
are deleted last."""
_WITHOUT_IDS = (TASK, ZERO_SHOT)
"""Folders with text and no ids, each made of those before it."""
_TEMPORARY = re.compile(rf"(?:^|/)(?:{manifests.DAMAGED}|\.scratch-[^/]*|\.[^/]*\.tmp)(?=/|$)")
"""Temporary files, scratch folders, folders of damaged results, and everything in them."""

log = logging.getLogger("removal")


@dataclass(frozen=True)
class Removed:
    """Removed documents and files, which are searched for."""

    files: pa.Array
    """URIs of source files that are gone."""
    ids: pa.Array
    """Documents that are removed although their file still exists; as `repeated_id`, where the id
    alone may be that of another document."""
    doubtful: pa.Array
    """The latter without the hash: examples have these alone."""
    ids_of_files: pa.Array
    """Documents of ``files``, also those that were never in a corpus, without endings of repeated
    ids."""

    not_found: pa.Array
    """Excluded ids that no document of the source has, and no result of the work folder."""

    @cached_property
    def documents(self) -> pa.Array:
        """All ids, sorted, each once."""
        return _unique([self.ids, self.ids_of_files])

    @cached_property
    def names(self) -> frozenset[str]:
        """Ids and files: the lists beside the shards name documents by either."""
        return frozenset(self.ids.to_pylist() + self.files.to_pylist())


@dataclass(frozen=True)
class Changes:
    """How the source differs from what earlier corpora list."""

    gone: list[str]
    """URIs of files that no longer exist, sorted."""
    before: dict[str, dict[str, SourceFile]] = field(default_factory=lambda: defaultdict(dict))
    """Corpus folder -> the changed files of which it has another version -> the current one."""
    after: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Corpus folder -> the changed files that it has in their current version."""


def run(work: str, corpus: str, examples: str, purge: str = "no") -> str:
    """Write the receipt; return its URI, or `NOTHING_REMOVED`.

    Args:
        work: folder of all results.
        corpus: manifest of the current corpus. Examples name the one that they were first made of;
            a file of duplicates that is added or removed gives another, but the same examples.
        examples: manifest of the current examples.
        purge: yes to delete the texts of earlier results that hold a removed document.

    Raises:
        IntegrityError: a removed document is still in a current result, or a shard is not the one
            that was written.
    """
    if purge not in ("yes", "no"):
        raise ConfigError(f"--purge={purge}: give yes or no")
    removed = find_removed(work, corpus)
    if not len(removed.documents) and not len(removed.files):
        return _nothing()
    everything = read_work(work, begun=True)
    lineage = Lineage(each for each in everything.results.values() if each.is_finished)
    made_of = read_manifest(examples).input_manifests[CORPUS]
    current = {place_in(uri) for uri in (corpus, made_of, examples)}
    checked = [_check(uri, removed) for uri in (corpus, examples)]
    holding = _holding(work, removed, current, lineage)
    if not len(removed.documents) and all(_TEMPORARY.search(_name_of(uri)) for uri in holding):
        return _nothing()
    certain, possible = _made_of(holding, everything)
    vocabularies = [each for each in certain if each.manifest.stage == VOCAB]
    models = [each for each in certain if each.manifest.stage != VOCAB]
    receipt = {
        "documents": removed.documents.to_pylist(),
        "files": removed.files.to_pylist(),
        "excluded_ids_not_found": removed.not_found.to_pylist(),
        "in_no_shard_of": checked,
        "earlier_results_with_them": holding,
        "purged": purge == "yes",
        "models_made_of_them": [model.uri for model in models],
        "vocabularies_made_of_them": [each.uri for each in vocabularies],
        MAY_BE_MADE_OF_THEM: [each.uri for each in possible],
    }
    if purge == "yes":
        _write(work, receipt | {"purged": False})  # a purge that is killed leaves a receipt too
        for uri in holding:
            _delete(uri)
        receipt["left_after_purge"] = _holding(work, removed, current, read_work(work))
    uri = _write(work, receipt)
    for model in models:
        if not model.is_finished:
            log.warning("removal: %s, an unfinished training, is of removed documents", model.uri)
    became = "were deleted" if purge == "yes" else "still hold some (--purge=yes deletes them)"
    log.info(
        "removal: %d documents are gone from the corpus and its examples; %d earlier results with "
        "them %s; receipt in %s",
        *(len(removed.documents), len(holding), became, uri),
    )
    return uri


def find_done(work: str, corpus: str, examples: str) -> str | None:
    """Return `NOTHING_REMOVED` if the lists of files show that; None if texts must be searched."""
    changes = _changes(work, corpus)
    if changes.gone or changes.before or _excluded_ids(read_manifest(corpus)):
        return None
    return _nothing()


def _nothing() -> str:
    log.info("removal: no document of earlier corpora is known to be removed")
    return NOTHING_REMOVED


def find_removed(work: str, corpus: str) -> Removed:
    """Return what the corpora of ``work`` list and the source no longer has.

    A document of a changed file is removed if an earlier corpus has it, and neither a corpus of the
    file's current version nor that version itself, of which cleaning may leave it out.

    Args:
        work: folder of all results.
        corpus: manifest of the current corpus.

    Raises:
        SourceError: a changed file can't be read now.
    """
    changes, current = _changes(work, corpus), read_manifest(corpus)
    source = SourceSettings(**current.settings["source"])
    ids = _unique(_text(batch, "id") for batch in _documents_in(changes.before))
    is_doubtful = pc.or_(
        pc.match_substring_regex(ids, _POSITION),
        pc.is_in(_without_ending(ids), value_set=_without_ending(_with_ending(ids))),
    )
    named, doubtful = _without_ending(ids.filter(pc.invert(is_doubtful))), ids.filter(is_doubtful)
    if len(named):
        there = [_without_ending(_text(batch, "id")) for batch in _documents_in(changes.after)]
        named = _not_in(named, _unique(there))
        now = (re.sub(_REPEATED_ID, "", each.id) for each in _read_now(changes, named, source))
        named = _not_in(named, _strings(frozenset(named.to_pylist()).intersection(now)))
    by_content = _strings(_no_longer_there(changes, doubtful, source))
    excluded = _strings(_excluded_ids(current))
    unknown = _strings(current.result_as(CorpusResult).excluded_ids_not_found)
    not_found = _not_in(unknown, _ids_in(work, unknown)) if len(unknown) else unknown
    gone = _strings(changes.gone)
    stages = (CORPUS, UNITS) if gone else ()
    of_gone = _documents_in({storage.join(work, stage): changes.gone for stage in stages})
    return Removed(
        files=gone,
        ids=_unique([named, by_content, _not_in(excluded, not_found)]),
        doubtful=_without_ending(by_content),
        ids_of_files=_unique(_without_ending(_text(batch, "id")) for batch in of_gone),
        not_found=not_found,
    )


def _ids_in(work: str, wanted: pa.Array) -> pa.Array:
    """Return those of the ids that documents of the work folder have."""
    files = (uri for stage in _HOLDERS for uri in _finished_below(storage.join(work, stage)))
    return _unique(
        ids.filter(pc.is_in(ids, wanted))
        for batch in (batch for uri in files for batch in _batches_of(uri))
        for name in set(ID_COLUMNS).intersection(batch.schema.names)
        for ids in [_text(batch, name)]
    )


def _read_now(changes: Changes, ids: pa.Array, source: SourceSettings) -> Iterator[Document]:
    """Yield all documents of the current version of each changed file that had one of ``ids``.

    An emptied file is a document too, but not the one that it was.

    Args:
        changes: how the source differs from earlier corpora.
        ids: ids, without endings of repeated ids.
        source: how the files are read.
    """
    files: dict[str, SourceFile] = {}
    for folder, versions in changes.before.items() if len(ids) else ():
        for batch in _documents_in({folder: versions}):
            rows = batch.filter(pc.is_in(_without_ending(_text(batch, "id")), ids))
            found = (versions[uri] for uri in pc.unique(rows["source"]).to_pylist())
            files |= {file.uri: file for file in found}
    for record in records_of(map(SourceRange, files.values()), source):
        if isinstance(record, Document) and record.text.strip():
            yield record


def _no_longer_there(changes: Changes, doubtful: pa.Array, source: SourceSettings) -> set[str]:
    """Return the ids, with the hash of the content, of documents whose content no file has now.

    Args:
        changes: how the source differs from earlier corpora.
        doubtful: ids in the corpora of documents of its changed files that may be another's.
        source: how the files are read.
    """
    if not len(doubtful):
        return set()
    there = {hashed for batch in _documents_in(changes.after) for _, hashed in _hashed(batch)}
    gone = {
        (document_id, hashed): _letters(text)
        for batch in _documents_in(changes.before)
        for rows in [batch.filter(pc.is_in(_text(batch, "id"), doubtful))]
        for (document_id, hashed), text in zip(_hashed(rows), rows["text"].to_pylist(), strict=True)
        if hashed not in there
    }
    ids = _unique([_strings(document_id for document_id, _ in gone)])
    there_now = frozenset(gone.values()).intersection(
        _letters(*normalise_texts([each.text], lines_are_sentences=[each.lines_are_sentences]))
        for each in _read_now(changes, ids, source)
    )
    return {repeated_id(*which) for which, letters in gone.items() if letters not in there_now}


def _letters(text: str) -> bytes:
    """Return a hash of a text without its white space: only what is kept is cut into sentences."""
    return content_hash("".join(text.split()))


def _hashed(documents: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """Yield each document's id, as it gave it, and the hash of its content."""
    ids = _without_ending(_text(documents, "id")).to_pylist()
    if "content_hash" in documents.schema.names:
        return zip(ids, documents["content_hash"].to_pylist(), strict=True)
    return zip(ids, map(content_hash, documents["text"].to_pylist()), strict=True)


def _changes(work: str, corpus: str) -> Changes:
    """Return which files are gone, or changed, since earlier corpora of ``work`` were made.

    A file with the same name and content is the same one, wherever it lies, so that a source may
    be moved.
    """
    folder = _folder_of(corpus)
    now = read_files(storage.join(folder, SOURCE_FILES))
    others = {*storage.list_names(storage.join(work, CORPUS))} - {_name_of(folder)}
    lists = (storage.join(work, CORPUS, name, SOURCE_FILES) for name in sorted(others))
    earlier = {_folder_of(uri): read_files(uri) for uri in lists if storage.exists(uri)}
    now_at = {file.uri: file for file in now} | {file.name: file for file in now}
    listed = (file for files in earlier.values() for file in files)
    missing = _missing(work, [*_left_over(work, [folder, *earlier]), *listed], now)
    changes = Changes(sorted(uri for uri, file in missing.items() if file.name not in now_at))
    versions = [
        (uri, file, current)
        for uri, files in [*earlier.items(), (folder, now)]
        for file in files
        if (current := now_at.get(file.uri) or now_at.get(file.name))
        # What it was, and not a file of another source.
        and (file.uri == current.uri or file.sha256 == current.sha256 or file.uri in missing)
    ]
    changed = {current.uri for _, file, current in versions if file.sha256 != current.sha256}
    for uri, file, current in versions:
        if current.uri in changed:
            if file.sha256 == current.sha256:
                changes.after[uri].add(file.uri)
            else:
                changes.before[uri][file.uri] = current
    return changes


def _left_over(work: str, corpora: Iterable[str]) -> Iterator[SourceFile]:
    """Yield the source files of units that no corpus names, as killed runs leave; without sizes."""
    named = set[str]().union(*map(read_made_with, corpora))
    units = storage.join(work, UNITS)
    others = (name for name in storage.list_names(units) if f"{UNITS}/{name}" not in named)
    files = (uri for name in others for uri in _finished_below(storage.join(units, name)))
    for batch in (batch for uri in files for batch in _batches_of(uri)):
        rows = pa.table({"uri": _text(batch, "source"), "id": _text(batch, "id")}).drop_null()
        for row in rows.group_by("uri").aggregate([("id", "one")]).to_pylist():
            name = max(filter(row["uri"].endswith, names_in(row["id_one"])), key=len, default="")
            yield SourceFile(row["uri"], name, 0, "")


def _missing(
    work: str, earlier: Collection[SourceFile], now: Collection[SourceFile]
) -> dict[str, SourceFile]:
    """Return the files, by URI, that surely are no longer where they were.

    A disk that is not mounted, or a store that is away, shows none either. So the root of their
    source must be there and hold something, unless the source has moved. A web server tells of each
    file. A warning counts the files of which nothing is known.
    """
    uris, contents = {file.uri for file in now}, {(file.name, file.sha256) for file in now}
    others = [file for file in earlier if file.uri not in uris]
    sought = {file.uri: file for file in others if (file.name, file.sha256) not in contents}
    is_there = {uri: storage.is_there(uri, as_file=True) for uri in sought}
    if all(is_there.values()):
        return {}
    corpora = read_work(work, stages=[CORPUS]).of_stage(CORPUS)
    sources = [corpus.manifest.result_as(CorpusResult).source for corpus in corpora]
    roots = {root for source in sources for root in roots_of(source)}
    unseen: dict[str, list[SourceFile]] = defaultdict(list)
    for uri, file in sought.items():
        if not is_there[uri]:
            unseen[_root_of(file, roots)].append(file)
    missing: dict[str, SourceFile] = {}
    for root, files in unseen.items():
        of_root = [file for file in others if file.uri.startswith(root)]
        is_sure = root.startswith("http") or _has_entries(root) or _has_moved(of_root, contents)
        gone = {f.uri: f for f in files if is_sure and is_there[f.uri] is False}
        missing |= gone
        if unknown := len(files) - len(gone):
            log.warning(
                "removal: %d files of %s are left out of account: it is missing, empty or does not "
                "answer. Their documents don't count as removed. Make it available and refresh "
                "again; if all of it was deleted, put any file there.",
                *(unknown, redacted(root)),
            )
    return missing


def _has_moved(files: Iterable[SourceFile], contents: Collection[tuple[str, str]]) -> bool:
    """Return whether the current source has most of the files, by name and content."""
    is_here = {file.name: False for file in files}
    is_here |= {f.name: True for f in files if (f.name, f.sha256) in contents}
    return 2 * sum(is_here.values()) > len(is_here)


def _root_of(file: SourceFile, roots: Iterable[str]) -> str:
    """Return the innermost of the roots above a file, or else what its name is relative to."""
    above = (f"{root}/" for root in roots if file.uri.startswith(f"{root}/"))
    return max(above, key=len, default=file.uri.removesuffix(file.name))


def _has_entries(folder: str) -> bool:
    try:
        return bool(storage.list_names(folder))
    except Exception:  # noqa: BLE001  each store has errors of its own
        return False


def _excluded_ids(corpus: Manifest) -> list[str]:
    uri = corpus.settings["cleaning"]["excluded_ids"]
    ids = read_excluded_ids(uri)
    if manifests.digest_of(ids) != corpus.inputs["excluded_ids"]:
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} changed after the corpus was made. Refresh it first."
        )
    return ids


def _documents_in(sources: Mapping[str, Collection[str]]) -> Iterator[pa.RecordBatch]:
    """Yield the documents in ``sources``: folder -> URIs of files."""
    for folder, uris in sources.items():
        wanted = _strings(uris)
        for batch in (batch for uri in _finished_below(folder) for batch in _batches_of(uri)):
            if "source" in batch.schema.names:
                yield batch.filter(pc.is_in(_text(batch, "source"), wanted))


def _check(manifest_uri: str, removed: Removed) -> dict[str, Any]:
    """Search every file; a TFRecord shard has the rows of its Arrow twin and no ids."""
    folder, manifest = _folder_of(manifest_uri), read_manifest(manifest_uri)
    for shard in manifest.shards:
        manifests.check_shard(shard, folder)
    for uri in _finished_below(folder):
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


def _holding(work: str, removed: Removed, current: set[str], lineage: Lineage) -> list[str]:
    """Return the results in which a removed document is or may be, in the order of deletion.

    Args:
        work: folder of all results.
        removed: documents and files to search for.
        current: places of the current results.
        lineage: graph of all results.
    """
    stages = (*_WITHOUT_IDS, *_HOLDERS, VOCAB)
    entries = {stage: _entries_in(storage.join(work, stage)) for stage in stages}
    temporary = [uri for _, unfinished in entries.values() for uri in unfinished]
    found: list[str] = []
    # Examples have no contents: an id that may be that of a removed document is one.
    others = replace(removed, ids_of_files=_unique([removed.ids_of_files, removed.doubtful]))
    sound = set[str]()  # parts of examples that hold none
    for stage in _HOLDERS:
        for uri, files in entries[stage][0].items():
            place = _place(uri)
            if place in current:  # its shards hold none; a list beside them may
                found += [file for file in files if _holds(file, removed)]
            else:
                sought = removed if place.partition(".")[0] in sound else others
                if any(_holds(file, sought) for file in files) or _has_lone_tfrecord(files):
                    found.append(uri)
                    continue
            if stage == EXAMPLES:
                sound |= read_made_with(uri)
    sources = set(map(_place, found))
    without_ids: list[str] = []
    for uri, files in (entry for stage in _WITHOUT_IDS for entry in entries[stage][0].items()):
        if files != [uri] and _may_be_made_of(sources, uri, lineage):
            sources.add(_place(uri))
            without_ids.insert(0, uri)
    return [*temporary, *without_ids, *found]


def _holds(uri: str, removed: Removed) -> bool:
    if uri.endswith(".jsonl") and _name_of(uri) != SOURCE_FILES:
        return _has_line(uri, removed)
    return any(_has_row(batch, removed) for batch in _batches_of(uri))


def _has_row(batch: pa.RecordBatch, removed: Removed) -> bool:
    names = batch.schema.names
    has_source = "source" in names
    wanted = removed.ids if has_source else removed.documents
    if has_source and pc.any(pc.is_in(_text(batch, "source"), removed.files)).as_py():
        return True
    for name in ID_COLUMNS:
        if name in names and len(wanted):
            ids = _text(batch, name)
            if has_source:  # without one: the fingerprint of a document of another work folder
                ids = ids.filter(pc.is_valid(batch.column("source")))
            if any(pc.any(pc.is_in(each, wanted)).as_py() for each in (ids, _without_ending(ids))):
                return True
    return has_source and _has_renamed(batch, wanted)


def _has_renamed(batch: pa.RecordBatch, wanted: pa.Array) -> bool:
    """Return whether a document is one that is wanted by its id and the hash of its content."""
    renamed = _with_ending(wanted)
    if not len(renamed):
        return False
    rows = batch.filter(pc.is_in(_text(batch, "id"), _without_ending(renamed)))
    ids = {repeated_id(document_id, hashed) for document_id, hashed in _hashed(rows)}
    return not ids.isdisjoint(renamed.to_pylist())


def _has_line(uri: str, removed: Removed) -> bool:
    """Search a list of unreadable records, or of overlaps with test sets."""
    fs, path = storage.filesystem(uri)
    with fs.open(path, "rb") as lines:
        entries = map(json.loads, lines)
        named = (
            {part for key in ("file", "source", "document") for part in _cut(entry.get(key) or "")}
            for entry in entries
        )
        return any(not removed.names.isdisjoint(each) for each in named)


def _cut(name: str) -> list[str]:
    """Return a name and its beginnings before each ``#``: a member is named after its archive."""
    return [name, *(name[: found.start()] for found in re.finditer("#", name))]


def _has_lone_tfrecord(files: list[str]) -> bool:
    """Return whether there is a TFRecord file without the Arrow file that tells what it holds."""
    records = (file.removesuffix(".tfrecord") for file in files if file.endswith(".tfrecord"))
    return any(f"{each}.arrow" not in files for each in records)


def _may_be_made_of(sources: set[str], uri: str, lineage: Lineage) -> bool:
    """Return whether the result at ``uri`` may have sentences of these places, or of deleted ones.

    It names no ids; nothing is known of an unfinished one. A model that it used has no sentences.
    """
    made = lineage.results.get(_place(uri))
    if made is None:
        return True
    named = made.manifest.input_manifests.items()
    inputs = {place_in(uri): uri for name, uri in named if name not in MODEL_RESULTS}
    return any(
        place in sources or not (place in lineage.results or storage.exists(uri))
        for place, uri in inputs.items()
    )


def _made_of(holding: Iterable[str], lineage: Lineage) -> tuple[list[Result], list[Result]]:
    """Return the vocabularies and models that were made of ``holding``, or of one of those.

    Args:
        holding: results that hold removed documents, or may.
        lineage: graph of all results, also unfinished ones.

    Returns:
        Those that were; and those of which it is unknown, because what they were made of is gone.
    """
    texts, unknown = set(map(_place, holding)), set[str]()
    certain, possible = list[Result](), list[Result]()
    for place, result in lineage.results.items():  # each comes after those that it was made from
        if result.manifest.stage in (VOCAB, *MODEL_RESULTS):
            if texts & result.sources:
                texts.add(place)
                certain.append(result)
            elif unknown & result.sources or lineage.lost_sources(result):
                unknown.add(place)
                possible.append(result)
    return certain, possible


def _delete(uri: str) -> None:
    """Delete a result: its manifest first, and last the list that tells why it must go."""
    if _TEMPORARY.search(_name_of(uri)) and _name_of(uri) != manifests.DAMAGED:
        storage.remove_abandoned(_folder_of(uri))
        return
    for name in (MANIFEST, UNIT_DONE):
        storage.remove(storage.join(uri, name))
    for file in _finished_below(uri):
        if _name_of(file) != SOURCE_FILES:
            storage.remove(file)
    storage.remove(uri)


def _write(work: str, receipt: dict[str, Any]) -> str:
    """Write the receipt, unless an existing one says the same, or that nothing was left."""
    contents = sorted(checked["content"] for checked in receipt["in_no_shard_of"])
    name = manifests.digest_of([receipt["documents"], receipt["files"], contents])[:16]
    uri = storage.join(work, RECEIPTS, f"removal-{name}.json")
    if storage.exists(uri):
        before = manifests.unsealed(uri)
        before.pop("written")
        before.pop(VERSIONS, None)
        is_clean = before.get("left_after_purge") == []
        if before == receipt or (is_clean and not receipt["earlier_results_with_them"]):
            return uri
    written = {"written": datetime.now(UTC).isoformat(timespec="seconds"), **receipt}
    storage.write_bytes(uri, manifests.sealed(written))
    return uri


def _entries_in(folder: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return what is below a stage's folder.

    Returns:
        The folders and files right below it, each with its finished files; and what is `_TEMPORARY`
        at any depth, which may hold any text.
    """
    results: dict[str, list[str]] = defaultdict(list)
    temporary: dict[str, None] = {}
    for file in _files_below(folder):
        path = file.removeprefix(folder).lstrip("/")
        if found := _TEMPORARY.search(path):
            temporary[storage.join(folder, path[: found.end()])] = None
        else:
            results[storage.join(folder, path.partition("/")[0])].append(file)
    return results, list(temporary)


def _finished_below(folder: str) -> list[str]:
    return [file for file in _files_below(folder) if not _TEMPORARY.search(file[len(folder) :])]


def _files_below(folder: str) -> list[str]:
    """Return all files below ``folder``, or itself."""
    fs, path = storage.filesystem(folder)
    inner = (str(file).removeprefix(path).lstrip("/") for file in storage.find(fs, path))
    return sorted(storage.join(folder, each) if each else folder for each in inner)


def _name_of(uri: str) -> str:
    return uri.rpartition("/")[2]


def _folder_of(uri: str) -> str:
    return uri.rpartition("/")[0]


def _place(folder: str) -> str:
    """Return stage and key of the result in this folder."""
    return "/".join(folder.split("/")[-2:])


def _batches_of(uri: str) -> Iterator[pa.RecordBatch]:
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


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of text, of any total length."""
    return batch.column(name).cast(pa.large_string())


def _without_ending(ids: pa.Array) -> pa.Array:
    """Return the ids without `_REPEATED_ID`, as the documents gave them."""
    return pc.replace_substring_regex(ids, _REPEATED_ID, "")


def _with_ending(ids: pa.Array) -> pa.Array:
    """Return those of the ids that have a `_REPEATED_ID`."""
    return ids.filter(pc.match_substring_regex(ids, _REPEATED_ID))


def _not_in(ids: pa.Array, others: pa.Array) -> pa.Array:
    return ids.filter(pc.invert(pc.is_in(ids, value_set=others)))


def _strings(values: Iterable[str]) -> pa.Array:
    return pa.array(sorted(values), pa.large_string())


def _unique(arrays: Iterable[pa.Array]) -> pa.Array:
    """Return the values in order, each once; of any total length."""
    return pc.unique(pa.chunked_array(list(arrays), pa.large_string())).drop_null().sort()


@dataclass(frozen=True)
class Occurrence:
    """Rows of one shard that have text of a document, be it that of a rejected one."""

    place: str
    """Stage and key of the result."""
    uri: str
    kind: str
    """Kind of the shard."""
    rows: list[int]
    """Numbers of the rows in the shard, from 0."""
    first_row: int
    """Number of the shard's first row among all rows of its kind."""

    @property
    def is_rejected(self) -> bool:
        """Whether the document was not kept: nothing is made of it."""
        return self.kind == "rejected"


def find_document(document_id: str, lineage: Lineage) -> list[Occurrence]:
    """Return where the document is in the corpora and the examples, by searching them.

    Raises:
        IntegrityError: a shard is damaged.
    """
    found = []
    for result in [*lineage.of_stage(CORPUS), *lineage.of_stage(EXAMPLES)]:
        first_row = Counter[str]()
        for shard in result.manifest.shards:
            uri = storage.join(result.folder, shard.path)
            if rows := _rows(document_id, uri):
                first = first_row[shard.kind]
                found.append(Occurrence(result.place, uri, shard.kind, rows, first))
            first_row[shard.kind] += shard.num_rows
    return found


def _rows(document_id: str, uri: str) -> list[int]:
    rows: set[int] = set()
    begin = 0
    for batch in _batches_of(uri) if storage.exists(uri) else ():
        for name in set(ID_COLUMNS).intersection(batch.schema.names):
            found = pc.indices_nonzero(pc.equal(_text(batch, name), document_id))
            rows.update(begin + row for row in found.to_pylist())
        begin += batch.num_rows
    return sorted(rows)


def may_be_in_task(document_id: str, task: Result, lineage: Lineage) -> bool:
    """Return whether a generated task may have sentences of a document that its corpus has.

    It takes sentences of those that its examples hold out.
    """
    inputs = [lineage.results[place].manifest for place in task.inputs if place in lineage.results]
    settings = [each.settings for each in inputs if each.stage == EXAMPLES]
    if not settings:
        return True
    return any(is_held_out(document_id, ExampleSettings(**each)) for each in settings)


if __name__ == "__main__":
    stage_main(run)
