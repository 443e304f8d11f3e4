"""Pretraining: masked LM and what is learned from pairs of segments, resumable to the bit.

What an update changes is in `TrainState`, and a checkpoint saves all of it. Which examples an
update sees, and its dropout, are pure functions of the seed and the counters there, so there is
nothing else to restore.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from albert_core.checkpoint import (
    CHECKPOINTS,
    HELD_OUT_LOSS,
    CheckpointWriter,
    best_checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
)
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.huggingface import save_model_folder
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import command, errors, storage
from albert_core.stage.lineage import PRETRAINING, Result, read_work
from albert_core.stage.log import report_progress
from albert_core.stage.manifest import (
    Account,
    Manifest,
    StagePlan,
    shard_of,
    shards_in,
)
from albert_core.stage.results import Estimate, PretrainingResult
from albert_core.tasks.minimal_pairs import PAIRS, PairFiles
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer
from albert_core.training import cooccurrence, run_log
from albert_core.training.held_out import (
    PAIRS_ACCURACY,
    Evaluation,
    PairSample,
    evaluate,
    evaluate_pairs,
    point_of,
    read_sample,
)
from albert_core.training.loader import Batch, ExampleShards, UpdateBatch, UpdateLoader
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.ranks import (
    Ranks,
    note_machine,
    noted_machines,
    ranks_of_environment,
    shard_state,
)
from albert_core.training.step import (
    PAIR_TASKS,
    Asked,
    TrainState,
    Update,
    layers_at,
    train_step,
)

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun


class UpdateStopped(Exception):  # noqa: N818  an order, not an error
    """A rank was told to stop: no rank goes on with the update, which changed nothing."""


MODEL_FOLDER, METRICS, CURVES = "model", "metrics.jsonl", "curves.png"

log = logging.getLogger(PRETRAINING)


def pretrain(
    plan: StagePlan,
    work: str,
    model: ModelSettings,
    training: TrainingSettings,
    vocabulary: Tokenizer,
    pair_files: PairFiles,
    checkpoint: str | None = None,
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
        checkpoint: URI of one to continue from; None to begin anew.
        weights: the first ones, on the CPU; None for random ones.

    Raises:
        ConfigError: the batch is smaller than the number of ranks, or ``checkpoint`` and the
            settings do not fit together.
        IntegrityError: a shard is not the one that was written.
        TaskError: a file of pairs is malformed.
        TrainingError: see `albert_core.training.pretrain.run`.
        RunAgain: SIGTERM came, or another rank is gone. No error: the process's exit.
    """
    devices = ranks_of_environment(training.precision, training.deterministic)
    with command.stop_request() as stop, devices as ranks:
        pairs = read_sample(pair_files, vocabulary, model.max_position_embeddings, ranks)
        with stop.ending_at_once():
            pretraining = Pretraining(
                plan, work, model, training, pairs, ranks, stop, checkpoint, weights
            )
        with pretraining.log.tracked if pretraining.log else nullcontext():
            pretraining.train()
            pretraining.finish(vocabulary)


class Pretraining:
    """One run of pretraining in its folder; every rank has one."""

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        model: ModelSettings,
        settings: TrainingSettings,
        pairs: PairSample,
        ranks: Ranks,
        stop: command.StopRequest,
        checkpoint: str | None,
        weights: AlbertForPretraining | None,
    ) -> None:
        if settings.batch_size < ranks.world_size:
            raise errors.ConfigError(
                f"training.batch_size is {settings.batch_size}, but there are {ranks.world_size} "
                "ranks: each needs an example of every batch. Raise it, or start fewer."
            )
        self.plan, self.work, self.settings = plan, work, settings
        self.pairs = pairs
        self.ranks, self.stop = ranks, stop
        self.folder = plan.folder(work)
        self.resolved = {"model": model.model_dump(), "training": settings.model_dump()}
        examples = plan.input_manifests["examples"]
        self.examples = ExampleShards(examples, "train")
        self.held_out = ExampleShards(examples, "held_out")
        self.pair_task = PAIR_TASKS[self.examples.result.objective]
        given = () if weights is None else weights.parameters()
        memory_before = run_log.used_memory(ranks.device) - sum(
            weight.nbytes for weight in given if weight.device == ranks.device
        )
        self.state = initial_state(model, settings, self.examples, ranks, weights)
        self.writer = CheckpointWriter(
            storage.join(self.folder, CHECKPOINTS), settings.keep_checkpoints
        )
        self._begin(checkpoint)
        self._check_ranks_agree()
        expected = run_log.expected_speed(model, settings, self.examples, ranks, self.state.step)
        self.log: run_log.RunLog | None = None
        """Only on the first rank, which alone reports and writes."""
        if ranks.is_first:
            note_machine(self.folder, ranks.world_size, ranks.device)
            vocab_size, tracked = self.examples.result.vocab_size, self._track()
            self.log = run_log.RunLog(
                model, settings, vocab_size, ranks, expected, memory_before, tracked
            )
            self.log.say_plan(self.state.step)
        best = best_checkpoint(self.writer.folder)
        self.best_loss = math.inf if best is None else best[0]
        self.after: Evaluation | None = None
        """The scores of the present weights; None if they are not known."""
        self.evaluated_at = self.saved_at = time.monotonic()
        self.saved_step: int | None = None

    def train(self) -> None:
        """Do the updates that are left; report, evaluate and save when it is due.

        Raises:
            RunAgain: a rank was told to stop; what was done is in a checkpoint.
            TrainingError: too many updates in a row were skipped, or a checkpoint not written.
        """
        self.state.model.train()
        loader = UpdateLoader(
            self.examples,
            self.settings,
            self.ranks,
            first_example=self.state.examples_taken,
            num_updates=self.settings.num_steps - self.state.step,
        )
        if self._is_evaluation_missing():
            self._evaluate_and_save(Asked(evaluation=True))
        with loader:
            for batch in loader:
                update = self._update(batch)
                if self.log:
                    self.log.add(self.state, batch.sizes, update, loader.waited_seconds)
                    report_progress(self.state.step, self.settings.num_steps, "steps")
                if update.skipped:
                    self._note_skipped(update)
                if self.log and self._is_due(self.settings.log_steps):
                    self.log.report(self.state)
                self._evaluate_and_save(update.asked)

    def finish(self, vocabulary: Tokenizer) -> None:
        """Evaluate the trained model on every rank; write it, and the run's manifest, on one."""
        with self._ending_at_once():
            after = self.after or self._scores()
        model = self.state.whole_model()
        self.writer.wait()
        if self.log is None:
            return
        self.log.summarise(self.state, after, self.writer.seconds)
        save_model_folder(model, vocabulary, storage.join(self.folder, MODEL_FOLDER))
        state, examples = self.state, self.examples.result
        metrics = storage.join(self.folder, METRICS)
        storage.write_bytes(metrics, "".join(map(_metrics_line, state.history)).encode())
        curves = run_log.draw_curves(state.history, state.evaluations, examples, self.pair_task)
        storage.write_bytes(storage.join(self.folder, CURVES), curves)
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
        trained_on = Account(
            what="examples trained on",
            total=state.examples_taken,
            kept=state.examples_taken - state.examples_skipped,
            dropped={"skipped_update": state.examples_skipped},
        )
        accounts = [trained_on, *([self.pairs.account] if self.pairs.account.total else [])]
        shards = [
            *shards_in(self.folder, MODEL_FOLDER),
            shard_of(metrics, self.folder, "metrics", 1),
        ]
        manifest = self.plan.write(self.work, shards, accounts, result)
        checkpoints = list_checkpoints(self.writer.folder)
        self.log.track_result(manifest, storage.join(self.folder, CURVES), checkpoints)

    def _begin(self, checkpoint: str | None) -> None:
        """Take over the newest state that there is.

        It is that of the run of the same updates which is furthest: this one, or one that is
        measured otherwise. Else it is that of ``checkpoint``.
        """
        content, found = self.examples.manifest.content, None
        for run in self._runs_of_same_updates():
            if found := load_newest(_checkpoints_of(run), content):
                break
        is_resumed = found is not None and run.manifest.key == self.plan.key
        if checkpoint is not None and not is_resumed:
            _continue_run(self.state, checkpoint, self.settings, self.plan.inputs)
        self.before = self._scores_before(found[1] if found and is_resumed else None)
        if found is None:
            return
        self.state.restore(*found, _checkpoints_of(run))
        if run.manifest.inputs.get(PAIRS) != self.plan.inputs.get(PAIRS):
            self.state.evaluations = [_without_pairs(point) for point in self.state.evaluations]

    def _runs_of_same_updates(self) -> list[Result]:
        """Return the runs with these updates, whatever they measure, furthest first.

        Those without a checkpoint are left out. One that other code began is not among them; if it
        is further than they are, it is named.
        """
        runs = read_work(self.work, stages=[PRETRAINING], begun=True).results.values()
        reached = [
            ((newest.rpartition("/")[2], run.manifest.key == self.plan.key), newest, run)
            for run in runs
            if _updates(run.manifest) == _updates(self.plan)
            for newest in list_checkpoints(_checkpoints_of(run))[-1:]
        ]
        reached.sort(key=lambda each: each[0], reverse=True)
        ours = [each for each in reached if _code(each[2].manifest) == _code(self.plan)]
        if reached[:1] != ours[:1] and self.ranks.is_first:
            _, newest, run = reached[0]
            log.warning(
                "%s: %s, of the same settings and inputs, was begun by other code or libraries. "
                "training.continue_from = %s goes on from there; this run does not",
                PRETRAINING,
                run.place,
                newest,
            )
        return [run for *_, run in ours]

    def _check_ranks_agree(self) -> None:
        steps = torch.tensor(self.state.step, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.sum(steps).item() != self.state.step * self.ranks.world_size:
            raise errors.TrainingError(
                f"rank {self.ranks.rank} finds step {self.state.step:,} in {self.folder}, and "
                "other ranks another. Give a work folder that all of them share."
            )

    def _track(self) -> "TrackedRun":
        from albert_core.tracking.run import TrackedRun  # a second of MLflow, for one rank only

        run = TrackedRun(self.work, self.folder, PRETRAINING)
        run.log_params(self.resolved)
        manifest = self.plan.input_manifests["examples"]
        for part in ("train", "held_out"):
            run.log_dataset(f"examples/{part}", self.plan.inputs["examples"], manifest, part)
        return run

    def _update(self, batch: UpdateBatch) -> Update:
        try:
            update = next_update(
                self.state, batch, self.settings, self.ranks, self.pair_task, self._ask
            )
        except UpdateStopped:
            self._save_and_leave()
        self.after = None
        return update

    def _ask(self) -> Asked:
        """Return what this rank asks for; only the first one's clock counts."""
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
                f"{in_a_row} updates in a row were skipped by step {self.state.step:,}, "
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

    def _is_evaluation_missing(self) -> bool:
        """Return whether the run was told to stop before the evaluation after its last update."""
        last = max((point["step"] for point in self.state.evaluations), default=0)
        return self.state.step > last and self._is_due(self.settings.evaluation_steps)

    def _evaluate(self) -> bool:
        """Score the present weights; return whether they are the best so far."""
        with self.log.not_training() if self.log else nullcontext(), self._ending_at_once():
            self.after = self._scores()
        point = point_of(self.after)
        self.state.evaluations.append({"step": self.state.step, **point})
        if self.log:
            self.log.note_scores(self.state.step, self.after)
        self.evaluated_at = time.monotonic()
        before, self.best_loss = self.best_loss, min(self.best_loss, point["masked_lm_loss"])
        return self.best_loss < before

    def _scores(self) -> Evaluation:
        model, settings = self.state.model, self.settings
        most, precision = settings.max_evaluation_examples, settings.precision
        found = evaluate(model, self.held_out, most, self.pair_task, self.ranks, precision)
        return found | evaluate_pairs(model, self.pairs, self.ranks)

    def _scores_before(self, record: dict[str, Any] | None) -> Evaluation:
        """Return the scores before the first update; a resumed run has them in its checkpoint."""
        known = record and {name: Estimate(**score) for name, score in record["before"].items()}
        scores = known or self._scores()
        if self.ranks.is_first:
            log.info("%s: held-out, before: %s", PRETRAINING, run_log.say_scores(scores))
        return scores

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
            "settings": self.resolved,
            HELD_OUT_LOSS: None if self.after is None else self.after["masked_lm_loss"].value,
        }
        self.writer.save(tensors, record)

    @contextmanager
    def _ending_at_once(self) -> Iterator[None]:
        """Leave when SIGTERM comes in the block, before which the state was saved."""
        try:
            with self.stop.ending_at_once():
                yield
        except command.RunAgain:
            self.writer.wait()
            if self.stop.arrived:
                self._say_that_it_stops()
            raise

    def _save_and_leave(self) -> NoReturn:
        self._save()
        self._wait_for_checkpoint()
        self._say_that_it_stops()
        raise command.RunAgain

    def _say_that_it_stops(self) -> None:
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

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.settings.num_steps


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
    step, num_steps, encoder = state.step, settings.num_steps, state.model.encoder
    peak, warmup = settings.learning_rate, settings.warmup_steps
    state.optimizer.set_rate(learning_rate_at(step, peak, warmup, num_steps, settings.schedule))
    encoder.num_layers = layers_at(
        step, num_steps, settings.shallow_share, encoder.settings.num_hidden_layers
    )
    ranks.seed(derive_seed(settings.seed, "dropout", step, ranks.rank))

    def micro_batches() -> Iterator[Batch]:
        for number, micro_batch in enumerate(batch.micro_batches):
            if number and ranks.any_rank(ask().stop):
                raise UpdateStopped
            yield micro_batch.each(ranks.to_device)
            ranks.begin_pending()

    on_device = replace(batch, micro_batches=micro_batches())
    return train_step(state, on_device, settings, ranks, pair_task, ask)


def _metrics_line(point: dict[str, float]) -> str:
    return (
        json.dumps({n: value for n, value in point.items() if n not in run_log.OF_THE_MACHINE})
        + "\n"
    )


def _checkpoints_of(run: Result) -> str:
    return storage.join(run.folder, CHECKPOINTS)


def _code(run: StagePlan | Manifest) -> list[Any]:
    return [run.code, run.libraries]


def _updates(run: StagePlan | Manifest) -> list[Any]:
    """Return what the updates of a run depend on besides its code."""
    training = run.settings["training"]
    measured = {n: v for n, v in training.items() if n not in TrainingSettings.MEASURE}
    inputs = {name: digest for name, digest in run.inputs.items() if name != PAIRS}
    return [run.settings | {"training": measured}, inputs]


def _without_pairs(point: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in point.items() if not name.startswith(PAIRS_ACCURACY)}


def _continue_run(
    state: TrainState, checkpoint: str, settings: TrainingSettings, inputs: dict[str, str]
) -> None:
    """Take over weights, optimizer, step and place in the data from an earlier run.

    With other examples, the place in the data is their beginning. Everything else may be set anew:
    dropout, rates, batch, optimizer.

    Args:
        state: changed in place.
        checkpoint: its URI.
        settings: of this run.
        inputs: digests of this run's "examples" and "vocab".

    Raises:
        ConfigError: the steps are done already, or the seed would change the order in mid-epoch.
        IntegrityError: the checkpoint is damaged, or does not fit the model.
        TrainingError: it was trained on other examples, or on pieces of another vocabulary.
    """
    tensors, record = load_checkpoint(checkpoint)
    if "settings" not in record:
        raise errors.IntegrityError(f"{checkpoint} is no checkpoint of a pretraining.")
    seed = record["settings"]["training"]["seed"]
    same_examples = record["examples"] == inputs["examples"]
    if record["vocab"] != inputs["vocab"]:
        raise errors.TrainingError(
            f"{checkpoint} was trained with vocabulary {record['vocab'][:12]}, but these examples "
            f"were made with {inputs['vocab'][:12]}: the same piece would mean something else. "
            "Make the examples with the vocabulary of the run that is continued: with "
            "vocabulary.refresh = keep, or vocabulary.model = its spiece.model."
        )
    if not (same_examples or settings.accept_other_examples):
        raise errors.TrainingError(
            f"{checkpoint} was trained on examples {record['examples'][:12]}, but these are "
            f"{inputs['examples'][:12]}. Give the same examples, or set "
            "training.accept_other_examples = true to begin these from their first."
        )
    if record["step"] >= settings.num_steps:
        raise errors.ConfigError(
            f"{checkpoint} is at step {record['step']:,}, but training.num_steps, which counts "
            f"from the beginning, is {settings.num_steps:,}: there is nothing to do. Raise it."
        )
    if same_examples and seed != settings.seed:
        raise errors.ConfigError(
            f"{checkpoint} has training.seed {seed}, this run {settings.seed}: the examples' order "
            "would change in mid-epoch, so that some would come twice. Give the same seed."
        )
    state.restore(tensors, record, checkpoint)
    state.unreported = []
    if not same_examples:
        state.examples_taken = state.examples_skipped = 0
        state.evaluations = []
    log.info(
        "continuing from %s, step %s, %s",
        checkpoint,
        f"{state.step:,}",
        f"example {state.examples_taken:,}" if same_examples else "with other examples",
    )
