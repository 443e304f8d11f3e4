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
"""Predictions in an example of the reference implementation, at every length. Source:
google-research/albert, `create_pretraining_data.py`."""

MAX_SEQ_LENGTH = MAX_COPIES = 1 << 16
"""Places in an example and numbers of copies are stored in two bytes."""
MAX_SHARD_MB = 2000
"""A shard has at most 2^31 pieces: some 5,000 MB."""

_Plain = Literal["text", "paragraphs", "sentences", "gutenberg", "installed-python"]
_Web = Literal["mediawiki-dump", "wiki-extracted", "warc", "html"]
_Tables = Literal["jsonl", "json", "csv", "parquet", "arrow"]
_Xml = Literal["docbook", "fb2", "jats", "xml"]
_Markup = Literal["asciidoc", "ipynb", "latex", "markdown", "org", "rst"]
_Office = Literal["docx", "epub", "mail", "odt", "pdf", "pptx", "rtf"]
SourceFormat = Literal["auto", _Plain, _Web, _Tables, _Xml, _Markup, _Office, "archive", "binary"]
QualityRules = Literal["gopher", "gopher-repetition", "c4"]


class SourceSettings(Settings, use_attribute_docstrings=True):
    """Where the text comes from."""

    uri: str | list[Annotated[str, Field(min_length=1)]] = ""
    """a file, folder or glob on any file system fsspec knows, or several; or 'installed-python',
    the documentation of the installed Python distributions; empty: to be given with each run"""
    format: SourceFormat = "auto"
    """how the files are read; auto looks at each file"""
    encoding: str = "auto"
    """encoding of text files; auto: UTF-8, or what the bytes look like"""
    text_field: str = "text"
    """tables: the field with the text"""
    id_field: str = "id"
    """tables: the field with the document's id"""
    xml_element: str = ""
    """xml: the element that holds a document's text; in files without it: that of TEI, Reuters and
    TREC"""
    wiki_namespaces: list[int] = Field([0])
    """mediawiki-dump: the namespaces to read; 0 is articles"""
    max_document_mb: float = Field(64.0, gt=0)
    """MB; a larger record is counted as unreadable"""
    max_unreadable_share: float = Field(0.5, ge=0, le=1)
    """share of the records, 0..1; when more can't be read the source is refused"""
    file_share: float = Field(1.0, gt=0, le=1)
    """share of the files to read, 0..1; the same ones in every run"""

    @property
    def max_document_bytes(self) -> int:
        """Size of the largest record that is read."""
        return int(self.max_document_mb * 1_000_000)

    def check_given(self) -> None:
        """Raise ConfigError if there is nothing to read."""
        if not self.uri:
            raise ConfigError(
                "there is no text to read: the recipe has no source.uri. Give --source (in a "
                "deployment, the parameter source) with a file, folder, glob or URI of your text. "
                "The recipe wikipedia-books says where to get text like the paper's."
            )


class CleaningSettings(Settings, use_attribute_docstrings=True):
    """Which documents are worth training on."""

    min_words: int = Field(20, ge=0)
    """words in the shortest document kept"""
    min_letter_share: float = Field(0.6, ge=0, le=1)
    """share of letters among the non-blank characters"""
    max_word_characters: float = Field(20.0, gt=0)
    """mean word length of the longest-worded document kept"""
    quality_rules: list[QualityRules] = Field(["gopher"])
    """which groups of quality rules drop documents"""
    language: str = Field("en", pattern="^([a-z]{2,3}|auto)$")
    """ISO 639 code, for the sentence splitter; auto: each document's own"""
    max_sentence_characters: int = Field(2000, ge=100)
    """a longer sentence is cut at a full stop, semicolon, colon, comma or blank"""
    keep_languages: list[Annotated[str, Field(pattern="^[a-z]{2,3}$")]] = Field([])
    """ISO 639-1 codes; other documents are dropped. Empty: keep all"""
    drop_duplicates: bool = True
    """keep only the first of documents with the same words"""
    near_duplicate_similarity: float = Field(1.0, ge=0.5, le=1)
    """Jaccard similarity of word 5-grams from which a document repeats an earlier one; 1: only
    documents with the same words do"""
    known_corpora: list[str] = Field([])
    """URIs of manifests of earlier corpora; what repeats a document of theirs is dropped"""
    test_texts: list[str] = Field([])
    """files or globs of downstream test sets (tsv, json, jsonl, text); documents that share 13
    words in a row with them are dropped; shorter texts are not found"""
    min_test_overlaps: int = Field(1, ge=1)
    """number of such runs that a document must share to be dropped"""
    excluded_ids: str = ""
    """URI of a file with ids of documents to leave out, one a line; documents with the same words
    under other ids stay"""
    keep_rejected: bool = False
    """write the documents dropped, with the reason, beside the corpus"""


LARGEST_AUTO_SIZE = 30_000
"""The size of ALBERT's vocabulary."""


class VocabularySettings(Settings, use_attribute_docstrings=True):
    """The SentencePiece vocabulary. Source: google-research/albert, README, "Sentencepiece".

    The reference samples ten million sentences, some 1,200 MB, which would take 25 GB of memory
    here. A sample of 16 MB of Wikipedia and novels gave 1.338 pieces a word on unseen text, one of
    32 MB 1.331 and one of 64 MB 1.326, so that more than 100 MB would change little.
    """

    vocab_size: Annotated[int, Field(gt=NUM_SPECIAL, le=MAX_VOCAB_SIZE)] | Literal["auto"] = (
        LARGEST_AUTO_SIZE
    )
    """pieces, special included; auto: as many as the text can train well, at most 30,000, or those
    of `model`, for which it is the default"""
    character_coverage: float = Field(0.99995, gt=0.9, le=1)
    """share of the text's characters that get a piece, 0..1; the rarest are unknown"""
    lower_case: bool = True
    """small letters only, in the vocabulary and in all text that it encodes"""
    keep_accents: bool = False
    """keep combining marks, which Japanese, Thai and the scripts of India cannot do without; the
    reference drops them. Source: transformers, AlbertTokenizer"""
    sample_mb: float = Field(100.0, gt=0)
    """MB of text to train on, with some 20 bytes of memory for each byte; of more text a sample is
    taken"""
    sampling_temperature: float = Field(2.0, ge=1)
    """T: a script of a folder with n bytes of the text gets n^(1/T) of the sample; 1: its own
    share. Source: Conneau et al. 2020, XLM-R, section 3.1"""
    model: str = ""
    """URI of a SentencePiece model to use as it is, such as the published 30k-clean.model; empty:
    train one"""
    refresh: Literal["keep", "train"] = "keep"
    """what new text of the same source gets: the vocabulary that these settings trained last in
    this work folder, so that a run can continue; or a new one"""
    num_threads: int = Field(4, ge=1)
    """a different number gives a slightly different vocabulary"""
    seed: int = Field(12345, ge=0)
    """of the sample of sentences"""

    @model_validator(mode="before")
    @classmethod
    def _size_is_that_of_a_given_model(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("model"):
            return {"vocab_size": "auto", **values}
        return values

    @property
    def of_result(self) -> dict[str, Any]:
        """The settings that a vocabulary depends on."""
        return self.model_dump(exclude={"refresh"})

    @property
    def largest_size(self) -> int:
        """The most pieces that there can be."""
        return LARGEST_AUTO_SIZE if self.vocab_size == "auto" else self.vocab_size


class ExampleSettings(Settings, use_attribute_docstrings=True):
    """How documents become pretraining examples. Source: paper section 3.1.

    The paper names neither the copies nor the predictions. The reference makes 40 copies, BERT 10;
    here it is 10, a quarter of the disk, because the paper's run sees each of ten copies of its
    text some five times, and masks seen four times teach about as much as ever new ones (Liu et al.
    2019, "RoBERTa", section 4.1). The reference predicts at most 20 pieces, which are 4 % of 512;
    here it is 15 % at any length, 77 of 512, as BERT means it.
    """

    objective: Literal["sop", "nsp", "none"] = "sop"
    """segment b: the following text, in half of the pairs swapped with a (sop), in half of them
    from another document (nsp), or always the following text (none)"""
    fidelity: Literal["paper", "google"] = "paper"
    """google: what the reference implementation does, accidents too"""
    max_seq_length: int = Field(512, ge=16, le=MAX_SEQ_LENGTH)
    """pieces, special ones included"""
    short_seq_prob: float = Field(0.1, ge=0, le=1)
    """probability that an example aims at a shorter length"""
    masked_lm_prob: float = Field(0.15, gt=0, lt=1)
    """share of the pieces to predict, 0..1"""
    max_predictions_per_seq: int | None = Field(None, ge=1)
    """most predictions in an example; without it, masked_lm_prob of max_seq_length (google: 20)"""
    max_ngram: int = Field(3, ge=1, le=10)
    """words in the longest masked span"""
    dupe_factor: int = Field(10, ge=1, le=MAX_COPIES)
    """copies of each document, with different pairs and masks"""
    held_out_share: float = Field(0.01, gt=0, lt=1)
    """share of the documents kept from training, 0..1"""
    tfrecord: bool = False
    """also write TFRecord shards, which run_pretraining.py of the reference reads"""
    shard_mb: float = Field(64.0, gt=0, le=MAX_SHARD_MB)
    """approximate MB of an Arrow shard"""
    compression: Literal["none", "zstd"] = "none"
    """compression of Arrow shards; only uncompressed ones are mapped into memory"""
    seed: int = Field(12345, ge=0)
    """of copies, pairs and masks"""

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


class TaskSettings(Settings, use_attribute_docstrings=True):
    """What is made of the held-out documents to measure a model: minimal pairs and a task."""

    max_pairs: int = Field(100, ge=20)
    """minimal pairs of each kind"""
    min_words: int = Field(5, ge=3)
    """words in the shortest sentence of a pair"""
    max_words: int = Field(20, ge=3)
    """words in the longest sentence of a pair"""
    max_sources: int = Field(10, ge=2)
    """parts of the source from which a passage may be"""
    max_passages: int = Field(4000, ge=20)
    """rows of train and dev together"""
    passage_words: int = Field(30, ge=5)
    """words in each passage"""
    dev_share: float = Field(0.25, gt=0, lt=1)
    """share of the rows in dev"""
    seed: int = Field(12345, ge=0)
    """of pairs and passages"""

    @model_validator(mode="after")
    def _some_sentence_is_in_between(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"min_words is {self.min_words}, but max_words only {self.max_words}: no sentence "
                "has so many words. Lower the one or raise the other"
            )
        return self


class ContaminationSettings(Settings, use_attribute_docstrings=True):
    """Which share of the downstream examples the corpus has seen."""

    ngram_words: int = Field(OVERLAP_WORDS, ge=2)
    """consecutive words that make an overlap"""
