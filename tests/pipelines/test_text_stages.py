"""The three text stages together, on real Beam workers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import read_manifest
from albert_core.text.tokenizer import Tokenizer
from pipelines import clean_corpus, make_examples
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.examples.held_out import is_held_out
from pipelines.examples.tfrecord import TFExample, read_tfrecord
from pipelines.make_examples import unigram_nats
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import EXAMPLES, Made, make, rows_of


def documents_of(made: Made) -> dict[str, list[str]]:
    rows = rows_of(made.corpus, "documents")
    return {row["id"]: row["text"].split("\n") for row in rows}


def digests(manifest_uri: str) -> list[tuple[str, str]]:
    return [(shard.path, shard.sha256) for shard in read_manifest(manifest_uri).shards]


def unmasked(row: dict[str, Any]) -> list[int]:
    pieces = list(row["input_ids"])
    for position, label in zip(row["masked_lm_positions"], row["masked_lm_labels"], strict=True):
        pieces[position] = label
    return pieces


def position_of(part: list[int], whole: list[int]) -> int:
    """Return where ``part`` stands in ``whole``."""
    return next(i for i in range(len(whole)) if whole[i : i + len(part)] == part)


def test_two_workers_write_the_same_bytes_as_one(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "2")
    again = make(made.source, tmp_path)
    for one, two in zip(
        (made.corpus, made.vocab, made.examples),
        (again.corpus, again.vocab, again.examples),
        strict=True,
    ):
        assert digests(one) == digests(two)


def test_a_row_is_made_of_the_sentences_it_names(made: Made) -> None:
    documents = documents_of(made)
    tokenizer = Tokenizer.load(str(Path(made.vocab).parent))
    for row in rows_of(made.examples, "train")[:200]:
        sentences = documents[row["document_id"]][row["first_sentence"] : row["last_sentence"] + 1]
        text = [piece for ids in tokenizer.encode(sentences) for piece in ids]
        pieces, b = unmasked(row), row["segment_b_start"]
        segments = [pieces[1 : b - 1], pieces[b:-1]]
        if row["sentence_order_label"] == 1:
            segments.reverse()
        begin = position_of(segments[0], text)
        assert position_of(segments[1], text[begin + len(segments[0]) :]) >= 0


def test_held_out_documents_are_in_no_training_shard_and_have_one_copy(made: Made) -> None:
    train = {row["document_id"] for row in rows_of(made.examples, "train")}
    held_out = {row["document_id"] for row in rows_of(made.examples, "held_out")}
    assert not train & held_out
    assert held_out == {name for name in documents_of(made) if is_held_out(name, EXAMPLES)}
    assert {row["copy"] for row in rows_of(made.examples, "train")} == {0, 1}
    assert {row["copy"] for row in rows_of(made.examples, "held_out")} == {0}


def test_tfrecords_hold_the_same_examples_as_the_arrow_shards(made: Made) -> None:
    rows = rows_of(made.examples, "held_out")
    shards = read_manifest(made.examples).shards_of("held_out_tfrecord")
    uris = [str(Path(made.examples).parent / shard.path) for shard in shards]
    records = [record for uri in uris for record in read_tfrecord(uri)]
    for row, record in zip(rows, records, strict=True):
        features = TFExample.FromString(record).features.feature
        padding = [0] * (EXAMPLES.max_seq_length - len(row["input_ids"]))
        assert list(features["input_ids"].int64_list.value) == row["input_ids"] + padding
        weights = features["masked_lm_weights"].float_list.value
        assert sum(weights) == len(row["masked_lm_labels"])
        assert len(weights) == EXAMPLES.max_predictions


def test_a_stage_that_is_done_returns_at_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert make(made.source, Path(made.work)) == made
    assert caplog.text.count("done already") == 3


def test_a_file_that_was_only_touched_redoes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", range(5))
    settings, work = SourceSettings(uri=str(source)), str(tmp_path / "work")
    before = clean_corpus.run(settings, CleaningSettings(), work)
    source.touch()
    caplog.set_level("INFO")
    assert clean_corpus.run(settings, CleaningSettings(), work) == before
    assert "1 touched, with the same content (source.jsonl)" in caplog.text


def test_a_corrupt_corpus_shard_is_refused(made: Made, tmp_path: Path) -> None:
    folder = shutil.copytree(Path(made.corpus).parent, tmp_path / "corpus")
    manifest = read_manifest(made.corpus)
    shard = folder / manifest.shards[0].path
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(IntegrityError, match="changed after it was written"):
        make_examples.run(
            EXAMPLES, str(folder / "manifest.json"), made.vocab, str(tmp_path / "work")
        )
    assert not list((tmp_path / "work").rglob("manifest.json"))


def test_unigram_loss_is_that_of_piece_frequencies() -> None:
    train, labels = np.array([0, 3, 0]), np.array([0, 1, 1])
    expected = -(np.log(4 / 6) + np.log(1 / 6)) / 2
    assert unigram_nats(train, labels) == pytest.approx(expected)
