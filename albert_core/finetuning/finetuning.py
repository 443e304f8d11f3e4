"""Fine-tuning: a pretrained model and a task -> the fine-tuned model, its scores and predictions.

The weights that are kept are the best of all evaluations on dev, the paper's "early stopping".
Their score on that same dev set is above what new data would give: of 20 evaluations on 277
examples by 3 points. The score that is reported is therefore cross-fitted: dev's clusters are two
halves with about the same labels, and each half is scored by the evaluation, and the threshold,
that is best on the other. Of equal evaluations the last is the best, here and there: it has learned
the most.

The units of an update, and its dropout, are pure functions of the seed and the step, so a run that
was killed ends as it would have.

U units (see `tasks.problem`).
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from albert_core.checkpoint import CHECKPOINTS, CheckpointWriter, load_newest
from albert_core.config import FinetuningSettings, TaskHyperparameters, overridden
from albert_core.conversion.huggingface import load_encoder
from albert_core.conversion.model_files import model_digest
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
from albert_core.metrics import Sample, estimate, jackknife_table
from albert_core.model.albert import AlbertModel
from albert_core.model.execution import device_here, products_in
from albert_core.stage import command, errors, results, storage
from albert_core.stage.manifest import Account, Shard, StagePlan, shard_of, shards_in
from albert_core.stage.progress import report_progress
from albert_core.stage.settings import Settings
from albert_core.tasks import problem
from albert_core.tasks.catalogue import TaskFiles, read_examples
from albert_core.tasks.examples import Examples, Split, Task, TextExamples
from albert_core.tasks.spans import IN_NO_WINDOW
from albert_core.tasks.squad import no_answer_probability
from albert_core.text.arrow_files import write_arrow
from albert_core.text.records import Bools, Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.tracking.run import TrackedRun
from albert_core.tracking.server import output_of
from albert_core.training.optimizer import build_optimizer, clip, learning_rate_at, norms_of
from albert_core.training.order import example_order
from albert_core.training.ranks import note_machine, noted_machines

_COLUMNS = (
    "learning_rate",
    "batch_size",
    "encoder_dropout_prob",
    "num_steps",
    "warmup_steps",
    "max_seq_length",
    "evaluation_steps",
)
_TABLE = {
    "cola": (1e-5, 16, 0.0, 5336, 320, 512, 100),
    "sts-b": (2e-5, 16, 0.0, 3598, 214, 512, 100),
    "sst-2": (1e-5, 32, 0.0, 20935, 1256, 512, 100),
    "mnli": (3e-5, 128, 0.0, 10000, 1000, 512, 100),
    "qnli": (1e-5, 32, 0.0, 33112, 1986, 512, 200),
    "qqp": (5e-5, 128, 0.1, 14000, 1000, 512, 100),
    "rte": (3e-5, 32, 0.1, 800, 200, 512, 100),
    "mrpc": (2e-5, 32, 0.0, 800, 200, 512, 100),
    "wnli": (2e-5, 16, 0.1, 2000, 250, 512, 100),
    "squad-1.1": (5e-5, 48, 0.0, 3649, 365, 384, 1000),
    "squad-2.0": (3e-5, 48, 0.0, 8144, 814, 512, 1000),
    "race": (2e-5, 32, 0.1, 12000, 1000, 512, 1000),
}
_CLASSIFIER_DROPOUT_PROB = 0.1

DEFAULT = TaskHyperparameters(
    learning_rate=2e-5,
    batch_size=32,
    encoder_dropout_prob=0.0,
    classifier_dropout_prob=_CLASSIFIER_DROPOUT_PROB,
    num_epochs=5,
    max_seq_length=512,
    evaluation_steps=100,
)
"""Used for tasks that are not in the paper: about its values for tasks of the same size."""
PAPER = {
    task: TaskHyperparameters.model_validate(
        dict(zip(_COLUMNS, row, strict=True), classifier_dropout_prob=_CLASSIFIER_DROPOUT_PROB)
    )
    for task, row in _TABLE.items()
}
"""Hyperparameters of xxlarge, version 1, by task; evaluation_steps of SQuAD and RACE are ours.

Version 2 differs in RACE: learning rate 1e-5, no dropout in the encoder.

Source: Lan et al. 2020, Table 14.
"""
_DEFAULT_WARMUP_SHARE = 0.1

MODEL_FOLDER, PREDICTIONS, SUBMISSION = "model", "predictions", "submission"
_JACKKNIFE = "jackknife"
_SIMILARITIES = (0.0, 5.0)
"""The least and the greatest similarity that GLUE's server accepts for STS-B."""
_NO_LABEL = ("-", "-1")
"""What SNLI has where annotators disagree, and what Hugging Face's copies of data sets have."""
_KEEP_CHECKPOINTS = 2
_LINE_SECONDS = 20.0
"""The longest time without a progress line."""

log = logging.getLogger("finetuning")


class Hyperparameters(Settings):
    """The hyperparameters of one fine-tuning, all of them resolved."""

    num_steps: int = Field(ge=1)
    batch_size: int
    learning_rate: float
    warmup_steps: int
    encoder_dropout_prob: float
    classifier_dropout_prob: float
    max_seq_length: int
    evaluation_steps: int


def hyperparameters_of(
    task: str, settings: FinetuningSettings, num_positions: int, num_examples: int
) -> Hyperparameters:
    """Return the hyperparameters of fine-tuning on ``task``.

    Settings for the task override settings for all tasks, and these override the paper's.

    Args:
        task: the name of the task.
        settings: the recipe's settings.
        num_positions: the model's positions, the most pieces of a sequence.
        num_examples: texts or questions to train on, to which num_epochs refers.

    Raises:
        ConfigError: max_seq_length was set and exceeds the model's positions, or the warm-up is
            not shorter than the training.
    """
    paper, chosen = PAPER.get(task, DEFAULT), settings.chosen_for(task)
    values = overridden(paper.model_dump(), chosen)
    if (chosen["max_seq_length"] or 0) > num_positions:
        raise errors.ConfigError(
            f"finetuning.max_seq_length is {chosen['max_seq_length']}, but the model has "
            f"{num_positions} positions. Set it to {num_positions} or less, or leave it out."
        )
    values["max_seq_length"] = min(values["max_seq_length"], num_positions)
    epochs = values.pop("num_epochs")
    if values["num_steps"] is None:
        values["num_steps"] = max(1, int(epochs * num_examples / values["batch_size"]))
    if chosen["warmup_steps"] is None:
        share = _DEFAULT_WARMUP_SHARE
        if paper.num_steps and paper.warmup_steps:
            share = paper.warmup_steps / paper.num_steps
        values["warmup_steps"] = int(values["num_steps"] * share)
    if values["warmup_steps"] >= values["num_steps"]:
        raise errors.ConfigError(
            f"finetuning.warmup_steps is {values['warmup_steps']} for {task}, but there are only "
            f"{values['num_steps']} updates. Lower it, or leave it out."
        )
    return Hyperparameters(**values)


@dataclass
class Best:
    """The best evaluation so far on some examples, and of equal ones the last."""

    step: int = 0
    score: float = -math.inf
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The weights of encoder and head, on the CPU; or the outputs for all of dev."""
    num_worse: int = 0
    """Evaluations in a row up to now without a better score; an equal one is not better."""


@dataclass(eq=False)
class Finetuner:
    """Encoder and head, and their training."""

    encoder: AlbertModel
    """The pretrained encoder; its dropout is replaced by that of ``hyperparameters``."""
    head: problem.Head
    """Newly initialised."""
    train: problem.Inputs
    """The training set."""
    hyperparameters: Hyperparameters
    settings: FinetuningSettings
    """The settings that all runs have in common."""
    seed: int
    """The seed of the order and of dropout."""
    device: torch.device
    step: int = field(default=0, init=False)
    """Updates done."""
    losses: list[Tensor] = field(default_factory=list, init=False)
    """Losses of the updates since the last evaluation, each on the device."""
    num_evaluations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        wanted, settings = self.hyperparameters, self.settings
        self.encoder = with_dropout(self.encoder, wanted.encoder_dropout_prob)
        self.model = nn.ModuleDict({"encoder": self.encoder, "head": self.head}).to(self.device)
        self.optimizer = build_optimizer(
            self.model,
            settings.optimizer,
            wanted.learning_rate,
            settings.weight_decay,
            settings.adam_learning_rate,
            settings.precision,
        )
        self.best = [Best(), Best(), Best()]
        """The best by the score on all of dev, with weights; and on either half, with outputs."""

    @property
    def is_done(self) -> bool:
        """Whether all updates are done, or no better score was found for too long."""
        gave_up = 0 < self.settings.patience <= self.best[0].num_worse
        return gave_up or self.step >= self.hyperparameters.num_steps

    def update(self) -> None:
        """Do the next update."""
        step, wanted, settings = self.step, self.hyperparameters, self.settings
        size = wanted.batch_size
        units = example_order(step * size, size, self.train.num_units, self.seed)
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        self.model.train()
        total = torch.zeros((), device=self.device)
        lengths = self.train.unit_lengths[units]
        for places in problem.batches_by_length(lengths, settings.micro_batch_pieces):
            part, share = units[places], len(places) / len(units)
            targets = {
                name: torch.from_numpy(values[part]).to(self.device)
                for name, values in self.train.targets.items()
            }
            batch = self.train.batch(part, self.device)
            with products_in(settings.precision, self.device):
                loss = self.head.loss(self.encoder, batch, targets)
            (loss * share).backward()
            total += loss.detach() * share
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(norms_of(gradients, of=gradients))
        clip(gradients, norm, settings.max_grad_norm)
        peak, num_steps = wanted.learning_rate, wanted.num_steps
        self.optimizer.set_rate(
            learning_rate_at(step, peak, wanted.warmup_steps, num_steps, settings.schedule)
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.losses.append(total)
        report_progress(self.step, num_steps, "steps")

    def outputs(self, inputs: problem.Inputs) -> dict[str, NDArray[Any]]:
        """Return the outputs of the head for each of the U units, in their order."""
        self.model.eval()
        pieces = self.settings.micro_batch_pieces
        with products_in(self.settings.precision, self.device):
            return problem.outputs_of(self.encoder, self.head, inputs, self.device, pieces)

    def note_scores(self, scores: Sequence[float], outputs: problem.Outputs) -> None:
        """Take note of dev's key score with the current weights.

        Args:
            scores: the score on all of dev, and on each of its two halves.
            outputs: the head's outputs for all of dev.
        """
        self.num_evaluations += 1
        for number, (best, score) in enumerate(zip(self.best, scores, strict=True)):
            best.num_worse = 0 if score > best.score else best.num_worse + 1
            if score >= best.score:
                if number == 0:
                    state = self.model.state_dict().items()
                    tensors = {name: each.detach().to("cpu", copy=True) for name, each in state}
                else:
                    tensors = {name: torch.from_numpy(each) for name, each in outputs.items()}
                best.step, best.score, best.tensors = self.step, score, tensors

    def take_best(self) -> None:
        """Restore the weights with the best score."""
        self.model.load_state_dict(self.best[0].tensors)

    def state(self) -> dict[str, Any]:
        """Return the state of a checkpoint, tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": [loss.cpu() for loss in self.losses],
            "num_evaluations": self.num_evaluations,
            "best": [vars(best) for best in self.best],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.num_evaluations = state["step"], state["num_evaluations"]
        self.best = [Best(**best) for best in state["best"]]
        self.losses = [loss.to(self.device) for loss in state["losses"]]


def with_dropout(encoder: AlbertModel, dropout_prob: float) -> AlbertModel:
    """Return a copy of ``encoder`` whose hidden and attention dropout is ``dropout_prob``."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    settings = encoder.settings.model_copy(update=dict.fromkeys(names, dropout_prob))
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced immediately
        copy = AlbertModel(settings, encoder.embeddings.word.num_embeddings)
    copy.load_state_dict(encoder.state_dict())
    return copy


@dataclass(frozen=True)
class Predicted:
    """The predictions of the best weights for one split."""

    task: Task
    split: Split
    scored: problem.Scored
    clusters: Ints | None
    """The clusters of the examples."""
    name: str
    """The split; for another task than the one that was learned, with its name in front."""
    accounts: list[Account]
    """Of its inputs: what was cut or skipped."""

    @property
    def path(self) -> str:
        """The file, relative to the folder of the fine-tuning."""
        return f"{PREDICTIONS}/{self.name}.arrow"


def warn_of_repeated(task: str, train: TextExamples, dev: TextExamples) -> None:
    """Say how many examples of ``dev`` a model may know by heart from ``train``."""
    if number := dev.num_in(train):
        log.warning(
            "%s: %d of %d examples of dev have the texts of a training example; the scores say "
            "that much less of texts that are new",
            *(task, number, len(dev)),
        )


def warn_of_missing_labels(task: Task, train: TextExamples) -> None:
    """Say how many examples of ``train`` have a label that may mean that there is none."""
    for index, label in enumerate(task.labels):
        if label in _NO_LABEL:
            log.warning(
                "%s: %d of %d training examples have the label %r, which is learned and scored "
                "like any other. If it means that there is none, remove these rows from all files; "
                "else name all labels in the task's settings",
                *(task.name, np.count_nonzero(train.targets == index), len(train), label),
            )


def warn_of_lost_answers(task: str, accounts: Sequence[Account]) -> None:
    """Say how many questions to train on have an answer that no window contains."""
    for account in accounts:
        if number := account.dropped.get(IN_NO_WINDOW):
            log.warning(
                "%s: the answers to %d of %d questions to train on are in no window, which teaches "
                "that there is none; set finetuning.spans.doc_stride to a quarter of "
                "finetuning.max_seq_length, or raise that",
                *(task, number, account.total),
            )


def halves(clusters: Ints, labels: NDArray[Any] | None = None) -> tuple[Bools, Bools]:
    """Return which examples are in the one half and which in the other, bool (N,).

    The same examples give the same halves in every run. A cluster is in one half, if there are
    several clusters; a single example is in both. The clusters go to the half that has fewer
    examples, the larger ones first and equal ones in random order, so that the halves differ by the
    examples of one cluster at most. Of equal ones, those whose first example has the same label
    follow each other: else a label with more examples in one half has fewer in the other, and a
    model that always gives one label is scored far below the best constant answer.

    Args:
        clusters: (N,), the number of each example's cluster.
        labels: (N,), of a classification; None if there are none.
    """
    _, first_of, cluster_of, sizes = np.unique(clusters, True, True, True)
    if len(sizes) < 2:
        first_of = cluster_of = np.arange(len(clusters))
        sizes = np.ones(len(clusters), np.int64)
    kinds = np.zeros_like(sizes) if labels is None else labels[first_of]
    is_first, ahead = np.zeros(len(sizes), np.bool_), 0
    bits = random_bits(derive_seed(0, "halves"), np.arange(len(sizes)))
    for number in np.lexsort((bits, kinds, -sizes)):
        is_first[number] = ahead <= 0
        ahead += sizes[number] if is_first[number] else -sizes[number]
    first = is_first[cluster_of]
    return first, ~first if len(sizes) > 1 else first


class Finetuning:
    """One fine-tuning in its folder.

    Args:
        plan: the plan of the stage.
        work: folder for all results.
        settings: the recipe's settings.
        files: the files of the task.
        others: further tasks that the model predicts.
        model_folder: folder of the model to start from.
    """

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        settings: FinetuningSettings,
        files: TaskFiles,
        others: list[TaskFiles],
        model_folder: str,
    ) -> None:
        self.plan, self.work, self.settings, self.files = plan, work, settings, files
        self.folder, self.seed = plan.folder(work), int(plan.settings["seed"])
        self.task, self.problem = files.task, problem_of(files.task, settings)
        encoder, self.tokenizer = load_encoder(model_folder)
        train, self.dev = read_examples(files, "train"), read_examples(files, "dev")
        if isinstance(train, TextExamples) and isinstance(self.dev, TextExamples):
            warn_of_repeated(self.task.name, train, self.dev)
            if files.own and not files.own.labels:
                warn_of_missing_labels(self.task, train)
        # Read before the training, so that a malformed file is found early.
        self.others = [
            (each.task, split, read_examples(each, split))
            for each in (files, *others)
            for split in each.splits
            if each is not files or split == "test"
        ]
        self.hyperparameters = hyperparameters_of(
            self.task.name, settings, encoder.settings.max_position_embeddings, len(train)
        )
        self.inputs: dict[Split, problem.Inputs] = {}
        labelled: dict[Split, Examples] = {"train": train, "dev": self.dev}
        for split, examples in labelled.items():
            self.inputs[split] = self._inputs(examples)
            if not self.inputs[split].targets:
                raise errors.TaskError(
                    f"{files.splits[split][0]}: the {split} set of {self.task.name!r} has no "
                    "labels, which training and scoring need. Give one that has."
                )
        warn_of_lost_answers(self.task.name, self.inputs["train"].accounts)
        self.num_train, clusters = len(train), self.dev.clusters
        is_labelled, of_dev = self.task.kind == "classification", self.inputs["dev"].targets
        labels = of_dev[problem.TARGET] if is_labelled else None
        self.halves = halves(np.arange(len(self.dev)) if clusters is None else clusters, labels)
        torch.manual_seed(derive_seed(self.seed, "initial-head"))
        head = self.problem.head(encoder.settings, self.hyperparameters.classifier_dropout_prob)
        # GLUE's numbers are learned as they are, as in the paper.
        if files.own and isinstance(head, problem.PooledHead) and head.is_number:
            head.learn_standardised(self.inputs["train"].targets[problem.TARGET])
        self.finetuner = Finetuner(
            encoder,
            head,
            self.inputs["train"],
            self.hyperparameters,
            settings,
            self.seed,
            device_here(settings.precision, settings.deterministic),
        )
        checkpoints = storage.join(self.folder, CHECKPOINTS)
        self.checkpoints = CheckpointWriter(checkpoints, _KEEP_CHECKPOINTS)
        self.tracked = self._track()
        note_machine(self.folder, 1, self.finetuner.device)

    def run(self) -> str:
        """Train, keep the best on dev, predict; return the manifest.

        Raises:
            TrainingError: the loss is not finite.
            RunAgain: SIGTERM was received; this ends the process and is not an error.
        """
        with self.tracked, command.stop_request() as stop:
            self._train(stop)
            return self._finish()

    def _train(self, stop: command.StopRequest) -> None:
        """Do all updates that no checkpoint has, and evaluate from time to time."""
        finetuner, wanted = self.finetuner, self.hyperparameters
        if found := load_newest(self.checkpoints.folder):
            finetuner.restore(found[0])
        last_line = time.perf_counter()
        while not finetuner.is_done:
            finetuner.update()
            is_due = finetuner.step % wanted.evaluation_steps == 0
            is_due = is_due or finetuner.step == wanted.num_steps
            if is_due or time.perf_counter() - last_line > _LINE_SECONDS:
                loss = float(torch.stack(finetuner.losses).mean())
                if not math.isfinite(loss):
                    raise self._not_finite("the loss", loss)
                score = self._evaluate(loss) if is_due else ""
                line = f"step {finetuner.step:,}/{wanted.num_steps:,}  loss {loss:.3f}{score}"
                log.info("%s: %s, seed %d: %s", self.plan.stage, self.task.name, self.seed, line)
                last_line = time.perf_counter()
                if is_due:
                    finetuner.losses.clear()
            if stop.arrived or finetuner.step % self.settings.checkpoint_steps == 0:
                self.checkpoints.save(finetuner.state(), {"step": finetuner.step})
            if stop.arrived:
                self.checkpoints.wait()
                log.info("%s: stopped on request at step %d", self.plan.stage, finetuner.step)
                raise command.RunAgain
        self.checkpoints.wait()

    def _finish(self) -> str:
        """Write model, predictions and manifest, all of the best weights; return the manifest."""
        self.finetuner.take_best()
        found = list(self._predict())
        of_kind: dict[str, Any] = {}
        if isinstance(self.dev, TextExamples):
            of_kind = {"num_texts": 1 if self.dev.texts_b is None else 2}
        if self.task.kind == "spans":
            of_kind = {"spans": self.settings.spans.model_dump()}
        model_folder = storage.join(self.folder, MODEL_FOLDER)
        save_finetuned(
            model_folder,
            self.finetuner.encoder,
            self.finetuner.head,
            self.tokenizer,
            self.task,
            {
                "max_seq_length": self.hyperparameters.max_seq_length,
                "classifier_dropout_prob": self.hyperparameters.classifier_dropout_prob,
                **of_kind,
                **found[0].scored.facts,
            },
        )
        cross_fitted = self._cross_fitted()
        without = jackknife_table(cross_fitted, self.dev.clusters)
        shards = [self._write(without, f"{_JACKKNIFE}.arrow", _JACKKNIFE)]
        for each in found:
            predictions = each.scored.predictions
            shards.append(self._write(predictions, each.path, PREDICTIONS))
            for name, content in submission_files(each.task, each.split, predictions).items():
                storage.write_bytes(storage.join(self.folder, SUBMISSION, name), content)
        shards += shards_in(self.folder, MODEL_FOLDER) + shards_in(self.folder, SUBMISSION)
        counted = {"train": self.inputs["train"].accounts}
        counted |= {each.name: each.accounts for each in found}
        accounts = [
            account.model_copy(update={"what": f"{name} {account.what}"})
            for name, of_split in counted.items()
            for account in of_split
        ]
        result = self._result(found, cross_fitted, shards)
        uri = self.plan.write(self.work, shards, accounts, result)
        storage.remove(self.checkpoints.folder)
        self.tracked.log_model(output_of(uri, model_digest(model_folder)))
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(storage.join(self.folder, PREDICTIONS), PREDICTIONS)
        return uri

    def _inputs(self, examples: Examples) -> problem.Inputs:
        return self.problem.inputs(examples, self.tokenizer, self.hyperparameters.max_seq_length)

    def _outputs(self) -> problem.Outputs:
        """Return the head's outputs for dev with the current weights.

        Raises:
            TrainingError: one is not a number.
        """
        outputs = self.finetuner.outputs(self.inputs["dev"])
        for name, values in outputs.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise self._not_finite(f"{name} for dev", math.nan)
        return outputs

    def _score(
        self, outputs: problem.Outputs, chosen_on: problem.Choosable = None
    ) -> problem.Scored:
        return self.problem.score(outputs, self.inputs["dev"], self.dev, chosen_on)

    def _cross_fitted(self) -> dict[str, Sample]:
        """Return how dev was answered, each half by what was the best on the other."""
        first, second = (
            self._score({name: each.numpy() for name, each in best.tensors.items()}, half).samples
            for best, half in zip(self.finetuner.best[1:], self.halves, strict=True)
        )
        return {name: each.merged(self.halves[0], second[name]) for name, each in first.items()}

    def _not_finite(self, what: str, found: float) -> errors.TrainingError:
        return errors.TrainingError(
            f"{what} of fine-tuning on {self.task.name} is {found} by step "
            f"{self.finetuner.step}. Lower finetuning.learning_rate or raise "
            "finetuning.warmup_steps."
        )

    def _evaluate(self, loss: float) -> str:
        """Score dev, log the point of the curves, and return the score for the progress line."""
        key, outputs = self.task.metrics[0], self._outputs()
        samples = self._score(outputs).samples
        score = samples[key].value
        of_halves = [
            self._score(outputs, half).samples[key].part(half).value for half in self.halves
        ]
        self.finetuner.note_scores([score, *of_halves], outputs)
        dev = {f"dev/{name}": sample.value for name, sample in samples.items()}
        self.tracked.log_metrics(self.finetuner.step, {"train/loss": loss, **dev})
        best = self.finetuner.best[0]
        return f"  dev {key} {score:.3f} (best {best.score:.3f} at {best.step:,})"

    def _predict(self) -> Iterator[Predicted]:
        """Yield the predictions for dev, then for test and for other tasks' splits."""
        dev, scored = self.inputs["dev"], self._score(self._outputs())
        yield Predicted(self.task, "dev", scored, self.dev.clusters, "dev", dev.accounts)
        for task, split, examples in self.others:
            inputs = self._inputs(examples)
            outputs = self.finetuner.outputs(inputs)
            scored = problem_of(task, self.settings).score(outputs, inputs, examples)
            name = split if task is self.task else f"{task.name}.{split}"
            yield Predicted(task, split, scored, examples.clusters, name, inputs.accounts)

    def _write(self, table: pa.Table, path: str, kind: str) -> Shard:
        uri = storage.join(self.folder, path)
        write_arrow(table, uri)
        return shard_of(uri, self.folder, kind, table.num_rows)

    def _result(
        self, found: list[Predicted], cross_fitted: Mapping[str, Sample], shards: list[Shard]
    ) -> results.FinetuningResult:
        dev, metric = _estimates(cross_fitted, self.dev.clusters), self.task.metrics[0]
        log.info("%s: %s, dev %s %s", self.plan.stage, self.task.name, metric, dev[metric])
        others = {each.name: _estimates(each.scored.samples, each.clusters) for each in found[1:]}
        return results.FinetuningResult(
            task=self.task.name,
            title=self.task.title,
            kind=self.task.kind,
            seed=self.seed,
            metric=metric,
            scores={name: dev[name] for name in self.task.metrics if name in dev},
            jackknife=shards[0].path,
            num_clusters=shards[0].num_rows,
            num_choices=self.finetuner.num_evaluations,
            other_scores={name: scores for name, scores in others.items() if scores},
            constant_scores=self.problem.constant_scores(self.dev),
            found={each.name: dict(each.scored.facts) for each in found},
            hyperparameters=self.hyperparameters.model_dump(),
            best_step=self.finetuner.best[0].step,
            num_steps=self.finetuner.step,
            num_train=self.num_train,
            num_examples=len(self.dev),
            model_folder=MODEL_FOLDER,
            predictions={each.name: each.path for each in found},
            machines=noted_machines(self.folder),
            mlflow_run_id=self.tracked.run_id,
        )

    def _track(self) -> TrackedRun:
        tags = {"model_digest": self.plan.inputs["model"], "task": self.task.name}
        name = f"{self.task.title}, seed {self.seed}"
        run = TrackedRun(self.work, self.folder, name, tags)
        run.log_params(self.plan.settings | {"used": self.hyperparameters.model_dump()})
        for split, uris in self.files.splits.items():
            run.log_dataset(f"{self.task.title}/{split}", self.plan.inputs[split], uris[0], split)
        run.log_used_model(self.plan.inputs["model"])
        return run


def _estimates(samples: Mapping[str, Sample], clusters: Ints | None) -> dict[str, results.Estimate]:
    """Return scores with their intervals, by metric."""
    return {name: estimate(each, clusters) for name, each in samples.items()}


def submission_files(task: Task, split: Split, predictions: pa.Table) -> dict[str, bytes]:
    """Return the files to hand in, by name.

    For GLUE's tasks, and a user's own, a table with the header "index<tab>prediction"; for SQuAD a
    JSON object of question id to answer, and for 2.0 another one of question id to the probability
    that there is no answer. Only files of the split "test" have the names that GLUE's server
    knows; others have the split in their name. RACE has no server: no file.

    Args:
        task: the task.
        split: the split.
        predictions: a row per example: ``id`` string; ``prediction``, string (label or answer) or,
            for a regression, float64; and if questions may have no answer ``null_score``, float64,
            higher where the model believes that there is no answer.

    Raises:
        TaskError: a score is no finite number.
    """
    ids, values = (predictions[name].to_pylist() for name in ("id", "prediction"))
    if task.kind == "choice":
        return {}
    if task.kind != "spans":
        stem = "MNLI-m" if task.name == "mnli" else task.title
        if task.kind == "regression":
            values = [_number(task, value) for value in values]
        rows = (f"{each}\t{value}\n" for each, value in zip(ids, values, strict=True))
        name = f"{stem}.tsv" if split == "test" else f"{stem}.{split}.tsv"
        return {name: "".join(["index\tprediction\n", *rows]).encode()}
    files = {f"{task.name}.{split}.predictions.json": _json(ids, values)}
    if task.has_answerless:
        # The official evaluation keeps each prediction where this is at most 1.
        shares = no_answer_probability(predictions["null_score"].to_numpy())
        files[f"{task.name}.{split}.na_probs.json"] = _json(ids, shares.tolist())
    return files


def _number(task: Task, value: float) -> str:
    if not np.isfinite(value):
        raise errors.TaskError(f"predictions of {task.name!r}: {value!r} is no finite number.")
    return repr(float(np.clip(value, *_SIMILARITIES) if task.name == "sts-b" else value))


def _json(ids: list[str], values: list[str] | list[float]) -> bytes:
    return (json.dumps(dict(zip(ids, values, strict=True)), ensure_ascii=False) + "\n").encode()
