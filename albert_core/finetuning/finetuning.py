"""Fine-tuning: a pretrained model and a task -> the fine-tuned model, its scores and predictions.

The weights that are kept are the best of all evaluations on dev, the paper's "early stopping".
Their score on that same dev set is above what new data would give: of 20 evaluations on 277
examples by 3 points. The score that is reported is therefore cross-fitted: dev's clusters are two
halves, and each half is scored by the evaluation, and the threshold, that is best on the other.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from albert_core.checkpoint import CHECKPOINTS, CheckpointWriter, load_newest
from albert_core.config import FinetuningSettings
from albert_core.conversion.model_files import model_digest
from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
from albert_core.finetuning.loop import Finetuner, hyperparameters_of
from albert_core.intervals import estimate, jackknife_table
from albert_core.metrics import Sample
from albert_core.model.execution import device_here
from albert_core.stage import command, errors, results, storage
from albert_core.stage.manifest import Shard, StagePlan, shard_of, shards_in
from albert_core.tasks.catalogue import TaskFiles, read_examples
from albert_core.tasks.examples import Examples, Split, Task
from albert_core.tasks.problem import Bools, Inputs, Outputs, Scored
from albert_core.tasks.squad import no_answer_probability
from albert_core.text.arrow_files import write_arrow
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.tracking.run import TrackedRun
from albert_core.tracking.server import output_of
from albert_core.training.devices import note_machine, noted_machines

MODEL_FOLDER, PREDICTIONS, SUBMISSION = "model", "predictions", "submission"
_JACKKNIFE = "jackknife"
STS_B_RANGE = (0.0, 5.0)
"""The least and the greatest similarity that the server accepts."""

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
    clusters: Ints | None
    """As of the examples."""
    name: str
    """The split; for another task than the one that was learned, with its name in front."""

    @property
    def path(self) -> str:
        """The file, relative to the folder of the fine-tuning."""
        return f"{PREDICTIONS}/{self.name}.arrow"

    @property
    def estimates(self) -> dict[str, results.Estimate]:
        """The scores with their intervals, by metric; none without labels."""
        return {name: estimate(each, self.clusters) for name, each in self.scored.samples.items()}


def halves(clusters: Ints) -> tuple[Bools, Bools]:
    """Return which examples are in the one half and which in the other, bool (N,).

    The same examples give the same halves in every run. A cluster is in one half, if there are
    several clusters; a single example is in both.

    Args:
        clusters: (N,), the number of each example's cluster.
    """
    names, cluster_of = np.unique(clusters, return_inverse=True)
    if len(names) < 2:
        names = cluster_of = np.arange(len(clusters))
    place_of = np.argsort(np.argsort(random_bits(derive_seed(0, "halves"), np.arange(len(names)))))
    is_first = place_of[cluster_of] % 2 == 0
    return is_first, ~is_first if len(names) > 1 else is_first


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
        clusters = self.dev.clusters
        self.halves = halves(np.arange(len(self.dev)) if clusters is None else clusters)
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
        with self.tracked, command.stop_request() as stop:
            self.train(stop)
            return self.finish()

    def train(self, stop: command.StopRequest) -> None:
        """Do all updates that no checkpoint has, and evaluate from time to time.

        Raises:
            RunAgain: the process was asked to stop; a checkpoint has what was done.
            TrainingError: the loss is not finite.
        """
        if found := load_newest(self.checkpoints.folder, self.plan.key):
            self.finetuner.restore(*found)
        last_line = time.perf_counter()
        losses: list[Tensor] = []
        while not self.finetuner.is_done:
            losses.append(self.finetuner.update())
            is_due = self.finetuner.evaluation_is_due
            if is_due or time.perf_counter() - last_line > _LINE_SECONDS:
                loss = self._mean(losses)
                found_score = self._evaluate(loss) if is_due else ""
                step = f"step {self.finetuner.step:,}/{self.hyperparameters.num_steps:,}"
                line = f"{step}  loss {loss:.3f}{found_score}"
                log.info("%s: %s, seed %d: %s", self.plan.stage, self.task.name, self.seed, line)
                losses, last_line = [], time.perf_counter()
            self._save_if_due(stop)
        self.checkpoints.wait()

    def finish(self) -> str:
        """Write model, predictions and manifest, all of the best weights; return the manifest."""
        self.finetuner.take_best()
        found = list(self._predict())
        self._save_model(found[0].scored)
        cross_fitted = self._cross_fitted()
        uri = storage.join(self.folder, f"{_JACKKNIFE}.arrow")
        without = jackknife_table(cross_fitted, self.dev.clusters)
        write_arrow(without, uri)
        shards = [
            shard_of(uri, self.folder, _JACKKNIFE, without.num_rows),
            *self._write_predictions(found),
            *shards_in(self.folder, MODEL_FOLDER),
            *shards_in(self.folder, SUBMISSION),
        ]
        accounts = [
            account.model_copy(update={"what": f"{split} {account.what}"})
            for split, inputs in (("train", self.train_inputs), ("dev", self.dev_inputs))
            for account in inputs.accounts
        ]
        uri = self.plan.write(
            self.work, shards, accounts, self._result(found, cross_fitted, shards)
        )
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
            raise errors.TaskError(
                f"{self.files.splits[split][0]}: the {split} set of {self.task.name!r} has no "
                "labels, which training and scoring need. Give one that has."
            )
        return inputs

    def _outputs(self) -> Outputs:
        """Return the head's outputs for dev with the current weights.

        Raises:
            TrainingError: one is not a number.
        """
        outputs = self.finetuner.outputs(self.dev_inputs)
        for name, values in outputs.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise self._not_finite(f"{name} for dev", float("nan"))
        return outputs

    def _score(self, outputs: Outputs, chosen_on: Bools | None = None) -> Scored:
        return self.problem.score(outputs, self.dev_inputs, self.dev, chosen_on)

    def _cross_fitted(self) -> dict[str, Sample]:
        """Return how dev was answered, each half by what was the best on the other."""
        found = [
            self._score({name: values.numpy() for name, values in best.tensors.items()}, half)
            for best, half in zip(self.finetuner.best_of_halves, self.halves, strict=True)
        ]
        return {
            name: sample.merged(self.halves[0], found[1].samples[name])
            for name, sample in found[0].samples.items()
        }

    def _mean(self, losses: list[Tensor]) -> float:
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise self._not_finite("the loss", loss)
        return loss

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
        scores = {name: sample.value for name, sample in samples.items()}
        of_halves = [samples[key].part(half).value for half in self.halves]
        self.finetuner.note_scores(scores[key], of_halves, outputs)
        dev = {f"dev/{name}": value for name, value in scores.items()}
        self.tracked.log_metrics(self.finetuner.step, {"train/loss": loss, **dev})
        best = self.finetuner.best
        return f"  dev {key} {scores[key]:.3f} (best {best.score:.3f} at {best.step:,})"

    def _save_if_due(self, stop: command.StopRequest) -> None:
        if stop.arrived or self.finetuner.step % self.settings.checkpoint_steps == 0:
            record = self.finetuner.numbers() | {"examples": self.plan.key}
            self.checkpoints.save(self.finetuner.tensors(), record)
        if stop.arrived:
            self.checkpoints.wait()
            log.info("%s: stopped on request at step %d", self.plan.stage, self.finetuner.step)
            raise command.RunAgain

    def _predict(self) -> Iterator[Predicted]:
        """Yield the predictions for dev, then for test and for other tasks' splits."""
        scored = self._score(self._outputs())
        yield Predicted(self.task, "dev", scored, self.dev.clusters, "dev")
        for task, split, examples in self.others:
            inputs = self._inputs(examples)
            outputs = self.finetuner.outputs(inputs)
            scored = problem_of(task, self.settings).score(outputs, inputs, examples)
            name = split if task is self.task else f"{task.name}.{split}"
            yield Predicted(task, split, scored, examples.clusters, name)

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

    def _result(
        self, found: list[Predicted], cross_fitted: Mapping[str, Sample], shards: list[Shard]
    ) -> results.FinetuningResult:
        metric = self.task.metrics[0]
        dev = {name: estimate(each, self.dev.clusters) for name, each in cross_fitted.items()}
        log.info("%s: %s, dev %s %s", self.plan.stage, self.task.name, metric, dev[metric])
        return results.FinetuningResult(
            task=self.task.name,
            title=self.task.title,
            kind=self.task.kind,
            seed=self.seed,
            metric=metric,
            scores={name: dev[name] for name in self.task.metrics if name in dev},
            jackknife=f"{_JACKKNIFE}.arrow",
            num_clusters=shards[0].num_rows,
            num_choices=self.finetuner.num_evaluations,
            other_scores={each.name: scores for each in found[1:] if (scores := each.estimates)},
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
    return f"{np.clip(value, *STS_B_RANGE) if task.name == 'sts-b' else value:.6g}"


def _json(ids: list[str], values: list[str] | list[float]) -> bytes:
    return (json.dumps(dict(zip(ids, values, strict=True)), ensure_ascii=False) + "\n").encode()
