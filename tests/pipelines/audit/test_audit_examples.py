"""The auditor names each planted fault, and finds none in good shards."""

import json
from collections.abc import Iterable
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from albert_core.text.arrow_files import read_arrow
from flows.commands.main import main
from pipelines import clean_corpus, make_examples, train_vocab
from pipelines.audit import audit_examples
from pipelines.audit.checks import (
    ALARM,
    Expected,
    Finding,
    Tally,
    fault_of,
    judge,
    measure,
    places,
    tails,
)
from pipelines.audit.rows import OPENS_WORD, Rows, rows_of_batch
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from tests.generated_text import write_jsonl
from tests.pipelines.audit.planted_faults import FAULTS, Row, Shards, read_rows, table

SHARED = Path(__file__).parents[3].parent / "shared"
LENGTH = 128
SETTINGS = ExampleSettings(
    max_seq_length=LENGTH, dupe_factor=2, held_out_share=0.1, shard_mb=0.05, short_seq_prob=0.3
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
        patch.setenv("ALBERT_WORKERS", "1")
        patch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
        source = SourceSettings(uri=str(folder / "source"))
        corpus = clean_corpus.run(source, CleaningSettings(), work)
        vocab = train_vocab.run(VocabularySettings(vocab_size=300), corpus, work)
    return corpus, vocab, work


def make(inputs: tuple[str, str, str], **changes: object) -> Shards:
    corpus, vocab, work = inputs
    settings = SETTINGS.model_copy(update=changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        return Shards.of(make_examples.run(settings, corpus, vocab, work), corpus, vocab)


@pytest.fixture(scope="module")
def good(inputs: tuple[str, str, str]) -> Shards:
    return make(inputs)


def findings_of(path: Path | str, sample: int = 400, **options: Any) -> list[Finding]:
    return audit_examples.audit([str(path)], sample=sample, **options)


def failed(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.ok is False]


def skipped(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is None}


def test_good_shards_pass_every_check(good: Shards) -> None:
    findings = findings_of(good.folder)
    assert (failed(findings), skipped(findings)) == ([], set())
    by_chance = [finding for finding in findings if "(p = " in finding.found]
    of_intervals, of_longer_ngrams = 2, 8
    assert 15 <= len(by_chance) <= 1e-3 / ALARM - of_intervals - of_longer_ngrams
    assert all(f.ok for f in findings_of(good.folder, sample=1) if f.check == "sentence order")


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
        assert failed(judge(tally)) == []


@pytest.mark.parametrize("share", [0.0, 0.005, 0.1, 0.5])
@pytest.mark.parametrize("total", [1, 5, 57])
def test_a_deviation_is_no_more_probable_than_it_is_told_to_be(share: float, total: int) -> None:
    weights = [comb(total, n) * share**n * (1 - share) ** (total - n) for n in range(total + 1)]
    found = [tails(n, total, share) for n in range(total + 1)]
    for level in (1e-5, 1e-3, 0.05, 0.3):
        below = (weight for weight, p in zip(weights, found, strict=True) if p <= level)
        assert sum(below) <= level


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, good: Shards, tmp_path: Path) -> None:
    check, plant = FAULTS[fault]
    spoiled = good.copied(tmp_path / "spoiled")
    plant(spoiled)
    assert any(name.startswith(check) for name in failed(findings_of(spoiled.folder)))


def test_a_text_that_says_the_same_twice_is_no_fault_of_the_pairs(
    good: Shards, tmp_path: Path
) -> None:
    copied = good.copied(tmp_path / "copied")
    copied.spoil_rows(lambda rows: rows + good.masked([elsewhere(row) for row in rows[::20]]))
    assert "repeated rows" not in failed(findings_of(copied.folder))


def elsewhere(row: Row) -> Row:
    return replace(row, first=row.first + 99, last=row.last + 99)


def test_shards_signed_again_but_not_spoiled_pass(good: Shards, tmp_path: Path) -> None:
    copied = good.copied(tmp_path / "copied")
    copied.spoil_rows(lambda rows: rows)
    copied.spoil_records(lambda values: None)
    assert failed(findings_of(copied.folder)) == []


@pytest.mark.parametrize(
    "changes", [{"objective": "nsp"}, {"objective": "none"}, {"fidelity": "google"}]
)
def test_shards_made_by_other_rules_pass_when_their_manifest_says_so(
    inputs: tuple[str, str, str], changes: dict[str, str]
) -> None:
    assert failed(findings_of(make(inputs, **changes).folder)) == []


def test_files_without_a_manifest_are_audited_as_far_as_they_tell(good: Shards) -> None:
    arrow = findings_of(good.folder / "*.arrow", expected={"max_seq_length": LENGTH})
    assert failed(arrow) == []
    assert skipped(arrow) >= {"vocabulary", "whole words", "sentence order"}
    records = findings_of(good.folder / "*.tfrecord")
    assert failed(records) == []
    assert skipped(records) >= {"vocabulary", "n-grams", "held-out split"}
    assert "whole words" not in skipped(records)


def test_a_vocabulary_and_a_corpus_can_be_named(good: Shards) -> None:
    folder = Path(good.vocab).parent
    for vocab in (folder, folder / "spiece.model"):
        named: dict[str, Any] = {"corpus": good.corpus, "vocab": str(vocab)}
        findings = findings_of(
            good.folder / "*.arrow", expected={"max_seq_length": LENGTH}, **named
        )
        assert failed(findings) == []
        assert "sentence order" not in skipped(findings)


def test_the_exit_status_says_how_it_went(
    good: Shards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(good.folder), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"check", "found", "expected", "ok"} == findings[0].keys()
    assert all(finding["ok"] for finding in findings)
    assert main(["audit", str(good.folder), "--masked-lm-prob", "0.3"]) == 1
    assert "FAIL  mask share: predictions" in capsys.readouterr().out
    assert main(["audit", str(tmp_path)]) == 2


def test_what_is_found_does_not_depend_on_the_batches(
    good: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = findings_of(good.folder)
    monkeypatch.setattr(audit_examples, "_ROWS_PER_BATCH", 97)
    monkeypatch.setattr(audit_examples, "_RECORDS_PER_BATCH", 53)
    cut = findings_of(good.folder)
    changed = [a.check for a, b in zip(whole, cut, strict=True) if a != b]
    # Neighbours are counted in each batch.
    assert set(changed) <= {"shuffle"}
    assert failed(cut) == []


def test_rows_come_back_from_arrow_as_they_are(good: Shards) -> None:
    plain = read_rows(good.paths("held_out")[0])
    rows, half = (rows_of_batch(table(some).to_batches()[0]) for some in (plain, plain[::2]))
    assert rows.unmasked.tolist() == np.concatenate([row.unmasked for row in plain]).tolist()
    assert rows.special.sum() == 3 * len(plain)
    kept = np.arange(len(plain)) % 2 == 0
    assert (rows.only(kept).hashes == rows.hashes[kept]).all()
    assert (half.hashes == rows.hashes[kept]).all()


def rows_of(examples: list[dict[str, Any]]) -> Rows:
    """Return rows of what is given: [CLS] a [SEP] b [SEP] in input_ids, the rest as in shards."""
    lists, number = pa.large_list(pa.int64()), pa.int64()
    columns: dict[str, pa.DataType] = {
        "input_ids": lists,
        "segment_b_start": number,
        "masked_lm_positions": lists,
        "masked_lm_labels": lists,
        "sentence_order_label": number,
    }
    columns |= {OPENS_WORD: lists} if examples and OPENS_WORD in examples[0] else {}
    return Rows({n: pa.array([each[n] for each in examples], of) for n, of in columns.items()})


TEXT = {"d": "one two\nthree\nfour five", "e": "six seven\neight"}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
MISPLACED = "is not in the order of its label"
CUT = "cuts a sentence though there is room"
NO_SENTENCES = "names sentences that its document does not have"


def encode(texts: Iterable[str]) -> list[list[int]]:
    return [[WORDS.index(word) for word in text.split()] for text in texts]


def fault_of_pair(
    a: list[int], b: list[int], label: int, longest: int = 100, **names: object
) -> str | None:
    row = {"document_id": "d", "first_sentence": 0, "last_sentence": 2, **names}
    # The first piece of a is masked.
    masks = {"masked_lm_positions": [1], "masked_lm_labels": a[:1], "sentence_order_label": label}
    pieces = {"input_ids": [2, 4, *a[1:], 3, *b, 3], "segment_b_start": len(a) + 2}
    return fault_of(row | masks | pieces, TEXT, encode, Expected(max_seq_length=longest + 3))


@pytest.mark.parametrize(
    ("a", "b", "label", "fault"),
    [
        ([1, 2], [3, 4, 5], 0, None),
        ([3, 4, 5], [1, 2], 1, None),
        ([1, 2], [3, 4, 5], 1, MISPLACED),
        ([3, 4, 5], [1, 2], 0, MISPLACED),
        ([1, 2], [6, 7], 1, "is not in the sentences it names"),
        ([1, 2], [3, 4], 0, CUT),
        ([1, 2, 3, 4], [5], 0, CUT),
        ([1, 2], [2, 3, 4, 5], 0, MISPLACED),
    ],
)
def test_a_row_is_compared_with_the_text_that_it_names(
    a: list[int], b: list[int], label: int, fault: str | None
) -> None:
    assert fault_of_pair(a, b, label) == fault
    full = fault_of_pair(a, b, label, longest=len(a) + len(b))
    assert full == (None if fault == CUT else fault)


OTHER: dict[str, Any] = {
    "last_sentence": 0,
    "other_document_id": "e",
    "other_first_sentence": 0,
    "other_last_sentence": 1,
}


@pytest.mark.parametrize(
    ("label", "names", "fault"),
    [
        (1, {}, None),
        (0, {}, "has segment b from elsewhere and label 0"),
        (1, {"other_document_id": "f"}, "names no document of the corpus"),
        (1, {"document_id": "f"}, "names no document of the corpus"),
        (1, {"other_last_sentence": 2}, NO_SENTENCES),
        (1, {"other_first_sentence": -1}, NO_SENTENCES),
        (1, {"last_sentence": 3}, NO_SENTENCES),
        (1, {"first_sentence": 1}, NO_SENTENCES),
        (1, {"first_sentence": 7, "last_sentence": 9}, NO_SENTENCES),
    ],
)
def test_a_segment_from_elsewhere_is_labelled_1_and_is_there(
    label: int, names: dict[str, Any], fault: str | None
) -> None:
    assert fault_of_pair([1], [6, 7], label, **{**OTHER, **names}) == fault


def test_a_part_is_found_wherever_it_occurs() -> None:
    assert places(np.array([7, 8, 7, 8, 9]), np.array([7, 8])) == [0, 2]
    assert places(np.array([1, 2]), np.array([1, 2, 3])) == []


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
    expected = Expected(
        max_seq_length=512, max_predictions=77, fidelity="google", vocab_size=30_000
    )
    tally = Tally(expected)
    measure(rows_of(made), tally)
    findings = judge(tally)
    assert failed(findings) == []
    assert "whole words" not in skipped(findings)


def test_nothing_is_known_of_no_rows() -> None:
    tally = Tally(Expected(max_seq_length=LENGTH))
    assert len(measure(rows_of([]), tally)) == 0
    assert failed(judge(tally)) == []
