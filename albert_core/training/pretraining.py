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
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from albert_core import checkpoint
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.huggingface import save_model_folder
from albert_core.conversion.initial_weights import differences
from albert_core.model.albert import AlbertForPretraining, block_route
from albert_core.stage import command, errors, manifest, storage
from albert_core.stage.lineage import Result, read_work
from albert_core.stage.progress import report_progress
from albert_core.stage.results import PRETRAINING, Estimate, PretrainingResult
from albert_core.tasks.minimal_pairs import PAIRS, PairFiles
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer
from albert_core.training import cooccurrence, held_out, run_log
from albert_core.training.loader import Batch, ExampleShards, UpdateBatch, UpdateLoader
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.ranks import (
    Ranks,
    note_machine,
    noted_machines,
    ranks_of_environment,
    shard_state,
)
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
    under_way: list[Update] = field(default_factory=list, init=False)
    """Updates that the device was given and whose outcome is not known, in their order."""

    def __post_init__(
        self, continue_from: str | None, weights: AlbertForPretraining | None
    ) -> None:
        settings, ranks = self.settings, self.ranks
        if settings.batch_size < ranks.world_size:
            raise errors.ConfigError(
                f"training.batch_size is {settings.batch_size}, but there are {ranks.world_size} "
                "ranks: each needs an example of every batch. Raise it, or start fewer."
            )
        self.folder = self.plan.folder(self.work)
        self.resolved = {"model": self.model.model_dump(), "training": settings.model_dump()}
        uri = self.plan.input_manifests["examples"]
        self.examples, self.held_out = ExampleShards(uri, "train"), ExampleShards(uri, "held_out")
        shape = self.held_out.shape_for(ranks, 1)
        if shape and shape.length > self.model.max_position_embeddings:
            raise errors.ConfigError(
                f"a TPU gets examples padded to {shape.length} pieces, but model."
                f"max_position_embeddings is {self.model.max_position_embeddings}. Raise it, or "
                "lower examples.max_seq_length."
            )
        self.pair_task = PAIR_TASKS[self.examples.result.objective]
        given = () if weights is None else weights.parameters()
        memory_before = run_log.used_memory(ranks.device) - sum(
            weight.nbytes for weight in given if weight.device == ranks.device
        )
        folder = storage.join(self.folder, checkpoint.CHECKPOINTS)
        self.writer = checkpoint.CheckpointWriter(folder, settings.keep_checkpoints)
        self._begin(continue_from, weights)
        first_step = self.state.step
        plan = run_log.plan_of(self.model, settings, self.examples, ranks, first_step)
        if ranks.is_first:
            note_machine(self.folder, ranks.world_size, ranks.device)
            vocab_size, tracked = self.examples.result.vocab_size, self._track()
            self.log = run_log.RunLog(
                self.model, settings, vocab_size, ranks, plan, memory_before, tracked
            )
            self.log.say_plan(first_step)
            if first_step == 0:
                self.log.track_scores(0, self.before)
        best = checkpoint.best_checkpoint(folder)
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

    def _begin(self, continue_from: str | None, weights: AlbertForPretraining | None) -> None:
        """Make the state, and take over the newest one that there is.

        It is that of the run of the same updates which is furthest: this one, or one that is
        measured otherwise. Else it is that of the checkpoint ``continue_from``.
        """
        run, tensors, record = self._newest_of_same_updates()
        self._check_ranks_agree(record["step"])
        is_resumed = run is not None and run.manifest.key == self.plan.key
        first = self.settings
        if is_resumed or continue_from is not None:  # the first weights are replaced unused
            first = first.model_copy(update={"initial_weights": "random"})
        self.state = initial_state(self.model, first, self.examples, self.ranks, weights)
        if continue_from is not None and not is_resumed:
            _continue_run(self.state, continue_from, self.settings, self.plan.inputs)
        if is_resumed:
            self.before = {name: Estimate(**score) for name, score in record["before"].items()}
        else:
            self.before = self._scores()
        if self.ranks.is_first:
            said = run_log.say_scores(self.before)
            log.info("%s: held-out, before: %s", PRETRAINING, said)
        if run is None:
            return
        self.state.restore(tensors, record, _checkpoints_of(run))
        self.saved_step = self.state.step if is_resumed else None
        _keep_comparable(self.state, record, self.settings, self.plan.inputs)

    def _newest_of_same_updates(self) -> tuple[Result | None, dict[str, Any], dict[str, Any]]:
        """Return the run to go on from, and state and record of its newest good checkpoint."""
        for run in self._runs_of_same_updates():
            is_own = run.manifest.key == self.plan.key
            if found := checkpoint.load_newest(_checkpoints_of(run), is_own):
                return run, *found
        return None, {}, {"step": 0}

    def _runs_of_same_updates(self) -> list[Result]:
        """Return the runs with these updates, whatever they measure, furthest first.

        Those without a checkpoint are left out. One that other code began, or with dropout another
        cut, is not among them; if it is further than they are, it is named.
        """
        runs = read_work(self.work, stages=[PRETRAINING], begun=True).results.values()
        reached = [
            ((newest.rpartition("/")[2], run.manifest.key == self.plan.key), newest, run)
            for run in runs
            if _updates(run.manifest) == _updates(self.plan)
            for newest in checkpoint.list_checkpoints(_checkpoints_of(run))[-1:]
        ]
        reached.sort(key=lambda each: each[0], reverse=True)
        ours = [run for *_, run in reached if not _differences(run.manifest, self.plan)]
        if reached and reached[0][2] not in ours[:1] and self.ranks.is_first:
            _, newest, run = reached[0]
            log.warning(
                "%s: %s, of the same settings and inputs, was begun %s. "
                "training.continue_from = %s goes on from there; this run does not",
                PRETRAINING,
                run.place,
                " and ".join(_differences(run.manifest, self.plan)),
                newest,
            )
        return ours

    def _check_ranks_agree(self, step: int) -> None:
        """Refuse checkpoints of several steps, before the ranks do anything together by them."""
        steps = torch.tensor(step, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.sum(steps).item() != step * self.ranks.world_size:
            raise errors.TrainingError(
                f"rank {self.ranks.rank} finds step {step:,} in {self.folder}, and "
                "other ranks another. Give a work folder that all of them share."
            )

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
        """Report the last step that is saved."""
        if self.log:
            saved = self.state.step if self.saved_step is None else self.saved_step
            log.warning(
                "%s: told to stop: step %s is done and saved in %s; the same command goes on",
                PRETRAINING,
                f"{saved:,}",
                self.writer.folder,
            )

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


def _checkpoints_of(run: Result) -> str:
    return storage.join(run.folder, checkpoint.CHECKPOINTS)


def _updates(run: manifest.StagePlan | manifest.Manifest) -> list[Any]:
    """Return what the updates of a run depend on besides its code and its cut."""
    training = run.settings["training"]
    measured = {n: v for n, v in training.items() if n not in TrainingSettings.MEASURE}
    inputs = {name: digest for name, digest in run.inputs.items() if name != PAIRS}
    return [run.settings | {"training": measured, "cut": None}, inputs]


def _differences(run: manifest.Manifest, plan: manifest.StagePlan) -> list[str]:
    """Return how a run of the same updates was begun, as far as not like the planned one."""
    found = []
    if (run.code, run.libraries) != (plan.code, plan.libraries):
        found.append("by other code or libraries")
    then, now = run.settings.get("cut", {}), plan.settings.get("cut", {})
    if cut := [f"{n} {then.get(n)} (here {v})" for n, v in now.items() if then.get(n) != v]:
        found.append(f"with {', '.join(cut)}, on which dropout depends")
    return found


def _continue_run(
    state: TrainState, uri: str, settings: TrainingSettings, inputs: dict[str, str]
) -> None:
    """Take over weights, optimizer, step and place in the data from an earlier run.

    With other examples, the place in the data is their beginning. Everything else may be set anew:
    dropout, rates, batch, optimizer. The moments of Muon are no other optimizer's: they begin at 0.

    Args:
        state: changed in place.
        uri: of its checkpoint.
        settings: of this run.
        inputs: digests of this run's "examples", "vocab" and, if it has any, minimal pairs.

    Raises:
        ConfigError: the model has another shape, the steps are done already, the next would
            compute fewer layers, or the seed would change the order in mid-epoch.
        IntegrityError: the checkpoint is damaged, or does not fit the model.
        TrainingError: it was trained on other examples, or on pieces of another vocabulary.
    """
    tensors, record = checkpoint.load_checkpoint(uri)
    check_continued(uri, record, state.model.encoder.settings, settings)
    seed = record["settings"]["training"]["seed"]
    same_examples = record["examples"] == inputs["examples"]
    if record["vocab"] != inputs["vocab"]:
        raise errors.TrainingError(
            f"{uri} was trained with vocabulary {record['vocab'][:12]}, but these examples "
            f"were made with {inputs['vocab'][:12]}: the same piece would mean something else. "
            "Make the examples with the vocabulary of the run that is continued: with "
            "vocabulary.refresh = keep, or vocabulary.model = its spiece.model."
        )
    if not (same_examples or settings.accept_other_examples):
        raise errors.TrainingError(
            f"{uri} was trained on examples {record['examples'][:12]}, but these are "
            f"{inputs['examples'][:12]}. Give the same examples, or set "
            "training.accept_other_examples = true to begin these from their first."
        )
    if same_examples and seed != settings.seed:
        raise errors.ConfigError(
            f"{uri} has training.seed {seed}, this run {settings.seed}: the examples' order "
            "would change in mid-epoch, so that some would come twice. Give the same seed."
        )
    before, now = record["settings"]["training"]["optimizer"], settings.optimizer
    moments = tensors["optimizer"]["state"]
    # Muon numbers the weights in another order, which also depends on the matrices that it moves.
    if (before != now and "muon" in (before, now)) or not state.has_weights_like(moments):
        tensors["optimizer"]["state"] = {}
        log.info("%s does not continue the moments of %s: they begin at 0", now, before)
    state.restore(tensors, record, uri)
    state.unreported = []
    if not same_examples:
        state.examples_taken = state.examples_skipped = 0
    _keep_comparable(state, record, settings, inputs)
    place = f"example {state.examples_taken:,}" if same_examples else "with other examples"
    log.info("continuing from %s, step %s, %s", uri, f"{state.step:,}", place)


def check_continued(
    uri: str, record: dict[str, Any], model: ModelSettings, settings: TrainingSettings
) -> None:
    """Refuse a checkpoint that no run of these settings can go on from, whatever its examples.

    Args:
        uri: of the checkpoint.
        record: of the checkpoint.
        model: settings of the run that goes on.
        settings: of that run.

    Raises:
        ConfigError: the model has another shape, other blocks or fewer layers, the steps are done
            already, or the next would compute fewer layers.
        IntegrityError: it is no checkpoint of a pretraining.
    """
    if "settings" not in record:
        raise errors.IntegrityError(f"{uri} is no checkpoint of a pretraining.")
    if record["step"] >= settings.num_steps:
        raise errors.ConfigError(
            f"{uri} is at step {record['step']:,}, but training.num_steps, which counts "
            f"from the beginning, is {settings.num_steps:,}: there is nothing to do. Raise it."
        )
    before = ModelSettings.read(record["settings"]["model"], f"{uri}, settings of the run")
    names = model.OF_WEIGHTS
    loses_layers = before.num_hidden_layers > model.num_hidden_layers
    if loses_layers or _blocks(before) != _blocks(model):
        names |= {"sharing", "num_hidden_groups", "num_hidden_layers"}
    there, here = (
        {name: getattr(shape, name) for name in sorted(names)} for shape in (before, model)
    )
    if found := differences(there, here):
        raise errors.ConfigError(
            f"{uri} does not fit the model: {'; '.join(found)}. Give the model the shape of the "
            "run that is continued. training.initial_model takes over the weights alone, also for "
            "more layers or layers that share less."
        )
    _check_layers(model.num_hidden_layers, uri, record, settings)


def _blocks(model: ModelSettings) -> list[set[int]]:
    """Return the numbers of the attention blocks and of the feed-forward blocks."""
    return [set(numbers) for numbers in zip(*block_route(model), strict=True)]


def _keep_comparable(
    state: TrainState, record: dict[str, Any], settings: TrainingSettings, inputs: dict[str, str]
) -> None:
    """Drop the evaluations in a checkpoint's record that this run measures on other examples."""
    measured_on = record["settings"]["training"].get("max_evaluation_examples")
    same_number = measured_on == settings.max_evaluation_examples
    if not same_number or record["examples"] != inputs["examples"]:
        state.evaluations = []
    if record.get(PAIRS) != inputs.get(PAIRS):
        state.evaluations = [
            {n: v for n, v in point.items() if not n.startswith(held_out.PAIRS_ACCURACY)}
            for point in state.evaluations
        ]


def _check_layers(
    num_layers: int, uri: str, record: dict[str, Any], settings: TrainingSettings
) -> None:
    """Raise `ConfigError` if a run would compute fewer layers than the one that it continues.

    Args:
        num_layers: L.
        uri: of that run's checkpoint.
        record: of the checkpoint.
        settings: of this run.
    """
    step, before = record["step"], record["settings"]["training"]
    share, num_steps = before.get("shallow_share", 0.0), before["num_steps"]
    most = record["settings"]["model"]["num_hidden_layers"]
    then = layers_at(max(0, step - 1), num_steps, share, most)
    now = layers_at(step, settings.num_steps, settings.shallow_share, num_layers)
    if now < then:
        # Rounded down: layers are then added no later than there.
        as_there = math.floor(1e4 * share * num_steps / settings.num_steps) / 1e4
        raise errors.ConfigError(
            f"{uri} is at step {step:,} and computed {then} layers, but with training.num_steps "
            f"{settings.num_steps:,} and training.shallow_share {settings.shallow_share:g} the "
            f"next step would compute {now}. Give training.shallow_share = {as_there:g}: then "
            "layers come at the steps of that run."
        )
