"""The stage's parts and shards, and the pure functions that make them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from albert_core.stage import storage
from albert_core.stage.errors import AccountingError
from albert_core.stage.manifest import StagePlan, read_manifest, shard_of
from albert_core.stage.results import ExamplesResult
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS
from pipelines import make_examples
from pipelines.config import ExampleSettings
from pipelines.engine import runner
from pipelines.examples.held_out import is_held_out
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
from tests.made_results import made_result, replace_in_manifest
from tests.pipelines.conftest import write_corpus

Make = Callable[..., str]
SETTINGS = ExampleSettings(max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.02)
ALL_PLACES = 0, 2**64 - 1


def documents(numbers: Iterable[int], num_sentences: int = 30) -> pa.Table:
    rows = [
        {"id": f"d{n}", "text": "\n".join(tiny_sentences(num_sentences, seed=n)), "source": "x"}
        for n in numbers
    ]
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make examples of a corpus with these shards, or of that of a manifest; settings by name."""
    plan = StagePlan("vocab", {}, {}, "", {})
    folder = plan.folder(str(tmp_path))
    uri = f"{folder}/spiece.model"
    storage.write_bytes(uri, tiny_vocab().model)
    result = made_result("vocab", lower_case=True, vocab_size=tiny_vocab().vocab_size)
    vocab = plan.write(str(tmp_path), [shard_of(uri, folder, "spiece.model", 1)], [], result)

    def run(*tables: pa.Table, corpus: str = "", work: str = "work", **settings: Any) -> str:
        corpus = corpus or write_corpus(tmp_path, *tables)
        changed = SETTINGS.model_copy(update=settings)
        return make_examples.run(changed, corpus, vocab, str(tmp_path / work))

    return run


def shards_of(manifest: str, kind: str) -> list[pa.Table]:
    folder = Path(manifest).parent
    return [read_arrow(str(folder / s.path)) for s in read_manifest(manifest).shards_of(kind)]


def part_of(folder: Path, table: pa.Table, name: str = "part", **settings: Any) -> str:
    uri = str(folder / f"{name}.arrow")
    write_part(table, uri, SETTINGS.model_copy(update=settings), tiny_vocab())
    return uri


def rows_of(uri: str, kind: str) -> pa.Table:
    return pa.Table.from_batches(list(rows_between(uri, kind, *ALL_PLACES)))


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
    uris = [part_of(tmp_path / str(n), documents(range(n, n + 10))) for n in (0, 10, 20)]
    batches = [batch for uri in uris for batch in rows_between(uri, TRAIN, *ALL_PLACES)]
    expected = pa.Table.from_batches(batches).sort_by(ORDER)
    assert merged(batches, batches[0].schema).to_pylist() == expected.to_pylist()
    assert merged([], EXAMPLE_SCHEMA).num_rows == 0


def test_an_example_is_the_same_whatever_documents_stand_beside_it(tmp_path: Path) -> None:
    together = rows_of(part_of(tmp_path, documents(range(10))), TRAIN).to_pylist()
    parts = [part_of(tmp_path, documents(range(n, n + 1)), name=str(n)) for n in range(10)]
    batches = [batch for uri in parts for batch in rows_between(uri, TRAIN, *ALL_PLACES)]
    alone = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(alone, key=lambda row: row[ORDER]) == together


def test_lines_and_documents_without_a_piece_are_numbered_and_counted() -> None:
    texts = ["bado.\n\nkelu.\n \nsa.", "", " \n "]
    rows = [{"id": str(n), "text": text, "source": ""} for n, text in enumerate(texts)]
    text = encode_documents(pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA), tiny_vocab())
    assert text.line.tolist() == [0, 2, 4]
    assert text.sentences.first.tolist() == [0, 3, 3, 3]
    made, counts = make_rows(text, np.array([False] * 3), SETTINGS)
    assert set(made[TRAIN].pairs.document.tolist()) == {0}
    assert (counts["documents_without_pair"], counts["documents"]) == (2, 3)


def test_pairs_that_had_no_other_document_to_take_from_are_told(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one_held_out = [d for d in range(30) if is_held_out(f"d{d}", SETTINGS)][:1]
    trained_on = [d for d in range(30) if not is_held_out(f"d{d}", SETTINGS)][:4]
    manifest = make(documents(one_held_out + trained_on), objective="nsp")
    result = read_manifest(manifest).result_as(ExamplesResult)
    number = result.num_pairs_without_other_document
    assert f"{number} pairs were to have a segment b from another document" in caplog.text
    assert 0 < number < result.num_held_out


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
@pytest.mark.parametrize("fidelity", ["paper", "google"])
def test_pieces_add_up_in_every_mode(make: Make, objective: str, fidelity: str) -> None:
    tables = documents(range(20)), documents(range(20, 40))
    uri = make(*tables, objective=objective, fidelity=fidelity)
    manifest = read_manifest(uri)
    result = manifest.result_as(ExamplesResult)
    assert (result.objective, result.fidelity) == (objective, fidelity)
    made = shards_of(uri, TRAIN) + shards_of(uri, HELD_OUT)
    rows = [row for table in made for row in table.to_pylist()]
    account = manifest.account("pieces, all copies")
    assert account.kept == sum(len(row["input_ids"]) - 3 for row in rows)
    assert sum(account.dropped.values()) < account.kept
    assert max(len(row["masked_lm_labels"]) for row in rows) <= result.max_predictions
    other = {field[0] for field in OTHER_DOCUMENT_FIELDS}
    assert (other <= rows[0].keys()) == (objective == "nsp" or fidelity == "google")


def test_held_out_text_is_never_borrowed_by_training_examples(tmp_path: Path) -> None:
    uri = part_of(tmp_path, documents(range(60)), objective="nsp")
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
    part = part_of(tmp_path, documents(range(10)), max_predictions_per_seq=3)
    rows = rows_of(part, TRAIN).to_pylist()
    order = [row[ORDER] for row in rows]
    assert order == sorted(order)
    assert max(len(row["masked_lm_labels"]) for row in rows) == 3


def test_one_shard_or_many_compressed_or_not_have_the_same_rows_in_order(make: Make) -> None:
    tables = documents(range(20)), documents(range(20, 40))
    many, one = make(*tables), make(*tables, shard_mb=64.0)
    packed = make(*tables, shard_mb=64.0, compression="zstd")
    for kind in KINDS:
        [whole], [unpacked] = shards_of(one, kind), shards_of(packed, kind)
        assert pa.concat_tables(shards_of(many, kind)).equals(whole)
        assert unpacked.equals(whole)
    sizes = [table.num_rows for table in shards_of(many, TRAIN)]
    assert len(sizes) > 2
    assert max(sizes) < 1.5 * np.mean(sizes)
    size, packed_size = (read_manifest(m).shards_of(TRAIN)[0].num_bytes for m in (one, packed))
    assert packed_size < 0.8 * size


def test_after_a_change_only_that_shards_part_is_made(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tables = [documents(range(i * 10, i * 10 + 10)) for i in range(3)]
    make(*tables)
    assert "examples: 3 of 3 parts to make" in caplog.text
    tables[1] = documents(range(100, 110))
    after = read_manifest(make(*tables))
    assert "examples: 1 of 3 parts to make" in caplog.text
    afresh = read_manifest(make(*tables, work="other"))
    assert (after.content, after.result) == (afresh.content, afresh.result)
    make(*tables, shard_mb=0.05)
    assert "examples: 0 of 3 parts to make" in caplog.text


@pytest.mark.parametrize("ending", [".arrow", ".json"])
def test_a_part_with_a_flipped_bit_is_made_again_and_that_is_said(
    ending: str, tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    table = documents(range(20))
    make(table)
    expected = make(table, work="undisturbed", tfrecord=True)
    parts = (tmp_path / "work" / "parts").iterdir()
    [part] = [file for file in parts if file.name.partition(".")[2] == ending[1:]]
    whole = part.read_bytes()
    middle = len(whole) // 2
    part.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    found = make(table, tfrecord=True)
    assert read_manifest(found).content == read_manifest(expected).content
    assert f"{part} changed after it was written; the part is made again" in caplog.text
    assert part.read_bytes() == whole


def with_a_row_less(reports: list[dict[str, Any]]) -> None:
    reports[-1]["shards"][0]["num_rows"] -= 1


def test_settings_beyond_what_shards_can_store_are_refused() -> None:
    for name, most in {"max_seq_length": 65_536, "dupe_factor": 65_536, "shard_mb": 2000}.items():
        assert ExampleSettings.model_validate({name: most})
        with pytest.raises(ValidationError, match=f"less than or equal to {most}"):
            ExampleSettings.model_validate({name: most + 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop(1), r"expected 3 files of examples, found 2: missing \['\w+-0000"),
        (lambda r: r.append(r[1]), r"3 files .* found 4: missing \[\], too many \['\w+-0000"),
        (with_a_row_less, r"expected [\d,]+ train examples, found [\d,]+"),
    ],
)
def test_reports_that_do_not_add_up_are_refused(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[Any]], object],
    message: str,
) -> None:
    def run_and_change(*arguments: Any) -> list[dict[str, Any]]:
        reports: list[dict[str, Any]] = run_pipeline(*arguments)
        change(reports)
        return reports

    run_pipeline = runner.run_pipeline
    monkeypatch.setattr(runner, "run_pipeline", run_and_change)
    with pytest.raises(AccountingError, match=f"{message}.*must not be used"):
        make(documents(range(20)))
    assert not list((tmp_path / "work").rglob("manifest.json"))


def test_documents_that_the_corpus_does_not_count_are_refused(make: Make, tmp_path: Path) -> None:
    corpus = Path(write_corpus(tmp_path, documents(range(20))))
    replace_in_manifest(corpus, '"num_documents": 20', '"num_documents": 21')
    with pytest.raises(AccountingError, match=r"expected 21 documents, found 20.*must not be used"):
        make(corpus=str(corpus))


def test_a_tally_counts_the_pieces_of_training_documents_once(tmp_path: Path) -> None:
    table = documents(range(20))
    part = part_of(tmp_path, table)
    tally = read_tally(part)
    held_out = set(rows_of(part, HELD_OUT)["document_id"].to_pylist())
    texts = [row["text"] for row in table.to_pylist() if row["id"] not in held_out]
    encoded = [ids for text in texts for ids in tiny_vocab().encode(text.split("\n"))]
    pieces = np.bincount(np.concatenate(encoded), minlength=tiny_vocab().vocab_size)
    assert tally.unigrams.tolist() == pieces.tolist()
    assert [tally.num_rows(k) for k in KINDS] == [rows_of(part, k).num_rows for k in KINDS]
