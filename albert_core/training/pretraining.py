"""Pretraining: masked LM and what is learned from pairs of segments, resumable to the bit.

An update changes only `TrainState`, and a checkpoint saves all of it. The examples of an update,
and its dropout, are pure functions of the seed and the counters there, so there is nothing else to
restore.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import torch

from albert_core import checkpoint
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.huggingface import save_model_folder
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import command, errors, manifest, storage
from albert_core.stage.progress import report_progress
from albert_core.stage.results import PRETRAINING, PretrainingResult
from albert_core.tasks.minimal_pairs import PAIRS, PairFiles
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer
from albert_core.training import cooccurrence, held_out, run_log
from albert_core.training.batches import Batch
from albert_core.training.beginning import continue_run, find_beginning
from albert_core.training.loader import UpdateBatch, UpdateLoader
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.ranks import (
    Ranks,
    note_machine,
    noted_machines,
    ranks_of_environment,
)
from albert_core.training.sharding import shard_state
from albert_core.training.shards import ExampleShards
from albert_core.training.step import PAIR_TASKS, Asked, TrainState, Update, layers_at, train_step

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun

MODEL_FOLDER, METRICS, CURVES = "model", "metrics.jsonl", "curves.png"

log = logging.getLogger(PRETRAINING)


class UpdateStopped(Exception):  # noqa: N818  an order, not an error
    """A rank was told to stop: no rank goes on with the update, which changed nothing."""


def pretrain(
    plan: manifest.StagePlan,
    work: str,
    model: ModelSettings,
    training: TrainingSettings,
    vocabulary: Tokenizer,
    pair_files: PairFiles,
    continue_from: str | None = None,
    weights: AlbertForPretraining | None = None,
) -> None:
    """Train a model as one of the ranks; write the result.

    Args:
        plan: of the stage; it names the examples.
        work: folder for all results.
        model: settings.
        training: settings.
        vocabulary: of the examples.
        pair_files: of the minimal pairs, a sample of which is scored at each evaluation.
        continue_from: URI of a checkpoint; None to begin anew.
        weights: the first ones, on the CPU; None for random ones.

    Raises:
        ConfigError: the batch is smaller than the number of ranks, or ``continue_from`` and the
            settings do not fit together.
        IntegrityError: a shard is not the one that was written.
        TaskError: a file of pairs is malformed.
        TrainingError: see `albert_core.training.pretrain.run`.
        RunAgain: SIGTERM came, or another rank is gone. No error: the process's exit.
    """
    devices = ranks_of_environment(training.precision, training.deterministic)
    with command.stop_request() as stop, devices as ranks:
        most_pieces = model.max_position_embeddings
        pairs = held_out.read_sample(pair_files, vocabulary, most_pieces, ranks)
        with stop.ending_at_once():
            run = Pretraining(
                plan, work, model, training, pairs, ranks, stop, continue_from, weights
            )
        with run.log.tracked if run.log else nullcontext():
            try:
                run.train()
                run.finish(vocabulary)
            except command.RunAgain:
                run.writer.wait()
                if stop.arrived:
                    run.say_that_it_stops()
                raise
            except Exception:
                with suppress(errors.TrainingError):  # the error that ends the run counts
                    run.writer.wait()
                raise


@dataclass
class Pretraining:
    """One run of pretraining in its folder; every rank has one."""

    plan: manifest.StagePlan
    work: str
    model: ModelSettings
    settings: TrainingSettings
    pairs: held_out.PairSample
    ranks: Ranks
    stop: command.StopRequest
    continue_from: InitVar[str | None]
    weights: InitVar[AlbertForPretraining | None]
    log: run_log.RunLog | None = field(default=None, init=False)
    """Only on the first rank, which alone reports and writes."""
    after: held_out.Evaluation | None = field(default=None, init=False)
    """The scores of the present weights; None if they are not known."""
    saved_step: int | None = field(default=None, init=False)
    """The step of the last checkpoint that it has begun to write, or resumed from."""
    under_way: list[Update] = field(default_factory=list, init=False)
    """Updates that the device was given and whose outcome is not known, in their order."""

    def __post_init__(
        self, continue_from: str | None, weights: AlbertForPretraining | None
    ) -> None:
        self._check_batch()
        self.folder = self.plan.folder(self.work)
        self.resolved = {"model": self.model.model_dump(), "training": self.settings.model_dump()}
        uri = self.plan.input_manifests["examples"]
        self.examples, self.held_out = ExampleShards(uri, "train"), ExampleShards(uri, "held_out")
        self._check_padding()
        self.pair_task = PAIR_TASKS[self.examples.result.objective]
        device = self.ranks.device
        given = () if weights is None else weights.parameters()
        memory_before = run_log.used_memory(device) - sum(
            weight.nbytes for weight in given if weight.device == device
        )
        checkpoints = storage.join(self.folder, checkpoint.CHECKPOINTS)
        self.writer = checkpoint.CheckpointWriter(checkpoints, self.settings.keep_checkpoints)
        self._begin(continue_from, weights)
        self._open_log(memory_before)
        best = checkpoint.best_checkpoint(checkpoints)
        self.best_loss = math.inf if best is None else best[0]
        self.evaluated_at = self.saved_at = time.monotonic()

    def train(self) -> None:
        """Do the updates that are left; report, evaluate and save when it is due.

        Raises:
            RunAgain: a rank was told to stop; what was done is in a checkpoint.
            TrainingError: too many updates in a row were skipped, or a checkpoint not written.
        """
        state, settings = self.state, self.settings
        every = settings.log_steps, settings.evaluation_steps, settings.checkpoint_steps
        state.model.train()
        loader = UpdateLoader(
            self.examples,
            settings,
            self.ranks,
            first_example=state.examples_taken,
            num_updates=settings.num_steps - state.step,
        )
        last = max((point["step"] for point in state.evaluations), default=0)
        if state.step > last and self._is_due(settings.evaluation_steps):
            # The run was told to stop before the evaluation after its last update.
            self._evaluate_and_save(Asked(evaluation=True))
        with loader:
            for batch in loader:
                self._update(batch)
                if self.log:
                    self.log.add(state, batch.sizes, loader.waited_seconds)
                    report_progress(state.step, settings.num_steps, "steps")
                may_be_late = self.ranks.runs_ahead and not self._is_due(*every)
                asked = self._note_updates(most_left=int(may_be_late))
                if self.log and self._is_due(settings.log_steps):
                    self.log.report(state)
                self._evaluate_and_save(asked)

    def finish(self, vocabulary: Tokenizer) -> None:
        """Evaluate the trained model on every rank; write it, and the run's manifest, on one."""
        with self.stop.ending_at_once():
            after = self.after or self._scores()
        model = self.state.whole_model()
        self.writer.wait()
        if self.log is None:
            return
        self.log.summarise(self.state, after, self.writer.seconds)
        state, examples = self.state, self.examples.result
        folder, metrics, curves = (
            storage.join(self.folder, name) for name in (MODEL_FOLDER, METRICS, CURVES)
        )
        save_model_folder(model, vocabulary, folder)
        lines = (f"{json.dumps(point)}\n" for point in state.history)
        storage.write_bytes(metrics, "".join(lines).encode())
        evaluations = state.evaluations
        if not self.settings.continue_from:
            evaluations = [{"step": 0, **held_out.point_of(self.before)}, *evaluations]
        picture = run_log.draw_curves(state.history, evaluations, examples, self.pair_task)
        storage.write_bytes(curves, picture)
        result = PretrainingResult(
            step=state.step,
            model_folder=MODEL_FOLDER,
            num_parameters=sum(p.numel() for p in model.parameters()),
            objective=examples.objective,
            evaluations=[{**point} for point in state.evaluations],
            skipped_steps={"not_finite": state.num_skipped},
            unigram_nats=examples.unigram_nats,
            length_only_accuracy=examples.length_only_accuracy,
            before=self.before,
            after=after,
            settings=self.resolved,
            machines=noted_machines(self.folder),
            mlflow_run_id=self.log.tracked.run_id,
        )
        trained_on = manifest.Account(
            what="examples trained on",
            total=state.examples_taken,
            kept=state.examples_taken - state.examples_skipped,
            dropped={"skipped_update": state.examples_skipped},
        )
        accounts = [trained_on, *([self.pairs.account] if self.pairs.account.total else [])]
        shards = manifest.shards_in(self.folder, MODEL_FOLDER)
        shards.append(manifest.shard_of(metrics, self.folder, "metrics", 1))
        uri = self.plan.write(self.work, shards, accounts, result)
        self.log.track_result(uri, curves, checkpoint.list_checkpoints(self.writer.folder))

    def _check_batch(self) -> None:
        size, num_ranks = self.settings.batch_size, self.ranks.world_size
        if size < num_ranks:
            raise errors.ConfigError(
                f"training.batch_size is {size}, but there are {num_ranks} "
                "ranks: each needs an example of every batch. Raise it, or start fewer."
            )

    def _check_padding(self) -> None:
        shape, most = self.held_out.shape_for(self.ranks, 1), self.model.max_position_embeddings
        if shape and shape.length > most:
            raise errors.ConfigError(
                f"a TPU gets examples padded to {shape.length} pieces, but model."
                f"max_position_embeddings is {most}. Raise it, or "
                "lower examples.max_seq_length."
            )

    def _begin(self, continue_from: str | None, weights: AlbertForPretraining | None) -> None:
        """Make the state: as `find_beginning` finds it, or else as ``continue_from`` has it.

        Only its own checkpoint has the scores before the first update; else they are made before
        the updates of another run are taken over.
        """
        found = find_beginning(self.plan, self.work, self.ranks)
        own = found if found and found.is_own else None
        first = self.settings
        if own or continue_from is not None:  # the first weights are replaced unused
            first = first.model_copy(update={"initial_weights": "random"})
        self.state = initial_state(self.model, first, self.examples, self.ranks, weights)
        if continue_from is not None and not own:
            continue_run(self.state, continue_from, self.settings, self.plan.inputs)
        self.before = own.before if own else self._scores()
        if self.ranks.is_first:
            said = run_log.say_scores(self.before)
            log.info("%s: held-out, before: %s", PRETRAINING, said)
        if found:
            found.restore(self.state, self.settings, self.plan.inputs)
        if own:
            self.saved_step = self.state.step

    def _open_log(self, memory_before: int) -> None:
        """Plan the run on every rank; begin to report it on the first.

        Args:
            memory_before: bytes that were used before there was a state.
        """
        step, vocab_size = self.state.step, self.examples.result.vocab_size
        planned = run_log.plan_of(self.model, self.settings, self.examples, self.ranks, step)
        if not self.ranks.is_first:
            return
        note_machine(self.folder, self.ranks.world_size, self.ranks.device)
        self.log = run_log.RunLog(
            self.model, self.settings, vocab_size, self.ranks, planned, memory_before, self._track()
        )
        self.log.say_plan(step)
        if step == 0:
            self.log.track_scores(0, self.before)

    def _track(self) -> "TrackedRun":
        from albert_core.tracking.run import TrackedRun  # takes a second, and one rank needs it

        run = TrackedRun(self.work, self.folder, PRETRAINING)
        run.log_params(self.resolved)
        digest, uri = self.plan.inputs["examples"], self.plan.input_manifests["examples"]
        for part in ("train", "held_out"):
            run.log_dataset(f"examples/{part}", digest, uri, part)
        return run

    def _update(self, batch: UpdateBatch) -> None:
        state, settings = self.state, self.settings
        try:
            update = next_update(state, batch, settings, self.ranks, self.pair_task, self._ask)
        except UpdateStopped:
            self._note_updates(most_left=0)
            self._save_and_leave()
        self.under_way.append(update)
        self.after = None

    def _note_updates(self, most_left: int) -> Asked:
        """Wait for the updates under way, all but ``most_left``; return what the last asks for.

        If it asks for anything, all are waited for.
        """
        asked = Asked()
        while len(self.under_way) > most_left:
            update = self.under_way.pop(0)
            self.state.count(update)
            if update.skipped:
                self._note_skipped(update)
            elif self.log:
                self.state.unreported.append(update.metrics)
            asked = update.asked
            most_left *= not any(asked)
        return asked

    def _ask(self) -> Asked:
        """Return the requests of this rank; only the first rank's clock counts."""
        now, is_first, settings = time.monotonic(), self.ranks.is_first, self.settings
        return Asked(
            stop=self.stop.arrived,
            evaluation=is_first and now - self.evaluated_at >= 60 * settings.evaluation_minutes,
            checkpoint=is_first and now - self.saved_at >= 60 * settings.checkpoint_minutes,
        )

    def _note_skipped(self, update: Update) -> None:
        """Report that the update was skipped; end the run if too many in a row were."""
        if self.log:
            self.log.note_skipped(self.state, update)
        in_a_row, metrics = self.state.skipped_in_a_row, update.metrics
        if in_a_row > self.settings.max_skipped_steps:
            self._wait_for_checkpoint()
            raise errors.TrainingError(
                f"{in_a_row} updates in a row were skipped by step {update.step:,}, "
                f"but training.max_skipped_steps is {self.settings.max_skipped_steps}: the last "
                f"has gradient norm {metrics['grad_norm']:.3g} and masked LM loss "
                f"{metrics['masked_lm_loss']:.3g}. Lower training.learning_rate or raise "
                f"training.warmup_steps; the checkpoints below {self.folder} are from before."
            )

    def _evaluate_and_save(self, asked: Asked) -> None:
        """Evaluate and save if it is due or asked for; leave if a rank was told to stop."""
        settings = self.settings
        if asked.stop:
            self._save_and_leave()
        is_due = asked.checkpoint or self._is_due(settings.checkpoint_steps)
        # Not amid skipped updates: if they end the run, it resumes from before them.
        may_save = not self.state.skipped_in_a_row
        if asked.evaluation or self._is_due(settings.evaluation_steps):
            if may_save:  # first, because an evaluation may take longer than a stop allows
                self._save()
            is_due = self._evaluate() or is_due
        if is_due and may_save:
            self._save()
        self.writer.check()

    def _evaluate(self) -> bool:
        """Score the layers of the last update; return if they are all, and the best so far."""
        last, settings, most = self.state.step - 1, self.settings, self.model.num_hidden_layers
        num_layers = layers_at(last, settings.num_steps, settings.shallow_share, most)
        with self.log.not_training() if self.log else nullcontext(), self.stop.ending_at_once():
            scores = self._scores(num_layers)
        point = held_out.point_of(scores)
        self.state.evaluations.append({"step": self.state.step, **point})
        if self.log:
            self.log.note_scores(self.state.step, scores, num_layers)
        self.evaluated_at = time.monotonic()
        if num_layers < most:
            return False  # a checkpoint loads with all of them
        self.after = scores
        if self.state.skipped_in_a_row:
            return False  # nothing is saved now, so a later one may be the best that is
        before, self.best_loss = self.best_loss, min(self.best_loss, point["masked_lm_loss"])
        return self.best_loss < before

    def _scores(self, num_layers: int | None = None) -> held_out.Evaluation:
        """Score the weights with so many layers, by default all."""
        model, ranks, most = self.state.model, self.ranks, self.settings.max_evaluation_examples
        precision, encoder = self.settings.precision, model.encoder
        encoder.num_layers = num_layers or encoder.settings.num_hidden_layers
        found = held_out.evaluate(model, self.held_out, most, self.pair_task, ranks, precision)
        if not all(math.isfinite(score.value) for score in found.values()):
            raise errors.TrainingError(
                f"the held-out scores after step {self.state.step:,} are not numbers: "
                f"{run_log.say_scores(found)}. The training has diverged: lower "
                "training.learning_rate or raise training.warmup_steps. training.continue_from "
                f"goes on from an older checkpoint in {self.writer.folder}, if there is one."
            )
        return found | held_out.evaluate_pairs(model, self.pairs, ranks)

    def _save(self) -> None:
        """Begin to write a checkpoint, on the first rank."""
        is_saved = self.saved_step == self.state.step
        self.saved_at, self.saved_step = time.monotonic(), self.state.step
        tensors = None if is_saved else self.state.tensors()
        if self.log is None:
            return
        record = {
            **self.state.numbers(),
            "before": {name: score.model_dump() for name, score in self.before.items()},
            "examples": self.plan.inputs["examples"],
            "vocab": self.plan.inputs["vocab"],
            PAIRS: self.plan.inputs.get(PAIRS),
            "settings": self.resolved,
            checkpoint.HELD_OUT_LOSS: self.after and self.after["masked_lm_loss"].value,
        }
        self.writer.save(tensors, record)

    def _save_and_leave(self) -> NoReturn:
        self._save()
        self._wait_for_checkpoint()
        self.stop.arrived = True  # the request may have reached another rank only
        raise command.RunAgain

    def say_that_it_stops(self) -> None:
        """Report the last step that is saved, if one is: none may be amid skipped updates."""
        if self.log:
            saved = "nothing is saved yet"
            if self.saved_step is not None:
                saved = f"step {self.saved_step:,} is done and saved in {self.writer.folder}"
            log.warning("%s: told to stop: %s; the same command goes on", PRETRAINING, saved)

    def _wait_for_checkpoint(self) -> None:
        """Wait on every rank: when one leaves, its launcher ends the others."""
        self.writer.wait()
        self.ranks.wait()

    def _is_due(self, *every: int) -> bool:
        step = self.state.step
        return step == self.settings.num_steps or any(step % each == 0 for each in every)


def initial_state(
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
    weights: AlbertForPretraining | None = None,
) -> TrainState:
    """Return the state of a run before its first update.

    Args:
        model: settings.
        settings: of the run; the random weights depend on their seed.
        examples: to train on.
        ranks: that train together.
        weights: the first ones, on the CPU; None for random ones.
    """
    torch.manual_seed(derive_seed(settings.seed, "initial-weights"))
    network = weights
    if network is None:
        network = AlbertForPretraining(model, examples.result.vocab_size)
        if settings.initial_weights == "counts" and ranks.is_first:
            cooccurrence.initialise_from_counts(network, examples)
    ranks.take_first(network.state_dict().values())
    network = ranks.place(network, settings)
    if settings.shard_state and ranks.world_size > 1:
        shard_state(network, ranks)
    optimizer = build_optimizer(
        network,
        settings.optimizer,
        settings.learning_rate,
        settings.weight_decay,
        settings.adam_learning_rate,
        settings.precision,
    )
    return TrainState(model=network, optimizer=optimizer)


def next_update(
    state: TrainState,
    batch: UpdateBatch,
    settings: TrainingSettings,
    ranks: Ranks,
    pair_task: str | None,
    ask: Callable[[], Asked] = Asked,
) -> Update:
    """Do the next update of a run, with the rate, layers and dropout that are its turn.

    See `train_step` for the arguments; here the batch may be on the CPU.

    Raises:
        UpdateStopped: a rank was told to stop amid the update; no rank made it.
    """
    step, num_steps = state.step, settings.num_steps
    peak, warmup = settings.learning_rate, settings.warmup_steps
    state.optimizer.set_rate(learning_rate_at(step, peak, warmup, num_steps, settings.schedule))
    encoder = state.model.encoder
    most = encoder.settings.num_hidden_layers
    encoder.num_layers = layers_at(step, num_steps, settings.shallow_share, most)
    ranks.seed(derive_seed(settings.seed, "dropout", step, ranks.rank))

    def micro_batches() -> Iterator[Batch]:
        for number, micro_batch in enumerate(batch.micro_batches):
            if number and ranks.total(ask().stop):
                raise UpdateStopped
            yield micro_batch.each(ranks.to_device)
            ranks.begin_pending()

    on_device = replace(batch, micro_batches=micro_batches())
    return train_step(state, on_device, settings, ranks, pair_task, ask)
