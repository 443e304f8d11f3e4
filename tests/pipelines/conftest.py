"""A small source on disk and what is made of it once; and a corpus of documents made up."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from albert_core.stage.manifest import Account, StagePlan, read_manifest, shard_of
from albert_core.text.arrow_files import read_arrow, write_arrow
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from tests.generated_text import write_jsonl
from tests.made_results import made_result

VOCABULARY = VocabularySettings(vocab_size=150)
EXAMPLES = ExampleSettings(
    max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.02, tfrecord=True
)


@dataclass(frozen=True)
class Made:
    """The manifests of the three text stages, and where they were made."""

    source: Path
    work: str
    corpus: str
    vocab: str
    examples: str


def make(source: Path, work: Path) -> Made:
    """Run the three text stages on ``source``."""
    from pipelines import clean_corpus, make_examples, train_vocab

    source_settings = SourceSettings(uri=str(source))
    corpus = clean_corpus.run(source_settings, CleaningSettings(), str(work))
    vocab = train_vocab.run(VOCABULARY, corpus, str(work))
    examples = make_examples.run(EXAMPLES, corpus, vocab, str(work))
    return Made(source, str(work), corpus, vocab, examples)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A corpus of 60 documents in three files, made by one worker."""
    folder = tmp_path_factory.mktemp("made")
    source = folder / "source"
    source.mkdir()
    for number in range(3):
        write_jsonl(source / f"{number}.jsonl", range(number * 20, number * 20 + 20))
    return make(source, folder / "work")


def rows_of(manifest: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows of all Arrow shards of a kind."""
    folder = Path(manifest).parent
    paths = [str(folder / shard.path) for shard in read_manifest(manifest).shards_of(kind)]
    return [row for path in paths for row in read_arrow(path).to_pylist()]


@pytest.fixture
def a_unit_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean each file by itself."""
    monkeypatch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)


def write_corpus(work: Path, *shards: pa.Table) -> str:
    """Write a shard for each table of documents below ``work``; return their manifest."""
    plan = StagePlan("corpus", {}, {"documents": repr([t.to_pylist() for t in shards])}, "", {})
    folder = plan.folder(str(work))
    written = []
    for number, table in enumerate(shards):
        uri = f"{folder}/documents-{number:05d}.arrow"
        write_arrow(table, uri)
        written.append(shard_of(uri, folder, "documents", len(table)))
    texts = [text for table in shards for text in table["text"].to_pylist()]
    account = Account(what="documents", total=len(texts), kept=len(texts))
    text_bytes = sum(len(text.encode()) for text in texts)
    result = made_result("corpus", text_bytes=text_bytes, num_documents=len(texts))
    return plan.write(str(work), written, [account], result)
