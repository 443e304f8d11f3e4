"""Audit example shards, whoever wrote them: what is in them against what should be.

There is a finding for each check. Shards are read one by one, in pieces. Whatever is in a file, it
is reported: one that cannot be read, of the shards, of the corpus or the vocabulary, is a failed
check, and all others are audited. A row that lacks a value or breaks the format is counted and left
out of the other checks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.errors import AlbertError, ConfigError, SourceError
from albert_core.stage.manifest import MANIFEST, Manifest, Shard, check_shard, read_manifest
from albert_core.text.records import MAX_VOCAB_SIZE, NUM_SPECIAL_IN_PAIR
from albert_core.text.seeds import UInt64s, random_bits
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.audit.checks import (
    MAX_LENGTH,
    MAX_RUN,
    Claim,
    Expected,
    Finding,
    Tally,
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
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class File:
    """One shard to audit."""

    uri: str
    kind: str
    """train, held_out, or where no manifest says: examples."""
    shard: Shard | None = None

    @property
    def is_arrow(self) -> bool:
        """Whether it is an Arrow file; else it is TFRecord."""
        return self.uri.endswith(ARROW)

    @property
    def stem(self) -> str:
        """What Arrow and TFRecord shards of the same examples have in common."""
        return self.uri.rpartition("/")[2].partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What is audited, and what it is held against."""

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
    """What is there but cannot be read, so that the audit goes on without it."""


@dataclass
class _Seen:
    """What is collected while the shards and the corpus are read."""

    main: Tally = field(default_factory=Tally)
    tfrecord: Tally = field(default_factory=Tally)
    """Of TFRecord shards that have an Arrow shard beside them."""
    rows: dict[str, int] = field(default_factory=dict)
    """URI -> rows."""
    contents: dict[tuple[str, bool], UInt64s] = field(default_factory=dict)
    """Stem, and whether it is Arrow -> hash of the rows in order."""
    documents: dict[str, list[UInt64s]] = field(default_factory=dict)
    """Kind -> hashes of documents."""
    claims: list[tuple[int, Claim]] = field(default_factory=list)
    """With their draws, ascending."""
    corpus: list[UInt64s] = field(default_factory=list)
    """Hashes of the corpus' documents."""
    texts: dict[str, str] = field(default_factory=dict)
    """Of the documents that are claimed."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """URI -> why."""


def audit(sources: Sources) -> list[Finding]:
    """Return what every check found; that a file cannot be read is a finding, too."""
    seen = _Seen()
    twins = {file.stem for file in sources.files if file.is_arrow}
    for file in sources.files:
        try:
            _read(file, sources, seen, twins)
        except SourceError as error:
            seen.unreadable[file.uri] = f"{file.uri}: {error}"
    wanted = {name for _, claim in seen.claims for name in (claim.document, claim.other)}
    for uri in sources.corpus:
        try:
            _read_corpus(uri, wanted, seen)
        except SourceError as error:
            seen.unreadable[uri] = f"{uri}: {error}"
    return [
        *_judge_files(sources, seen),
        *(judge(seen.main, sources.expected) if seen.main.counts["rows"] else []),
        *_judge_twins(sources, seen),
        *_judge_documents(sources, seen),
        *_judge_truth(sources, seen),
    ]


def _read(file: File, sources: Sources, seen: _Seen, twins: set[str]) -> None:
    is_twin = not file.is_arrow and file.stem in twins
    tally = seen.tfrecord if is_twin else seen.main
    content = np.zeros(1, np.uint64)
    seen.rows[file.uri] = 0
    for rows in _batches(file, sources.tokenizer):
        begin = seen.rows[file.uri]
        seen.rows[file.uri] += len(rows) + rows.left_out
        sound = measure(rows, sources.expected, tally)
        for part in (sound.documents, sound.others):
            if part is not None:
                seen.documents.setdefault(file.kind, []).append(np.unique(part[part != 0]))
        if not len(sound):
            continue
        numbers = np.arange(begin, begin + len(sound))
        content ^= np.bitwise_xor.reduce(random_bits(sound.hashes, numbers))
        if sound.named is not None and sources.corpus:
            _sample(sound, sources.sample, seen)
    seen.contents[file.stem, file.is_arrow] = content


def _batches(file: File, tokenizer: Tokenizer | None) -> Iterator[Rows]:
    if file.uri.endswith(TFRECORD):
        yield from rows_of_records(read_tfrecord(file.uri), _RECORDS_PER_BATCH)
        return
    if not file.is_arrow:
        raise SourceError(f"is neither {ARROW} nor {TFRECORD}")
    for batch in read_batches(file.uri):
        table = pa.Table.from_batches([batch])
        for begin in range(0, table.num_rows, _ROWS_PER_BATCH):
            part = table.slice(begin, _ROWS_PER_BATCH)
            yield rows_of_table(part, None if tokenizer is None else tokenizer.starts_word)


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
    wrong, largest = [], 0.0
    files = [file for file in sources.files if file.uri not in seen.unreadable]
    for kind in {file.kind for file in files}:
        sizes = np.array([seen.rows[file.uri] for file in files if file.kind == kind])
        away = np.abs(sizes - sizes.mean()) / max(1.0, np.sqrt(sizes.mean()))
        largest = max(largest, float(away.max()))
        wrong += [kind] if away.max() > sources.expected.z + 1 else []
    found = f"a shard is {largest:.1f} standard deviations from its kind's mean"
    return Finding("shard sizes", found, f"at most {sources.expected.z + 1:.1f}", not wrong)


def _judge_twins(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    """Judge TFRecord shards that have an Arrow shard beside them."""
    if not seen.tfrecord.counts["rows"]:
        return
    formats = ("schema", "vocabulary", "layout", "padding", "segment ids", "positions")
    for finding in judge(seen.tfrecord, sources.expected):
        if finding.check in formats and finding.ok is not None:
            yield dataclasses.replace(finding, check=f"TFRecord {finding.check}")
    stems = {stem for stem, is_arrow in seen.contents if not is_arrow}
    differ = [
        stem
        for stem in sorted(stems)
        if (stem, True) in seen.contents
        and (seen.contents[stem, True] != seen.contents[stem, False]).any()
    ]
    found = f"{len(differ)} of {len(stems)} TFRecord shards differ: {differ[:3]}"
    yield Finding("Arrow and TFRecord", found, "the same examples", not differ)


def _judge_documents(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    kinds = {kind: np.unique(np.concatenate(parts)) for kind, parts in seen.documents.items()}
    if not kinds:
        yield Finding("held-out split", "documents are not known", "", None)
        return
    train, held_out = (kinds.get(kind, np.zeros(0, np.uint64)) for kind in ("train", "held_out"))
    both = len(np.intersect1d(train, held_out))
    what = f"held-out documents are also trained on ({len(train):,} are)"
    yield none_of("held-out split", both, len(held_out), what)
    if sources.corpus:
        used = np.unique(np.concatenate(list(kinds.values())))
        yield _judge_accounts(sources, seen, used)


def _judge_accounts(sources: Sources, seen: _Seen, used: UInt64s) -> Finding:
    """Every document of the corpus is in a shard, or counted as dropped."""
    corpus = np.concatenate([*seen.corpus, np.zeros(0, np.uint64)])
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


def _judge_truth(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    check = "sentence order"
    if not sources.corpus or sources.tokenizer is None or not seen.claims:
        yield Finding(check, "needs --corpus, --vocab and Arrow shards", "", None)
        return
    expected = sources.expected
    faults = [
        fault_of(
            claim,
            seen.texts,
            sources.tokenizer.encode,
            expected.max_seq_length - NUM_SPECIAL_IN_PAIR,
            expected.fidelity == "paper",
        )
        for _, claim in seen.claims
    ]
    names = sorted({fault for fault in faults if fault is not None})
    listed = ", ".join(f"{faults.count(name):,} {name}" for name in names)
    found = f"of {len(faults):,} rows looked up: {listed or 'all as their labels say'}"
    yield Finding(check, found, "all as their labels say", not names)


def find_sources(
    paths: Sequence[str],
    *,
    corpus: str = "",
    vocab: str = "",
    sample: int = 2000,
    expected: Mapping[str, Any] | None = None,
) -> Sources:
    """Return what is to be audited. What is there but damaged is told in the result.

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
    given = _checked(expected or {})
    faults: list[str] = []
    with decoding(paths[0]):
        folder = storage.absolute(paths[0]).removesuffix(f"/{MANIFEST}").rstrip("/")
    manifest = None
    uri = storage.join(folder, MANIFEST)
    if len(paths) == 1 and _exists(uri):
        manifest = _tried(lambda: read_manifest(uri), uri, faults)
        paths = [folder]
    files: list[File] = []
    for path in paths:
        found = _expand(path) if manifest is None else _named_by(manifest, folder)
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


def _tried(read: Callable[[], _Read], where: str, faults: list[str]) -> _Read | None:
    """Return what ``read`` returns; or None, and add to ``faults`` why not."""
    try:
        with decoding(where):
            return read()
    except AlbertError as error:
        faults.append(str(error))
        return None


def _exists(uri: str) -> bool:
    with decoding(uri):
        return storage.exists(uri)


def _is_folder(uri: str) -> bool:
    with decoding(uri):
        fs, path = storage.filesystem(uri)
        return bool(fs.isdir(path))


def _named_by(manifest: Manifest, folder: str) -> list[File]:
    return [File(storage.join(folder, shard.path), shard.kind, shard) for shard in manifest.shards]


def _expand(path: str) -> list[File]:
    """Return the shards that ``path`` means: a file, a glob or a folder."""
    pattern = storage.join(path, "*") if _is_folder(path) else path
    with decoding(path):
        fs, pattern = storage.filesystem(pattern)
        found = sorted(str(fs.unstrip_protocol(name)) for name in fs.glob(pattern))
    return [File(uri, _kind_of(uri)) for uri in found if uri.endswith((ARROW, TFRECORD))]


def _kind_of(uri: str) -> str:
    name = uri.rpartition("/")[2]
    kind = next((kind for kind in ("held_out", "train") if name.startswith(kind)), "examples")
    return kind + (TFRECORD_KIND if name.endswith(TFRECORD) else "")


def _find_corpus(named: str, recorded: str, faults: list[str]) -> list[str]:
    """Return the URIs of the shards of the corpus named, else of the one recorded."""
    uri = named or recorded
    uri = uri if not uri or uri.endswith(MANIFEST) else storage.join(uri, MANIFEST)
    if not _is_there(uri, named):
        return []
    manifest = _tried(lambda: read_manifest(uri), uri, faults)
    if manifest is None:
        return []
    shards = manifest.shards_of("documents")
    faults += [] if shards else [f"{uri} has no shards of documents: it is no corpus"]
    return [storage.join(uri.rpartition("/")[0], shard.path) for shard in shards]


def _find_tokenizer(
    named: str, recorded: str, manifest: Manifest | None, faults: list[str]
) -> Tokenizer | None:
    """Return the vocabulary named, else the one that ``manifest`` records."""
    place = (named or recorded).removesuffix(f"/{MANIFEST}")
    model = place if named and not _is_folder(place) else storage.join(place, SPIECE_MODEL)
    if not _is_there(model, named):
        return None

    def load() -> Tokenizer:
        made_by = storage.join(model.rpartition("/")[0], MANIFEST)
        facts = read_manifest(made_by).facts if storage.exists(made_by) else {}
        split = manifest is not None and _setting(manifest, "fidelity") == "google"
        lower_case = bool(facts.get("lower_case", True))
        tokenizer = Tokenizer(storage.read_bytes(model), lower_case, split)
        tokenizer.encode([" ".join(tokenizer.pieces)])
        return tokenizer

    return _tried(load, model, faults)


def _is_there(uri: str, named: str) -> bool:
    """Return whether there is something at ``uri``; ConfigError if not, though it was named."""
    try:
        there = bool(uri) and _exists(uri)
    except AlbertError:
        if named:
            raise
        there = False
    if named and not there:
        raise ConfigError(f"{named} does not exist. Name a manifest, its folder, or a model file.")
    return there


def _setting(manifest: Manifest, name: str) -> Any:
    return manifest.facts.get(name, manifest.settings.get(name))


def _expected(
    manifest: Manifest | None,
    tokenizer: Tokenizer | None,
    files: list[File],
    given: Mapping[str, Any],
    faults: list[str],
) -> Expected:
    values: dict[str, Any] = {"fidelity": "unknown", "max_seq_length": 512}
    if manifest is not None:
        values["fidelity"] = "paper"
        for name, parse in {**_RANGES, "vocab_size": _number(int, 1, MAX_VOCAB_SIZE)}.items():
            found = _setting(manifest, name)
            if found is None:
                continue
            try:
                values[name] = parse(str(found))
            except ValueError as error:
                faults.append(f"{MANIFEST}: {name}: {error}")
    elif files and not files[0].is_arrow:
        values["max_seq_length"] = _padded_length(files) or values["max_seq_length"]
    if tokenizer is not None:
        values["vocab_size"] = tokenizer.vocab_size
    return Expected(**{**values, **given})


def _checked(expected: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in expected.items():
        try:
            given |= {} if value is None else {name: _RANGES[name](str(value))}
        except ValueError as error:
            raise ConfigError(f"--{name.replace('_', '-')}: {error}") from error
    return given


def _padded_length(files: list[File]) -> int:
    """Return the length that the first TFRecord file that can be read is padded to; 0: none can."""
    for file in files:
        try:
            if not file.is_arrow and (length := padded_length(read_tfrecord(file.uri))):
                return length
        except SourceError:
            continue
    return 0


def table_of(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, one a line."""
    width = max(len(finding.check) for finding in findings)
    mark = {True: "ok  ", False: "FAIL", None: "-   "}
    return "\n".join(
        f"{mark[f.ok]}  {f.check:{width}}  {f.found}"
        + (f"; expected {f.expected}" * bool(f.expected))
        for f in findings
    )


def _number(of: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not low <= (value := of(text)) <= high:
            raise ValueError(f"{text} is not in {low} to {high}")
        return value

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {names}")
        return text

    return parse


_RANGES: dict[str, Callable[[str], Any]] = {
    "max_seq_length": _number(int, NUM_SPECIAL_IN_PAIR, MAX_LENGTH),
    "max_predictions": _number(int, 1, MAX_LENGTH),
    "masked_lm_prob": _number(float, 0, 1),
    "max_ngram": _number(int, 1, MAX_RUN - 1),
    "objective": _one_of("sop", "nsp", "none"),
    "fidelity": _one_of("paper", "google", "unknown"),
    "z": _number(float, 0, 1e9),
    "min_budget_used": _number(float, 0, 1e9),
    "max_unknown_share": _number(float, 0, 1),
    "max_repeated_share": _number(float, 0, 1),
    "run_tolerance": _number(float, 0, 1),
}
"""Name -> what reads it, as given or in a manifest: a number in its range, or a name."""
