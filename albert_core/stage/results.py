"""What each stage tells its readers in its manifest, as one model per stage.

`Manifest.result_as` reads them, strictly: a field that is absent or unknown is an error. `in_cell`
shows a value in a table of Markdown.
"""

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from albert_core.stage.settings import Settings

Objective = Literal["sop", "nsp", "none"]
"""What is learned from pairs of segments: sentence order, next sentence, or nothing."""
Verdict = Literal["first", "promoted", "refused", "undecided"]
"""What the gate decides about a model version."""


class Estimate(Settings):
    """A number measured on a sample, and its 95 % interval."""

    value: float
    low: float | None
    """Of the 95 % interval; None: too little data for one."""
    high: float | None
    """Of the interval, likewise."""

    def is_above(self, other: float) -> bool:
        """Whether the whole interval is above ``other``; False without an interval."""
        return self.low is not None and self.low > other

    def is_below(self, other: float) -> bool:
        """Whether the whole interval is below ``other``; False without an interval."""
        return self.high is not None and self.high < other

    def interval(self, shown: Callable[[float], str]) -> str:
        """Return the interval with its ends as ``shown`` writes them."""
        if self.low is None or self.high is None:
            return "no interval"
        return f"[{shown(self.low)}, {shown(self.high)}]"

    def __str__(self) -> str:
        """Format as in the progress lines: value [low, high]; what rounds to 0 has no sign."""
        return f"{self.value:z.3f} {self.interval(lambda end: f'{end:z.3f}')}"


class Machine(Settings):
    """What a training computed on."""

    ranks: int
    """Processes that shared each update."""
    threads: int
    """CPU threads of each rank."""
    device: str
    """Name of the GPU, or the kind of device, e.g. cpu."""
    vectors: str
    """CPU capability that torch computed with, e.g. AVX512."""


class CorpusResult(Settings):
    """The result of the stage "corpus"."""

    source: str | list[str]
    """URI or glob of the source files, or several."""
    num_documents: int
    """Documents kept."""
    num_source_files: int
    text_bytes: int
    """UTF-8 bytes of the kept documents' text."""
    num_sentences_cut: int
    """Sentences that were too long and therefore cut, of repeated documents too."""


class VocabularyResult(Settings):
    """The result of the stage "vocab"."""

    vocab_size: int
    """Pieces, special ones included."""
    lower_case: bool
    """Whether text is lower-cased before it is encoded."""
    keep_accents: bool = False
    """Whether combining marks stay."""
    trained: bool
    """False: a given vocabulary was taken over."""
    sample_share: float
    """Share of the documents trained on, 0..1."""
    pieces_per_word: float
    unknown_piece_share: float
    """Share of the text's pieces, 0..1."""


class ExamplesResult(Settings):
    """The result of the stage "examples"."""

    objective: Objective
    fidelity: Literal["paper", "google"]
    """Which masks are made."""
    max_seq_length: int
    """Pieces, special ones included."""
    max_predictions: int
    """Masked positions per example, at most."""
    num_documents_held_out: int
    num_train: int
    """Training examples, of all copies."""
    num_held_out: int
    """Held-out examples."""
    num_pieces_borrowed: int
    """Pieces taken from another document for a pair."""
    num_pairs_without_other_document: int
    num_predictions: int
    """Masked positions in all."""
    swapped_share: float
    """Share of the pairs with label 1, 0..1."""
    padding_share: float
    """Share of padding at max_seq_length, 0..1."""
    unigram_nats: float
    """Loss of the best constant prediction, in nats per prediction."""
    length_only_accuracy: float
    """Accuracy on held-out pairs of telling the label from the two lengths, 0..1."""
    vocab_size: int
    """Pieces, special ones included."""
    vocab_manifest: str
    """URI."""


PASSAGE_SOURCE = "passage-source"
"""Name and folder of the task made from held-out documents: which source is a passage from?"""


class AuditResult(Settings):
    """The result of the stage "audit"."""

    num_checks: int
    """Checks made; 0: there are too many examples for it."""
    failed: list[str]
    """Names of the checks that found a fault."""


class TaskResult(Settings):
    """The result of the stage "task"."""

    num_pairs: dict[str, int]
    """How a sentence was broken -> minimal pairs."""
    num_rows: dict[str, int]
    """Split -> rows of the task to fine-tune on; empty: it was not made."""
    sources: list[str]
    """Labels of that task: parts of the source."""
    word_accuracy: float | None
    """Accuracy of a bag of words (naive Bayes) on its dev set, 0..1; None: it was not made."""


class PartOverlap(Settings):
    """Overlaps of one part of a test set's examples, such as the question, with a corpus."""

    texts: int
    long_enough: int
    """Texts of at least ngram_words words."""
    overlapping: int
    """Texts with an n-gram that the corpus contains."""
    share: float
    """``overlapping / texts``, 0..1."""


class ContaminationResult(Settings):
    """The result of the stage "contamination"."""

    ngram_words: int
    """Words of an n-gram."""
    shares: dict[str, dict[str, float]]
    """Task -> split -> share of the examples that the corpus contains, 0..1."""
    parts: dict[str, dict[str, dict[str, PartOverlap]]]
    """Task -> split -> part of an example -> counts."""
    num_examples: dict[str, dict[str, int]]
    """Task -> split -> examples."""


class ModelResult(Settings):
    """What the stages that train a model have in common."""

    model_folder: str
    """Relative to the manifest's folder."""
    machines: list[Machine]
    """Several if the run was moved."""
    mlflow_run_id: str | None
    """None: the server did not answer."""


class PretrainingResult(ModelResult):
    """The result of the stage "pretraining"."""

    step: int
    """Updates done, skipped ones included."""
    num_parameters: int
    objective: Objective
    evaluations: list[dict[str, int | float]]
    """Step and the scores on held-out documents and minimal pairs, by name; of the pairs also
    the ends of the interval, with _low and _high after the name."""
    skipped_steps: dict[str, int]
    """Updates skipped, by reason."""
    unigram_nats: float
    """Loss of the best constant prediction, in nats per prediction."""
    length_only_accuracy: float
    """Accuracy on held-out pairs of telling the label from the two lengths, 0..1."""
    before: dict[str, Estimate]
    """Scores on held-out documents before the first update; losses in nats."""
    after: dict[str, Estimate]
    """The same after the last update."""
    settings: dict[str, Any]
    """Settings of model and training, also those that cannot change the result."""
    versions: list[Any] = Field(default=[])
    """What earlier releases noted of the code."""


class FinetuningResult(ModelResult):
    """The result of the stage "finetuning". Scores are shares or correlations, or errors."""

    task: str
    title: str
    """The task's name in tables."""
    kind: str
    """Classification, regression, choice or spans."""
    seed: int
    metric: str
    """The key metric, which picks the best step."""
    scores: dict[str, Estimate]
    """Metric -> score on dev, of each half by what was chosen on the other."""
    jackknife: str
    """File, relative: these scores without each cluster of dev's examples, and the cluster's
    share of the examples."""
    num_clusters: int
    """Clusters of dev's examples that resemble each other, such as articles."""
    num_choices: int
    """Evaluations of which the best one was chosen."""
    other_scores: dict[str, dict[str, Estimate]]
    """Other labelled set -> metric -> score."""
    constant_scores: dict[str, float]
    """Metric -> score of the best constant answer on dev."""
    found: dict[str, dict[str, Any]]
    """Set -> further numbers of its scoring by the kept weights, such as a threshold."""
    hyperparameters: dict[str, Any]
    """Those used, resolved for the task."""
    best_step: int
    """The update whose weights were kept."""
    num_steps: int
    num_train: int
    """Training examples."""
    num_examples: int
    """Examples in dev."""
    predictions: dict[str, str]
    """Set -> file, relative."""
    submission: list[str]
    """Files for the task's server, relative."""

    @property
    def score(self) -> Estimate:
        """The key metric on dev."""
        return self.scores[self.metric]


class PairScore(Settings):
    """How often a model finds the acceptable sentence of a minimal pair more likely."""

    CHANCE: ClassVar[float] = 0.5

    accuracy: Estimate
    """Mean over the paradigms of their shares of right pairs."""
    num_pairs: int

    @property
    def is_above_chance(self) -> bool:
        """Whether the whole interval is."""
        return self.accuracy.is_above(self.CHANCE)


class PairSetScores(PairScore):
    """The same of a whole set of minimal pairs, and of its parts."""

    phenomena: dict[str, PairScore]
    paradigms: dict[str, PairScore]


class ZeroShotResult(Settings):
    """The result of the stage "zero-shot"."""

    sets: dict[str, PairSetScores]
    """Set of minimal pairs -> scores."""


class MetricResult(Settings):
    """One metric of a task over the seeds."""

    median: Estimate
    """Score of the middle seed, the worse one of two; its interval is over dev's examples."""
    by_seed: dict[str, float]
    """The worst first; empty if nothing was trained."""
    constant_answer: float | None
    """Score of the best constant answer."""


class TaskScoresResult(Settings):
    """The scores of a task's fine-tunings."""

    title: str
    num_examples: int
    """Examples in dev."""
    num_train: int
    """Training examples."""
    dev_overlap: float | None
    """Share of dev's examples that the corpus contains, 0..1; None: not known."""
    metrics: dict[str, MetricResult]
    """The key metric first."""


class ScoresResult(Settings):
    """The result of the stage "scores"."""

    model: str
    """What the table calls the model."""
    average: float | None
    """The paper's Avg of five tasks, 0..1; None: not all were scored."""
    scores: dict[str, dict[str, float]]
    """Task -> metric -> median seed's score."""
    tasks: dict[str, TaskScoresResult]
    minimal_pairs: dict[str, PairSetScores]
    """Set -> scores of the pretrained model, without fine-tuning."""
    text: str
    """The table, for a terminal."""
    page: str
    """File of the HTML page, relative to the manifest's folder."""
    mlflow_run_id: str | None
    """None: the server did not answer."""


class TaskDifference(Settings):
    """The scores of candidate and champion on one task, compared."""

    task: str
    candidate: float
    champion: float
    difference: float
    low: float
    """One-sided lower bound of the true difference, with the confidence asked for."""
    high: float
    """One-sided upper bound, likewise."""
    num_clusters: int
    """Independent clusters of examples in dev."""
    best: float
    """The highest score of a champion, this or an earlier one."""
    fell: bool
    """Whether it is below a champion, this or an earlier one, by more than the margin, and by
    more than chance explains."""


class RegistrationResult(Settings):
    """The result of the stage "registration"."""

    name: str
    """Of the registered model."""
    version: str
    alias: str | None
    """``champion``, or None."""
    verdict: Verdict
    reason: str
    """One sentence that explains the verdict."""
    difference: float | None
    """Mean over the tasks, candidate - champion; None: nothing was compared."""
    lower_bound: float | None
    """One-sided lower bound of the difference."""
    tasks: tuple[TaskDifference, ...]
    against: str
    """Version that it was compared with; empty: none."""
    model_uri: str
    """``models:/NAME/VERSION``."""
    mlflow_run_id: str | None
    """None: the server did not answer."""


def in_cell(text: str) -> str:
    """Return a value in one line, without HTML, links or code but for a value that is all code."""
    is_code = re.fullmatch(r"`[^`]*`", text)
    return re.sub(r"[|\n]" if is_code else r"[|\n<`]|(?<=\])\(", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return " " if found[0] == "\n" else f"\\{found[0]}"
