"""Audit example shards, whoever wrote them: compare what is in them with what should be.

Each check returns a finding. Shards are read one by one, in batches. A file that cannot be read, be
it a shard, the corpus or the vocabulary, is a failed check, and the audit goes on with the others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.errors import AlbertError, ConfigError, SourceError
from albert_core.stage.manifest import MANIFEST, Manifest, Shard, read_manifest, shard_damage
from albert_core.stage.results import VocabularyResult
from albert_core.text.seeds import UInt64s, random_bits
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.audit import checks
from pipelines.audit.checks import Expected, Finding, Rows, Tally, hash_of, read_batches, read_rows

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


def audit(
    paths: Sequence[str],
    *,
    corpus: str = "",
    vocab: str = "",
    sample: int = 2000,
    expected: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Return the findings of all checks; an unreadable file is a finding too.

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
    given = {name: value for name, value in (expected or {}).items() if value is not None}
    expectations = Expected.read(given, "what is expected")
    faults: dict[str, str] = {}
    inputs: dict[str, str] = {}
    manifest = None
    folder = storage.absolute(paths[0]).removesuffix(f"/{MANIFEST}").rstrip("/")
    uri = storage.join(folder, MANIFEST)
    if len(paths) == 1 and storage.exists(uri):
        paths = [folder]
        with _noting(uri, faults):
            manifest = read_manifest(uri)
            inputs = manifest.input_manifests
    files = [file for path in paths for file in _files_at(path, manifest, faults)]
    tokenizer = _find_tokenizer(vocab, inputs.get("vocab", ""), manifest, faults)
    with _noting(uri, faults):
        expectations = _expected(manifest, tokenizer, given)
    documents = _find_corpus(corpus, inputs.get("corpus", ""), faults)
    found = _Audit(files, folder, manifest, documents, tokenizer, expectations, sample, faults)
    found.read()
    return list(found.findings())


@dataclass
class _Audit:
    """The shards to audit, what they are compared with, and what was found in them so far."""

    files: list[File]
    folder: str
    manifest: Manifest | None
    corpus: list[str]
    """URIs of the corpus' shards."""
    tokenizer: Tokenizer | None
    expected: Expected
    sample: int
    """Rows to look up in the corpus; 0: all."""
    faults: dict[str, str]
    """URI of what exists but cannot be read -> why."""
    rows: dict[str, int] = field(default_factory=dict)
    """URI -> rows."""
    contents: dict[tuple[str, bool], int] = field(default_factory=dict)
    """Stem, and whether it is Arrow -> hash of the rows in order."""
    documents: defaultdict[str, list[UInt64s]] = field(default_factory=lambda: defaultdict(list))
    """Kind -> hashes of documents."""
    sampled: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """The rows sampled so far, each after its draw, lowest draw first."""
    corpus_hashes: list[UInt64s] = field(default_factory=lambda: [_NO_HASHES])
    """Hashes of the corpus' documents."""
    texts: dict[str, str] = field(default_factory=dict)
    """Document -> text, for the documents that sampled rows name."""
    of_twins: Counter[str] = field(default_factory=Counter)
    """Rows, and faults of the format, of TFRecord shards that have an Arrow shard beside them."""

    def __post_init__(self) -> None:
        opens_word = None if self.tokenizer is None else self.tokenizer.starts_word
        self.tally = Tally(self.expected, opens_word)
        """Of all other shards."""

    def read(self) -> None:
        """Read the shards, then the corpus."""
        stems = {file.stem for file in self.files if file.is_arrow}
        for file in self.files:
            with _noting(file.uri, self.faults):
                self._read(file, is_twin=not file.is_arrow and file.stem in stems)
        named = {row[name] for _, row in self.sampled for name in row if name.endswith("_id")}
        for uri in self.corpus:
            with _noting(uri, self.faults):
                self._read_corpus(uri, named)

    def _read(self, file: File, is_twin: bool) -> None:
        num_rows = content = 0
        for rows in read_rows(file.uri):
            numbers = np.arange(num_rows, num_rows + len(rows))
            content ^= int(np.bitwise_xor.reduce(random_bits(rows.hashes, numbers)))
            num_rows += len(rows)
            if is_twin:
                self.of_twins.update({"rows": len(rows), **rows.faults})
                continue
            sound = checks.measure(rows, self.tally)
            for hashes in (sound.documents, sound.others):
                if hashes is not None:
                    self.documents[file.kind].append(np.unique(hashes[hashes != 0]))
            if self.corpus and file.is_arrow:
                self._take_sample(sound)
        self.rows[file.uri] = num_rows
        self.contents[file.stem, file.is_arrow] = content

    def _take_sample(self, rows: Rows) -> None:
        """Keep the rows with the lowest draws, the same in every run."""
        size = self.sample or None
        draws = random_bits(rows.hashes, _SAMPLE)
        taken = np.argsort(draws, kind="stable")[:size]
        if len(self.sampled) == size:
            taken = taken[draws[taken] < self.sampled[-1][0]]
        found = pa.table(rows.columns).take(taken).to_pylist()
        self.sampled += zip(draws[taken].tolist(), found, strict=True)
        self.sampled = sorted(self.sampled, key=itemgetter(0))[:size]

    def _read_corpus(self, uri: str, wanted: set[str]) -> None:
        for batch in read_batches(uri):
            ids, texts = batch["id"].cast(pa.string()), batch["text"].cast(pa.large_string())
            if ids.null_count or texts.null_count:
                raise SourceError("a document has no id or no text")
            names = ids.to_pylist()
            self.texts |= {n: texts[at].as_py() for at, n in enumerate(names) if n in wanted}
            self.corpus_hashes.append(np.array(list(map(hash_of, names)), np.uint64))

    def findings(self) -> Iterator[Finding]:
        """Yield the finding of each check."""
        yield from self._judge_files()
        yield self._judge_sizes()
        if self.tally.counts["rows"]:
            yield from checks.judge(self.tally)
        if self.of_twins:
            yield from self._judge_twins()
        yield from self._judge_documents()
        yield self._judge_truth()

    def _judge_files(self) -> Iterator[Finding]:
        wrong = [*self.faults.values()]
        for file in self.files:
            wrong += [] if file.shard is None else self._faults_of_shard(file, file.shard)
        if not wrong and not any(self.rows.values()):
            wrong.append("the shards have no rows")
        expected = "as the manifest says" if self.manifest else "readable"
        for fault in wrong:
            yield Finding("files", " ".join(fault.split()), expected, False)
        if not wrong:
            yield Finding("files", f"{len(self.files)} files are whole", expected, True)

    def _faults_of_shard(self, file: File, shard: Shard) -> Iterator[str]:
        """Yield in what a file differs from its description in the manifest."""
        if damage := shard_damage(shard, self.folder):
            yield damage
        found = self.rows.get(file.uri)
        if found is not None and found != shard.num_rows:
            yield f"{file.uri} has {found} rows, but {MANIFEST} says {shard.num_rows}"
        if shard.kind not in [kind + TFRECORD_KIND * (not file.is_arrow) for kind in _KINDS]:
            yield f"{file.uri} is of an unknown kind, {shard.kind!r}"

    def _judge_sizes(self) -> Finding:
        """Rows go to shards by their hash; the least likely size is told."""
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        for file in self.files:
            if file.uri in self.rows:
                sizes[file.kind].append(self.rows[file.uri])
        found = [
            (
                checks.tails(size, sum(of_kind), 1 / len(of_kind)),
                f"{kind}: {size:,} of {sum(of_kind):,}",
            )
            for kind, of_kind in sizes.items()
            for size in of_kind
        ]
        probability, said = min(found, default=(1.0, "no shard"))
        return checks.by_chance("shard sizes", said, "evenly spread", probability * len(found))

    def _judge_twins(self) -> Iterator[Finding]:
        """Judge TFRecord shards that have an Arrow shard beside them."""
        for check in ("padding", "segment ids"):
            total = self.of_twins["rows"]
            yield checks.none_of(
                f"TFRecord {check}", self.of_twins[check], total, f"rows of wrong {check}"
            )
        contents = self.contents
        stems = sorted(stem for stem, is_arrow in contents if not is_arrow)
        of_records = {stem: contents[stem, False] for stem in stems}
        differ = [s for s in stems if contents.get((s, True), of_records[s]) != of_records[s]]
        found = f"{len(differ)} of {len(stems)} TFRecord shards differ: {differ[:3]}"
        yield Finding("Arrow and TFRecord", found, "the same examples", not differ)

    def _judge_documents(self) -> Iterator[Finding]:
        if not self.documents:
            yield Finding("held-out split", "documents are not known", "", None)
            return
        used = {kind: np.unique(np.concatenate(parts)) for kind, parts in self.documents.items()}
        train, held_out = (used.get(kind, _NO_HASHES) for kind in _KINDS)
        both = len(np.intersect1d(train, held_out))
        what = f"held-out documents are also trained on ({len(train):,} are)"
        yield checks.none_of("held-out split", both, len(held_out), what)
        if self.corpus:
            yield self._judge_accounts(np.concatenate(list(used.values())))

    def _judge_accounts(self, used: UInt64s) -> Finding:
        """Every document of the corpus is in a shard, or counted as dropped."""
        corpus = np.concatenate(self.corpus_hashes)
        missing, strange = len(np.setdiff1d(corpus, used)), len(np.setdiff1d(used, corpus))
        found = f"{missing:,} of {len(corpus):,} are in no shard, {strange:,} are not in the corpus"
        check = "documents accounted"
        if self.manifest is None:
            return Finding(check, found, "no manifest counts them", not strange)
        account = next((a for a in self.manifest.accounts if a.what == "documents"), None)
        if account is None:
            return Finding(check, found, "an account of them in the manifest", False)
        dropped = sum(account.dropped.values())
        ok = missing == dropped and not strange and account.total == len(corpus)
        return Finding(check, found, f"{dropped:,}, as the manifest counts", ok)

    def _judge_truth(self) -> Finding:
        check = "sentence order"
        if self.tokenizer is None or not self.sampled:
            return Finding(check, "needs --corpus, --vocab and Arrow shards", "", None)
        encode = self.tokenizer.encode
        faults = [
            checks.fault_of(row, self.texts, encode, self.expected) for _, row in self.sampled
        ]
        names = sorted({fault for fault in faults if fault is not None})
        listed = ", ".join(f"{faults.count(name):,} {name}" for name in names)
        found = f"of {len(faults):,} rows looked up: {listed or 'all as their labels say'}"
        return Finding(check, found, "all as their labels say", not names)


@contextmanager
def _noting(where: str, faults: dict[str, str]) -> Iterator[None]:
    """Note in ``faults`` what cannot be read, instead of raising it.

    Libraries promise nothing about damaged bytes: a KeyError, a MemoryError or one of their own.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are audited
        is_ours = isinstance(error, AlbertError)
        said = str(error) if is_ours else f"cannot be read: {type(error).__name__}: {error}"
        faults[where] = said if where in said else f"{where}: {said}"


def _files_at(path: str, manifest: Manifest | None, faults: Mapping[str, str]) -> list[File]:
    """Return the shards that ``path`` means: a file, a glob or a folder, perhaps a manifest's."""
    if manifest is not None:
        files = [File(storage.join(path, s.path), s.kind, s) for s in manifest.shards]
    else:
        fs, pattern = storage.filesystem(_within(path, "*"))
        uris = sorted(str(fs.unstrip_protocol(name)) for name in fs.glob(pattern))
        files = [File(uri, _kind_of(uri)) for uri in uris if uri.endswith((ARROW, TFRECORD))]
    if not any(file.uri.endswith((ARROW, TFRECORD)) for file in files) and not faults:
        raise SourceError(f"{path} has no {ARROW} or {TFRECORD} files. Name shards or a manifest.")
    return files


def _kind_of(uri: str) -> str:
    name = uri.rpartition("/")[2]
    kind = next((kind for kind in _KINDS if name.startswith(kind)), "examples")
    return kind + TFRECORD_KIND * name.endswith(TFRECORD)


def _within(place: str, name: str) -> str:
    """Return ``name`` in the folder at ``place``; if that is no folder, the place itself."""
    fs, path = storage.filesystem(place)
    return storage.join(place, name) if fs.isdir(path) else place


def _find(named: str, recorded: str, name: str) -> str:
    """Return the file at a place, or the file ``name`` if the place is a folder or a manifest's.

    The place is the one named, or else the one recorded, where there may be nothing: then the
    result is empty.

    Raises:
        ConfigError: there is nothing at the place named.
    """
    place = (named or recorded).removesuffix(f"/{MANIFEST}")
    uri = _within(place, name) if place else ""
    if uri and storage.exists(uri):
        return uri
    if named:
        raise ConfigError(f"{named} does not exist. Name a manifest, its folder, or a model file.")
    return ""


def _find_corpus(named: str, recorded: str, faults: dict[str, str]) -> list[str]:
    """Return the URIs of the shards of the corpus named, else of the one recorded."""
    uri = _find(named, recorded, MANIFEST)
    shards: list[Shard] = []
    if uri:
        with _noting(uri, faults):
            shards = read_manifest(uri).shards_of("documents")
            if not shards:
                raise SourceError("has no shards of documents: it is no corpus")
    return [storage.join(uri.rpartition("/")[0], shard.path) for shard in shards]


def _find_tokenizer(
    named: str, recorded: str, manifest: Manifest | None, faults: dict[str, str]
) -> Tokenizer | None:
    """Return the vocabulary named, else the one that ``manifest`` records."""
    model = _find(named, recorded, SPIECE_MODEL)
    if not model:
        return None
    with _noting(model, faults):
        made_by = storage.join(model.rpartition("/")[0], MANIFEST)
        made = read_manifest(made_by) if storage.exists(made_by) else None
        result = made and made.result_as(VocabularyResult)
        lower_case, keep_accents = (
            (result.lower_case, result.keep_accents) if result else (True, False)
        )
        split = manifest is not None and manifest.result.get("fidelity") == "google"
        return Tokenizer(storage.read_bytes(model), lower_case, split, keep_accents)
    return None


def _expected(
    manifest: Manifest | None, tokenizer: Tokenizer | None, given: Mapping[str, Any]
) -> Expected:
    """Return what is ``given``, else what the manifest says, else the defaults.

    Raises:
        ConfigError: what the manifest says is impossible.
    """
    values: dict[str, Any] = {"fidelity": "unknown"}
    if manifest is not None:
        said = manifest.settings | manifest.result
        values = {name: said[name] for name in Expected.model_fields if said.get(name) is not None}
    if tokenizer is not None:
        values["vocab_size"] = tokenizer.vocab_size
    return Expected.read({**values, **given}, MANIFEST)


def table_of(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, one a line."""
    width = max(len(finding.check) for finding in findings)
    mark = {True: "ok  ", False: "FAIL", None: "-   "}
    return "\n".join(
        f"{mark[f.ok]}  {f.check:{width}}  {f.found}"
        + (f"; expected {f.expected}" * bool(f.expected))
        for f in findings
    )
