"""Audit example shards, whoever wrote them: compare what is in them with what should be.

Each check returns a finding. Shards are read one by one, in batches. A file that cannot be read, be
it a shard, the corpus or the vocabulary, is a failed check, and the audit goes on with the others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.errors import AlbertError, ConfigError, SourceError
from albert_core.stage.manifest import (
    MANIFEST,
    Account,
    Manifest,
    Shard,
    read_manifest,
    shard_damage,
)
from albert_core.stage.results import VocabularyResult
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import (
    EXAMPLE_SCHEMA,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL_IN_PAIR,
    OTHER_DOCUMENT_FIELDS,
    PAD,
    Bools,
)
from albert_core.text.seeds import UInt64s, random_bits
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.audit import checks
from pipelines.audit.checks import OPENS_WORD, Expected, Finding, Rows, Tally
from pipelines.corpus.overlaps import distinct
from pipelines.examples.part import KINDS, PIECES
from pipelines.examples.tfrecord import TFExample, read_tfrecord

ARROW, TFRECORD = ".arrow", ".tfrecord"
TFRECORD_KIND = "_tfrecord"
_SAMPLE = 5 << 40
"""Counter of the draw of rows to look up."""
_NO_HASHES = np.zeros(0, np.uint64)
_NO_ACCOUNT = "an account of them in the manifest"
_ROWS_PER_BATCH = 8192
_RECORDS_PER_BATCH = 1024
_OTHER_FIELDS = pa.schema(OTHER_DOCUMENT_FIELDS)
_SCHEMAS = [EXAMPLE_SCHEMA, pa.schema([*EXAMPLE_SCHEMA, *_OTHER_FIELDS])]
_LISTS = ("input_ids", "masked_lm_positions", "masked_lm_labels")
_PIECE_FEATURES = ("input_ids", "input_mask", "segment_ids", "token_boundary")
_PREDICTION_FEATURES = ("masked_lm_ids", "masked_lm_positions", "masked_lm_weights")
_FEATURES = {*_PIECE_FEATURES, *_PREDICTION_FEATURES, "next_sentence_labels"}

Features = dict[str, NDArray[Any]]


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
        """Beginning of the name, which Arrow and TFRecord shards of the same examples share."""
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
        expected: fields of `Expected` by name; the manifest gives those that are absent or None.

    Raises:
        SourceError: there is nothing to audit, or nothing at one of the paths.
        ConfigError: the vocabulary or corpus named does not exist, or an expectation is out of
            its range.
    """
    given = {name: value for name, value in (expected or {}).items() if value is not None}
    found = _Audit(paths, corpus, vocab, sample, given)
    found.read()
    return list(found.findings())


def table_of(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, one a line."""
    width = max(len(finding.check) for finding in findings)
    mark = {True: "ok  ", False: "FAIL", None: "-   "}
    return "\n".join(
        f"{mark[f.ok]}  {f.check:{width}}  {f.found}"
        + (f"; expected {f.expected}" * bool(f.expected))
        for f in findings
    )


class _Audit:
    """The shards to audit, what they are compared with, and what was found in them so far."""

    def __init__(
        self, paths: Sequence[str], corpus: str, vocab: str, sample: int, given: dict[str, Any]
    ) -> None:
        expected = Expected.read(given, "what is expected")
        self.sample = sample or None
        """Rows to look up in the corpus; None: all."""
        self.faults: dict[str, str] = {}
        """URI of an unreadable file -> the reason."""
        self.manifest: Manifest | None = None
        self.folder = storage.absolute(paths[0]).removesuffix(f"/{MANIFEST}").rstrip("/")
        uri = storage.join(self.folder, MANIFEST)
        if len(paths) == 1 and storage.exists(uri):
            paths = [self.folder]
            with self._noting(uri):
                self.manifest = read_manifest(uri)
        recorded: dict[str, str] = {}
        self.said: dict[str, Any] = {"fidelity": "unknown"}
        """Settings and result in the manifest, which say how the examples were made."""
        if self.manifest is not None:
            recorded = self.manifest.input_manifests
            self.said = self.manifest.settings | self.manifest.result
        self.files = [file for path in paths for file in self._files_at(path)]
        self.tokenizer = self._find_tokenizer(vocab, recorded.get("vocab", ""))
        with self._noting(uri):
            expected = self._expected(given)
        self.corpus = self._find_corpus(corpus, recorded.get("corpus", ""))
        """URIs of the corpus' shards."""
        self.tally = Tally(expected, self.tokenizer.starts_word if self.tokenizer else None)
        """Counts of all shards; of TFRecord twins of Arrow shards, only faults of the format."""
        self.rows: dict[str, int] = {}
        """URI -> rows."""
        self.contents: dict[tuple[str, bool], int] = {}
        """Stem, and whether it is Arrow -> hash of the rows in order."""
        self.documents: defaultdict[str, list[UInt64s]] = defaultdict(list)
        """Kind -> hashes of documents with a pair of their own."""
        self.others: defaultdict[str, list[UInt64s]] = defaultdict(list)
        """Kind -> hashes of documents with a segment b of another's pair."""
        self.sampled: list[tuple[int, dict[str, Any]]] = []
        """The rows sampled so far, each after its draw, lowest draw first."""
        self.corpus_hashes = [_NO_HASHES]
        """Hashes of the corpus' documents."""
        self.texts: dict[str, str] = {}
        """Document -> text, for the documents that sampled rows name."""

    @contextmanager
    def _noting(self, where: str) -> Iterator[None]:
        """Note errors in ``faults`` instead of raising them.

        Libraries promise nothing about damaged bytes: a KeyError, a MemoryError or one of their
        own.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are audited
            is_ours = isinstance(error, AlbertError)
            said = str(error) if is_ours else f"cannot be read: {type(error).__name__}: {error}"
            self.faults[where] = said if where in said else f"{where}: {said}"

    def _files_at(self, path: str) -> list[File]:
        """Return the shards at ``path``: a file, a glob or a folder, perhaps the manifest's."""
        if self.manifest is not None:
            files = [File(storage.join(path, s.path), s.kind, s) for s in self.manifest.shards]
        else:
            fs, pattern = storage.filesystem(_within(path, "*"))
            uris = sorted(str(fs.unstrip_protocol(name)) for name in storage.glob(fs, pattern))
            files = [File(uri, _kind_of(uri)) for uri in uris if uri.endswith((ARROW, TFRECORD))]
        if not self.faults and not any(file.uri.endswith((ARROW, TFRECORD)) for file in files):
            raise SourceError(
                f"{path} has no {ARROW} or {TFRECORD} files. Name shards or a manifest."
            )
        return files

    def _find_tokenizer(self, named: str, recorded: str) -> Tokenizer | None:
        """Return the vocabulary named, else the one recorded."""
        model = _find(named, recorded, SPIECE_MODEL)
        if model:
            with self._noting(model):
                made_by = storage.join(model.rpartition("/")[0], MANIFEST)
                lower_case, keep_accents = True, False
                if storage.exists(made_by):
                    result = read_manifest(made_by).result_as(VocabularyResult)
                    lower_case, keep_accents = result.lower_case, result.keep_accents
                is_google = self.said.get("fidelity") == "google"
                return Tokenizer(storage.read_bytes(model), lower_case, is_google, keep_accents)
        return None

    def _find_corpus(self, named: str, recorded: str) -> list[str]:
        """Return the URIs of the shards of the corpus named, else of the one recorded."""
        uri = _find(named, recorded, MANIFEST)
        shards: list[Shard] = []
        if uri:
            with self._noting(uri):
                shards = read_manifest(uri).shards_of("documents")
                if not shards:
                    raise SourceError("has no shards of documents: it is no corpus")
        return [storage.join(uri.rpartition("/")[0], shard.path) for shard in shards]

    def _expected(self, given: Mapping[str, Any]) -> Expected:
        """Return the expectations given, else those of the manifest, else the defaults.

        Raises:
            ConfigError: what the manifest says is impossible.
        """
        found = {name: self.said.get(name) for name in Expected.model_fields}
        values = {name: value for name, value in found.items() if value is not None}
        if self.tokenizer is not None:
            values["vocab_size"] = self.tokenizer.vocab_size
        return Expected.read({**values, **given}, MANIFEST)

    def read(self) -> None:
        """Read the shards, then the corpus."""
        stems = {file.stem for file in self.files if file.is_arrow}
        for file in self.files:
            with self._noting(file.uri):
                self._read(file, is_twin=not file.is_arrow and file.stem in stems)
        named = {row[name] for _, row in self.sampled for name in row if name.endswith("_id")}
        for uri in self.corpus:
            with self._noting(uri):
                self._read_corpus(uri, named)

    def _read(self, file: File, is_twin: bool) -> None:
        num_rows = content = 0
        for rows in read_rows(file.uri):
            numbers = np.arange(num_rows, num_rows + len(rows))
            content ^= int(np.bitwise_xor.reduce(random_bits(rows.hashes, numbers)))
            num_rows += len(rows)
            if is_twin:
                self.tally.counts.update(rows.faults)
                continue
            sound = checks.measure(rows, self.tally)
            for known, hashes in (self.documents, sound.documents), (self.others, sound.others):
                if hashes is not None:
                    known[file.kind].append(np.unique(hashes[hashes != 0]))
            if self.corpus and file.is_arrow:
                self._take_sample(sound)
        self.rows[file.uri] = num_rows
        self.contents[file.stem, file.is_arrow] = content

    def _take_sample(self, rows: Rows) -> None:
        """Keep the rows with the lowest draws, the same in every run."""
        draws = random_bits(rows.hashes, _SAMPLE)
        taken = np.argsort(draws, kind="stable")[: self.sample]
        if len(self.sampled) == self.sample:
            taken = taken[draws[taken] < self.sampled[-1][0]]
        found = pa.table(rows.columns).take(taken).to_pylist()
        self.sampled += zip(draws[taken].tolist(), found, strict=True)
        self.sampled = sorted(self.sampled, key=itemgetter(0))[: self.sample]

    def _read_corpus(self, uri: str, wanted: set[str]) -> None:
        for batch in _read_batches(uri):
            ids, texts = batch["id"].cast(pa.string()), batch["text"].cast(pa.large_string())
            if ids.null_count or texts.null_count:
                raise SourceError("a document has no id or no text")
            names = ids.to_pylist()
            self.texts |= {n: texts[at].as_py() for at, n in enumerate(names) if n in wanted}
            self.corpus_hashes.append(np.array(list(map(checks.hash_of, names)), np.uint64))

    def findings(self) -> Iterator[Finding]:
        """Yield the finding of each check."""
        yield from self._judge_files()
        yield self._judge_sizes()
        if self.tally.counts["rows"]:
            yield from checks.judge(self.tally)
        if self.manifest is not None and self.tally.counts["rows"]:
            yield self._judge_pieces(self.manifest)
        if any((stem, True) in self.contents for stem, is_arrow in self.contents if not is_arrow):
            yield self._judge_twins()
        yield from self._judge_documents()
        yield self._judge_truth()

    def _judge_files(self) -> Iterator[Finding]:
        wrong = [*self.faults.values()]
        wrong += [fault for file in self.files for fault in self._faults_of_shard(file)]
        if not wrong and not any(self.rows.values()):
            wrong.append("the shards have no rows")
        expected = "as the manifest says" if self.manifest else "readable"
        for fault in wrong:
            yield Finding("files", " ".join(fault.split()), expected, False)
        if not wrong:
            yield Finding("files", f"{len(self.files)} files are whole", expected, True)

    def _faults_of_shard(self, file: File) -> Iterator[str]:
        """Yield how a file differs from its description in the manifest."""
        if file.shard is None:
            return
        if damage := shard_damage(file.shard, self.folder):
            yield damage
        found, noted = self.rows.get(file.uri), file.shard.num_rows
        if found not in (None, noted):
            yield f"{file.uri} has {found} rows, but {MANIFEST} says {noted}"
        if file.kind not in [kind + TFRECORD_KIND * (not file.is_arrow) for kind in KINDS]:
            yield f"{file.uri} is of an unknown kind, {file.kind!r}"

    def _judge_sizes(self) -> Finding:
        """Rows go to shards by their hash; the least likely size is reported."""
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        for file in self.files:
            if file.uri in self.rows:
                sizes[file.kind].append(self.rows[file.uri])
        found = [
            (checks.tails(n, sum(of_kind), 1 / len(of_kind)), f"{kind}: {n:,} of {sum(of_kind):,}")
            for kind, of_kind in sizes.items()
            for n in of_kind
        ]
        probability, said = min(found, default=(1.0, "no shard"))
        return checks.by_chance("shard sizes", said, "evenly spread", probability * len(found))

    def _judge_twins(self) -> Finding:
        """Compare TFRecord shards with the Arrow shards of the same examples."""
        contents = self.contents
        stems = sorted(stem for stem, is_arrow in contents if not is_arrow)
        differ = [s for s in stems if contents.get((s, True)) not in (None, contents[s, False])]
        found = f"{len(differ)} of {len(stems)} TFRecord shards differ: {differ[:3]}"
        return Finding("Arrow and TFRecord", found, "the same examples", not differ)

    def _judge_pieces(self, manifest: Manifest) -> Finding:
        """Rows that were lost from many documents leave each with some."""
        counts = self.tally.counts
        found = counts["pieces"] - NUM_SPECIAL_IN_PAIR * counts["rows"]
        check, said = "pieces accounted", f"{found:,} in the segments"
        account = _account_of(PIECES, manifest)
        if account is None:
            return Finding(check, said, _NO_ACCOUNT, False)
        expected = f"{account.kept:,}, as the manifest counts"
        return Finding(check, said, expected, found == account.kept)

    def _judge_documents(self) -> Iterator[Finding]:
        if not self.documents:
            yield Finding("held-out split", "documents are not known", "", None)
            return
        train, held_out = (_distinct([self.documents[k], self.others[k]]) for k in KINDS)
        both = len(np.intersect1d(train, held_out))
        what = f"held-out documents are also trained on ({len(train):,} are)"
        yield checks.none_of("held-out split", both, len(held_out), what)
        if self.corpus:
            yield self._judge_accounts()

    def _judge_accounts(self) -> Finding:
        """Every document of the corpus has a pair of its own, or is counted as dropped."""
        corpus = np.concatenate(self.corpus_hashes)
        paired, others = (_distinct(each.values()) for each in (self.documents, self.others))
        missing = len(np.setdiff1d(corpus, paired))
        strange = len(np.setdiff1d(np.union1d(paired, others), corpus))
        found = f"{missing:,} of {len(corpus):,} have no pair, {strange:,} are not in the corpus"
        check = "documents accounted"
        if self.manifest is None:
            return Finding(check, found, "no manifest counts them", not strange)
        account = _account_of("documents", self.manifest)
        if account is None:
            return Finding(check, found, _NO_ACCOUNT, False)
        dropped = sum(account.dropped.values())
        ok = missing == dropped and not strange and account.total == len(corpus)
        return Finding(check, found, f"{dropped:,}, as the manifest counts", ok)

    def _judge_truth(self) -> Finding:
        check, expected = "labels", "all as their labels say"
        if self.tokenizer is None or not self.sampled:
            return Finding(check, "needs --corpus, --vocab and Arrow shards", "", None)
        encode, rules = self.tokenizer.encode, self.tally.expected
        faults = Counter(checks.fault_of(row, self.texts, encode, rules) for _, row in self.sampled)
        wrong = {fault: number for fault, number in faults.items() if fault is not None}
        listed = ", ".join(f"{number:,} {fault}" for fault, number in sorted(wrong.items()))
        found = f"of {faults.total():,} rows looked up: {listed or expected}"
        return Finding(check, found, expected, not wrong)


# Files, and where they are


def _distinct(parts: Iterable[Iterable[UInt64s]]) -> UInt64s:
    """Return all hashes, ascending, each once."""
    return distinct(chain.from_iterable(parts))


def _account_of(what: str, manifest: Manifest) -> Account | None:
    """Return the account of ``what``; None in a manifest that lacks it."""
    return next((account for account in manifest.accounts if account.what == what), None)


def _kind_of(uri: str) -> str:
    name = uri.rpartition("/")[2]
    kind = next((kind for kind in KINDS if name.startswith(kind)), "examples")
    return kind + TFRECORD_KIND * name.endswith(TFRECORD)


def _within(place: str, name: str) -> str:
    """Return ``name`` in the folder at ``place``; if that is no folder, the place itself."""
    fs, path = storage.filesystem(place)
    return storage.join(place, name) if fs.isdir(path) else place


def _find(named: str, recorded: str, name: str) -> str:
    """Return the file at a place, or the file ``name`` if the place is a folder or a manifest's.

    The place is the one named, or else the one recorded; empty if there is nothing at the latter.

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


# Shards to rows


def _read_batches(uri: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file, with valid offsets and texts only."""
    reader = open_arrow(uri)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        yield batch


def read_rows(uri: str) -> Iterator[Rows]:
    """Yield the examples of an Arrow or a TFRecord shard, some thousands at a time.

    Raises:
        SourceError: the file is neither; or as `rows_of_batch` and `_rows_of_features`.
        Exception: whatever a library raises on bytes that it cannot read; they promise nothing.
    """
    if uri.endswith(TFRECORD):
        features = (_features(number, record) for number, record in enumerate(read_tfrecord(uri)))
        while batch := list(islice(features, _RECORDS_PER_BATCH)):
            yield _rows_of_features(batch)
    elif uri.endswith(ARROW):
        for batch in _read_batches(uri):
            for begin in range(0, batch.num_rows, _ROWS_PER_BATCH):
                yield rows_of_batch(batch.slice(begin, _ROWS_PER_BATCH))
    else:
        raise SourceError(f"is neither {ARROW} nor {TFRECORD}")


def rows_of_batch(batch: pa.RecordBatch) -> Rows:
    """Return the examples of an Arrow batch.

    Raises:
        SourceError: its columns are not those of EXAMPLE_SCHEMA, perhaps with
            `OTHER_DOCUMENT_FIELDS`, or a row lacks a value or has values that contradict others.
    """
    if not any(batch.schema.equals(schema) for schema in _SCHEMAS):
        found, wanted = (
            ", ".join(f"{field.name} {field.type}" for field in schema)
            for schema in (batch.schema, EXAMPLE_SCHEMA)
        )
        raise SourceError(f"the columns are {found}; expected {wanted}")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    pieces, positions, labels = (pc.list_value_length(columns[name]) for name in _LISTS)
    others = [columns[name] for name in _OTHER_FIELDS.names if name in columns]
    required = [columns[name] for name in EXAMPLE_SCHEMA.names]
    required += [columns[name].flatten() for name in _LISTS]
    faults = {
        "a value is missing": any(column.null_count for column in required)
        or any(not each.is_valid().equals(others[0].is_valid()) for each in others),
        "there is no piece": pc.any(pc.equal(pieces, 0)).as_py(),
        "there are more positions than labels, or fewer": not positions.equals(labels),
        "the first sentence is after the last": any(
            pc.any(pc.greater(columns[first], columns[first.replace("first", "last")])).as_py()
            for first in columns
            if first.endswith("first_sentence")
        ),
    }
    for fault, is_found in faults.items():
        if is_found:
            raise SourceError(f"in a row, {fault}")
    return Rows(columns)


def _features(number: int, record: bytes) -> Features:
    """Return a record's features: int64 or, for weights, float64 (any,)."""
    given = TFExample.FromString(record).features.feature
    found: Features = {}
    for name in _FEATURES.intersection(given):
        is_float = name == "masked_lm_weights"
        values = (given[name].float_list if is_float else given[name].int64_list).value
        found[name] = np.fromiter(values, np.float64 if is_float else np.int64, len(values))
        if not is_float and found[name].astype(np.uint64).max(initial=0) >= MAX_VOCAB_SIZE:
            raise SourceError(f"record {number} has numbers outside 0..{MAX_VOCAB_SIZE - 1}")
    num_pieces, num_predictions = (len(found.get(n, ())) for n in ("input_ids", "masked_lm_ids"))
    expected = dict.fromkeys(_PIECE_FEATURES, num_pieces)
    expected |= dict.fromkeys(_PREDICTION_FEATURES, num_predictions) | {"next_sentence_labels": 1}
    lengths = {"token_boundary": num_pieces} | {name: len(each) for name, each in found.items()}
    if lengths != expected or not num_pieces or not num_predictions:
        raise SourceError(
            f"record {number} is no example: its features have lengths {lengths}, but "
            f"{_PIECE_FEATURES} must have one length, {_PREDICTION_FEATURES} one, and "
            "next_sentence_labels must have 1"
        )
    return found


def _rows_of_features(batch: list[Features]) -> Rows:
    """Return the examples of padded records.

    A row ends at its last piece that is not padding, and segment b begins where segment ids become
    1. Rows in which masks, segment ids, weights and padding contradict this are counted.

    Raises:
        SourceError: the records have features of different lengths, or one has no piece.
    """
    shapes = {name: {len(each.get(name, ())) for each in batch} for name in batch[0]}
    if any(len(lengths) > 1 for lengths in shapes.values()):
        raise SourceError(f"the records' features are not of the same lengths: {shapes}")
    features = {name: np.stack([each[name] for each in batch]) for name in batch[0]}
    ids, segments, weights = (
        features[name] for name in ("input_ids", "segment_ids", "masked_lm_weights")
    )
    lanes = np.arange(ids.shape[1])
    lengths = ((ids != PAD) * (lanes + 1)).max(axis=1)
    if not lengths.all():
        raise SourceError("a record has no piece but padding")
    real = lanes < lengths[:, None]
    in_b = segments == 1
    b_starts = np.where(in_b.any(axis=1), in_b.argmax(axis=1), lengths)
    wrong_segments = (real & (lanes >= b_starts[:, None])) != segments
    predicted = np.arange(weights.shape[1]) < (weights != 0).sum(axis=1, keepdims=True)
    of_padding = [features[n] * ~predicted != 0 for n in ("masked_lm_ids", "masked_lm_positions")]
    wrong_padding = [features["input_mask"] != real, weights != predicted, *of_padding]
    faults = {"padding": np.hstack(wrong_padding), "segment ids": wrong_segments}

    def lists(name: str, kept: Bools) -> pa.Array:
        ends = np.append(0, np.cumsum(kept.sum(axis=1)))
        return pa.LargeListArray.from_arrays(ends, features[name][kept])

    columns = {
        "input_ids": lists("input_ids", real),
        "segment_b_start": pa.array(b_starts),
        "masked_lm_positions": lists("masked_lm_positions", predicted),
        "masked_lm_labels": lists("masked_lm_ids", predicted),
        "sentence_order_label": pa.array(features["next_sentence_labels"][:, 0]),
    }
    if "token_boundary" in features:
        columns[OPENS_WORD] = lists("token_boundary", real)
    return Rows(columns, {check: int(at.any(axis=1).sum()) for check, at in faults.items()})
