"""Fine-tuning: a pretrained model and a task -> the fine-tuned model, its scores and predictions.

The score is the best of all evaluations on dev, chosen on that same dev set. That is the paper's
practice (its "early stopping"), so numbers can be compared with it; it is a little above what new
data would give, and the interval does not take the choice into account.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from albert_core.checkpoint import CHECKPOINTS, CheckpointWriter, load_newest
from albert_core.config import FinetuningSettings
from albert_core.conversion.model_files import model_digest
from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
from albert_core.finetuning.hyperparameters import hyperparameters_of
from albert_core.finetuning.loop import Finetuner
from albert_core.metrics import bootstrap_interval
from albert_core.model.execution import device_here
from albert_core.stage import storage
from albert_core.stage.errors import TaskError, TrainingError
from albert_core.stage.manifest import Shard, StagePlan, shard_of, shards_in
from albert_core.stage.results import Estimate, FinetuningResult
from albert_core.tasks.catalogue import TaskFiles, read_examples
from albert_core.tasks.examples import Examples, Split, Task
from albert_core.tasks.problem import Inputs, Scored
from albert_core.tasks.submission import submission_files
from albert_core.text.arrow_files import write_arrow
from albert_core.text.seeds import derive_seed
from albert_core.tracking.models import output_of
from albert_core.tracking.run import TrackedRun
from albert_core.training.devices import note_machine, noted_machines
from albert_core.training.preemption import RunAgain, StopRequest, stop_request

MODEL_FOLDER, PREDICTIONS, SUBMISSION = "model", "predictions", "submission"

_KEEP_CHECKPOINTS = 2
_LINE_SECONDS = 20.0
"""The longest time without a progress line."""

log = logging.getLogger("finetuning")


@dataclass(frozen=True)
class Predicted:
    """The predictions of the best weights for one split."""

    task: Task
    split: Split
    scored: Scored
    name: str
    """The split; for another task than the one that was learned, with its name in front."""

    @property
    def path(self) -> str:
        """The file, relative to the folder of the fine-tuning."""
        return f"{PREDICTIONS}/{self.name}.arrow"

    def estimates(self, seed: int) -> dict[str, Estimate]:
        """Return the scores with their intervals, by metric; none without labels."""
        num_examples = self.scored.predictions.num_rows
        return {
            name: bootstrap_interval(scorer, num_examples, seed, self.scored.groups)
            for name, scorer in self.scored.scorers.items()
        }


class Finetuning:
    """One fine-tuning in its folder.

    Args:
        plan: of the stage.
        work: folder for all results.
        settings: of the recipe.
        files: of the task.
        others: further tasks that the model predicts.
        model_folder: of the model to start from.
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
        # They are read before the training, so that a malformed file is found first.
        self.others = [
            (each.task, split, read_examples(each, split))
            for each in (files, *others)
            for split in each.splits
            if each is not files or split == "test"
        ]
        self.num_train = len(train)
        self.hyperparameters = hyperparameters_of(
            self.task.name, settings, encoder.settings.max_position_embeddings, len(train)
        )
        self.train_inputs = self._labelled_inputs("train", train)
        self.dev_inputs = self._labelled_inputs("dev", self.dev)
        torch.manual_seed(derive_seed(self.seed, "initial-head"))
        self.finetuner = Finetuner(
            encoder,
            self.problem.head(encoder.settings, self.hyperparameters.classifier_dropout_prob),
            self.train_inputs,
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
        with self.tracked, stop_request() as stop:
            self.train(stop)
            return self.finish()

    def train(self, stop: StopRequest) -> None:
        """Do all updates that no checkpoint has, and evaluate from time to time.

        Raises:
            RunAgain: the process was asked to stop; a checkpoint has what was done.
            TrainingError: the loss is not finite.
        """
        if found := load_newest(self.checkpoints.folder, self.plan.key):
            self.finetuner.restore(*found)
        began, at_begin, last_line = time.perf_counter(), self.finetuner.step, time.perf_counter()
        losses: list[Tensor] = []
        while not self.finetuner.is_done:
            losses.append(self.finetuner.update())
            now = time.perf_counter()
            is_due = self.finetuner.evaluation_is_due
            if is_due or now - last_line > _LINE_SECONDS:
                loss = self._mean(losses)
                found_score = self._evaluate(loss) if is_due else ""
                self._say(loss, found_score, (now - began) / (self.finetuner.step - at_begin))
                losses, last_line = [], time.perf_counter()
            self._save_if_due(stop)
        self.checkpoints.wait()

    def finish(self) -> str:
        """Write model, predictions and manifest, all of the best weights; return the manifest."""
        self.finetuner.take_best()
        found = list(self._predict())
        self._save_model(found[0].scored)
        shards = [
            *self._write_predictions(found),
            *shards_in(self.folder, MODEL_FOLDER),
            *shards_in(self.folder, SUBMISSION),
        ]
        accounts = [
            account.model_copy(update={"what": f"{split} {account.what}"})
            for split, inputs in (("train", self.train_inputs), ("dev", self.dev_inputs))
            for account in inputs.accounts
        ]
        uri = self.plan.write(self.work, shards, accounts, self._result(found, shards))
        storage.remove(self.checkpoints.folder)
        model_folder = storage.join(self.folder, MODEL_FOLDER)
        self.tracked.log_model(output_of(uri, model_digest(model_folder)))
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(storage.join(self.folder, PREDICTIONS), PREDICTIONS)
        return uri

    def _inputs(self, examples: Examples) -> Inputs:
        return self.problem.inputs(examples, self.tokenizer, self.hyperparameters.max_seq_length)

    def _labelled_inputs(self, split: Split, examples: Examples) -> Inputs:
        inputs = self._inputs(examples)
        if not inputs.targets:
            raise TaskError(
                f"{self.files.splits[split][0]}: the {split} set of {self.task.name!r} has no "
                "labels, which training and scoring need. Give one that has."
            )
        return inputs

    def _score(self) -> Scored:
        """Return the predictions for dev with the current weights, and their scores."""
        outputs = self.finetuner.outputs(self.dev_inputs)
        return self.problem.score(outputs, self.dev_inputs, self.dev)

    def _mean(self, losses: list[Tensor]) -> float:
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of fine-tuning on {self.task.name} is {loss} by step "
                f"{self.finetuner.step}. Lower finetuning.learning_rate or raise "
                "finetuning.warmup_steps."
            )
        return loss

    def _evaluate(self, loss: float) -> str:
        """Score dev, log the point of the curves, and return the score for the progress line."""
        rows, key = np.arange(len(self.dev)), self.task.metrics[0]
        scores = {name: scorer(rows) for name, scorer in self._score().scorers.items()}
        self.finetuner.note_score(scores[key])
        dev = {f"dev/{name}": value for name, value in scores.items()}
        self.tracked.log_metrics(self.finetuner.step, {"train/loss": loss, **dev})
        best = self.finetuner.best
        return f"  dev {key} {scores[key]:.3f} (best {best.score:.3f} at {best.step:,})"

    def _say(self, loss: float, found: str, seconds_per_step: float) -> None:
        step, last = self.finetuner.step, self.hyperparameters.num_steps
        left = int(seconds_per_step * (last - step))
        line = f"step {step:,}/{last:,}  loss {loss:.3f}{found}  {left // 60}:{left % 60:02d} left"
        log.info("%s: %s, seed %d: %s", self.plan.stage, self.task.name, self.seed, line)

    def _save_if_due(self, stop: StopRequest) -> None:
        if stop.arrived or self.finetuner.step % self.settings.checkpoint_steps == 0:
            record = self.finetuner.numbers() | {"examples": self.plan.key}
            self.checkpoints.save(self.finetuner.tensors(), record)
        if stop.arrived:
            self.checkpoints.wait()
            log.info("%s: stopped on request at step %d", self.plan.stage, self.finetuner.step)
            raise RunAgain

    def _predict(self) -> Iterator[Predicted]:
        """Yield the predictions for dev, then for test and for other tasks' splits."""
        yield Predicted(self.task, "dev", self._score(), "dev")
        for task, split, examples in self.others:
            inputs = self._inputs(examples)
            outputs = self.finetuner.outputs(inputs)
            scored = problem_of(task, self.settings).score(outputs, inputs, examples)
            name = split if task is self.task else f"{task.name}.{split}"
            yield Predicted(task, split, scored, name)

    def _save_model(self, dev: Scored) -> None:
        save_finetuned(
            storage.join(self.folder, MODEL_FOLDER),
            self.finetuner.encoder,
            self.finetuner.head,
            self.tokenizer,
            self.task,
            {
                "max_seq_length": self.hyperparameters.max_seq_length,
                "classifier_dropout_prob": self.hyperparameters.classifier_dropout_prob,
                "spans": self.settings.spans.model_dump(),
                **dev.facts,
            },
        )

    def _write_predictions(self, found: list[Predicted]) -> list[Shard]:
        shards = []
        for each in found:
            table, uri = each.scored.predictions, storage.join(self.folder, each.path)
            write_arrow(table, uri)
            shards.append(shard_of(uri, self.folder, PREDICTIONS, table.num_rows))
            for name, content in submission_files(each.task, each.split, table).items():
                storage.write_bytes(storage.join(self.folder, SUBMISSION, name), content)
        return shards

    def _result(self, found: list[Predicted], shards: list[Shard]) -> FinetuningResult:
        seed, metric = derive_seed(self.seed, "bootstrap"), self.task.metrics[0]
        estimates = {each.name: each.estimates(seed) for each in found}
        dev = estimates.pop("dev")
        log.info("%s: %s, dev %s %s", self.plan.stage, self.task.name, metric, dev[metric])
        intervals = {name: (each.low, each.high) for name, each in dev.items()}
        return FinetuningResult(
            task=self.task.name,
            title=self.task.title,
            kind=self.task.kind,
            seed=self.seed,
            metric=metric,
            score=dev[metric].value,
            interval=intervals[metric],
            scores={name: each.value for name, each in dev.items()},
            intervals=intervals,
            other_scores={name: scores for name, scores in estimates.items() if scores},
            constant_scores=self.problem.constant_scores(self.dev),
            found={each.name: dict(each.scored.facts) for each in found},
            hyperparameters=self.hyperparameters.model_dump(),
            best_step=self.finetuner.best.step,
            num_steps=self.finetuner.step,
            num_train=self.num_train,
            num_examples=len(self.dev),
            model_folder=MODEL_FOLDER,
            predictions={each.name: each.path for each in found},
            submission=[shard.path for shard in shards if shard.kind == SUBMISSION],
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
