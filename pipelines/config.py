"""Settings of the text stages."""

from typing import Literal, Self

from pydantic import Field, model_validator

from albert_core.contract.records import MAX_VOCAB_SIZE, NUM_SPECIAL, NUM_SPECIAL_IN_PAIR
from albert_core.contract.settings import Settings

INSTALLED_PYTHON = "installed-python"

SourceFormat = Literal["auto", "installed-python", "wiki-extracted", "jsonl", "text"]


class SourceSettings(Settings):
    """Where the text comes from."""

    uri: str = Field(
        default=INSTALLED_PYTHON,
        min_length=1,
        description="a file, folder or glob on any file system fsspec knows; or "
        "'installed-python', the documentation of the installed Python distributions",
    )
    format: SourceFormat = Field(
        default="auto", description="how the files are read; auto looks at each file"
    )
    text_field: str = Field(default="text", description="jsonl: the field with the text")
    id_field: str = Field(default="id", description="jsonl: the field with the document's id")
    file_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the files to read, 0..1; the same ones in every run",
    )


class CleaningSettings(Settings):
    """Which documents are worth training on."""

    min_words: int = Field(default=20, ge=0, description="words in the shortest document kept")
    min_letter_share: float = Field(
        default=0.6, ge=0, le=1, description="share of letters among the non-blank characters"
    )
    max_word_characters: float = Field(
        default=20.0, gt=0, description="mean word length of the longest-worded document kept"
    )
    language: str = Field(
        default="en", min_length=2, description="ISO 639 code, for the sentence splitter"
    )
    drop_duplicates: bool = Field(
        default=True, description="keep only the first of documents with the same words"
    )


class VocabularySettings(Settings):
    """The SentencePiece vocabulary. Source: REFERENCE.md B.3."""

    vocab_size: int = Field(
        default=30_000, gt=NUM_SPECIAL, le=MAX_VOCAB_SIZE, description="pieces, special included"
    )
    character_coverage: float = Field(default=0.99995, gt=0.9, le=1)
    lower_case: bool = Field(default=True)
    sample_mb: float = Field(
        default=100.0, gt=0, description="MB of text to train on; more is sampled by document"
    )
    num_threads: int = Field(
        default=4, ge=1, description="another number gives a slightly other vocabulary"
    )
    seed: int = Field(default=12345, ge=0)


class ExampleSettings(Settings):
    """How documents become pretraining examples. Source: DESIGN.md section 6."""

    max_seq_length: int = Field(default=512, ge=16, description="pieces, special ones included")
    short_seq_prob: float = Field(
        default=0.1, ge=0, le=1, description="probability that an example aims at a shorter length"
    )
    masked_lm_prob: float = Field(
        default=0.15, gt=0, lt=1, description="share of the pieces to predict, 0..1"
    )
    max_ngram: int = Field(default=3, ge=1, le=10, description="words in the longest masked span")
    dupe_factor: int = Field(
        default=10, ge=1, description="copies of each document, with other pairs and masks"
    )
    held_out_share: float = Field(
        default=0.01, gt=0, lt=1, description="share of the documents kept from training, 0..1"
    )
    tfrecord: bool = Field(default=True, description="also write TFRecord shards")
    shard_mb: float = Field(default=64.0, gt=0, description="approximate MB of an Arrow shard")
    seed: int = Field(default=12345, ge=0)

    @model_validator(mode="after")
    def _room_for_a_prediction(self) -> Self:
        if self.max_predictions < 1:
            raise ValueError(
                f"masked_lm_prob {self.masked_lm_prob} of max_seq_length {self.max_seq_length} "
                "pieces is less than one prediction"
            )
        return self

    @property
    def max_num_pieces(self) -> int:
        """Pieces of both segments in the longest example."""
        return self.max_seq_length - NUM_SPECIAL_IN_PAIR

    @property
    def max_predictions(self) -> int:
        """P, predictions in the longest example: 77 at 512 pieces and 15 %."""
        return round(self.masked_lm_prob * self.max_seq_length)


class TaskSettings(Settings):
    """The generated acceptability task: held-out sentences, half with two words swapped."""

    max_sentences: int = Field(default=4000, ge=20, description="rows of train and dev together")
    dev_share: float = Field(default=0.25, gt=0, lt=1, description="share of the documents in dev")
    min_words: int = Field(default=5, ge=3, description="words in the shortest sentence used")
    max_words: int = Field(default=30, ge=3, description="words in the longest sentence used")
    seed: int = Field(default=12345, ge=0)
