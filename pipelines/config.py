"""Settings of the text stages."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from albert_core.stage.errors import ConfigError
from albert_core.stage.settings import Settings
from albert_core.text.records import MAX_VOCAB_SIZE, NUM_SPECIAL, NUM_SPECIAL_IN_PAIR

INSTALLED_PYTHON = "installed-python"
OVERLAP_WORDS = 13
"""Words in a row that a text shares with a test text if it was made of it. Source: Brown et al.
2020, "Language models are few-shot learners", appendix C."""
GOOGLE_MAX_PREDICTIONS = 20
"""Of the reference implementation at every length. Source: google-research/albert
`create_pretraining_data.py`."""

SourceFormat = Literal[
    "auto",
    "installed-python",
    "mediawiki-dump",
    "wiki-extracted",
    "jsonl",
    "csv",
    "parquet",
    "arrow",
    "archive",
    "html",
    "pdf",
    "mail",
    "xml",
    "asciidoc",
    "docbook",
    "docx",
    "epub",
    "fb2",
    "ipynb",
    "jats",
    "latex",
    "markdown",
    "odt",
    "org",
    "pptx",
    "rst",
    "rtf",
    "binary",
    "text",
    "paragraphs",
    "sentences",
    "gutenberg",
    "warc",
]
QualityRules = Literal["gopher", "gopher-repetition", "c4"]


class SourceSettings(Settings):
    """Where the text comes from."""

    uri: str | list[Annotated[str, Field(min_length=1)]] = Field(
        default="",
        description="a file, folder or glob on any file system fsspec knows, or several; or "
        "'installed-python', the documentation of the installed Python distributions; empty: to "
        "be given with each run",
    )
    format: SourceFormat = Field(
        default="auto", description="how the files are read; auto looks at each file"
    )
    encoding: str = Field(
        default="auto", description="of text files; auto: UTF-8, or what the bytes look like"
    )
    text_field: str = Field(default="text", description="tables: the field with the text")
    id_field: str = Field(default="id", description="tables: the field with the document's id")
    xml_element: str = Field(
        default="",
        description="xml: the element that holds a document's text; empty: that of TEI, Reuters "
        "and TREC",
    )
    wiki_namespaces: list[int] = Field(
        default=[0], description="mediawiki-dump: the namespaces to read; 0 is articles"
    )
    max_document_mb: float = Field(
        default=64.0, gt=0, description="MB; a larger record is counted as unreadable"
    )
    max_unreadable_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the records, 0..1; when more can't be read the source is refused",
    )
    file_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the files to read, 0..1; the same ones in every run",
    )

    def check_given(self) -> None:
        """Raise ConfigError if there is nothing to read."""
        if not self.uri:
            raise ConfigError(
                "there is no text to read: the recipe has no source.uri. Give --source (in a "
                "deployment, the parameter source) with a file, folder, glob or URI of your text. "
                "The recipe wikipedia-books says where to get text like the paper's."
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
    quality_rules: list[QualityRules] = Field(
        default=["gopher"], description="which groups of quality rules drop documents"
    )
    language: str = Field(
        default="en",
        min_length=2,
        description="ISO 639 code, for the sentence splitter; auto: each document's own",
    )
    max_sentence_characters: int = Field(
        default=2000,
        ge=100,
        description="a longer sentence is cut at a full stop, semicolon, colon, comma or blank",
    )
    keep_languages: list[str] = Field(
        default=[], description="ISO 639-1 codes; other documents are dropped. Empty: keep all"
    )
    drop_duplicates: bool = Field(
        default=True, description="keep only the first of documents with the same words"
    )
    near_duplicate_similarity: float = Field(
        default=1.0,
        ge=0.5,
        le=1,
        description="Jaccard similarity of word 5-grams from which a document repeats an earlier "
        "one; 1: only documents with the same words do",
    )
    known_corpora: list[str] = Field(
        default=[],
        description="URIs of manifests of earlier corpora; what repeats a document of theirs is "
        "dropped",
    )
    test_texts: list[str] = Field(
        default=[],
        description="files or globs of downstream test sets (tsv, json, jsonl, text); documents "
        "that share 13 words in a row with them are dropped",
    )
    min_test_overlaps: int = Field(
        default=1, ge=1, description="such runs of words that a document must share to be dropped"
    )
    excluded_ids: str = Field(
        default="",
        description="URI of a file with ids of documents to leave out, one a line; documents with "
        "the same words under other ids stay",
    )
    keep_rejected: bool = Field(
        default=False, description="write the documents dropped, with the reason, beside the corpus"
    )


LARGEST_AUTO_SIZE = 30_000
"""The size of ALBERT's vocabulary."""


class VocabularySettings(Settings):
    """The SentencePiece vocabulary. Source: google-research/albert, README, "Sentencepiece".

    The reference samples ten million sentences, some 1,200 MB, which would take 25 GB of memory
    here. A sample of 16 MB of Wikipedia and novels gave 1.338 pieces a word on unseen text, one of
    32 MB 1.331 and one of 64 MB 1.326, so that more than 100 MB would change little.
    """

    vocab_size: Annotated[int, Field(gt=NUM_SPECIAL, le=MAX_VOCAB_SIZE)] | Literal["auto"] = Field(
        default=LARGEST_AUTO_SIZE,
        description="pieces, special included; auto: as many as the text can train well, at most "
        "30,000",
    )
    character_coverage: float = Field(default=0.99995, gt=0.9, le=1)
    lower_case: bool = Field(default=True)
    keep_accents: bool = Field(
        default=False,
        description="keep combining marks, which Japanese, Thai and the scripts of India cannot do "
        "without; the reference drops them. Source: transformers, AlbertTokenizer",
    )
    sample_mb: float = Field(
        default=100.0,
        gt=0,
        description="MB of text to train on, with some 20 bytes of memory for each byte; of more "
        "text a sample is taken",
    )
    sampling_temperature: float = Field(
        default=2.0,
        ge=1,
        description="T: a script of a folder with n bytes of the text gets n^(1/T) of the sample; "
        "1: its own share. Source: Conneau et al. 2020, XLM-R, section 3.1",
    )
    model: str = Field(
        default="",
        description="URI of a SentencePiece model to use as it is, such as the published "
        "30k-clean.model; empty: train one",
    )
    refresh: Literal["keep", "train"] = Field(
        default="keep",
        description="what new text of the same source gets: the vocabulary that these settings "
        "trained last in this work folder, which a run can go on with; or another one",
    )
    num_threads: int = Field(
        default=4, ge=1, description="another number gives a slightly other vocabulary"
    )
    seed: int = Field(default=12345, ge=0)

    @property
    def of_result(self) -> dict[str, Any]:
        """The settings that a vocabulary depends on."""
        return self.model_dump(exclude={"refresh"})

    @property
    def largest_size(self) -> int:
        """The most pieces that there can be."""
        return LARGEST_AUTO_SIZE if self.vocab_size == "auto" else self.vocab_size


class ExampleSettings(Settings):
    """How documents become pretraining examples. Source: paper section 3.1.

    The paper names neither the copies nor the predictions. The reference makes 40 copies, BERT 10;
    here it is 10, a quarter of the disk, because the paper's run sees each of ten copies of its
    text some five times, and masks seen four times teach about as much as ever new ones (Liu et al.
    2019, "RoBERTa", section 4.1). The reference predicts at most 20 pieces, which are 4 % of 512;
    here it is 15 % at any length, 77 of 512, as BERT means it.
    """

    objective: Literal["sop", "nsp", "none"] = Field(
        default="sop",
        description="segment b: the following text, in half of the pairs swapped with a (sop), "
        "in half of them from another document (nsp), or always the following text (none)",
    )
    fidelity: Literal["paper", "google"] = Field(
        default="paper", description="google: what the reference implementation does, accidents too"
    )
    max_seq_length: int = Field(default=512, ge=16, description="pieces, special ones included")
    short_seq_prob: float = Field(
        default=0.1, ge=0, le=1, description="probability that an example aims at a shorter length"
    )
    masked_lm_prob: float = Field(
        default=0.15, gt=0, lt=1, description="share of the pieces to predict, 0..1"
    )
    max_predictions_per_seq: int | None = Field(
        default=None,
        ge=1,
        description="most predictions in an example; without it, masked_lm_prob of max_seq_length "
        "(google: 20)",
    )
    max_ngram: int = Field(default=3, ge=1, le=10, description="words in the longest masked span")
    dupe_factor: int = Field(
        default=10, ge=1, description="copies of each document, with other pairs and masks"
    )
    held_out_share: float = Field(
        default=0.01, gt=0, lt=1, description="share of the documents kept from training, 0..1"
    )
    tfrecord: bool = Field(
        default=False,
        description="also write TFRecord shards, which run_pretraining.py of the reference reads",
    )
    shard_mb: float = Field(default=64.0, gt=0, description="approximate MB of an Arrow shard")
    compression: Literal["none", "zstd"] = Field(
        default="none", description="of Arrow shards; only uncompressed ones are mapped into memory"
    )
    keep_parts: bool = Field(
        default=True,
        description="keep each corpus shard's examples below the work folder, so that a refresh "
        "makes only those that changed; takes the shards' size in disk again",
    )
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
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq
        if self.fidelity == "google":
            return GOOGLE_MAX_PREDICTIONS
        return round(self.masked_lm_prob * self.max_seq_length)


class TaskSettings(Settings):
    """What is made of the held-out documents to measure a model: minimal pairs and a task."""

    max_pairs: int = Field(default=100, ge=20, description="minimal pairs of each kind")
    min_words: int = Field(default=5, ge=3, description="words in the shortest sentence of a pair")
    max_words: int = Field(default=20, ge=3, description="words in the longest sentence of a pair")
    max_sources: int = Field(
        default=10, ge=2, description="parts of the source from which a passage may be"
    )
    max_passages: int = Field(default=4000, ge=20, description="rows of train and dev together")
    passage_words: int = Field(default=30, ge=5, description="words in every passage")
    dev_share: float = Field(default=0.25, gt=0, lt=1, description="share of the rows in dev")
    seed: int = Field(default=12345, ge=0)


class ContaminationSettings(Settings):
    """Which share of the downstream examples the corpus has seen."""

    ngram_words: int = Field(
        default=OVERLAP_WORDS, ge=2, description="words in a row that make an overlap"
    )
