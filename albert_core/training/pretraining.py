"""Pretraining: masked LM and what is learnt from pairs of segments, resumable to the bit.

What an update changes is in `TrainState`, and a checkpoint saves all of it. Which examples an
update sees, and its dropout, are pure functions of the seed and the counters there, so there is
nothing else to restore.
"""

import json
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from albert_core.checkpoint import (
    CHECKPOINTS,
    HELD_OUT_LOSS,
    CheckpointWriter,
    best_checkpoint,
    load_newest,
)
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.model_folder import save_model_folder
from albert_core.metrics import Estimate
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, TrainingError
from albert_core.stage.lineage import PRETRAINING
from albert_core.stage.log import report_progress
from albert_core.stage.manifest import Account, Manifest, Shard, StagePlan, shard_of, shards_in
from albert_core.text.seeds import derive_seed
from albert_core.tracking.run import TrackedRun
from albert_core.training.devices import note_machine, noted_machines, ranks_of_environment
from albert_core.training.held_out import Evaluation, evaluate
from albert_core.training.loader import UpdateLoader
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.preemption import RunAgain, StopRequest, stop_request
from albert_core.training.ranks import Ranks, shard_state
from albert_core.training.run_log import (
    OF_THE_MACHINE,
    RunLog,
    draw_curves,
    expected_speed,
    say_scores,
)
from albert_core.training.shards import ExampleShards, UpdateBatch
from albert_core.training.start import (
    StartingPoint,
    continue_run,
    read_vocabulary,
    same_updates,
)
from albert_core.training.step import PAIR_TASKS, TrainState, Update, train_step

MODEL_FOLDER, METRICS, CURVES = "model", "metrics.jsonl", "curves.png"


def write_result(
    plan: StagePlan,
    work: str,
    model: AlbertForPretraining,
    state: TrainState,
    examples: Manifest,
    facts: dict[str, Any],
) -> str:
    """Write all of it, the manifest last; return the manifest's URI.

    Args:
        plan: of the run.
        work: folder for all results.
        model: with the trained weights, whole.
        state: after the last update.
        examples: that it was trained on.
        facts: for the manifest, besides those that are told by ``state`` and ``examples``.
    """
    folder = plan.folder(work)
    tokenizer = read_vocabulary(plan.input_manifests["vocab"])
    save_model_folder(model, tokenizer, storage.join(folder, MODEL_FOLDER))
    lines = (json.dumps(point) + "\n" for point in _points(state))
    storage.write_bytes(storage.join(folder, METRICS), "".join(lines).encode())
    objective, unigram_nats = examples.facts["objective"], examples.facts["unigram_nats"]
    curves = draw_curves(state.history, state.evaluations, unigram_nats, PAIR_TASKS[objective])
    storage.write_bytes(storage.join(folder, CURVES), curves)
    facts = {
        "step": state.step,
        "model_folder": MODEL_FOLDER,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "objective": objective,
        "evaluations": state.evaluations,
        "skipped_steps": state.guard.num_skipped,
        "unigram_nats": unigram_nats,
        **facts,
    }
    return plan.write(work, _shards(folder), [_examples_account(state)], facts)


def _points(state: TrainState) -> list[dict[str, float]]:
    return [
        {name: value for name, value in point.items() if name not in OF_THE_MACHINE}
        for point in state.history
    ]


def _shards(folder: str) -> list[Shard]:
    metrics = shard_of(storage.join(folder, METRICS), folder, "metrics", 1)
    return [*shards_in(folder, MODEL_FOLDER), metrics]


def _examples_account(state: TrainState) -> Account:
    taken, skipped = state.examples_taken, state.examples_skipped
    return Account(
        what="examples trained on",
        total=taken,
        kept=taken - skipped,
        dropped={"skipped_update": skipped},
    )


STAGE = PRETRAINING

log = logging.getLogger(STAGE)


def pretrain(
    plan: StagePlan,
    work: str,
    model: ModelSettings,
    training: TrainingSettings,
    examples: str,
    start: StartingPoint,
) -> None:
    """Train a model on the examples as one of the ranks; write the result.

    Args:
        plan: of the stage.
        work: folder for all results.
        model: settings.
        training: settings.
        examples: manifest of the examples.
        start: what the run starts from.

    Raises:
        ConfigError: the batch is smaller than the number of ranks.
        IntegrityError: a shard is not the one that was written.
        TrainingError: see `albert_core.training.pretrain.run`.
        RunAgain: SIGTERM came, or another rank is gone. No error: the process's exit.
    """
    with stop_request() as stop, ranks_of_environment() as ranks:
        pretraining = Pretraining(plan, work, model, training, examples, start, ranks, stop)
        with pretraining.tracked if pretraining.tracked is not None else nullcontext():
            pretraining.train()
            pretraining.finish()


class Pretraining:
    """One run of pretraining in its folder; every rank has one."""

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        model: ModelSettings,
        settings: TrainingSettings,
        examples: str,
        start: StartingPoint,
        ranks: Ranks,
        stop: StopRequest,
    ) -> None:
        self.plan, self.work, self.model_settings, self.settings = plan, work, model, settings
        self.ranks, self.stop = ranks, stop
        self.folder = plan.folder(work)
        self.train_examples = ExampleShards(examples, "train")
        self.held_out_examples = ExampleShards(examples, "held_out")
        self.facts: dict[str, Any] = self.train_examples.manifest.facts
        self.pair_task = PAIR_TASKS[self.facts["objective"]]
        if settings.batch_size < ranks.world_size:
            raise ConfigError(
                f"training.batch_size is {settings.batch_size}, but there are {ranks.world_size} "
                "ranks: each needs an example of every batch. Raise it, or start fewer."
            )
        self.state = self._initial_state(start.model)
        self.writer = CheckpointWriter(
            storage.join(self.folder, CHECKPOINTS), settings.keep_checkpoints
        )
        metrics = self._resume(start)
        self.before = self._scores_before()
        metrics = metrics or self._take_over()
        self._check_ranks_agree()
        self.tracked: TrackedRun | None = self._track() if ranks.is_first else None
        if ranks.is_first:
            note_machine(self.folder, ranks.world_size, ranks.device)
        self.run_log = RunLog(
            model,
            settings,
            self.facts["vocab_size"],
            ranks,
            expected_speed(model, settings, self.train_examples, ranks),
            self.tracked,
            metrics,
        )
        self.run_log.say_plan(self.state.step)
        best = best_checkpoint(self.writer.folder)
        self.best_loss: float | None = None if best is None else best[1][HELD_OUT_LOSS]
        self.after: Evaluation | None = None
        """The scores of the present weights; None where they are not known."""

    def train(self) -> None:
        """Do the updates that are left; report, evaluate and save now and then.

        Raises:
            RunAgain: a rank was told to stop; a checkpoint is written.
            TrainingError: too many updates in a row were skipped, or a checkpoint not written.
        """
        self.state.model.train()
        waited = 0.0
        with self._loader() as loader:
            for batch in loader:
                update = self._update(batch)
                self.run_log.add(batch.sizes, update, loader.waited_seconds - waited)
                waited = loader.waited_seconds
                self._do_what_is_due(update)

    def _update(self, batch: UpdateBatch) -> Update:
        self._set_learning_rate()
        self.ranks.seed(
            derive_seed(self.settings.seed, "dropout", self.state.step, self.ranks.rank)
        )
        self.after = None
        batch = replace(batch, micro_batches=self.ranks.on_device(batch.micro_batches))
        return train_step(self.state, batch, self.settings, self.ranks, self.pair_task, self.stop)

    def _do_what_is_due(self, update: Update) -> None:
        """Report, evaluate, save or leave, as it is due after ``update``."""
        if self.ranks.is_first:
            report_progress(self.state.step, self.settings.num_steps, "steps")
        if update.skipped is not None:
            self._note_skipped(update)
        if self._is_due(self.settings.log_steps):
            self.run_log.report(self.state)
        is_best = self._is_due(self.settings.evaluation_steps) and self._evaluate()
        is_due = is_best or self._is_due(self.settings.checkpoint_steps)
        # Not amid skipped updates: should they end the run, it resumes from before them.
        if update.must_stop or (is_due and not self.state.guard.num_in_a_row):
            self._save()
        self.writer.check()
        if update.must_stop and not self._is_last():
            self._leave()

    def finish(self) -> None:
        """Evaluate the trained model on every rank; write it, and the run's manifest, on one."""
        after, model = self.after or self._scores(), self.state.whole_model()
        self.writer.wait()
        if self.tracked is None:
            return
        self.run_log.summarise(self.state, after, self.writer.seconds)
        uri = write_result(
            self.plan,
            self.work,
            model,
            self.state,
            self.train_examples.manifest,
            self._result_facts(after),
        )
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(storage.join(self.folder, CURVES))

    def _initial_state(self, weights: AlbertForPretraining | None) -> TrainState:
        settings = self.settings
        torch.manual_seed(derive_seed(settings.seed, "initial-weights"))
        model = weights or AlbertForPretraining(self.model_settings, self.facts["vocab_size"])
        model = self.ranks.place(model, settings)
        if settings.shard_state and self.ranks.world_size > 1:
            shard_state(model, self.ranks)
        optimizer = build_optimizer(
            model, settings.optimizer, settings.learning_rate, settings.weight_decay
        )
        return TrainState(model=model, optimizer=optimizer)

    def _resume(self, start: StartingPoint) -> list[dict[str, float]]:
        """Go on from where the run was, if it was; return its updates not yet reported."""
        metrics: list[dict[str, float]] = []
        found = load_newest(self.writer.folder, self.train_examples.manifest.content)
        if found is not None:
            metrics = self._restore(*found)
        elif start.checkpoint is not None:
            continue_run(self.state, start.checkpoint, self.settings, self.plan.inputs)
        return metrics

    def _restore(self, tensors: dict[str, Any], record: dict[str, Any]) -> list[dict[str, float]]:
        self.state.restore(tensors, record, self.writer.folder)
        metrics: list[dict[str, float]] = record["window"]
        return metrics

    def _take_over(self) -> list[dict[str, float]]:
        """Take the weights of a finished run of the same updates, unless this one has begun."""
        same = None if self.state.step else same_updates(self.plan, self.work)
        content = self.train_examples.manifest.content
        found = None if same is None else load_newest(storage.join(same, CHECKPOINTS), content)
        return [] if found is None else self._restore(*found)

    def _check_ranks_agree(self) -> None:
        steps = torch.tensor(self.state.step, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.sum(steps).item() != self.state.step * self.ranks.world_size:
            raise TrainingError(
                f"rank {self.ranks.rank} finds step {self.state.step:,} in {self.folder}, and "
                "other ranks another. Give a work folder that all of them share."
            )

    def _save(self) -> None:
        """Begin to write a checkpoint, on the first rank."""
        tensors = self.state.tensors()
        if not self.ranks.is_first:
            return
        loss = None if self.after is None else self.after["masked_lm_loss"].value
        record = {
            **self.state.numbers(),
            "window": list(self.run_log.window.metrics),
            "examples": self.plan.inputs["examples"],
            "vocab": self.plan.inputs["vocab"],
            "settings": self._resolved_settings(),
            HELD_OUT_LOSS: loss,
        }
        self.writer.save(tensors, record)

    def _leave(self) -> None:
        self._wait_for_checkpoint()
        if self.ranks.is_first:
            log.warning(
                "%s: told to stop: step %s is done and saved in %s; the same command goes on",
                STAGE,
                f"{self.state.step:,}",
                self.writer.folder,
            )
        raise RunAgain

    def _wait_for_checkpoint(self) -> None:
        """Wait on every rank: when one leaves, its launcher ends the others."""
        self.writer.wait()
        self.ranks.wait()

    def _track(self) -> TrackedRun:
        run = TrackedRun(self.work, self.folder, f"pretraining-{self.plan.key}")
        run.log_params(self._resolved_settings())
        manifest: Manifest = self.train_examples.manifest
        run.log_dataset("examples", manifest.content, self.plan.input_manifests["examples"])
        return run

    def _scores(self) -> Evaluation:
        return evaluate(
            self.state.model,
            self.held_out_examples,
            self.settings.max_evaluation_examples,
            self.pair_task,
            self.ranks,
        )

    def _scores_before(self) -> Evaluation:
        """Return the scores before the first update; a resumed run reads what the first wrote."""
        uri = storage.join(self.folder, "before.json")
        if not self.ranks.has_first(storage.exists(uri)):
            scores = self._scores()
            content = {name: score.model_dump() for name, score in scores.items()}
            if self.ranks.is_first:
                storage.write_bytes(uri, json.dumps(content).encode())
        if not self.ranks.is_first:
            return {}
        content = json.loads(storage.read_bytes(uri))
        before = {name: Estimate(**score) for name, score in content.items()}
        log.info("%s: held-out, before: %s", STAGE, say_scores(before))
        return before

    def _evaluate(self) -> bool:
        """Score the present weights; return whether they are the best so far."""
        with self.run_log.window.left_out():
            self.after = self._scores()
        values = {name: score.value for name, score in self.after.items()}
        self.state.evaluations.append({"step": self.state.step, **values})
        self.run_log.note_scores(self.state.step, self.after)
        loss = values["masked_lm_loss"]
        is_best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        if is_best:
            self.best_loss = loss
        return is_best

    def _loader(self) -> UpdateLoader:
        """Return what gives this rank's part of the updates that are left."""
        micro_batch_size = self.settings.micro_batch_size
        return UpdateLoader(
            self.train_examples,
            batch_size=self.settings.batch_size,
            micro_batch_size=micro_batch_size,
            seed=self.settings.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            first_example=self.state.examples_taken,
            num_updates=self.settings.num_steps - self.state.step,
            masks=self.settings.masks,
            pin_memory=self.ranks.device.type == "cuda",
            shape=self.ranks.batch_shape(self.train_examples, micro_batch_size),
        )

    def _set_learning_rate(self) -> None:
        rate = learning_rate_at(
            self.state.step,
            self.settings.learning_rate,
            self.settings.warmup_steps,
            self.settings.num_steps,
            self.settings.schedule,
        )
        for group in self.state.optimizer.param_groups:
            group["lr"] = rate

    def _note_skipped(self, update: Update) -> None:
        """Say that the update was skipped; end the run if too many in a row were."""
        self.run_log.note_skipped(self.state, update)
        guard, metrics = self.state.guard, update.metrics
        if guard.num_in_a_row > self.settings.max_skipped_steps:
            self._wait_for_checkpoint()
            raise TrainingError(
                f"{guard.num_in_a_row} updates in a row were skipped by step {self.state.step:,}, "
                f"but training.max_skipped_steps is {self.settings.max_skipped_steps}: the last "
                f"has gradient norm {metrics['grad_norm']:.3g} and masked LM loss "
                f"{metrics['masked_lm_loss']:.3g}. Lower training.learning_rate or raise "
                f"training.warmup_steps; the checkpoints below {self.folder} are from before."
            )

    def _is_last(self) -> bool:
        return self.state.step == self.settings.num_steps

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self._is_last()

    def _resolved_settings(self) -> dict[str, Any]:
        return {
            "model": self.model_settings.model_dump(),
            "training": self.settings.model_dump(),
        }

    def _result_facts(self, after: Evaluation) -> dict[str, Any]:
        assert self.tracked is not None
        return {
            "before": {name: score.model_dump() for name, score in self.before.items()},
            "after": {name: score.model_dump() for name, score in after.items()},
            "settings": self._resolved_settings(),
            "machines": noted_machines(self.folder),
            "mlflow_run_id": self.tracked.run_id,
        }
