"""Fine-tuning: a pretrained model and a task -> the fine-tuned model, its scores and predictions.

The score is the best of all evaluations on dev, chosen on that same dev set. That is the paper's
practice (its "early stopping"), so that numbers can be compared with it; it is
a little above what fresh data would give, and the interval does not know of the choice.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from albert_core.checkpoint import CHECKPOINTS, CheckpointWriter, load_newest
from albert_core.config import FinetuningSettings
from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
from albert_core.finetuning.hyperparameters import hyperparameters_of
from albert_core.finetuning.loop import Finetuner
from albert_core.metrics import Estimate, bootstrap_interval
from albert_core.stage import storage
from albert_core.stage.errors import TaskError, TrainingError
from albert_core.stage.lineage import FINETUNING
from albert_core.stage.manifest import (
    Account,
    Shard,
    StagePlan,
    shard_of,
    shards_in,
)
from albert_core.tasks.catalogue import TaskFiles, read_examples
from albert_core.tasks.examples import Examples, Split, Task
from albert_core.tasks.problem import Inputs, Scored
from albert_core.tasks.submission import submission_files
from albert_core.text.arrow_files import write_arrow
from albert_core.text.seeds import derive_seed
from albert_core.tracking.run import TrackedRun
from albert_core.training.devices import note_machine, noted_machines
from albert_core.training.preemption import RunAgain, StopRequest, stop_request

STAGE = FINETUNING
MODEL_FOLDER, PREDICTIONS, SUBMISSION = "model", "predictions", "submission"

_TRAIN: Final = "train"
_DEV: Final = "dev"
_KEEP_CHECKPOINTS = 2
_LINE_SECONDS = 20.0
"""The longest time without a progress line."""

log = logging.getLogger(STAGE)


@dataclass(frozen=True)
class Predicted:
    """What the best weights say of one split."""

    task: Task
    split: Split
    scored: Scored
    name: str
    """The split; and before it the task, if that is not the one that was learned."""

    @property
    def path(self) -> str:
        """Of its file in the folder of the fine-tuning."""
        return f"{PREDICTIONS}/{self.name}.arrow"

    def estimates(self, seed: int) -> dict[str, Estimate]:
        """Return its scores with their intervals, by name; none without labels."""
        num_examples = self.scored.predictions.num_rows
        return {
            name: bootstrap_interval(scorer, num_examples, seed, self.scored.groups)
            for name, scorer in self.scored.scorers.items()
        }


class Finetuning:
    """One fine-tuning in its folder."""

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        settings: FinetuningSettings,
        files: TaskFiles,
        also: list[TaskFiles],
        model_folder: str,
    ) -> None:
        self.plan, self.work, self.settings = plan, work, settings
        self.folder, self.seed = plan.folder(work), int(plan.settings["seed"])
        self.files = files
        self.task = task = files.task
        self.problem = problem_of(task, settings)
        encoder, self.tokenizer = load_encoder(model_folder)
        train, self.dev = read_examples(task, files, _TRAIN), read_examples(task, files, _DEV)
        self.others = _other_sets(files, also)  # a malformed one is an error before the training
        self.num_train = len(train)
        self.hyperparameters = hyperparameters_of(
            task.name, settings, encoder.settings.max_position_embeddings, len(train)
        )
        self.train_inputs, self.dev_inputs = self._inputs(train), self._inputs(self.dev)
        self._check_labels(_TRAIN, self.train_inputs)
        self._check_labels(_DEV, self.dev_inputs)
        torch.manual_seed(derive_seed(self.seed, "initial-head"))
        head = self.problem.head(encoder.settings, self.hyperparameters.classifier_dropout_prob)
        self.finetuner = Finetuner(
            encoder,
            head,
            self.train_inputs,
            self.hyperparameters,
            settings,
            self.seed,
            torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        )
        self.checkpoints = CheckpointWriter(
            storage.join(self.folder, CHECKPOINTS), _KEEP_CHECKPOINTS
        )
        self.tracked = self._track()
        note_machine(self.folder, 1, self.finetuner.device)

    def run(self) -> str:
        """Train, keep the best on dev, predict; return the manifest.

        Raises:
            TrainingError: the loss is not finite.
            RunAgain: SIGTERM came. No error: the process's exit.
        """
        with self.tracked, stop_request() as stop:
            self.train(stop)
            return self.finish()

    def train(self, stop: StopRequest) -> None:
        """Do all updates, those before a kill not again; evaluate now and then.

        Raises:
            RunAgain: the process was told to stop; a checkpoint has what was done.
            TrainingError: the loss is not finite.
        """
        if found := load_newest(self.checkpoints.folder, self.plan.key):
            self.finetuner.restore(*found)
        began, at_begin, last_line = time.perf_counter(), self.finetuner.step, time.perf_counter()
        losses: list[Tensor] = []
        while not self.finetuner.is_done:
            losses.append(self.finetuner.update())
            now = time.perf_counter()
            per_step = (now - began) / (self.finetuner.step - at_begin)
            if self.finetuner.evaluation_is_due:
                self._evaluate(self._mean(losses), per_step)
                losses, last_line = [], time.perf_counter()
            elif now - last_line > _LINE_SECONDS:
                self._say(self._mean(losses), "", per_step)
                losses, last_line = [], now
            self._perhaps_save(stop)
        self.checkpoints.wait()

    def finish(self) -> str:
        """Write model, predictions and the manifest, which all are the best's; return its URI."""
        self.finetuner.take_best()
        found = list(self._predict())
        self._save_model(found[0].scored)
        shards = [
            *self._write_predictions(found),
            *shards_in(self.folder, MODEL_FOLDER),
            *shards_in(self.folder, SUBMISSION),
        ]
        uri = self.plan.write(
            self.work,
            shards,
            self._accounts(),
            self._facts(found, shards),
        )
        storage.remove(self.checkpoints.folder)
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(storage.join(self.folder, PREDICTIONS), PREDICTIONS)
        return uri

    def _predict(self) -> Iterator["Predicted"]:
        """Yield what is predicted for dev, then for every other split without training data."""
        yield Predicted(self.task, _DEV, self._score(self.dev, self.dev_inputs), _DEV)
        for task, split, examples in self.others:
            inputs = self._inputs(examples)
            outputs = self.finetuner.outputs(inputs)
            scored = problem_of(task, self.settings).score(outputs, inputs, examples)
            name = split if task is self.task else f"{task.name}.{split}"
            yield Predicted(task, split, scored, name)

    def _inputs(self, examples: Examples) -> Inputs:
        length = self.hyperparameters.max_seq_length
        return self.problem.inputs(examples, self.tokenizer, length)

    def _check_labels(self, split: Split, inputs: Inputs) -> None:
        if not inputs.targets:
            raise TaskError(
                f"{self.files.splits[split][0]}: the {split} set of {self.task.name!r} has no "
                "labels. Give one that has: it is learned from, or scored on."
            )

    def _score(self, examples: Examples, inputs: Inputs) -> Scored:
        return self.problem.score(self.finetuner.outputs(inputs), inputs, examples)

    def _mean(self, losses: list[Tensor]) -> float:
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of fine-tuning on {self.task.name} is {loss} by step "
                f"{self.finetuner.step}. Lower finetuning.learning_rate or raise "
                "finetuning.warmup_steps."
            )
        return loss

    def _evaluate(self, loss: float, seconds_per_step: float) -> None:
        scored, rows = self._score(self.dev, self.dev_inputs), np.arange(len(self.dev))
        scores = {name: scorer(rows) for name, scorer in scored.scorers.items()}
        key = self.task.metrics[0]
        self.finetuner.note_score(scores[key])
        dev = {f"dev/{name}": value for name, value in scores.items()}
        self.tracked.log_metrics(self.finetuner.step, {"train/loss": loss, **dev})
        best = self.finetuner.best
        found = f"  dev {key} {scores[key]:.3f} (best {best.score:.3f} at {best.step:,})"
        self._say(loss, found, seconds_per_step)

    def _say(self, loss: float, found: str, seconds_per_step: float) -> None:
        step, last = self.finetuner.step, self.hyperparameters.num_steps
        left = int(seconds_per_step * (last - step))
        line = f"step {step:,}/{last:,}  loss {loss:.3f}{found}  {left // 60}:{left % 60:02d} left"
        log.info("%s: %s, seed %d: %s", STAGE, self.task.name, self.seed, line)

    def _perhaps_save(self, stop: StopRequest) -> None:
        is_due = self.finetuner.step % self.settings.checkpoint_steps == 0
        if is_due or stop.arrived:
            record = self.finetuner.numbers() | {"examples": self.plan.key}
            self.checkpoints.save(self.finetuner.tensors(), record)
        if stop.arrived:
            self.checkpoints.wait()
            log.info("%s: told to stop at step %d", STAGE, self.finetuner.step)
            raise RunAgain

    def _save_model(self, dev: Scored) -> None:
        settings = {
            "max_seq_length": self.hyperparameters.max_seq_length,
            "classifier_dropout_prob": self.hyperparameters.classifier_dropout_prob,
            "spans": self.settings.spans.model_dump(),
            **dev.facts,
        }
        folder = storage.join(self.folder, MODEL_FOLDER)
        encoder, head = self.finetuner.encoder, self.finetuner.head
        save_finetuned(folder, encoder, head, self.tokenizer, self.task, settings)

    def _write_predictions(self, found: list["Predicted"]) -> list[Shard]:
        shards = []
        for each in found:
            table, uri = each.scored.predictions, storage.join(self.folder, each.path)
            write_arrow(table, uri)
            shards.append(shard_of(uri, self.folder, PREDICTIONS, table.num_rows))
            for name, content in submission_files(each.task, each.split, table).items():
                storage.write_bytes(storage.join(self.folder, SUBMISSION, name), content)
        return shards

    def _accounts(self) -> list[Account]:
        return [
            account.model_copy(update={"what": f"{split} {account.what}"})
            for split, inputs in ((_TRAIN, self.train_inputs), (_DEV, self.dev_inputs))
            for account in inputs.accounts
        ]

    def _facts(self, found: list["Predicted"], shards: list[Shard]) -> dict[str, Any]:
        seed, metric = derive_seed(self.seed, "bootstrap"), self.task.metrics[0]
        estimates = {each.name: each.estimates(seed) for each in found}
        dev = estimates.pop(_DEV)
        log.info("%s: %s, dev %s %s", STAGE, self.task.name, metric, dev[metric])
        return {
            "task": self.task.name,
            "title": self.task.title,
            "kind": self.task.kind,
            "seed": self.seed,
            "metric": metric,
            "score": dev[metric].value,
            "interval": [dev[metric].low, dev[metric].high],
            "scores": {name: estimate.value for name, estimate in dev.items()},
            "intervals": {name: [e.low, e.high] for name, e in dev.items()},
            "other_scores": {
                name: {metric: e.model_dump() for metric, e in scores.items()}
                for name, scores in estimates.items()
                if scores
            },
            "constant_scores": self.problem.constant_scores(self.dev),
            "found": {each.name: dict(each.scored.facts) for each in found},
            "hyperparameters": self.hyperparameters.model_dump(),
            "best_step": self.finetuner.best.step,
            "num_steps": self.finetuner.step,
            "num_train": self.num_train,
            "num_examples": len(self.dev),
            "model_folder": MODEL_FOLDER,
            "predictions": {each.name: each.path for each in found},
            "submission": [shard.path for shard in shards if shard.kind == SUBMISSION],
            "machines": noted_machines(self.folder),
            "mlflow_run_id": self.tracked.run_id,
        }

    def _track(self) -> TrackedRun:
        tags = {"model_digest": self.plan.inputs["model"], "task": self.task.name}
        name = f"finetuning-{self.task.name}-{self.seed}"
        run = TrackedRun(self.work, self.folder, name, tags)
        run.log_params(self.plan.settings | {"used": self.hyperparameters.model_dump()})
        for split, uris in self.files.splits.items():
            run.log_dataset(f"{self.task.title}/{split}", self.plan.inputs[split], uris[0])
        return run


def _other_sets(files: TaskFiles, also: list[TaskFiles]) -> list[tuple[Task, Split, Examples]]:
    """Return what the model predicts besides dev: its own test set, and other tasks' sets.

    Raises:
        TaskError: one is malformed.
    """
    return [
        (each.task, split, read_examples(each.task, each, split))
        for each in (files, *also)
        for split in each.splits
        if each is not files or split not in (_TRAIN, _DEV)
    ]
