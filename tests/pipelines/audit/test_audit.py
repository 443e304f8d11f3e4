"""The auditor names each planted fault and each damage, and finds none in good shards."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import comb
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import AuditResult
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS
from flows.commands.main import main
from pipelines import audit, audit_shards, clean_corpus, make_examples, train_vocab
from pipelines.audit import rows_of_batch
from pipelines.audit.checks import (
    ALARM,
    OPENS_WORD,
    Expected,
    Finding,
    Rows,
    Tally,
    fault_of,
    judge,
    measure,
    tails,
)
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from pipelines.examples.tfrecord import TFExample, read_tfrecord, write_tfrecord
from tests.generated_text import document, write_jsonl
from tests.pipelines.audit.planted_faults import FAULTS, Row, Shards
from tests.pipelines.conftest import EXAMPLES, Made
from tests.pipelines.conftest import make as make_few

SHARED = Path(__file__).parents[3].parent / "shared"
LENGTH = 128
SETTINGS = ExampleSettings(
    max_seq_length=LENGTH,
    dupe_factor=2,
    held_out_share=0.1,
    shard_mb=0.05,
    short_seq_prob=0.3,
    tfrecord=True,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """The manifests of a corpus of 64 documents in two shards and its vocabulary, and where."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "source").mkdir()
    write_jsonl(folder / "source" / "0.jsonl", range(63))
    write_jsonl(folder / "source" / "1.jsonl", [63])
    work = str(folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
        source = SourceSettings(uri=str(folder / "source"))
        corpus = clean_corpus.run(source, CleaningSettings(), work)
        vocab = train_vocab.run(VocabularySettings(vocab_size=300), corpus, work)
    return corpus, vocab, work


def make(inputs: tuple[str, str, str], **changes: object) -> Shards:
    corpus, vocab, work = inputs
    settings = SETTINGS.model_copy(update=changes)
    return Shards.of(make_examples.run(settings, corpus, vocab, work), corpus, vocab)


@pytest.fixture(scope="module")
def good(inputs: tuple[str, str, str]) -> Shards:
    return make(inputs)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """The examples of a few documents."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "source").mkdir()
    write_jsonl(folder / "source" / "0.jsonl", range(6))
    few = make_few(folder / "source", folder / "work")
    return Shards.of(few.examples, few.corpus, few.vocab)


@pytest.fixture
def copy(tiny: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of ``tiny`` that a test may damage."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # it need not outlive the machine
    return tiny.copied(tmp_path / "copy").folder


def findings_of(path: Path | str, sample: int = 400, **options: Any) -> list[Finding]:
    return audit.audit([str(path)], sample=sample, **options)


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is False}


def skipped(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is None}


def told(findings: list[Finding]) -> str:
    """Return what the checks that fail say."""
    return "\n".join(f"{f.found}; {f.expected}" for f in findings if f.ok is False)


# Good shards


def test_good_shards_pass_every_check(good: Shards) -> None:
    findings = findings_of(good.folder)
    assert (failed(findings), skipped(findings)) == (set(), set())
    by_chance = [finding for finding in findings if "(p = " in finding.found]
    of_intervals, of_longer_ngrams = 2, 8
    assert 15 <= len(by_chance) <= 1e-3 / ALARM - of_intervals - of_longer_ngrams
    assert all(f.ok for f in findings_of(good.folder, sample=1) if f.check == "labels")


@pytest.mark.parametrize(
    "changes", [{"objective": "nsp"}, {"objective": "none"}, {"fidelity": "google"}]
)
def test_shards_made_by_other_rules_pass_when_their_manifest_says_so(
    inputs: tuple[str, str, str], changes: dict[str, str]
) -> None:
    assert failed(findings_of(make(inputs, **changes).folder)) == set()


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
@pytest.mark.parametrize("fidelity", ["paper", "google"])
def test_good_shards_of_documents_of_one_sentence_pass(
    fidelity: str, objective: str, tmp_path: Path
) -> None:
    lines = [document(n, 1 if n % 2 else 30) for n in range(120)]
    content = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (tmp_path / "source.jsonl").write_text(content)
    source = SourceSettings(uri=str(tmp_path / "source.jsonl"))
    work = str(tmp_path / "work")
    corpus = clean_corpus.run(source, CleaningSettings(min_words=1), work)
    vocab = train_vocab.run(VocabularySettings(vocab_size=300), corpus, work)
    shards = make((corpus, vocab, work), objective=objective, fidelity=fidelity)
    assert failed(findings_of(shards.folder)) == set()


@pytest.mark.parametrize("check", ["label balance: by length", "order tell-tale: lengths"])
def test_lengths_that_tell_a_borrowed_segment_are_found(
    check: str, inputs: tuple[str, str, str]
) -> None:
    shards = make(inputs, objective="nsp")
    given = {"max_seq_length": LENGTH, "objective": "nsp", "vocab_size": 300}
    tally = Tally(Expected.model_validate(given), shards.tokenizer.starts_word)
    every = read_arrow(str(shards.paths("train")[0]))
    length = pc.list_value_length(every["input_ids"]).to_numpy()
    told_by = length if "balance" in check else 2 * every["segment_b_start"].to_numpy() - length
    label = every["sentence_order_label"].to_numpy()
    some = every.filter(pa.array((label == 1) | (told_by < np.median(told_by)))).combine_chunks()
    for _ in range(20):
        measure(rows_of_batch(some.to_batches()[0]), tally)
    assert check in failed(judge(tally))


@pytest.mark.parametrize("fidelity", ["paper", "google"])
def test_correct_rows_pass_however_few_they_are(
    fidelity: str, inputs: tuple[str, str, str]
) -> None:
    shards = make(inputs, fidelity=fidelity)
    given = {"max_seq_length": LENGTH, "fidelity": fidelity, "vocab_size": 300, "seed": 12345}
    every = read_arrow(str(shards.paths("train")[0])).combine_chunks()
    draw = np.random.default_rng(0)
    for size in [1] * 20 + [5] * 15 + [57] * 8:
        tally = Tally(Expected.model_validate(given), shards.tokenizer.starts_word)
        some = every.take(pa.array(draw.choice(len(every), size, replace=False)))
        measure(rows_of_batch(some.combine_chunks().to_batches()[0]), tally)
        assert failed(judge(tally)) == set()


@pytest.mark.parametrize("share", [0.0, 0.005, 0.1, 0.5])
@pytest.mark.parametrize("total", [1, 5, 57])
def test_a_deviation_is_no_more_probable_than_it_is_told_to_be(share: float, total: int) -> None:
    weights = [comb(total, n) * share**n * (1 - share) ** (total - n) for n in range(total + 1)]
    found = [tails(n, total, share) for n in range(total + 1)]
    for level in (1e-5, 1e-3, 0.05, 0.3):
        below = (weight for weight, p in zip(weights, found, strict=True) if p <= level)
        assert sum(below) <= level


def test_files_without_a_manifest_are_audited_as_far_as_they_tell(good: Shards) -> None:
    length = {"max_seq_length": LENGTH}
    arrow = findings_of(good.folder / "*.arrow", expected=length)
    assert failed(arrow) == set()
    assert skipped(arrow) >= {"vocabulary", "whole words", "labels"}
    records = findings_of(good.folder / "*.tfrecord")
    assert failed(records) == set()
    assert skipped(records) >= {"vocabulary", "n-grams", "held-out split"}
    assert "whole words" not in skipped(records)
    for vocab in (Path(good.vocab).parent, Path(good.vocab).with_name("spiece.model")):
        named: dict[str, Any] = {"corpus": good.corpus, "vocab": str(vocab)}
        findings = findings_of(good.folder / "*.arrow", expected=length, **named)
        assert failed(findings) == set()
        assert "labels" not in skipped(findings)


def test_what_is_found_does_not_depend_on_the_batches(
    good: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = findings_of(good.folder)
    monkeypatch.setattr("pipelines.audit._ROWS_PER_BATCH", 97)
    monkeypatch.setattr("pipelines.audit._RECORDS_PER_BATCH", 53)
    cut = findings_of(good.folder)
    changed = [a.check for a, b in zip(whole, cut, strict=True) if a != b]
    # Neighbours are counted in each batch.
    assert set(changed) <= {"shuffle"}
    assert failed(cut) == set()


# Faults


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, good: Shards, tmp_path: Path) -> None:
    check, plant = FAULTS[fault]
    spoiled = good.copied(tmp_path / "spoiled")
    plant(spoiled)
    assert any(name.startswith(check) for name in failed(findings_of(spoiled.folder)))


def test_shards_signed_again_but_not_spoiled_pass(good: Shards, tmp_path: Path) -> None:
    copied = good.copied(tmp_path / "copied")
    copied.spoil_rows(lambda rows: rows)
    copied.spoil_records("input_ids", lambda values: values)
    assert failed(findings_of(copied.folder)) == set()


def test_a_text_that_says_the_same_twice_is_no_fault_of_the_pairs(
    good: Shards, tmp_path: Path
) -> None:
    def elsewhere(row: Row) -> Row:
        return replace(row, first=row.first + 99, last=row.last + 99)

    copied = good.copied(tmp_path / "copied")
    copied.spoil_rows(lambda rows: rows + good.masked([elsewhere(row) for row in rows[::20]]))
    assert "repeated rows" not in failed(findings_of(copied.folder))


# Damages

Values = dict[str, Any]
Bytes = bytes | bytearray
LISTS = ("input_ids", "masked_lm_positions", "masked_lm_labels")
ROW_DAMAGES: list[tuple[str, Callable[[Values], Values]]] = [
    *(("files", lambda row, name=name: {name: None}) for name in EXAMPLE_SCHEMA.names),
    *(("files", lambda row, name=name: {name: [None, *row[name][1:]]}) for name in LISTS),
    ("files", lambda row: {"input_ids": []}),
    ("files", lambda row: {"masked_lm_positions": row["masked_lm_positions"][:-1]}),
    ("files", lambda row: {"masked_lm_labels": [*row["masked_lm_labels"], 9]}),
    ("files", lambda row: {"first_sentence": row["last_sentence"] + 1}),
    ("vocabulary", lambda row: {"input_ids": [2, 60_000, *row["input_ids"][2:]]}),
    ("vocabulary", lambda row: {"masked_lm_labels": [150, *row["masked_lm_labels"][1:]]}),
    ("positions", lambda row: {"masked_lm_positions": row["masked_lm_positions"][::-1]}),
    ("special pieces", lambda row: {"masked_lm_positions": [0, *row["masked_lm_positions"][1:]]}),
    ("padding", lambda row: {"input_ids": [*row["input_ids"][:-2], 0, 3]}),
    ("size", lambda row: {"sentence_order_label": 2}),
    ("size", lambda row: {"input_ids": row["input_ids"] * 2000}),
    ("layout", lambda row: {"segment_b_start": 2}),
    ("layout", lambda row: {"segment_b_start": len(row["input_ids"]) + 1}),
    ("layout", lambda row: {"input_ids": row["input_ids"][:1]}),
    ("layout", lambda row: {"input_ids": [9, *row["input_ids"][1:]]}),
    ("layout", lambda row: {"input_ids": [*row["input_ids"][:-1], 9]}),
]


def with_column(name: str, change: Callable[[pa.ChunkedArray], Any]) -> Any:
    return lambda table: table.set_column(table.column_names.index(name), name, change(table[name]))


def with_other_documents_only(table: pa.Table) -> pa.Table:
    for name, of in OTHER_DOCUMENT_FIELDS:
        values = table["document_id"] if name == "other_document_id" else pa.nulls(len(table), of)
        table = table.append_column(name, values)
    return table


TABLE_DAMAGES: list[Callable[[pa.Table], pa.Table]] = [
    lambda table: table.select([]),
    lambda table: table.remove_column(1),
    lambda table: table.append_column("\x1b", table["copy"]),
    lambda table: table.append_column("copy", table["copy"]),
    lambda table: table.rename_columns([f"{name}s" for name in table.column_names]),
    with_column("copy", lambda values: values.cast(pa.int64())),
    with_column("input_ids", lambda values: values.cast(pa.large_list(pa.int32()))),
    with_column("document_id", lambda values: pa.array([b"\xff"] * len(values))),
    with_other_documents_only,
]
INTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")


def numbers(name: str, change: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda features: change(features[name].int64_list.value)


def with_floats(features: Any) -> None:
    values = list(map(float, features["input_ids"].int64_list.value))
    features["input_ids"].Clear()
    features["input_ids"].float_list.value.extend(values)


RECORD_DAMAGES: list[tuple[str, Callable[[Any], object]]] = [
    *(("files", lambda features, name=name: features.pop(name)) for name in INTS),
    *(("files", numbers(name, lambda values: values.append(1))) for name in INTS),
    *(("files", numbers(name, lambda values: values.__setitem__(0, -1))) for name in INTS),
    ("files", numbers("input_ids", lambda values: values.__setitem__(5, (1 << 63) - 1))),
    ("files", numbers("token_boundary", lambda values: values.clear())),
    ("files", numbers("next_sentence_labels", lambda values: values.append(1))),
    ("files", numbers("input_ids", lambda v: v.__setitem__(slice(None), [0] * len(v)))),
    ("files", with_floats),
    ("files", lambda features: features["input_ids"].ParseFromString(b"\x0a\x03\x0a\x01x")),
    (
        "padding",
        lambda features: features["masked_lm_weights"].float_list.value.__setitem__(
            0, float("nan")
        ),
    ),
]


def spoil_row(path: Path, change: Callable[[Values], Values]) -> None:
    first, *others = read_arrow(str(path)).to_pylist()
    changed = [first | change(first), *others]
    write_arrow(pa.Table.from_pylist(changed, schema=EXAMPLE_SCHEMA), str(path))


def spoil_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    write_arrow(change(read_arrow(str(path))), str(path))


def spoil_record(path: Path, change: Callable[[Any], object]) -> None:
    first, *others = read_tfrecord(str(path))
    example = TFExample.FromString(first)
    change(example.features.feature)
    write_tfrecord([example.SerializeToString(), *others], str(path))


DAMAGES: list[tuple[str, str, Any, Any]] = [
    *((".arrow", check, spoil_row, change) for check, change in ROW_DAMAGES),
    *((".arrow", "files", spoil_table, change) for change in TABLE_DAMAGES),
    *((".tfrecord", check, spoil_record, change) for check, change in RECORD_DAMAGES),
]


@pytest.mark.parametrize(("ending", "check", "spoil", "change"), DAMAGES)
def test_what_breaks_the_format_is_reported_without_a_manifest(
    ending: str, check: str, spoil: Any, change: Any, tiny: Shards, copy: Path
) -> None:
    path = next(copy.glob(f"train*{ending}"))
    spoil(path, change)
    expected = {"max_seq_length": EXAMPLES.max_seq_length}
    findings = findings_of(path, expected=expected, vocab=tiny.vocab)
    assert check in failed(findings)
    assert check != "files" or path.name in told(findings)


def test_damaged_bytes_are_reported_and_do_no_harm(copy: Path, tiny: Shards) -> None:
    def damaged(content: bytearray, random: Random) -> Bytes:
        at = random.randrange(len(content))
        content[at] ^= 1 << random.randrange(8)
        kept = content[:at] + bytes(64) + content[at + 64 :]
        ways: list[Bytes] = [content, kept, content[:at], random.randbytes(len(content)), b""]
        return random.choice(ways)

    for number in range(40):
        random = Random(number)
        path = copy / random.choice([name for name in tiny.files if name != "manifest.json"])
        path.write_bytes(damaged(bytearray(tiny.files[path.name]), random))
        findings = findings_of(copy, sample=20)
        assert path.name in told(findings)
        assert next(f for f in findings if f.check == "layout").found
        assert findings_of(path)
        path.write_bytes(tiny.files[path.name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["accounts"].clear(), "an account of them in the manifest"),
        (lambda m: m["shards"][0].update(kind="dev"), "is of an unknown kind, 'dev'"),
        (lambda m: m["shards"][0].update(path="x.arrow"), "x.arrow is missing"),
        (lambda m: m["shards"][0].update(path="x.txt"), "is neither .arrow nor .tfrecord"),
        (lambda m: m["shards"][0].update(num_rows=10**30), "rows, but manifest.json says"),
        (lambda m: m["result"].update(max_seq_length="long"), "max_seq_length: Input should be"),
        (lambda m: m.pop("shards"), "is not a manifest"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_reported(
    change: Callable[[Any], object], said: str, copy: Path
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    del manifest["digest"]  # what changed is told even if somebody meant it
    (copy / "manifest.json").write_text(json.dumps(manifest))
    findings = findings_of(copy)
    assert said in told(findings)
    assert next(f for f in findings if f.check == "layout").ok


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"name": ["a"], "text": ["b"]}, "cannot be read: KeyError"),
        ({"id": ["a", None], "text": ["b", "c"]}, "a document has no id or no text"),
        ({"id": ["a"], "text": [["b"]]}, "cannot be read: ArrowNotImplementedError"),
        ({"id": [b"\xff"], "text": ["b"]}, "cannot be read: ArrowInvalid"),
    ],
)
def test_a_damaged_corpus_or_vocabulary_is_reported(
    columns: Values, said: str, tiny: Shards, tmp_path: Path
) -> None:
    corpus = shutil.copytree(Path(tiny.corpus).parent, tmp_path / "corpus")
    shard = next(corpus.glob("*.arrow"))
    write_arrow(pa.table(columns), str(shard))
    assert f"{shard}" in told(findings_of(tiny.folder, corpus=str(corpus)))
    assert said in told(findings_of(tiny.folder, corpus=str(corpus)))
    (corpus / "manifest.json").write_text("{}")
    (tmp_path / "spiece.model").write_bytes(b"no model")
    findings = findings_of(tiny.folder, corpus=str(corpus), vocab=str(tmp_path))
    assert "corpus/manifest.json is not a manifest" in told(findings)
    assert "the vocabulary is not a SentencePiece model" in told(findings)
    no_corpus = told(findings_of(tiny.folder, corpus=str(tiny.folder)))
    assert "has no shards of documents: it is no corpus" in no_corpus


# The command and the stage


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["TINY", "--sample", "9"], 0, "ok    layout"),
        (["TINY", "--json"], 0, '"check": "files"'),
        (["TINY", "--masked-lm-prob", "0"], 1, "FAIL  mask share: excess"),
        (["EMPTY"], 2, "has no .arrow or .tfrecord files"),
        (["nowhere.arrow"], 2, "nowhere.arrow"),
        (["nowhere/manifest.json"], 2, "nowhere"),
        (["TINY", "--corpus", "nowhere"], 2, "nowhere does not exist"),
        (["TINY", "--corpus", "s4://nowhere"], 2, "s4://nowhere"),
        (["TINY", "--vocab", "EMPTY"], 2, "does not exist"),
        (["TINY", "--max-seq-length", "-1"], 2, "max_seq_length: Input should be greater"),
        (["TINY", "--max-unknown-share", "nan"], 2, "max_unknown_share: Input should be"),
        (["TINY", "--objective", "nap"], 2, "--objective"),
        (["TINY", "--sample", "x"], 2, "--sample"),
    ],
)
def test_the_exit_status_says_how_it_went(
    options: list[str],
    status: int,
    said: str,
    tiny: Shards,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"TINY": str(tiny.folder), "EMPTY": str(tmp_path)}
    assert main(["audit", *(places.get(option, option) for option in options)]) == status
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.tfrecord", b"no records"), ("x.tfrecord", b""), ("manifest.json", b"")],
)
def test_the_status_is_1_when_no_file_can_be_read(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["audit", str(tmp_path)]) == 1


def test_the_stage_writes_what_is_found_and_is_then_done(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = audit_shards.run(made.examples, str(tmp_path))
    assert audit_shards.stage_plan(made.examples).done(str(tmp_path)) == manifest
    found = read_manifest(manifest).result_as(AuditResult)
    lines = Path(manifest).with_name("findings.txt").read_text().splitlines()
    assert found.num_checks == len(lines) > 30
    assert len(found.failed) == sum(line.startswith("FAIL") for line in lines)
    for check in found.failed:
        assert f"audit: {check}: " in caplog.text


def test_more_shards_than_a_refresh_has_time_for_are_left_to_a_person(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_shards, "_MOST_BYTES", 1)
    found = read_manifest(audit_shards.run(made.examples, str(tmp_path)))
    assert found.result_as(AuditResult) == AuditResult(num_checks=0, failed=[])
    assert f"`albert audit {made.examples}` reads them" in caplog.text


# Rows beside the text that they are of

TEXT = {"d": "one two\nthree\nfour five", "e": "six seven\neight"}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
MISPLACED = "is not in the order of its label"
CUT = "cuts a sentence though there is room"
NO_SENTENCES = "names sentences that its document does not have"
OTHER: Values = {
    "last_sentence": 0,
    "other_document_id": "e",
    "other_first_sentence": 0,
    "other_last_sentence": 1,
}


def encode(texts: Iterable[str]) -> list[list[int]]:
    return [[WORDS.index(word) for word in text.split()] for text in texts]


@pytest.mark.parametrize(
    ("a", "b", "label", "names", "fault"),
    [
        ([1, 2], [3, 4, 5], 0, {}, None),
        ([3, 4, 5], [1, 2], 1, {}, None),
        ([1, 2], [3, 4, 5], 1, {}, MISPLACED),
        ([3, 4, 5], [1, 2], 0, {}, MISPLACED),
        ([1, 2], [6, 7], 1, {}, "is not in the sentences it names"),
        ([1, 2], [3, 4], 0, {}, CUT),
        ([1, 2, 3, 4], [5], 0, {}, CUT),
        ([1, 2], [2, 3, 4, 5], 0, {}, MISPLACED),
        ([1], [6, 7], 1, OTHER, None),
        ([1], [6, 7], 0, OTHER, "has segment b from elsewhere and label 0"),
        ([1], [6, 7], 1, OTHER | {"other_document_id": "f"}, "names no document of the corpus"),
        ([1], [6, 7], 1, OTHER | {"document_id": "f"}, "names no document of the corpus"),
        ([1], [6, 7], 1, OTHER | {"other_last_sentence": 2}, NO_SENTENCES),
        ([1], [6, 7], 1, OTHER | {"last_sentence": 3}, NO_SENTENCES),
        ([1], [6, 7], 1, OTHER | {"first_sentence": 1}, NO_SENTENCES),
        ([1], [6, 7], 1, OTHER | {"first_sentence": 7, "last_sentence": 9}, NO_SENTENCES),
    ],
)
def test_a_row_is_compared_with_the_text_that_it_names(
    a: list[int], b: list[int], label: int, names: Values, fault: str | None
) -> None:
    row = {"document_id": "d", "first_sentence": 0, "last_sentence": 2, **names}
    # The first piece of a is masked.
    masks = {"masked_lm_positions": [1], "masked_lm_labels": a[:1], "sentence_order_label": label}
    pieces = {"input_ids": [2, 4, *a[1:], 3, *b, 3], "segment_b_start": len(a) + 2}
    roomy, full = (Expected(max_seq_length=n + 3) for n in (100, len(a) + len(b)))
    assert fault_of(row | masks | pieces, TEXT, encode, roomy) == fault
    assert fault_of(row | masks | pieces, TEXT, encode, full) == (None if fault == CUT else fault)


# Rows of other programs


def rows_of(examples: list[Values]) -> Rows:
    """Return rows of what is given: [CLS] a [SEP] b [SEP] in input_ids, the rest as in shards."""
    lists, number = pa.large_list(pa.int64()), pa.int64()
    columns: dict[str, pa.DataType] = dict.fromkeys(LISTS, lists)
    columns |= {"segment_b_start": number, "sentence_order_label": number}
    columns |= {OPENS_WORD: lists} if examples else {}
    return Rows({n: pa.array([each[n] for each in examples], of) for n, of in columns.items()})


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_the_reference_s_examples_pass() -> None:
    lines = (SHARED / "reference" / "ref_small_p77.jsonl").read_text().splitlines()
    made = [
        {
            **row,
            "segment_b_start": row["segment_ids"].index(1),
            "masked_lm_labels": row["masked_lm_ids"],
            "sentence_order_label": int(row["is_random_next"]),
            OPENS_WORD: row["token_boundary"],
        }
        for row in map(json.loads, lines)
    ]
    tally = Tally(
        Expected(max_seq_length=512, max_predictions=77, fidelity="google", vocab_size=30_000)
    )
    measure(rows_of(made), tally)
    findings = judge(tally)
    assert failed(findings) == set()
    assert "whole words" not in skipped(findings)


def test_nothing_is_known_of_no_rows() -> None:
    tally = Tally(Expected(max_seq_length=LENGTH))
    assert len(measure(rows_of([]), tally)) == 0
    assert failed(judge(tally)) == set()
