"""The stage's parts and shards, and the pure functions that make them."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.pvalue import PCollection

from albert_core.stage import storage
from albert_core.stage.errors import AccountingError
from albert_core.stage.manifest import StagePlan, read_manifest, shard_of
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS
from pipelines import example_pipeline, make_examples
from pipelines.config import ExampleSettings
from pipelines.engine.runner import run_pipeline
from pipelines.examples.part import (
    HELD_OUT,
    KINDS,
    ORDER,
    TRAIN,
    encode_documents,
    make_rows,
    merged,
    read_tally,
    rows_between,
    write_part,
)
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab
from tests.pipelines.made_corpus import write_corpus

GROUP_BY_KEY = beam.GroupByKey
GROUPED: list[object] = []
"""Keys of the elements that `NotedGroupByKey` saw."""
SETTINGS = ExampleSettings(
    max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.02, tfrecord=False
)
ALL_PLACES = 0, 2**64 - 1


def documents(numbers: range, num_sentences: int = 30) -> pa.Table:
    rows = [
        {"id": f"d{n}", "text": "\n".join(tiny_sentences(num_sentences, seed=n)), "source": "x"}
        for n in numbers
    ]
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")


@pytest.fixture
def vocab(tmp_path: Path) -> str:
    plan = StagePlan("vocab", {}, {}, "", {})
    folder = plan.folder(str(tmp_path))
    uri = f"{folder}/spiece.model"
    storage.write_bytes(uri, tiny_vocab().model)
    facts = {"lower_case": True, "vocab_size": tiny_vocab().vocab_size}
    return plan.write(str(tmp_path), [shard_of(uri, folder, "spiece.model", 1)], [], facts)


def shards_of(manifest_uri: str, kind: str) -> list[pa.Table]:
    folder = Path(manifest_uri).parent
    return [
        read_arrow(str(folder / shard.path))
        for shard in read_manifest(manifest_uri).shards_of(kind)
    ]


def part_of(folder: Path, table: pa.Table, settings: ExampleSettings = SETTINGS) -> str:
    uri = str(folder / "part.arrow")
    write_part(table, uri, settings, tiny_vocab())
    return uri


def rows_of(uri: str, kind: str) -> pa.Table:
    return pa.Table.from_batches(list(rows_between(uri, kind, *ALL_PLACES)))


def test_a_part_is_in_the_order_of_the_shuffle(tmp_path: Path) -> None:
    uri = part_of(tmp_path, documents(range(40)))
    for kind in KINDS:
        order = rows_of(uri, kind)[ORDER].to_numpy()
        assert len(order) > 5
        assert (order[1:] > order[:-1]).all()


def test_slices_of_a_part_are_the_whole_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.examples.part._PIECES_PER_BLOCK", 64 * 7)  # many batches
    uri = part_of(tmp_path, documents(range(40)))
    whole = rows_of(uri, TRAIN)
    for number in (1, 2, 7, 1000):
        bounds = [2**64 * k // number for k in range(number + 1)]
        slices = [
            batch
            for k in range(number)
            for batch in rows_between(uri, TRAIN, bounds[k], bounds[k + 1] - 1)
        ]
        assert pa.Table.from_batches(slices).equals(whole)


def test_parts_merged_are_in_the_order_of_the_shuffle(tmp_path: Path) -> None:
    uris = []
    for number in range(3):
        folder = tmp_path / str(number)
        uris.append(part_of(folder, documents(range(number * 10, number * 10 + 10))))
    batches = [batch for uri in uris for batch in rows_between(uri, TRAIN, *ALL_PLACES)]
    schema = batches[0].schema
    expected = pa.Table.from_batches(batches).sort_by(ORDER)
    assert merged(batches, schema).to_pylist() == expected.to_pylist()


def test_no_rows_merged_are_an_empty_table() -> None:
    assert merged([], EXAMPLE_SCHEMA).num_rows == 0


def test_an_example_is_the_same_whatever_documents_stand_beside_it(tmp_path: Path) -> None:
    together = rows_of(part_of(tmp_path, documents(range(10))), TRAIN).to_pylist()
    alone: list[dict[str, Any]] = []
    for number in range(10):
        uri = part_of(tmp_path, documents(range(number, number + 1)))
        alone += pa.Table.from_batches(
            list(rows_between(uri, TRAIN, *ALL_PLACES)), read_arrow(uri).schema
        ).to_pylist()
    assert sorted(alone, key=lambda row: row[ORDER]) == together


def test_lines_without_a_piece_keep_their_numbers() -> None:
    table = pa.Table.from_pylist(
        [{"id": "a", "text": "bado.\n\nkelu.\n \nsa.", "source": ""}], schema=DOCUMENT_SCHEMA
    )
    text = encode_documents(table, tiny_vocab())
    assert text.line.tolist() == [0, 2, 4]
    assert text.sentences.first.tolist() == [0, 3]


@pytest.mark.parametrize("empty", ["", " \n "])
def test_documents_without_a_piece_are_counted(empty: str) -> None:
    rows = [{"id": "a", "text": empty, "source": ""}]
    text = encode_documents(pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA), tiny_vocab())
    made, counts = make_rows(text, np.array([False]), SETTINGS)
    assert len(made[TRAIN].pairs) == 0
    assert counts["documents_without_pair"] == counts["documents"] == 1


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
@pytest.mark.parametrize("fidelity", ["paper", "google"])
def test_pieces_add_up_in_every_mode(
    tmp_path: Path, vocab: str, objective: str, fidelity: str
) -> None:
    settings = SETTINGS.model_copy(update={"objective": objective, "fidelity": fidelity})
    corpus = write_corpus(tmp_path, documents(range(20)), documents(range(20, 40)))
    uri = make_examples.run(settings, corpus, vocab, str(tmp_path / "work"))
    manifest = read_manifest(uri)
    assert (manifest.facts["objective"], manifest.facts["fidelity"]) == (objective, fidelity)
    tables = shards_of(uri, TRAIN) + shards_of(uri, HELD_OUT)
    rows = [row for table in tables for row in table.to_pylist()]
    kept = sum(len(row["input_ids"]) - 3 for row in rows)
    assert manifest.account("pieces, all copies").kept == kept
    lost = sum(manifest.account("pieces, all copies").dropped.values())
    assert lost < kept
    assert max(len(row["masked_lm_labels"]) for row in rows) <= settings.max_predictions
    other = {field[0] for field in OTHER_DOCUMENT_FIELDS}
    assert (other <= rows[0].keys()) == (objective == "nsp" or fidelity == "google")


def test_held_out_text_is_never_borrowed_by_training_examples(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"objective": "nsp"})
    uri = part_of(tmp_path, documents(range(60)), settings)
    train, held_out = (rows_of(uri, kind).to_pylist() for kind in KINDS)
    aside = {row["document_id"] for row in held_out}
    borrowed = {row["other_document_id"] for row in train} - {None}
    assert len(borrowed) > 10
    assert not borrowed & aside
    for row in train + held_out:
        from_other = row["other_document_id"] is not None
        assert row["sentence_order_label"] == from_other
        assert (row["other_first_sentence"] is not None) == from_other
        assert row["other_document_id"] != row["document_id"]


def test_a_smaller_number_of_predictions_is_kept_to(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"max_predictions_per_seq": 3})
    rows = rows_of(part_of(tmp_path, documents(range(10)), settings), TRAIN).to_pylist()
    assert max(len(row["masked_lm_labels"]) for row in rows) == 3


def test_one_shard_or_many_have_the_same_global_order(tmp_path: Path, vocab: str) -> None:
    corpus = write_corpus(tmp_path, documents(range(20)), documents(range(20, 40)))
    many = make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "work"))
    whole = SETTINGS.model_copy(update={"shard_mb": 64.0})
    one = make_examples.run(whole, corpus, vocab, str(tmp_path / "work"))
    assert len(shards_of(many, TRAIN)) > 2
    assert len(shards_of(one, TRAIN)) == 1
    for kind in KINDS:
        assert pa.concat_tables(shards_of(many, kind)).equals(
            pa.concat_tables(shards_of(one, kind))
        )
    sizes = [table.num_rows for table in shards_of(many, TRAIN)]
    assert max(sizes) < 1.5 * np.mean(sizes)


def test_compressed_shards_hold_the_same_and_are_smaller(tmp_path: Path, vocab: str) -> None:
    corpus = write_corpus(tmp_path, documents(range(20)))
    whole = SETTINGS.model_copy(update={"shard_mb": 64.0})
    zstd = whole.model_copy(update={"compression": "zstd"})
    plain, packed = (
        make_examples.run(settings, corpus, vocab, str(tmp_path / "work"))
        for settings in (whole, zstd)
    )
    [a], [b] = shards_of(plain, TRAIN), shards_of(packed, TRAIN)
    assert a.equals(b)
    sizes = [read_manifest(uri).shards_of(TRAIN)[0].num_bytes for uri in (plain, packed)]
    assert sizes[1] < 0.8 * sizes[0]


def test_after_a_change_only_that_shards_part_is_made(
    tmp_path: Path, vocab: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    work = str(tmp_path / "work")
    tables = [documents(range(i * 10, i * 10 + 10)) for i in range(3)]
    make_examples.run(SETTINGS, write_corpus(tmp_path, *tables), vocab, work)
    assert "examples: 3 of 3 parts to make" in caplog.text
    tables[1] = documents(range(100, 110))
    corpus = write_corpus(tmp_path, *tables)
    after = make_examples.run(SETTINGS, corpus, vocab, work)
    assert "examples: 1 of 3 parts to make" in caplog.text
    afresh = make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "other"))
    assert read_manifest(after).content == read_manifest(afresh).content
    assert read_manifest(after).facts == read_manifest(afresh).facts


def test_parts_are_removed_when_they_are_not_to_be_kept(tmp_path: Path, vocab: str) -> None:
    corpus = write_corpus(tmp_path, documents(range(20)))
    settings = SETTINGS.model_copy(update={"keep_parts": False})
    manifest = make_examples.run(settings, corpus, vocab, str(tmp_path / "work"))
    assert not list((tmp_path / "work" / "parts").iterdir())
    kept = make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "work"))
    assert kept == manifest


def test_parts_that_were_there_before_are_never_removed(tmp_path: Path, vocab: str) -> None:
    tables, work = [documents(range(i * 10, i * 10 + 10)) for i in range(3)], tmp_path / "work"
    make_examples.run(SETTINGS, write_corpus(tmp_path, *tables[:2]), vocab, str(work))
    before = sorted((work / "parts").iterdir())
    settings = SETTINGS.model_copy(update={"keep_parts": False})
    make_examples.run(settings, write_corpus(tmp_path, *tables), vocab, str(work))
    assert sorted((work / "parts").iterdir()) == before
    assert len(before) == 6  # each part, its tally and the note on both


def test_a_part_that_is_there_has_its_tally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.examples.part.record_batches", killed)
    with pytest.raises(KeyboardInterrupt):
        part_of(tmp_path, documents(range(10)))
    assert [path.name for path in tmp_path.iterdir()] == ["part.tally.arrow"]


@pytest.mark.parametrize("ending", [".arrow", ".tally.arrow", ".json"])
def test_a_part_with_a_flipped_bit_is_made_again_and_that_is_said(
    ending: str, tmp_path: Path, vocab: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = tmp_path / "work"
    corpus = write_corpus(tmp_path, documents(range(20)))
    make_examples.run(SETTINGS, corpus, vocab, str(work))
    other = SETTINGS.model_copy(update={"tfrecord": True})
    expected = make_examples.run(other, corpus, vocab, str(tmp_path / "undisturbed"))
    caplog.set_level("INFO")
    [part] = [f for f in (work / "parts").iterdir() if f.name.partition(".")[2] == ending[1:]]
    whole = part.read_bytes()
    middle = len(whole) // 2
    part.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    found = make_examples.run(other, corpus, vocab, str(work))
    assert read_manifest(found).content == read_manifest(expected).content
    assert f"{part} changed after it was written; the part is made again" in caplog.text
    assert part.read_bytes() == whole


def test_a_part_is_opened_without_its_tally(tmp_path: Path) -> None:
    schema = read_arrow(part_of(tmp_path, documents(range(10)))).schema
    assert {name.decode() for name in schema.metadata} == {f"orders-{kind}" for kind in KINDS}
    assert sum(map(len, schema.metadata.values())) < 1000


def test_a_tally_counts_the_examples_of_its_part(tmp_path: Path) -> None:
    uri = part_of(tmp_path, documents(range(40)))
    num_rows = {kind: rows_of(uri, kind).num_rows for kind in KINDS}
    assert read_tally(uri).num_rows == num_rows


class NotedGroupByKey(beam.PTransform[Any, Any]):
    """GroupByKey that notes the key of each element that it groups."""

    def expand(self, keyed: PCollection[Any]) -> PCollection[Any]:
        grouped: PCollection[Any]
        grouped = keyed | "Note" >> beam.Map(noted) | "Group" >> GROUP_BY_KEY()
        return grouped


def noted(keyed: tuple[Any, Any]) -> tuple[Any, Any]:
    GROUPED.append(keyed[0])
    return keyed


def test_one_key_is_grouped_for_each_part_and_each_shard(
    tmp_path: Path, vocab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "GroupByKey", NotedGroupByKey)
    GROUPED.clear()
    corpus = write_corpus(tmp_path, *(documents(range(i * 10, i * 10 + 10)) for i in range(5)))
    uri = make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "work"))
    names = [shard.path.removesuffix(".arrow") for shard in read_manifest(uri).shards]
    assert len(names) > 5
    # Once for all parts, and once for the reports of all shards.
    assert len(GROUPED) == 5 + len(names)
    assert set(GROUPED) == {0}


def without_a_report(reports: list[dict[str, Any]]) -> None:
    reports.pop(1)


def with_a_report_twice(reports: list[dict[str, Any]]) -> None:
    reports.append(reports[1])


def with_a_row_less(reports: list[dict[str, Any]]) -> None:
    reports[-1]["shards"][0]["num_rows"] -= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_report, r"expected 3 files of examples, found 2: missing \['\w+-0000"),
        (
            with_a_report_twice,
            r"expected 3 files of examples, found 4: missing \[\], too many \['\w+-0000",
        ),
        (with_a_row_less, r"expected [\d,]+ train examples, found [\d,]+"),
    ],
)
def test_reports_that_do_not_add_up_are_refused(
    tmp_path: Path, vocab: str, monkeypatch: pytest.MonkeyPatch, change: Any, message: str
) -> None:
    def run_and_change(*arguments: Any) -> list[dict[str, Any]]:
        reports = run_pipeline(*arguments)
        change(reports)
        return reports

    monkeypatch.setattr(example_pipeline, "run_pipeline", run_and_change)
    corpus = write_corpus(tmp_path, documents(range(20)))
    with pytest.raises(AccountingError, match=f"{message}.*must not be used"):
        make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "work"))
    assert not list((tmp_path / "work").rglob("manifest.json"))


def test_a_part_left_out_is_refused(
    tmp_path: Path, vocab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_without_a_part(
        transform: Any, parts: list[Any], *arguments: Any
    ) -> list[dict[str, Any]]:
        return run_pipeline(transform, parts[:1], *arguments)

    corpus = write_corpus(tmp_path, documents(range(20)), documents(range(20, 40)))
    make_examples.run(SETTINGS, corpus, vocab, str(tmp_path / "work"))
    monkeypatch.setattr(example_pipeline, "run_pipeline", run_without_a_part)
    settings = SETTINGS.model_copy(update={"shard_mb": 64.0})
    with pytest.raises(AccountingError, match=r"expected [\d,]+ train examples, found [\d,]+"):
        make_examples.run(settings, corpus, vocab, str(tmp_path / "work"))


def test_documents_that_the_corpus_does_not_count_are_refused(tmp_path: Path, vocab: str) -> None:
    corpus = Path(write_corpus(tmp_path, documents(range(20))))
    corpus.write_text(corpus.read_text().replace('"num_documents": 20', '"num_documents": 21'))
    with pytest.raises(AccountingError, match=r"expected 21 documents, found 20.*must not be used"):
        make_examples.run(SETTINGS, str(corpus), vocab, str(tmp_path / "work"))


def test_the_shuffle_and_number_of_shards_make_no_new_parts(
    tmp_path: Path, vocab: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    corpus = write_corpus(tmp_path, documents(range(20)))
    for shard_mb in (0.02, 0.05):
        settings = SETTINGS.model_copy(update={"shard_mb": shard_mb})
        make_examples.run(settings, corpus, vocab, str(tmp_path / "work"))
    assert "examples: 0 of 1 parts to make" in caplog.text


def test_a_tally_counts_the_pieces_of_training_documents_once(tmp_path: Path) -> None:
    table = documents(range(20))
    tally = read_tally(part_of(tmp_path, table))
    held_out = {
        row["document_id"] for row in rows_of(str(tmp_path / "part.arrow"), HELD_OUT).to_pylist()
    }
    encoded = [
        tiny_vocab().encode(text.split("\n"))
        for name, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
        if name not in held_out
    ]
    pieces = [piece for lines in encoded for ids in lines for piece in ids]
    assert (
        tally.unigrams.tolist() == np.bincount(pieces, minlength=tiny_vocab().vocab_size).tolist()
    )
