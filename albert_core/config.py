"""Settings of the model, pretraining, fine-tuning and the registry."""

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from albert_core.stage.errors import ConfigError
from albert_core.stage.machine import compilation_pays, has_fast_bfloat16
from albert_core.stage.settings import Settings

Sharing = Literal["all", "attention", "ffn", "none"]
Activation = Literal["gelu_new", "gelu", "relu", "tanh", "linear"]
Schedule = Literal["linear", "constant", "google"]
Precision = Literal["float32", "bfloat16"]


def _auto(decide: Callable[[], Any]) -> BeforeValidator:
    """Let a setting be "auto", decided where it is read, so that keys have what was decided."""
    return BeforeValidator(lambda asked: decide() if asked == "auto" else asked)


AskedPrecision = Annotated[
    Precision, _auto(lambda: "bfloat16" if has_fast_bfloat16() else "float32")
]

_MAX_SIZE = 1_000_000
"""Far beyond any model: a larger number is a mistake or damage, and would take all memory."""


class ModelSettings(Settings, use_attribute_docstrings=True):
    """The encoder's shape. Defaults: ALBERT base, v2. Source: paper Table 1."""

    OF_WEIGHTS: ClassVar[frozenset[str]] = frozenset({
        "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size",
        "inner_group_num", "hidden_act", "max_position_embeddings", "type_vocab_size",
    })  # fmt: skip
    """Settings without whose values trained weights mean nothing."""

    embedding_size: int = Field(128, ge=1, le=_MAX_SIZE)
    """E; equal to H: no projection"""
    hidden_size: int = Field(768, ge=1, le=_MAX_SIZE)
    """H"""
    num_hidden_layers: int = Field(12, ge=1, le=1000)
    """L"""
    num_attention_heads: int = Field(12, ge=1, le=_MAX_SIZE)
    """N"""
    intermediate_size: int = Field(3072, ge=1, le=_MAX_SIZE)
    """F"""
    sharing: Sharing = "all"
    """what the layers share"""
    num_hidden_groups: int = Field(1, ge=1)
    """groups of layers that share; without effect if sharing is none"""
    inner_group_num: int = Field(1, ge=1, le=100)
    """blocks in a layer of a group"""
    hidden_act: Activation = "gelu_new"
    """gelu_new: tanh approximation"""
    hidden_dropout_prob: float = Field(0.0, ge=0, lt=1)
    """of embeddings and of each block's results; 0: as the paper's largest models and version 2"""
    attention_probs_dropout_prob: float = Field(0.0, ge=0, lt=1)
    """of the weights of attention"""
    max_position_embeddings: int = Field(512, ge=1, le=_MAX_SIZE)
    """the longest sequence, in pieces"""
    type_vocab_size: int = Field(2, ge=2, le=_MAX_SIZE)
    """kinds of segments: a and b"""
    initializer_range: float = Field(0.02, gt=0)
    """of a truncated normal"""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; change one of them"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ValueError(
                f"num_hidden_groups {self.num_hidden_groups} exceeds num_hidden_layers "
                f"{self.num_hidden_layers}"
            )
        return self


class TrainingExecution(Settings, use_attribute_docstrings=True):
    """How pretraining is computed, cut and reported, which changes its weights only by rounding.

    None of it is part of a run's key, so that a run can be stopped, moved to machines of another
    size and resumed there. With dropout, which draws for each micro-batch, `micro_batch_size` and
    `compile` are.
    """

    micro_batch_size: int = Field(16, ge=1)
    """examples of full length in one forward pass"""
    activation_checkpointing: bool = False
    """compute activations again in the backward pass: less memory"""
    compile: Annotated[bool, _auto(compilation_pays)] = Field(default_factory=compilation_pays)
    """layers and loss by torch.compile. auto, the default: where this machine has GPUs that
    multiply in bfloat16, Triton and a C compiler"""
    deterministic: bool = False
    """the same bits each time on CUDA too, by slower algorithms; a CPU always gives them"""
    shard_state: bool = False
    """weights, gradients and optimizer state cut over the ranks (FSDP): for a model whose state
    does not fit on each; one rank has nothing to cut"""
    max_skipped_steps: int = Field(10, ge=0)
    """skipped updates in a row that a run survives"""
    log_steps: int = Field(100, ge=1)
    """updates between two progress lines"""
    system_metrics: bool = True
    """log the machine's processor, memory, disk, network and GPUs with each progress line, of
    the first rank's machine"""
    evaluation_steps: int = Field(5000, ge=1)
    """updates between evaluations on held-out examples"""
    evaluation_minutes: float = Field(60.0, gt=0)
    """most minutes between them, where updates are slow"""
    checkpoint_steps: int = Field(5000, ge=1)
    """updates between checkpoints"""
    checkpoint_minutes: float = Field(30.0, gt=0)
    """most minutes between them: what a run that is killed does again"""
    keep_checkpoints: int = Field(5, ge=1)
    """the last ones; the best is kept besides"""
    accept_other_examples: bool = False
    """continue_from may be of a run on other examples"""


class TrainingSettings(TrainingExecution, use_attribute_docstrings=True):
    """Pretraining. Defaults: the paper's, where it gives them.

    Sources: paper section 4.1 for optimizer, rate, batch and updates; google-research/albert,
    `run_pretraining.py` and `optimization.py`, for warm-up, weight decay and clipping.
    """

    HOW_NOT_WHAT: ClassVar[frozenset[str]] = frozenset(TrainingExecution.model_fields)

    MEASURE: ClassVar[frozenset[str]] = frozenset({"max_evaluation_examples"})
    """Settings that change how the weights are measured, but not the weights."""

    num_steps: int = Field(125_000, ge=1)
    """optimizer updates, those before continue_from included"""
    batch_size: int = Field(4096, ge=1)
    """examples in one update, all ranks"""
    masks: Literal["shards", "fresh"] = "shards"
    """those in the shards, or others in each epoch"""
    mask_share: float | None = Field(None, gt=0, lt=1)
    """share of the pieces that fresh masks predict; absent: that of the shards. Held-out examples
    keep their own masks"""
    max_ngram: int | None = Field(None, ge=1, le=10)
    """words in the longest span of fresh masks; absent: that of the shards"""
    optimizer: Literal["lamb", "adamw", "muon"] = "lamb"
    """muon: for the linear maps of layers, with AdamW for everything else"""
    learning_rate: float = Field(0.00176, gt=0)
    """peak"""
    adam_learning_rate: float = Field(0.003, gt=0)
    """with muon, the peak for everything that it leaves to AdamW"""
    schedule: Schedule = "linear"
    """linear: up to the peak, then down to 0 from there; constant: at the peak for most of the
    run, then down to 0; google: the reference's, whose first update is lost and which never
    reaches the peak"""
    warmup_steps: int = Field(3125, ge=0)
    """updates in which the rate rises to its peak"""
    shallow_share: float = Field(0.0, ge=0, lt=1)
    """share of the updates, from the first on, that compute fewer layers: 1, then 2, 4, ... in
    equal parts; only where all layers share their weights"""
    initial_weights: Literal["random", "counts"] = "random"
    """counts: word vectors and the masked LM head begin from how often pieces are asked for, and
    stand near each other, in the examples; without effect where initial_model or continue_from
    gives the weights"""
    weight_decay: float = Field(0.01, ge=0)
    """share of a matrix that is added to its update; biases and norms have none"""
    max_grad_norm: float = Field(1.0, gt=0)
    """longer gradients are shortened to it; over all weights"""
    precision: AskedPrecision = "float32"
    """of the matrix products; weights stay float32. auto: bfloat16 where this machine's GPUs, or
    else its processor, multiply in it themselves"""
    max_evaluation_examples: int = Field(10_000, ge=2)
    """held-out examples"""
    initial_model: str = ""
    """URI of a model whose weights the run starts from; empty: random"""
    continue_from: str = ""
    """URI of a run's folder, manifest or checkpoint: its weights, optimizer and step are gone on
    from; empty: none"""
    seed: int = Field(12345, ge=0)
    """of first weights, order, fresh masks and dropout"""

    @property
    def of_result(self) -> dict[str, Any]:
        """The settings that the trained weights depend on, except by rounding.

        The two addresses are left out: only their content counts, which is an input. Where one is
        given, it gives the first weights too.
        """
        left_out = {"initial_model", "continue_from"} | _unused_by(self.optimizer)
        found = self.model_dump(exclude={*self.HOW_NOT_WHAT, *left_out})
        if self.initial_model or self.continue_from:
            found["initial_weights"] = "random"
        return found

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.warmup_steps >= self.num_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be below num_steps {self.num_steps}"
            )
        for name, of_shards in {"mask_share": "masked_lm_prob", "max_ngram": "max_ngram"}.items():
            if (asked := getattr(self, name)) is not None and self.masks == "shards":
                raise ValueError(
                    f'{name} {asked} needs masks = "fresh": those in the shards are as the '
                    f"examples were made (examples.{of_shards})"
                )
        if self.initial_model and self.continue_from:
            raise ValueError(
                "initial_model and continue_from exclude each other: the one starts at step 0 "
                "from weights alone, the other goes on with a run"
            )
        return self


def _unused_by(optimizer: str) -> set[str]:
    """Return the settings of optimizers that this one does not use."""
    return set() if optimizer == "muon" else {"adam_learning_rate"}


def check_shallow_share(model: ModelSettings, training: TrainingSettings) -> None:
    """Raise ConfigError if layers shall come one by one that do not share their weights."""
    if training.shallow_share and (model.sharing != "all" or model.num_hidden_groups > 1):
        raise ConfigError(
            f"training.shallow_share is {training.shallow_share}, but layers that come later can "
            "begin with the weights of the first only where all share them. Set model.sharing = "
            "'all' and model.num_hidden_groups = 1, or leave training.shallow_share out."
        )


def layer_growth(num_steps: int, shallow_share: float, num_layers: int) -> list[tuple[int, int]]:
    """Return the updates at which layers come, each with how many layers are computed from there.

    It is 1, 2, 4, ... in equal parts of the first ``shallow_share`` of the updates, then all; the
    last update always computes all. An update of few layers is cheap, and what a shared block
    learns in one use serves in the others.

    Args:
        num_steps: updates of the run.
        shallow_share: 0..1; 0 for all layers in every update.
        num_layers: L.
    """
    num_parts, shallow_steps = (num_layers - 1).bit_length(), shallow_share * num_steps
    last = min(round(shallow_steps), num_steps - 1) if num_parts else 0
    parts = [(min(math.ceil(n * shallow_steps / num_parts), last), 2**n) for n in range(num_parts)]
    return [*parts, (last, num_layers)]


def check_fresh_masks(fidelity: str) -> None:
    """Raise ConfigError if examples of this `examples.fidelity` can't be masked afresh."""
    if fidelity == "google":
        raise ConfigError(
            "masks cannot be drawn afresh where examples.fidelity is 'google', whose masks are in "
            "the shards only. Take training.masks 'shards', or make the examples with fidelity "
            "'paper'."
        )


class TaskHyperparameters(Settings, use_attribute_docstrings=True):
    """Fine-tuning on a task. A setting that is absent has the paper's value for the task: Table 14.

    See `finetuning.PAPER`, and `finetuning.DEFAULT` for a task that the paper lacks.
    """

    num_steps: int | None = Field(None, ge=1)
    """optimizer updates"""
    num_epochs: float | None = Field(None, gt=0)
    """in place of num_steps"""
    batch_size: int | None = Field(None, ge=1)
    """examples in one update"""
    learning_rate: float | None = Field(None, gt=0)
    """peak"""
    warmup_steps: int | None = Field(None, ge=0)
    """absent: the paper's share of the updates"""
    encoder_dropout_prob: float | None = Field(None, ge=0, lt=1)
    """hidden and attention dropout of the encoder"""
    classifier_dropout_prob: float | None = Field(None, ge=0, lt=1)
    """dropout before the task's last layer; without effect in SQuAD 1.1 and the simple head of
    SQuAD 2.0, which have none"""
    max_seq_length: int | None = Field(None, ge=8)
    """pieces, special ones included; absent: the paper's, as far as the model has positions"""
    evaluation_steps: int | None = Field(None, ge=1)
    """updates between evaluations on dev"""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.num_steps and self.num_epochs:
            raise ValueError("num_steps and num_epochs exclude each other: remove one")
        if self.num_steps and (self.warmup_steps or 0) >= self.num_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be below num_steps {self.num_steps}"
            )
        return self


def overridden(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return ``below`` with the values set in ``above``; steps and epochs replace each other."""
    if above["num_steps"] is not None or above["num_epochs"] is not None:
        below = below | {"num_steps": None, "num_epochs": None}
    return below | {name: value for name, value in above.items() if value is not None}


class SpanSettings(Settings, use_attribute_docstrings=True):
    """Questions answered by a span of a paragraph: SQuAD.

    Source: google-research/albert `squad_utils.py`.
    """

    doc_stride: int = Field(128, ge=1)
    """pieces from the start of a window to that of the next, at most half of the paragraph's pieces
    in a window"""
    max_query_length: int = Field(64, ge=1)
    """pieces kept of a question"""
    n_best: int = Field(20, ge=1)
    """starts and ends looked at in a window, of which the answerability head always takes 5;
    answers kept"""
    max_answer_length: int = Field(30, ge=1)
    """pieces"""
    answer_head: Literal["answerability", "simple"] = "answerability"
    """where questions may have no answer: the reference's head, which has an output for that, or
    one that points at [CLS], as BERT's does"""


class FinetuningSettings(TaskHyperparameters):
    """Fine-tuning on downstream tasks: settings for all of them, and for single ones."""

    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """muon: for the linear maps of layers, with AdamW for everything else"""
    adam_learning_rate: float = Field(3e-4, gt=0)
    """with muon, the peak for everything that it leaves to AdamW"""
    schedule: Schedule = "linear"
    """as in pretraining"""
    weight_decay: float = Field(0.01, ge=0)
    """as in pretraining"""
    max_grad_norm: float = Field(1.0, gt=0)
    """as in pretraining"""
    precision: AskedPrecision = "float32"
    """of the matrix products; weights stay float32. auto: bfloat16 where this machine's GPUs, or
    else its processor, multiply in it themselves"""
    deterministic: bool = False
    """the same bits each time on CUDA too, by slower algorithms; a CPU always gives them"""
    patience: int = Field(0, ge=0)
    """evaluations in a row without a better score after which it ends; 0: never"""
    micro_batch_pieces: int = Field(16_384, ge=8)
    """pieces in one forward pass; larger batches are cut"""
    spans: SpanSettings = SpanSettings()
    checkpoint_steps: int = Field(500, ge=1)
    """updates between checkpoints"""
    per_task: dict[str, TaskHyperparameters] = Field(default_factory=dict)
    """by the task's name; goes before what all have in common"""

    @field_validator("per_task", mode="before")
    @classmethod
    def _names_with_dots_are_quoted(cls, tables: Any) -> Any:
        of_tasks = tables.items() if isinstance(tables, dict) else ()
        inner = [
            (name, part)
            for name, table in of_tasks
            if isinstance(table, dict)
            for part, value in table.items()
            if isinstance(value, dict)
        ]
        if inner:
            name, part = inner[0]
            raise ValueError(
                f"{part!r} is a table in the table of the task {name!r}. If the name has a dot, it "
                f'needs quotes: finetuning.per_task."{name}.{part}"'
            )
        return tables

    def of_task(self, task: str, has_spans: bool) -> dict[str, Any]:
        """The settings that a fine-tuning depends on, except by rounding.

        Args:
            task: its name.
            has_spans: whether its answers are spans.
        """
        left_out = {"checkpoint_steps", "deterministic", "per_task"} | _unused_by(self.optimizer)
        if not has_spans:
            left_out.add("spans")
        return self.model_dump(exclude=left_out) | self.chosen_for(task)

    def chosen_for(self, task: str) -> dict[str, Any]:
        """Return the hyperparameters that are set: those of the task, else those of all tasks.

        Those that are set nowhere are None.
        """
        common = self.model_dump(include=set(TaskHyperparameters.model_fields))
        return overridden(common, self.per_task.get(task, TaskHyperparameters()).model_dump())


class OwnTaskSettings(Settings, use_attribute_docstrings=True):
    """A task of the user: files with one or two texts in a row, and a label or a score."""

    name: str = Field(pattern="^[a-z0-9][a-z0-9._-]*$")
    """small letters, digits, '.', '_', '-'"""
    train: str = Field(min_length=1)
    """URI of a .tsv, .csv, .jsonl or .parquet file"""
    dev: str = Field(min_length=1)
    """URI of such a file"""
    test: str = ""
    """URI of such a file, which needs no labels"""
    text_columns: list[str] = Field(min_length=1, max_length=2)
    """one, or a pair's two"""
    label_column: str = Field("label", min_length=1)
    """of a label or a number"""
    cluster_column: str = ""
    """of what rows of dev share that are alike, such as their document or author, by which
    intervals are made; empty: all rows are independent"""
    kind: Literal["classification", "regression"] = "classification"
    """labels or numbers"""
    labels: list[str] = Field([])
    """in order, as the files write them; empty: those found in train"""
    metric: Literal["accuracy", "f1", "matthews", "pearson", "spearman"] | None = None
    """models are compared by it: without it, accuracy of labels, pearson of scores; f1 is that
    of the second of two labels"""

    @property
    def key_metric(self) -> str:
        """The metric that models are compared by."""
        return self.metric or _METRICS_OF[self.kind][0]

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.key_metric not in _METRICS_OF[self.kind]:
            raise ValueError(
                f"metric {self.metric!r} is none of {self.kind}, which has "
                f"{', '.join(_METRICS_OF[self.kind])}"
            )
        if self.labels and self.kind == "regression":
            raise ValueError("regression has no labels; remove them, or set kind")
        if self.labels and (len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            raise ValueError(f"labels {self.labels} must be at least two different ones")
        columns = [*self.text_columns, self.label_column]
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns {columns} must differ: texts, and the label")
        if self.cluster_column == self.label_column:
            raise ValueError(
                f"cluster_column is the label's, {self.label_column!r}: all rows of a label would "
                "count as one. Name what alike rows share, such as their document, or nothing"
            )
        return self


_METRICS_OF = {
    "classification": ("accuracy", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
}


class EvaluationSettings(Settings, use_attribute_docstrings=True):
    """Which downstream tasks a model is evaluated on, and how often."""

    task_folder: str = ""
    """URI of the public files, as they are distributed; empty: none"""
    tasks: list[str] = Field([])
    """by name; empty: all that are there"""
    num_seeds: int = Field(5, ge=1)
    """fine-tunings of each task, of which the median counts"""
    seed: int = Field(12345, ge=0)
    """from which those of the fine-tunings are derived"""
    own_tasks: list[OwnTaskSettings] = Field([])
    """tasks of your own, a table each"""
    from_mnli: list[str] = Field([])
    """tasks that start from a model fine-tuned on MNLI; the paper: rte, sts-b, mrpc"""

    @model_validator(mode="after")
    def _own_names_differ(self) -> Self:
        names = [task.name for task in self.own_tasks]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"own_tasks has two called {min(twice)!r}: give one another name")
        return self


PublishedRow = Literal[
    "base", "large", "xlarge", "xxlarge", "bert-base", "bert-large", "base-v2", "xxlarge-1.5m"
]
"""A row of `scores.table.PUBLISHED`."""


class ScoringSettings(Settings, use_attribute_docstrings=True):
    """How the scores of all tasks are laid out."""

    published: list[PublishedRow] = Field([])
    """rows of the paper and its release to lay beside"""


class RegistrySettings(Settings, use_attribute_docstrings=True):
    """Where a finished model is registered and what makes it champion."""

    model_name: str = Field("albert", pattern=r"^[^\W_]([\w .-]{0,98}[\w.-])?$")
    """registered model's name: letters, digits, spaces and ``._-``, at most 100"""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """of the bounds that decide: an equal candidate is refused this often"""
    min_score_gain: float = Field(0.0, ge=0)
    """what the lower bound of a candidate's gain must exceed; the mean over the tasks of scores
    0..1, so that 0.01 is a point"""
    max_task_drop: float = Field(0.02, ge=0)
    """by how much no task's score, 0..1, may fall, unless it may be by chance"""
