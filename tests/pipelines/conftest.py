"""A small source on disk, and the corpus, vocabulary and examples made of it once."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from tests.generated_text import write_jsonl

VOCABULARY = VocabularySettings(vocab_size=150)
EXAMPLES = ExampleSettings(max_seq_length=64, dupe_factor=2, held_out_share=0.2, shard_mb=0.02)


@dataclass(frozen=True)
class Made:
    """The manifests of the three text stages, and where they were made."""

    source: Path
    work: str
    corpus: str
    vocab: str
    examples: str


def make(source: Path, work: Path, vocabulary_of: "Made | None" = None) -> Made:
    """Run the three text stages on ``source``, or two, with a vocabulary made before."""
    from pipelines import clean_corpus, make_examples, train_vocab

    source_settings = SourceSettings(uri=str(source))
    corpus = clean_corpus.run(source_settings, CleaningSettings(), str(work))
    vocab = vocabulary_of.vocab if vocabulary_of else train_vocab.run(VOCABULARY, corpus, str(work))
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        return make(source, folder / "work")


@pytest.fixture
def one_worker_and_a_unit_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stages in this process, and clean each file by itself."""
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    monkeypatch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
