import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from albert_core.stage.errors import SourceError
from albert_core.stage.manifest import read_manifest
from albert_core.text.records import NUM_SPECIAL
from albert_core.text.tokenizer import Tokenizer
from flows.commands.main import main
from pipelines import clean_corpus, make_examples, train_vocab
from pipelines.audit import audit_examples
from pipelines.audit.checks import (
    Claim,
    Expected,
    Finding,
    Tally,
    bucket_of,
    fault_of,
    judge,
    measure,
    places,
)
from pipelines.audit.rows import Rows, rows_of_table
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from tests.generated_text import write_jsonl
from tests.pipelines.audit.planted_faults import FAULTS, Shards, read_rows, table

SHARED = Path(__file__).parents[3].parent / "shared"
LENGTH = 128
SETTINGS = ExampleSettings(
    max_seq_length=LENGTH, dupe_factor=2, held_out_share=0.1, shard_mb=0.05, short_seq_prob=0.3
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """The manifests of a corpus of 120 documents in two shards and its vocabulary, and where."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "source").mkdir()
    write_jsonl(folder / "source" / "0.jsonl", range(119))
    write_jsonl(folder / "source" / "1.jsonl", [119])
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
        uri = make_examples.run(settings, corpus, vocab, work)
    tokenizer = Tokenizer.load(vocab.rpartition("/")[0])
    return Shards(Path(uri).parent, tokenizer.vocab_size, tokenizer.starts_word, LENGTH)


@pytest.fixture(scope="module")
def good(inputs: tuple[str, str, str]) -> Shards:
    return make(inputs)


def findings_of(path: str, sample: int = 400, **options: Any) -> list[Finding]:
    return audit_examples.audit(audit_examples.find_sources([path], sample=sample, **options))


def failed(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.ok is False]


def skipped(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is None}


def test_good_shards_pass_every_check(good: Shards) -> None:
    findings = findings_of(good.manifest)
    print(audit_examples.table_of(findings))
    assert failed(findings) == []
    assert skipped(findings) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, good: Shards, tmp_path: Path) -> None:
    check, plant = FAULTS[fault]
    spoiled = good.copied(tmp_path / "spoiled")
    plant(spoiled)
    found = failed(findings_of(spoiled.manifest))
    print(f"{fault} | {', '.join(found)}")
    assert any(name.startswith(check) for name in found)


def test_shards_signed_again_but_not_spoiled_pass(good: Shards, tmp_path: Path) -> None:
    copied = good.copied(tmp_path / "copied")
    copied.spoil_rows(lambda rows: rows)
    copied.spoil_records(lambda values: None)
    assert failed(findings_of(copied.manifest)) == []


@pytest.mark.parametrize(
    "changes", [{"objective": "nsp"}, {"objective": "none"}, {"fidelity": "google"}]
)
def test_shards_made_by_other_rules_pass_when_their_manifest_says_so(
    inputs: tuple[str, str, str], changes: dict[str, str]
) -> None:
    assert failed(findings_of(make(inputs, **changes).manifest)) == []


def test_files_without_a_manifest_are_audited_as_far_as_they_tell(good: Shards) -> None:
    arrow = findings_of(str(good.folder / "*.arrow"), expected={"max_seq_length": LENGTH})
    assert failed(arrow) == []
    assert skipped(arrow) >= {"vocabulary", "whole words", "sentence order"}
    records = findings_of(str(good.folder / "*.tfrecord"))
    assert failed(records) == []
    assert skipped(records) >= {"vocabulary", "repeated pairs", "held-out split"}
    assert "whole words" not in skipped(records)


def test_a_vocabulary_and_a_corpus_can_be_named(good: Shards, inputs: tuple[str, str, str]) -> None:
    corpus, vocab, _ = inputs
    expected = {"max_seq_length": LENGTH}
    for named in (str(Path(vocab).parent), str(Path(vocab).parent / "spiece.model")):
        findings = findings_of(str(good.folder), corpus=corpus, vocab=named, expected=expected)
        assert failed(findings) == []
        assert "sentence order" not in skipped(findings)


def test_the_exit_status_says_how_it_went(good: Shards, tmp_path: Path) -> None:
    assert main(["audit", good.manifest]) == 0
    assert main(["audit", good.manifest, "--min-budget-used", "1.01"]) == 1
    assert main(["audit", str(tmp_path)]) == 2


def test_a_sample_of_rows_need_not_touch_every_shard_of_the_corpus(good: Shards) -> None:
    findings = findings_of(good.manifest, sample=1)
    assert all(finding.ok for finding in findings if finding.check == "sentence order")


def test_the_command_prints_json(good: Shards, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", good.manifest, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"check", "found", "expected", "ok"} == findings[0].keys()
    assert all(finding["ok"] for finding in findings)


def test_what_is_found_does_not_depend_on_the_batches(
    good: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = findings_of(good.manifest)
    monkeypatch.setattr(audit_examples, "_ROWS_PER_BATCH", 97)
    monkeypatch.setattr(audit_examples, "_RECORDS_PER_BATCH", 53)
    cut = findings_of(good.manifest)
    changed = [a.check for a, b in zip(whole, cut, strict=True) if a != b]
    # Neighbours are counted in each batch.
    assert set(changed) <= {"shuffle"}
    assert failed(cut) == []


def test_rows_come_back_from_arrow_as_they_are(good: Shards) -> None:
    uri = str(good.folder / good.arrow("held_out")[0])
    plain = read_rows(uri)
    rows = rows_of_table(table(plain))
    assert rows.unmasked.tolist() == np.concatenate([row.unmasked for row in plain]).tolist()
    assert rows.special.sum() == 3 * len(plain)
    kept = np.arange(len(plain)) % 2 == 0
    assert (rows.only(kept).hashes == rows.hashes[kept]).all()
    swapped = [row for n, row in enumerate(plain) if kept[n]]
    assert (rows_of_table(table(swapped)).pair_hashes == rows.pair_hashes[kept]).all()


def test_a_pair_and_its_swap_have_one_hash_and_others_another() -> None:
    def pair(a: list[int], b: list[int]) -> int:
        ids = np.array([2, *a, 3, *b, 3])
        none, one = np.zeros(0, np.int64), np.array([len(a) + 2])
        rows = Rows(ids, np.array([len(ids)]), one, none, none, np.zeros(1, np.int64), one * 0)
        return int(rows.pair_hashes[0])

    assert pair([7, 8], [9]) == pair([9], [7, 8])
    assert len({pair([7, 8], [9]), pair([8, 7], [9]), pair([7], [8, 9]), pair([7, 8, 9], [7])}) == 4


def test_lengths_fall_into_five_buckets() -> None:
    assert bucket_of(np.array([5, 127, 128, 256, 384, 511, 512]), 512).tolist() == [
        0, 0, 1, 2, 3, 3, 4,
    ]  # fmt: skip


TEXT = {"d": "one two\nthree\nfour five", "e": "six seven\neight"}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def encode(texts: object) -> list[list[int]]:
    return [[WORDS.index(word) for word in text.split()] for text in texts]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("a", "b", "label", "fault"),
    [
        ([1, 2], [3, 4, 5], 0, None),
        ([3, 4, 5], [1, 2], 1, None),
        ([1, 2], [3, 4, 5], 1, "is not in the order of its label"),
        ([3, 4, 5], [1, 2], 0, "is not in the order of its label"),
        ([1, 2], [6, 7], 1, "is not in the sentences it names"),
        ([1, 2], [3, 4], 0, "cuts a sentence though there is room"),
        ([1, 2, 3, 4], [5], 0, "cuts a sentence though there is room"),
        ([1, 2], [2, 3, 4, 5], 0, "is not in the order of its label"),
    ],
)
def test_a_claim_is_held_against_the_text(
    a: list[int], b: list[int], label: int, fault: str | None
) -> None:
    claim = Claim(np.array(a), np.array(b), label, "d", (0, 2))
    assert fault_of(claim, TEXT, encode, 100, True) == fault
    full = fault_of(claim, TEXT, encode, len(a) + len(b), True)
    assert full == (None if fault is not None and "room" in fault else fault)


def test_a_segment_from_elsewhere_is_labelled_1() -> None:
    claim = Claim(np.array([1]), np.array([6, 7]), 1, "d", (0, 0), "e", (0, 1))
    assert fault_of(claim, TEXT, encode, 100, True) is None
    other = Claim(np.array([1]), np.array([6, 7]), 0, "d", (0, 0), "e", (0, 1))
    assert fault_of(other, TEXT, encode, 100, True) == "has segment b from elsewhere and label 0"
    assert fault_of(claim, {"d": ""}, encode, 100, True) == "names no document of the corpus"


def test_a_part_longer_than_the_text_is_nowhere() -> None:
    assert places(np.array([1, 2]), np.array([1, 2, 3])) == []
    assert places(np.array([1, 2, 3, 4]), np.arange(9)) == []
    assert places(np.zeros(0, np.int64), np.array([1])) == []


@pytest.mark.parametrize("sentences", [(0, 3), (3, 3), (2, 1), (-1, 2), (7, 9)])
def test_sentences_that_a_document_does_not_have_are_a_fault(sentences: tuple[int, int]) -> None:
    fault = "names sentences that its document does not have"
    claim = Claim(np.array([1, 2]), np.array([3, 4, 5]), 0, "d", sentences)
    assert fault_of(claim, TEXT, encode, 100, True) == fault
    other = Claim(np.array([1]), np.array([6, 7]), 1, "d", (0, 0), "e", sentences)
    assert fault_of(other, TEXT, encode, 100, True) == fault


def reference_rows() -> Rows:
    lines = (SHARED / "reference" / "ref_small_p77.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]

    def joined(name: str) -> np.ndarray:
        return np.concatenate([np.array(row[name], np.int64) for row in made])

    return Rows(
        ids=joined("input_ids"),
        lengths=np.array([len(row["input_ids"]) for row in made]),
        b_starts=np.array([row["segment_ids"].index(1) for row in made]),
        positions=joined("masked_lm_positions"),
        labels=joined("masked_lm_ids"),
        num_predictions=np.array([len(row["masked_lm_positions"]) for row in made]),
        orders=np.array([row["is_random_next"] for row in made], np.int64),
        opens=joined("token_boundary") == 1,
    )


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_the_reference_s_examples_pass() -> None:
    tally = Tally()
    expected = Expected(
        max_seq_length=512, max_predictions=77, fidelity="google", vocab_size=30_000
    )
    measure(reference_rows(), expected, tally)
    findings = judge(tally, expected)
    print(audit_examples.table_of(findings))
    assert failed(findings) == []


def test_nothing_is_known_of_no_rows() -> None:
    none = np.zeros(0, np.int64)
    rows = Rows(none, none, none, none, none, none, none)
    tally = Tally()
    assert len(measure(rows, Expected(max_seq_length=LENGTH), tally)) == 0
    assert failed(judge(tally, Expected(max_seq_length=LENGTH))) == []


def test_a_table_without_its_columns_is_refused() -> None:
    with pytest.raises(SourceError, match=r"columns .* are missing"):
        rows_of_table(pa.table({"input_ids": pa.array([[NUM_SPECIAL]])}))


def test_the_manifest_of_the_corpus_is_found_by_itself(good: Shards) -> None:
    manifest = read_manifest(good.manifest)
    assert manifest.input_manifests.keys() == {"corpus", "vocab"}
