"""Audit example shards, whoever wrote them: compare what is in them with what should be.

Each check returns a finding. Shards are read one by one, in batches. A file that cannot be read, be
it a shard, the corpus or the vocabulary, is a failed check, and the audit goes on with the others.
A row that lacks a value or breaks the format is counted and left out of the other checks.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from albert_core.stage import storage
from albert_core.stage.errors import AlbertError, ConfigError, SourceError
from albert_core.stage.manifest import MANIFEST, Manifest, Shard, check_shard, read_manifest
from albert_core.text.records import NUM_SPECIAL_IN_PAIR
from albert_core.text.seeds import UInt64s, random_bits
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.audit.checks import (
    Claim,
    Expected,
    Finding,
    Tally,
    at_most,
    fault_of,
    judge,
    measure,
    none_of,
)
from pipelines.audit.rows import (
    Rows,
    decoding,
    hash_of,
    padded_length,
    read_batches,
    rows_of_records,
    rows_of_table,
)
from pipelines.examples.tfrecord import read_tfrecord

_ROWS_PER_BATCH = 8192
_RECORDS_PER_BATCH = 1024
_SAMPLE = 5 << 40
"""Counter of the draw of rows for the sentence order."""
ARROW, TFRECORD = ".arrow", ".tfrecord"
TFRECORD_KIND = "_tfrecord"
_KINDS = ("train", "held_out")
_NO_HASHES = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class File:
    """One shard to audit."""

    uri: str
    kind: str
    """train, held_out, or examples where no manifest says; a TFRecord shard has a suffix."""
    shard: Shard | None = None

    @property
    def is_arrow(self) -> bool:
        """Whether it is an Arrow file; else it is TFRecord."""
        return self.uri.endswith(ARROW)

    @property
    def stem(self) -> str:
        """The part of the name that Arrow and TFRecord shards of the same examples share."""
        return self.uri.rpartition("/")[2].partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The shards to audit, and what they are compared with."""

    files: list[File]
    expected: Expected
    manifest: Manifest | None = None
    folder: str = ""
    corpus: list[str] = field(default_factory=list)
    """URIs of the corpus' shards."""
    tokenizer: Tokenizer | None = None
    sample: int = 2000
    """Rows to look up in the corpus; 0: all."""
    faults: list[str] = field(default_factory=list)
    """Files that exist but cannot be read; the audit goes on without them."""


@dataclass
class _Seen:
    """Everything collected while the shards and the corpus are read."""

    main: Tally = field(default_factory=Tally)
    tfrecord: Tally = field(default_factory=Tally)
    """The tally of the TFRecord shards that have an Arrow shard beside them."""
    rows: dict[str, int] = field(default_factory=dict)
    """URI -> rows."""
    contents: dict[tuple[str, bool], int] = field(default_factory=dict)
    """Stem, and whether it is Arrow -> hash of the rows in order."""
    documents: dict[str, list[UInt64s]] = field(default_factory=dict)
    """Kind -> hashes of documents."""
    claims: list[tuple[int, Claim]] = field(default_factory=list)
    """The claims sampled so far, each after its draw, lowest draw first."""
    corpus: list[UInt64s] = field(default_factory=list)
    """Hashes of the corpus' documents."""
    texts: dict[str, str] = field(default_factory=dict)
    """Document -> text, for the documents that claims name."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """URI -> why."""

    @contextmanager
    def reading(self, uri: str) -> Iterator[None]:
        """Note that the file at ``uri`` is unreadable if a SourceError is raised."""
        try:
            yield
        except SourceError as error:
            self.unreadable[uri] = f"{uri}: {error}"


def audit(sources: Sources) -> list[Finding]:
    """Return the findings of all checks; an unreadable file is a finding too."""
    seen = _Seen()
    twins = {file.stem for file in sources.files if file.is_arrow}
    for file in sources.files:
        with seen.reading(file.uri):
            _read(file, sources, seen, twins)
    wanted = {name for _, claim in seen.claims for name in (claim.document, claim.other)}
    for uri in sources.corpus:
        with seen.reading(uri):
            _read_corpus(uri, wanted, seen)
    return [
        *_judge_files(sources, seen),
        *(judge(seen.main, sources.expected) if seen.main.counts["rows"] else []),
        *_judge_twins(sources, seen),
        *_judge_documents(sources, seen),
        _judge_truth(sources, seen),
    ]


def _read(file: File, sources: Sources, seen: _Seen, twins: set[str]) -> None:
    is_twin = not file.is_arrow and file.stem in twins
    tally = seen.tfrecord if is_twin else seen.main
    opens_word = None if sources.tokenizer is None else sources.tokenizer.starts_word
    content = 0
    seen.rows[file.uri] = 0
    for rows in _batches(file):
        begin = seen.rows[file.uri]
        seen.rows[file.uri] += len(rows) + rows.left_out
        sound = measure(rows, sources.expected, tally, opens_word)
        for hashes in (sound.documents, sound.others):
            if hashes is not None:
                seen.documents.setdefault(file.kind, []).append(np.unique(hashes[hashes != 0]))
        if not len(sound):
            continue
        numbers = np.arange(begin, begin + len(sound))
        content ^= int(np.bitwise_xor.reduce(random_bits(sound.hashes, numbers)))
        if sound.named is not None and sources.corpus:
            _sample(sound, sources.sample, seen)
    seen.contents[file.stem, file.is_arrow] = content


def _batches(file: File) -> Iterator[Rows]:
    if file.uri.endswith(TFRECORD):
        yield from rows_of_records(read_tfrecord(file.uri), _RECORDS_PER_BATCH)
        return
    if not file.is_arrow:
        raise SourceError(f"is neither {ARROW} nor {TFRECORD}")
    for batch in read_batches(file.uri):
        table = pa.Table.from_batches([batch])
        for begin in range(0, table.num_rows, _ROWS_PER_BATCH):
            yield rows_of_table(table.slice(begin, _ROWS_PER_BATCH))


def _sample(rows: Rows, size: int, seen: _Seen) -> None:
    """Keep the ``size`` claims with the lowest draws, the same in every run; all when it is 0."""
    assert rows.named is not None
    draws = random_bits(rows.hashes, _SAMPLE)
    taken = np.argsort(draws, kind="stable")[: size or None]
    if size and len(seen.claims) == size:
        taken = taken[draws[taken] < seen.claims[-1][0]]
    for row, names in zip(taken.tolist(), rows.named.take(taken).to_pylist(), strict=True):
        begin, b_start, length = rows.starts[row], rows.b_starts[row], rows.lengths[row]
        pieces = rows.unmasked[begin : begin + length]
        claim = Claim(
            a=pieces[1 : b_start - 1],
            b=pieces[b_start:-1],
            label=int(rows.orders[row]),
            document=names["document_id"],
            sentences=(names["first_sentence"], names["last_sentence"]),
            other=names.get("other_document_id"),
            other_sentences=(
                names.get("other_first_sentence") or 0,
                names.get("other_last_sentence") or 0,
            ),
        )
        seen.claims.append((int(draws[row]), claim))
    seen.claims = sorted(seen.claims, key=lambda drawn: drawn[0])[: size or None]


def _read_corpus(uri: str, wanted: set[str | None], seen: _Seen) -> None:
    for batch in read_batches(uri, ["id", "text"]):
        if batch["id"].null_count or batch["text"].null_count:
            raise SourceError("a document has no id or no text")
        with decoding("id or text is no text"):
            ids, texts = (batch[name].cast(pa.large_string()) for name in ("id", "text"))
            names = ids.to_pylist()
        rows = [row for row, name in enumerate(names) if name in wanted]
        found = texts.take(pa.array(rows, pa.int64())).to_pylist()
        seen.texts.update(zip((names[row] for row in rows), found, strict=True))
        seen.corpus.append(np.array([hash_of(name) for name in names], np.uint64))


def _judge_files(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    wrong = [*sources.faults, *seen.unreadable.values()]
    for file in sources.files:
        wrong += [] if file.shard is None else _faults_of_shard(file, file.shard, sources, seen)
    if not wrong and not any(seen.rows.values()):
        wrong.append("the shards have no rows")
    expected = "as the manifest says" if sources.manifest else "readable"
    for fault in wrong:
        yield Finding("files", " ".join(fault.split()), expected, False)
    if not wrong:
        yield Finding("files", f"{len(sources.files)} files are whole", expected, True)
    yield _judge_sizes(sources, seen)


def _faults_of_shard(file: File, shard: Shard, sources: Sources, seen: _Seen) -> Iterator[str]:
    """Yield what is not as the manifest says of a file."""
    try:
        with decoding(file.uri):
            check_shard(shard, sources.folder)
    except AlbertError as error:
        yield str(error)
    if file.uri not in seen.unreadable and seen.rows[file.uri] != shard.num_rows:
        yield f"{file.uri} has {seen.rows[file.uri]} rows, but {MANIFEST} says {shard.num_rows}"
    if shard.kind not in [kind + TFRECORD_KIND * (not file.is_arrow) for kind in _KINDS]:
        yield f"{file.uri} is of an unknown kind, {shard.kind!r}"


def _judge_sizes(sources: Sources, seen: _Seen) -> Finding:
    """Rows go to shards by their hash: none is far from the mean of its kind."""
    sizes: dict[str, list[int]] = {}
    for file in sources.files:
        if file.uri not in seen.unreadable:
            sizes.setdefault(file.kind, []).append(seen.rows[file.uri])
    away = [
        np.abs(np.array(of_kind) - np.mean(of_kind)).max() / max(1.0, np.mean(of_kind) ** 0.5)
        for of_kind in sizes.values()
    ]
    largest = float(max(away, default=0.0))
    said = f"a shard is {largest:.1f} standard deviations from its kind's mean"
    return at_most("shard sizes", said, largest, sources.expected.z + 1, ".1f")


def _judge_twins(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    """Judge TFRecord shards that have an Arrow shard beside them."""
    if not seen.tfrecord.counts["rows"]:
        return
    formats = ("schema", "vocabulary", "layout", "padding", "segment ids", "positions")
    for finding in judge(seen.tfrecord, sources.expected):
        if finding.check in formats and finding.ok is not None:
            yield dataclasses.replace(finding, check=f"TFRecord {finding.check}")
    contents = seen.contents
    stems = sorted(stem for stem, is_arrow in contents if not is_arrow)
    differ = [s for s in stems if contents.get((s, True), contents[s, False]) != contents[s, False]]
    found = f"{len(differ)} of {len(stems)} TFRecord shards differ: {differ[:3]}"
    yield Finding("Arrow and TFRecord", found, "the same examples", not differ)


def _judge_documents(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    if not seen.documents:
        yield Finding("held-out split", "documents are not known", "", None)
        return
    documents = {kind: np.unique(np.concatenate(parts)) for kind, parts in seen.documents.items()}
    train, held_out = (documents.get(kind, _NO_HASHES) for kind in _KINDS)
    both = len(np.intersect1d(train, held_out))
    what = f"held-out documents are also trained on ({len(train):,} are)"
    yield none_of("held-out split", both, len(held_out), what)
    if sources.corpus:
        yield _judge_accounts(sources, seen, np.concatenate(list(documents.values())))


def _judge_accounts(sources: Sources, seen: _Seen, used: UInt64s) -> Finding:
    """Every document of the corpus is in a shard, or counted as dropped."""
    corpus = np.concatenate([*seen.corpus, _NO_HASHES])
    missing, strange = len(np.setdiff1d(corpus, used)), len(np.setdiff1d(used, corpus))
    found = f"{missing:,} of {len(corpus):,} are in no shard, {strange:,} are not in the corpus"
    check = "documents accounted"
    if sources.manifest is None:
        return Finding(check, found, "no manifest counts them", not strange)
    account = next((a for a in sources.manifest.accounts if a.what == "documents"), None)
    if account is None:
        return Finding(check, found, "an account of them in the manifest", False)
    dropped = sum(account.dropped.values())
    ok = missing == dropped and not strange and account.total == len(corpus)
    return Finding(check, found, f"{dropped:,}, as the manifest counts", ok)


def _judge_truth(sources: Sources, seen: _Seen) -> Finding:
    check, tokenizer, expected = "sentence order", sources.tokenizer, sources.expected
    if not sources.corpus or tokenizer is None or not seen.claims:
        return Finding(check, "needs --corpus, --vocab and Arrow shards", "", None)
    most, is_ours = expected.max_seq_length - NUM_SPECIAL_IN_PAIR, expected.fidelity == "paper"
    faults = [
        fault_of(claim, seen.texts, tokenizer.encode, most, is_ours) for _, claim in seen.claims
    ]
    names = sorted({fault for fault in faults if fault is not None})
    listed = ", ".join(f"{faults.count(name):,} {name}" for name in names)
    found = f"of {len(faults):,} rows looked up: {listed or 'all as their labels say'}"
    return Finding(check, found, "all as their labels say", not names)


def find_sources(
    paths: Sequence[str],
    *,
    corpus: str = "",
    vocab: str = "",
    sample: int = 2000,
    expected: Mapping[str, Any] | None = None,
) -> Sources:
    """Return what is to be audited. Damaged files are listed in the result.

    Args:
        paths: one manifest or its folder, or files and globs.
        corpus: manifest of the corpus, or its folder; empty: the one that the manifest names.
        vocab: folder of the vocabulary, or a model file; empty: the one that the manifest names.
        sample: rows to look up in the corpus; 0: all.
        expected: fields of `Expected` by name; what is absent or None is as the manifest says.

    Raises:
        SourceError: there is nothing to audit, or nothing at one of the paths.
        ConfigError: the vocabulary or corpus named does not exist, or an expectation is out of
            its range.
    """
    given, mistakes = _valid(expected or {})
    for name, why in mistakes.items():
        raise ConfigError(f"--{name.replace('_', '-')}: {why}")
    faults: list[str] = []
    with decoding(paths[0]):
        folder = storage.absolute(paths[0]).removesuffix(f"/{MANIFEST}").rstrip("/")
        uri = storage.join(folder, MANIFEST)
        has_manifest = len(paths) == 1 and storage.exists(uri)
    manifest = None
    if has_manifest:
        with _noting(uri, faults):
            manifest = read_manifest(uri)
        paths = [folder]
    files: list[File] = []
    for path in paths:
        found = _expand(path)
        if manifest is not None:
            found = [File(storage.join(folder, s.path), s.kind, s) for s in manifest.shards]
        if not any(file.uri.endswith((ARROW, TFRECORD)) for file in found) and not faults:
            raise SourceError(
                f"{path} has no {ARROW} or {TFRECORD} files. Name shards or a manifest."
            )
        files += found
    inputs = {} if manifest is None else manifest.input_manifests
    tokenizer = _find_tokenizer(vocab, inputs.get("vocab", ""), manifest, faults)
    return Sources(
        files=files,
        expected=_expected(manifest, tokenizer, files, given, faults),
        manifest=manifest,
        folder=folder,
        corpus=_find_corpus(corpus, inputs.get("corpus", ""), faults),
        tokenizer=tokenizer,
        sample=sample,
        faults=faults,
    )


@contextmanager
def _noting(where: str, faults: list[str]) -> Iterator[None]:
    """Add to ``faults`` what cannot be read, instead of raising it."""
    try:
        with decoding(where):
            yield
    except AlbertError as error:
        faults.append(str(error))


def _expand(path: str) -> list[File]:
    """Return the shards that ``path`` means: a file, a glob or a folder."""
    with decoding(path):
        pattern = storage.join(path, "*") if _is_folder(path) else path
        fs, pattern = storage.filesystem(pattern)
        found = sorted(str(fs.unstrip_protocol(name)) for name in fs.glob(pattern))
    return [File(uri, _kind_of(uri)) for uri in found if uri.endswith((ARROW, TFRECORD))]


def _is_folder(uri: str) -> bool:
    with decoding(uri):
        fs, path = storage.filesystem(uri)
        return bool(fs.isdir(path))


def _kind_of(uri: str) -> str:
    name = uri.rpartition("/")[2]
    kind = next((kind for kind in _KINDS if name.startswith(kind)), "examples")
    return kind + (TFRECORD_KIND if name.endswith(TFRECORD) else "")


def _find_corpus(named: str, recorded: str, faults: list[str]) -> list[str]:
    """Return the URIs of the shards of the corpus named, else of the one recorded."""
    uri = _find(named, recorded, MANIFEST)
    if not uri:
        return []
    with _noting(uri, faults):
        if shards := read_manifest(uri).shards_of("documents"):
            return [storage.join(uri.rpartition("/")[0], shard.path) for shard in shards]
        faults.append(f"{uri} has no shards of documents: it is no corpus")
    return []


def _find_tokenizer(
    named: str, recorded: str, manifest: Manifest | None, faults: list[str]
) -> Tokenizer | None:
    """Return the vocabulary named, else the one that ``manifest`` records."""
    model = _find(named, recorded, SPIECE_MODEL)
    if not model:
        return None
    with _noting(model, faults):
        made_by = storage.join(model.rpartition("/")[0], MANIFEST)
        facts = read_manifest(made_by).facts if storage.exists(made_by) else {}
        split = manifest is not None and _setting(manifest, "fidelity") == "google"
        lower_case = bool(facts.get("lower_case", True))
        tokenizer = Tokenizer(storage.read_bytes(model), lower_case, split)
        tokenizer.encode([" ".join(tokenizer.pieces)])
        return tokenizer
    return None


def _find(named: str, recorded: str, name: str) -> str:
    """Return the file at a place, or the file ``name`` if the place is a folder or a manifest's.

    The place is the one named, or else the one recorded, where there may be nothing: then the
    result is empty.

    Raises:
        ConfigError: there is nothing at the place named. Of what no store knows, SourceError.
    """
    place = (named or recorded).removesuffix(f"/{MANIFEST}")
    try:
        with decoding(place):
            uri = storage.join(place, name) if _is_folder(place) else place
            if place and storage.exists(uri):
                return uri
    except AlbertError:
        if named:
            raise
    if named:
        raise ConfigError(f"{named} does not exist. Name a manifest, its folder, or a model file.")
    return ""


def _setting(manifest: Manifest, name: str) -> Any:
    return manifest.facts.get(name, manifest.settings.get(name))


def _expected(
    manifest: Manifest | None,
    tokenizer: Tokenizer | None,
    files: list[File],
    given: Mapping[str, Any],
    faults: list[str],
) -> Expected:
    values: dict[str, Any] = {"fidelity": "unknown"}
    if manifest is not None:
        found = {name: _setting(manifest, name) for name in Expected.model_fields}
        values, mistakes = _valid(found)
        faults += [f"{MANIFEST}: {name}: {why}" for name, why in mistakes.items()]
    elif files and not files[0].is_arrow:
        values["max_seq_length"] = _padded_length(files)
    if tokenizer is not None:
        values["vocab_size"] = tokenizer.vocab_size
    return Expected(**{**_valid(values)[0], **given})


def _valid(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of `Expected` that can be so, without None; and why others cannot."""
    values = {name: value for name, value in values.items() if value is not None}
    mistakes: dict[str, str] = {}
    try:
        Expected(**values)
    except ValidationError as error:
        mistakes = {str(m["loc"][0]): f"{m['msg']}, got {m['input']!r}" for m in error.errors()}
    return {n: value for n, value in values.items() if n not in mistakes}, mistakes


def _padded_length(files: list[File]) -> int | None:
    """Return the length that the first TFRecord file that can be read is padded to."""
    for file in files:
        with suppress(SourceError):
            if not file.is_arrow and (length := padded_length(read_tfrecord(file.uri))):
                return length
    return None


def table_of(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, one a line."""
    width = max(len(finding.check) for finding in findings)
    mark = {True: "ok  ", False: "FAIL", None: "-   "}
    return "\n".join(
        f"{mark[f.ok]}  {f.check:{width}}  {f.found}"
        + (f"; expected {f.expected}" * bool(f.expected))
        for f in findings
    )
