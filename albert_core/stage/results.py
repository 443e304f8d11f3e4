"""What the stages make: the result that each writes to its manifest.

There is one model per stage. `Manifest.result_as` reads them strictly: a missing or unknown field
is an error. `in_cell` formats a value for a Markdown table.
"""

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from albert_core.stage import errors, storage
from albert_core.stage.credentials import visible
from albert_core.stage.manifest import read_manifest
from albert_core.stage.settings import Settings

SOURCE_FILES = "source_files.jsonl"
"""The list of a corpus's source files, beside its manifest."""
CORPUS, VOCAB, EXAMPLES, AUDIT, TASK = "corpus", "vocab", "examples", "audit", "task"
PRETRAINING, FINETUNING, CONTAMINATION = "pretraining", "finetuning", "contamination"
ZERO_SHOT, SCORES, REGISTRATION = "zero-shot", "scores", "registration"
STAGES = (
    CORPUS, VOCAB, EXAMPLES, AUDIT, TASK, PRETRAINING, ZERO_SHOT, FINETUNING, CONTAMINATION,
    SCORES, REGISTRATION,
)  # fmt: skip
"""Names of the stages, which are the folders of their results in the work folder."""
UNITS, PARTS, RECEIPTS = "units", "parts", "receipts"
"""More folders there: the units of a corpus, the parts of examples, the receipts of removals."""
UNIT_DONE = "unit.json"
"""Name of the note that is written last and marks a unit as complete."""

Objective = Literal["sop", "nsp", "none"]
"""What is learned from segment pairs: sentence order, next sentence, or nothing."""
Verdict = Literal["first", "promoted", "refused", "undecided"]
"""The gate's decision about a model version."""
UNDECIDED: Verdict = "undecided"
"""The verdict that is not final."""
CHAMPION = "champion"
"""Alias of the best version of a registered model."""


class Estimate(Settings, allow_inf_nan=True):
    """A number measured on a sample, and its 95 % interval."""

    value: float
    """NaN where a prediction is."""
    low: float | None
    """Lower end of the 95 % interval; None if there is too little data."""
    high: float | None
    """Upper end of the 95 % interval, likewise."""

    def is_above(self, other: float) -> bool:
        """Whether the whole interval is above ``other``; False without an interval."""
        return self.low is not None and self.low > other

    def is_below(self, other: float) -> bool:
        """Whether the whole interval is below ``other``; False without an interval."""
        return self.high is not None and self.high < other

    def interval(self, shown: Callable[[float], str]) -> str:
        """Return the interval, with its ends formatted by ``shown``."""
        if self.low is None or self.high is None:
            return "no interval"
        return f"[{shown(self.low)}, {shown(self.high)}]"

    def __str__(self) -> str:
        """Format as ``value [low, high]``; what rounds to 0 has no sign."""
        return f"{self.value:z.3f} {self.interval(lambda end: f'{end:z.3f}')}"


class Machine(Settings):
    """The hardware that a training run used."""

    ranks: int
    """Processes that share each update."""
    threads: int
    """CPU threads of each rank."""
    device: str
    """Name of the GPU, or the kind of device, such as cpu."""
    vectors: str
    """CPU capability that torch used, such as AVX512."""


class CorpusResult(Settings):
    """The result of the stage "corpus"."""

    source: str | list[str]
    """URI or glob of the source files, or several."""
    num_documents: int
    """Documents kept."""
    num_source_files: int
    text_bytes: int
    """UTF-8 bytes of the text of the kept documents."""
    num_sentences_cut: int
    """Sentences that were cut because they were too long, also those of repeated documents."""
    excluded_ids_not_found: tuple[str, ...] = ()
    """Those of ``cleaning.excluded_ids`` that no document of the source has."""


KEPT_VOCAB = "kept"
"""Name in a vocabulary's settings for the place of the earlier one that was kept."""


class VocabularyResult(Settings):
    """The result of the stage "vocab"."""

    vocab_size: int
    """Pieces, special ones included."""
    lower_case: bool
    """Whether text is lower-cased before it is encoded."""
    keep_accents: bool = False
    """Whether combining marks stay."""
    trained: bool
    """False if a given vocabulary was used."""
    sample_share: float
    """Share of the documents used for training, 0..1."""
    pieces_per_word: float
    unknown_piece_share: float
    """Share of the pieces of the text, 0..1."""

    def tokenizer_options(self, fidelity: str) -> tuple[bool, bool, bool]:
        """Return what `Tokenizer.load` takes besides the folder, for examples of ``fidelity``."""
        return self.lower_case, fidelity == "google", self.keep_accents


class ExamplesResult(Settings):
    """The result of the stage "examples"."""

    objective: Objective
    fidelity: Literal["paper", "google"]
    """Whose masking rules were used."""
    max_seq_length: int
    """Pieces, special ones included."""
    max_predictions: int
    """Masked positions per example, at most."""
    num_documents_held_out: int
    num_train: int
    """Training examples, all copies counted."""
    num_held_out: int
    """Held-out examples."""
    num_pieces_borrowed: int
    """Pieces taken from another document for a pair."""
    num_pairs_without_other_document: int
    num_predictions: int
    """Masked positions in total."""
    swapped_share: float
    """Share of pairs with label 1, 0..1."""
    padding_share: float
    """Share of padding if examples were padded to max_seq_length, 0..1."""
    unigram_nats: float
    """Loss of the best constant prediction, in nats per prediction."""
    length_only_accuracy: float
    """Accuracy on held-out pairs of predicting the label from the two lengths alone, 0..1."""
    vocab_size: int
    """Pieces, special ones included."""


PASSAGE_SOURCE = "passage-source"
"""Name and folder of the task made from held-out documents: which source is a passage from?"""
OWN_PAIRS = "minimal_pairs"
"""Folder of minimal pairs that are neither BLiMP's nor Zorro's: generated ones, and a user's."""


class AuditResult(Settings):
    """The result of the stage "audit"."""

    num_checks: int
    """Checks done; 0 if there are too many examples to audit."""
    failed: list[str]
    """Names of the checks that found a fault."""


class TaskResult(Settings):
    """The result of the stage "task"."""

    num_pairs: dict[str, int]
    """How sentences were broken -> number of minimal pairs."""
    num_rows: dict[str, int]
    """Split -> rows of the task to fine-tune on; empty if there is no such task."""
    sources: list[str]
    """Labels of that task, which are parts of the source."""
    word_accuracy: float | None
    """Accuracy of a bag of words (naive Bayes) on its dev set, 0..1; None without a task."""


class PartOverlap(Settings):
    """Overlap of one part of a set's examples, such as the question, with a corpus."""

    texts: int
    long_enough: int
    """Texts of at least ngram_words words."""
    overlapping: int
    """Texts with an n-gram that the corpus contains."""
    share: float | None
    """``overlapping / long_enough``, 0..1; None if no text is long enough."""


class ContaminationResult(Settings):
    """The result of the stage "contamination"."""

    ngram_words: int
    """Words per n-gram."""
    shares: dict[str, dict[str, float | None]]
    """Task -> split -> share of the judged examples that the corpus contains, 0..1; None without
    any."""
    num_judged: dict[str, dict[str, int]]
    """Task -> split -> number of examples with a text of at least ngram_words words; of the others
    nothing is known."""
    parts: dict[str, dict[str, dict[str, PartOverlap]]]
    """Task -> split -> part of an example -> overlap."""
    num_examples: dict[str, dict[str, int]]
    """Task -> split -> number of examples."""


class ModelResult(Settings):
    """What the results of stages that train a model have in common."""

    model_folder: str
    """Relative to the manifest's folder."""
    machines: list[Machine]
    """The machines used, several if the run was moved."""
    mlflow_run_id: str | None
    """None if the server did not answer."""


class PretrainingResult(ModelResult):
    """The result of the stage "pretraining"."""

    step: int
    """Updates done, including skipped ones."""
    num_parameters: int
    objective: Objective
    evaluations: list[dict[str, int | float]]
    """Step and scores on held-out documents and minimal pairs, by name. The interval of the pairs
    is under the name with _low and _high appended."""
    skipped_steps: dict[str, int]
    """Updates skipped, by reason."""
    unigram_nats: float
    """Loss of the best constant prediction, in nats per prediction."""
    length_only_accuracy: float
    """Accuracy on held-out pairs of predicting the label from the two lengths alone, 0..1."""
    before: dict[str, Estimate]
    """Scores on held-out documents before the first update, losses in nats."""
    after: dict[str, Estimate]
    """Scores on held-out documents after the last update, losses in nats."""
    settings: dict[str, Any]
    """All settings of model and training, including those that cannot change the result."""


class FinetuningResult(ModelResult):
    """The result of the stage "finetuning"."""

    task: str
    title: str
    """Name of the task in tables."""
    kind: str
    """Kind of task: classification, regression, choice or spans."""
    seed: int
    metric: str
    """The key metric, which selects the best step."""
    scores: dict[str, Estimate]
    """Metric -> cross-fitted score on dev: each half is scored by what was chosen on the other."""
    jackknife: str
    """Relative path of a file with these scores as they are without each cluster of dev's examples,
    and with the cluster's share of the examples."""
    num_clusters: int
    """Clusters of similar examples in dev, such as articles."""
    num_choices: int
    """Evaluations among which the best one was chosen."""
    other_scores: dict[str, dict[str, Estimate]]
    """Further labelled set -> metric -> score."""
    constant_scores: dict[str, float]
    """Metric -> score of the best constant answer on dev."""
    found: dict[str, dict[str, Any]]
    """Set -> further numbers of its scoring with the kept weights, such as a threshold."""
    hyperparameters: dict[str, Any]
    """Hyperparameters, resolved for the task."""
    best_step: int
    """Update whose weights were kept."""
    num_steps: int
    num_train: int
    """Training examples."""
    num_examples: int
    """Examples in dev."""
    predictions: dict[str, str]
    """Set -> relative path of the file of predictions."""

    @property
    def score(self) -> Estimate:
        """The score of the key metric on dev."""
        return self.scores[self.metric]


class PairScore(Settings):
    """How often a model gives the acceptable sentence of a minimal pair the higher likelihood."""

    CHANCE: ClassVar[float] = 0.5

    accuracy: Estimate
    """Mean of the paradigms' accuracies."""
    num_pairs: int

    @property
    def is_above_chance(self) -> bool:
        """Whether the whole interval is above chance."""
        return self.accuracy.is_above(self.CHANCE)


class PairSetScores(PairScore):
    """The score of a whole set of minimal pairs and of its parts."""

    phenomena: dict[str, PairScore]
    paradigms: dict[str, PairScore]


class ZeroShotResult(Settings):
    """The result of the stage "zero-shot"."""

    sets: dict[str, PairSetScores]
    """Set of minimal pairs -> scores."""


class MetricResult(Settings):
    """One metric of a task over all seeds."""

    median: Estimate
    """Score of the median seed, the worse one of two, with its interval over dev's examples."""
    by_seed: dict[str, float]
    """Seed -> score, the worst first; empty if nothing was trained."""
    constant_answer: float | None
    """Score of the best constant answer; None if unknown."""


def is_error(name: str) -> bool:
    """Return whether a metric's score, on dev or another set, is better the lower it is."""
    return name.partition(" of ")[0] == "mse"


def beats_constant(name: str, metric: MetricResult) -> bool | None:
    """Return whether the whole interval is better than the best constant answer, if it is known."""
    if metric.constant_answer is None:
        return None
    is_better = metric.median.is_below if is_error(name) else metric.median.is_above
    return is_better(metric.constant_answer)


class TaskScoresResult(Settings):
    """The scores of a task's fine-tunings."""

    title: str
    num_examples: int
    """Examples in dev."""
    num_train: int
    """Training examples."""
    dev_overlap: float | None
    """Share of dev's judged examples that the corpus contains, 0..1; None if unknown."""
    dev_judged: int | None = None
    """Examples of dev that are long enough to find them in the corpus; None if it was not
    searched."""
    metrics: dict[str, MetricResult]
    """Metric -> scores, the key metric first."""


class ScoresResult(Settings):
    """The result of the stage "scores"."""

    model: str
    """Name of the model in the table."""
    average: float | None
    """The paper's "Avg" of five tasks, 0..1; None unless all were scored."""
    scores: dict[str, dict[str, float]]
    """Task -> metric -> score of the median seed."""
    tasks: dict[str, TaskScoresResult]
    minimal_pairs: dict[str, PairSetScores]
    """Set -> scores of the pretrained model without fine-tuning."""
    text: str
    """The table as text for a terminal."""
    page: str
    """Relative path of the HTML page."""
    mlflow_run_id: str | None
    """None if the server did not answer."""


class TaskDifference(Settings):
    """A comparison of candidate and champion on one task."""

    task: str
    candidate: float
    champion: float
    difference: float
    low: float
    """One-sided lower bound of the true difference, at the requested confidence."""
    high: float
    """One-sided upper bound, likewise."""
    num_clusters: int
    """Independent clusters of examples in dev."""
    best: float
    """The highest score of the present and all earlier champions."""
    fell: bool
    """Whether the candidate is below the present or an earlier champion by more than the margin,
    and by more than chance explains."""

    def against(self, version: str) -> str:
        """Return the comparison with a version as a line for a person."""
        gain = f"{self.difference:+z.4f}, at least {self.low:+z.4f} and at most {self.high:+z.4f}"
        return f"{self.candidate:z.4f} against {self.champion:z.4f} of version {version}: {gain}"


class Decision(Settings):
    """Whether a candidate becomes champion, and why."""

    verdict: Verdict
    reason: str
    """One sentence that explains the verdict."""
    difference: float | None = None
    """Mean over the tasks of candidate minus champion; None if nothing was compared."""
    lower_bound: float | None = None
    """One-sided lower bound of the difference."""
    tasks: tuple[TaskDifference, ...] = ()
    against: str = ""
    """The version that it was compared with; empty if none."""

    @property
    def is_promoted(self) -> bool:
        """Whether it becomes champion."""
        return self.verdict in ("first", "promoted")


class RegistrationResult(Decision):
    """The result of the stage "registration"."""

    name: str
    """Name of the registered model."""
    version: str
    alias: str | None
    """`CHAMPION` or None."""
    model_uri: str
    """``models:/NAME/VERSION``."""
    mlflow_run_id: str | None
    """None if the server did not answer."""


MODEL_RESULTS: dict[str, type[ModelResult]] = {
    PRETRAINING: PretrainingResult,
    FINETUNING: FinetuningResult,
}
"""The result models of the stages that make a model."""


def model_folder_of(manifest: str) -> str:
    """Return the model folder of a pretraining or fine-tuning, given its manifest.

    Raises:
        ConfigError: the manifest is that of another stage.
        IntegrityError: there is no manifest.
    """
    made = read_manifest(manifest)
    if made.stage not in MODEL_RESULTS:
        raise errors.ConfigError(
            f"{manifest} is of the stage {made.stage!r}, which makes no model. Give the manifest "
            "of a pretraining run."
        )
    folder = made.result_as(MODEL_RESULTS[made.stage]).model_folder
    return storage.join(manifest.rpartition("/")[0], folder)


def in_cell(text: str) -> str:
    """Return a value as one line of Markdown, escaped unless all of it is code."""
    text = visible(text.replace("\n", " "))
    is_code = re.fullmatch(r"`[^`|\\]*`", text)
    return text if is_code else re.sub(r"[|<`\\]|(?<=\])[(:\[]", r"\\\g<0>", text)
