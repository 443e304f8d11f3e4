"""Audit example shards, whoever wrote them: what is in them against what should be.

    python -m pipelines.audit MANIFEST_OR_FOLDER_OR_FILES... [--corpus MANIFEST] [--vocab FOLDER]

Prints a table with a line for each check. The exit status is 0 when all is within bounds, 1 when
something is not, and 2 when the shards cannot be read. Shards are read one by one, in pieces.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.contract import storage
from albert_core.contract.arrow_files import open_arrow
from albert_core.contract.errors import AlbertError, ConfigError, IntegrityError, SourceError
from albert_core.contract.manifest import MANIFEST, Manifest, Shard, check_shard, read_manifest
from albert_core.contract.records import NUM_SPECIAL_IN_PAIR
from albert_core.contract.seeds import UInt64s, random_bits
from albert_core.contract.stage_command import FAILURE, FAILURE_STATUS
from albert_core.contract.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.audit_checks import Expected, Finding, Tally, judge, measure, none_of, sound_rows
from pipelines.audit_rows import Rows, hash_of, rows_of_records, rows_of_table
from pipelines.audit_truth import Claim, fault_of
from pipelines.tfrecord import TFExample, read_tfrecord

_ROWS_PER_BATCH = 8192
_RECORDS_PER_BATCH = 1024
_SAMPLE = 5 << 40
"""Counter of the draw of rows for the sentence order."""
ARROW, TFRECORD = ".arrow", ".tfrecord"
TFRECORD_KIND = "_tfrecord"


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
    corpus: str = ""
    """URI of the corpus' manifest, or nothing."""
    tokenizer: Tokenizer | None = None
    sample: int = 2000
    """Rows to look up in the corpus; 0: all."""


@dataclass
class _Seen:
    """What is collected while the shards are read."""

    main: Tally = field(default_factory=Tally)
    tfrecord: Tally = field(default_factory=Tally)
    """Of TFRecord shards that have an Arrow shard beside them."""
    rows: dict[str, int] = field(default_factory=dict)
    """URI -> rows."""
    contents: dict[tuple[str, bool], UInt64s] = field(default_factory=dict)
    """Stem, and whether it is Arrow -> hash of the rows in order."""
    documents: dict[str, list[UInt64s]] = field(default_factory=dict)
    """Kind -> hashes of documents."""
    claims: list[Claim] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def audit(sources: Sources) -> list[Finding]:
    """Return what every check found.

    Raises:
        SourceError: no row can be read.
    """
    seen = _Seen()
    twins = {file.stem for file in sources.files if file.is_arrow}
    total = sum(_num_rows(file) for file in sources.files if sources.corpus and file.is_arrow)
    for file in sources.files:
        try:
            _read(file, sources, seen, twins, total)
        except (SourceError, pa.ArrowInvalid, ValueError, OSError) as error:
            seen.unreadable.append(f"{file.uri}: {error}")
    if not seen.main.counts["rows"]:
        raise SourceError("; ".join(seen.unreadable) or "the shards have no rows")
    return [
        *_judge_files(sources, seen),
        *judge(seen.main, sources.expected),
        *_judge_twins(sources, seen),
        *_judge_documents(sources, seen),
        *_judge_truth(sources, seen),
    ]


def _read(file: File, sources: Sources, seen: _Seen, twins: set[str], total: int) -> None:
    is_twin = not file.is_arrow and file.stem in twins
    tally = seen.tfrecord if is_twin else seen.main
    content = np.zeros(1, np.uint64)
    seen.rows[file.uri] = 0
    for table, rows in _batches(file, sources.tokenizer):
        seen.rows[file.uri] += len(rows)
        sound = measure(rows, sources.expected, tally)
        for part in (sound.documents, sound.others):
            if part is not None:
                seen.documents.setdefault(file.kind, []).append(np.unique(part[part != 0]))
        if len(sound):
            content ^= np.bitwise_xor.reduce(
                random_bits(sound.hashes, np.arange(len(sound)) + seen.rows[file.uri] - len(rows))
            )
        if table is not None and sources.corpus:
            kept = table.filter(pa.array(sound_rows(rows)))
            seen.claims += _claims(kept, sound, sources.sample, total)
    seen.contents[file.stem, file.is_arrow] = content


def _num_rows(file: File) -> int:
    if file.shard is not None:
        return file.shard.num_rows
    reader = open_arrow(file.uri)
    return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def _batches(file: File, tokenizer: Tokenizer | None) -> Iterator[tuple[pa.Table | None, Rows]]:
    if not file.is_arrow:
        for rows in rows_of_records(read_tfrecord(file.uri), _RECORDS_PER_BATCH):
            yield None, rows
        return
    reader = open_arrow(file.uri)
    for number in range(reader.num_record_batches):
        table = pa.Table.from_batches([reader.get_batch(number)])
        for begin in range(0, table.num_rows, _ROWS_PER_BATCH):
            part = table.slice(begin, _ROWS_PER_BATCH).combine_chunks()
            yield part, rows_of_table(part, None if tokenizer is None else tokenizer.starts_word)


def _claims(table: pa.Table, rows: Rows, sample: int, total: int) -> Iterator[Claim]:
    """Yield the claims of a sample of ``rows``, the same in every run; of all when it is 0."""
    if rows.documents is None or "first_sentence" not in table.column_names:
        return
    taken = np.arange(len(rows))
    if 0 < sample < total:
        limit = np.uint64(sample / total * 2.0**64)
        taken = np.flatnonzero(random_bits(rows.hashes, _SAMPLE) < limit)
    for row, values in zip(taken.tolist(), table.take(taken).to_pylist(), strict=True):
        begin, b_start, length = rows.starts[row], rows.b_starts[row], rows.lengths[row]
        pieces = rows.unmasked[begin : begin + length]
        yield Claim(
            a=pieces[1 : b_start - 1],
            b=pieces[b_start:-1],
            label=values["sentence_order_label"],
            document=values["document_id"],
            sentences=(values["first_sentence"], values["last_sentence"]),
            other=values.get("other_document_id"),
            other_sentences=(
                values.get("other_first_sentence") or 0,
                values.get("other_last_sentence") or 0,
            ),
        )


def _judge_files(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    wrong = list(seen.unreadable)
    for file in sources.files:
        if file.shard is None:
            continue
        try:
            check_shard(file.shard, sources.folder)
        except IntegrityError as error:
            wrong.append(str(error))
        if seen.rows.get(file.uri) != file.shard.num_rows:
            wrong.append(f"{file.uri} has {seen.rows.get(file.uri)} rows")
    found = "; ".join(wrong) or f"{len(sources.files)} files are whole"
    expected = "as the manifest says" if sources.manifest else "readable"
    yield Finding("files", found, expected, not wrong)
    yield _judge_sizes(sources, seen)


def _judge_sizes(sources: Sources, seen: _Seen) -> Finding:
    """Rows go to shards by their hash: none is far from the mean of its kind."""
    wrong, largest = [], 0.0
    for kind in {file.kind for file in sources.files}:
        sizes = np.array(
            [seen.rows.get(file.uri, 0) for file in sources.files if file.kind == kind]
        )
        away = np.abs(sizes - sizes.mean()) / max(1.0, np.sqrt(sizes.mean()))
        largest = max(largest, float(away.max()))
        wrong += [kind] if away.max() > sources.expected.z + 1 else []
    found = f"a shard is {largest:.1f} standard deviations from its kind's mean"
    return Finding("shard sizes", found, f"at most {sources.expected.z + 1:.1f}", not wrong)


def _judge_twins(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    """Judge TFRecord shards that have an Arrow shard beside them."""
    if not seen.tfrecord.counts["rows"]:
        return
    formats = ("schema", "layout", "padding", "segment ids", "positions")
    for finding in judge(seen.tfrecord, sources.expected):
        if finding.check in formats:
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
        yield _judge_accounts(sources, used)


def _judge_accounts(sources: Sources, used: UInt64s) -> Finding:
    """Every document of the corpus is in a shard, or counted as dropped."""
    corpus = np.concatenate(
        [
            np.array([hash_of(name) for name in table["id"].to_pylist()], np.uint64)
            for table in _corpus_tables(sources.corpus, ["id"])
        ]
    )
    missing, strange = len(np.setdiff1d(corpus, used)), len(np.setdiff1d(used, corpus))
    found = f"{missing:,} of {len(corpus):,} are in no shard, {strange:,} are not in the corpus"
    if sources.manifest is None:
        return Finding("documents accounted", found, "no manifest counts them", not strange)
    account = sources.manifest.account("documents")
    dropped = sum(account.dropped.values())
    ok = missing == dropped and not strange and account.total == len(corpus)
    return Finding("documents accounted", found, f"{dropped:,}, as the manifest counts", ok)


def _judge_truth(sources: Sources, seen: _Seen) -> Iterator[Finding]:
    check = "sentence order"
    if not sources.corpus or sources.tokenizer is None or not seen.claims:
        yield Finding(check, "needs --corpus, --vocab and Arrow shards", "", None)
        return
    texts = _texts(sources.corpus, seen.claims)
    expected = sources.expected
    faults = [
        fault_of(
            claim,
            texts,
            sources.tokenizer.encode,
            expected.max_seq_length - NUM_SPECIAL_IN_PAIR,
            expected.fidelity == "paper",
        )
        for claim in seen.claims
    ]
    names = sorted({fault for fault in faults if fault is not None})
    listed = ", ".join(f"{faults.count(name):,} {name}" for name in names)
    found = f"of {len(faults):,} rows looked up: {listed or 'all as their labels say'}"
    yield Finding(check, found, "all as their labels say", not names)


def _texts(corpus: str, claims: Sequence[Claim]) -> dict[str, str]:
    wanted = {name for claim in claims for name in (claim.document, claim.other)}
    texts: dict[str, str] = {}
    for table in _corpus_tables(corpus, ["id", "text"]):
        ids = table["id"].to_pylist()
        rows = [row for row, name in enumerate(ids) if name in wanted]
        found = table["text"].take(pa.array(rows, pa.int64())).to_pylist()
        texts.update((ids[row], text) for row, text in zip(rows, found, strict=True))
    return texts


def _corpus_tables(corpus: str, columns: list[str]) -> Iterator[pa.Table]:
    for shard in read_manifest(corpus).shards_of("documents"):
        reader = open_arrow(storage.join(corpus.rpartition("/")[0], shard.path))
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(columns)


def find_sources(paths: Sequence[str], options: argparse.Namespace) -> Sources:
    """Return what ``paths`` mean: one manifest or its folder, or files and globs.

    Raises:
        SourceError: there is nothing to audit.
        ConfigError: the vocabulary or corpus named does not exist.
    """
    manifest, folder, files = None, "", []
    first = paths[0].removesuffix(f"/{MANIFEST}").rstrip("/")
    if len(paths) == 1 and storage.exists(storage.join(first, MANIFEST)):
        folder, manifest = first, read_manifest(storage.join(first, MANIFEST))
        files = [
            File(storage.join(folder, shard.path), shard.kind, shard) for shard in manifest.shards
        ]
    else:
        files = [File(uri, _kind_of(uri)) for path in paths for uri in _expand(path)]
    files = [file for file in files if file.uri.endswith((ARROW, TFRECORD))]
    if not files:
        raise SourceError(f"{paths} has no {ARROW} or {TFRECORD} files. Name shards or a manifest.")
    inputs = {} if manifest is None else manifest.input_manifests
    corpus = _manifest_uri(options.corpus or _if_exists(inputs.get("corpus", "")))
    vocab = options.vocab or _if_exists(inputs.get("vocab", "")).rpartition("/")[0]
    tokenizer = _load_tokenizer(vocab, manifest) if vocab else None
    expected = _expected(manifest, tokenizer, files, options)
    return Sources(
        files=files,
        expected=expected,
        manifest=manifest,
        folder=folder,
        corpus=corpus,
        tokenizer=tokenizer,
        sample=options.sample,
    )


def _expand(path: str) -> list[str]:
    fs, pattern = storage.filesystem(path)
    if fs.isdir(pattern):
        pattern = f"{pattern.rstrip('/')}/*"
    return sorted(str(fs.unstrip_protocol(found)) for found in fs.glob(pattern))


def _kind_of(uri: str) -> str:
    name = uri.rpartition("/")[2]
    kind = next((kind for kind in ("held_out", "train") if name.startswith(kind)), "examples")
    return kind + (TFRECORD_KIND if name.endswith(TFRECORD) else "")


def _if_exists(uri: str) -> str:
    return uri if uri and storage.exists(uri) else ""


def _manifest_uri(uri: str) -> str:
    if not uri or uri.endswith(MANIFEST):
        return uri
    return storage.join(uri, MANIFEST)


def _load_tokenizer(vocab: str, manifest: Manifest | None) -> Tokenizer:
    folder = vocab.removesuffix(f"/{MANIFEST}")
    made_by = storage.join(folder, MANIFEST)
    lower_case = True
    if storage.exists(made_by):
        lower_case = bool(read_manifest(made_by).facts.get("lower_case", True))
    split = manifest is not None and _setting(manifest, "fidelity") == "google"
    is_folder = storage.exists(storage.join(folder, SPIECE_MODEL))
    model = storage.join(folder, SPIECE_MODEL) if is_folder else vocab
    if not storage.exists(model):
        raise ConfigError(f"--vocab {vocab}: there is no {SPIECE_MODEL}. Name its folder or file.")
    return Tokenizer(storage.read_bytes(model), lower_case, split)


def _setting(manifest: Manifest, name: str) -> Any:
    return manifest.facts.get(name, manifest.settings.get(name))


def _expected(
    manifest: Manifest | None,
    tokenizer: Tokenizer | None,
    files: list[File],
    options: argparse.Namespace,
) -> Expected:
    values: dict[str, Any] = {"fidelity": "unknown", "max_seq_length": 512}
    if manifest is not None:
        names = [field.name for field in dataclasses.fields(Expected)]
        values |= {"fidelity": "paper"} | {name: _setting(manifest, name) for name in names}
    elif not files[0].is_arrow:
        values["max_seq_length"] = _padded_length(files[0].uri)
    if tokenizer is not None:
        values["vocab_size"] = tokenizer.vocab_size
    values |= {name: getattr(options, name) for name in _OPTIONS if getattr(options, name)}
    return Expected(**{name: value for name, value in values.items() if value is not None})


def _padded_length(uri: str) -> int:
    try:
        record = next(iter(read_tfrecord(uri)), b"")
    except ValueError as error:
        raise SourceError(str(error)) from error
    features = TFExample.FromString(record).features.feature
    return len(features["input_ids"].int64_list.value) or 512


def table_of(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, one a line."""
    width = max(len(finding.check) for finding in findings)
    mark = {True: "ok  ", False: "FAIL", None: "-   "}
    return "\n".join(
        f"{mark[f.ok]}  {f.check:{width}}  {f.found}"
        + (f"; expected {f.expected}" * bool(f.expected))
        for f in findings
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Audit what the arguments name; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        findings = audit(find_sources(options.paths, options))
    except AlbertError as error:
        sys.stderr.write(f"{FAILURE}{error}\n")
        return FAILURE_STATUS
    if options.json:
        text = json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1)
    else:
        text = table_of(findings)
    sys.stdout.write(text + "\n")
    return int(any(finding.ok is False for finding in findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.audit", description=__doc__)
    parser.add_argument("paths", nargs="+", help="a manifest or its folder; or files and globs")
    parser.add_argument("--corpus", default="", help="manifest of the corpus they were made of")
    parser.add_argument("--vocab", default="", help="folder with spiece.model, or a model file")
    parser.add_argument("--sample", type=int, default=2000, help="rows to look up; 0: all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    for name, of_type in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=of_type, help="else the manifest's")
    return parser


_OPTIONS: dict[str, type] = {
    "max_seq_length": int,
    "max_predictions": int,
    "masked_lm_prob": float,
    "max_ngram": int,
    "objective": str,
    "fidelity": str,
    "z": float,
    "min_budget_used": float,
    "max_unknown_share": float,
    "max_repeated_share": float,
    "run_tolerance": float,
}


if __name__ == "__main__":
    sys.exit(main())
