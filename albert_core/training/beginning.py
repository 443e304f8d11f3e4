"""Where a run begins: at a checkpoint of the same updates, or of a run that is continued."""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from albert_core import checkpoint
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.initial_weights import differences
from albert_core.model.albert import block_route
from albert_core.stage import errors, manifest, storage
from albert_core.stage.lineage import Result, read_work
from albert_core.stage.results import PRETRAINING, Estimate
from albert_core.tasks.minimal_pairs import PAIRS
from albert_core.training import held_out
from albert_core.training.ranks import Ranks
from albert_core.training.step import TrainState, layers_at

log = logging.getLogger(PRETRAINING)


@dataclass(frozen=True)
class Beginning:
    """A checkpoint from which a run goes on as if it had made these updates itself."""

    folder: str
    """URI of the folder of checkpoints that it is in."""
    is_own: bool
    """Whether the run made it; else a run that is measured otherwise did."""
    tensors: dict[str, Any]
    record: dict[str, Any]

    @property
    def before(self) -> held_out.Evaluation:
        """The scores that its run had before the first update."""
        return {name: Estimate(**score) for name, score in self.record["before"].items()}

    def restore(
        self, state: TrainState, settings: TrainingSettings, inputs: dict[str, str]
    ) -> None:
        """Take it over, without the evaluations that this run makes on other examples.

        Args:
            state: changed in place.
            settings: of this run.
            inputs: as for `continue_run`.

        Raises:
            IntegrityError: it does not fit the model.
        """
        state.restore(self.tensors, self.record, self.folder)
        _keep_comparable(state, self.record, settings, inputs)


def find_beginning(plan: manifest.StagePlan, work: str, ranks: Ranks) -> Beginning | None:
    """Return the newest good checkpoint of the same updates; None if there is none.

    It is of the run that is furthest: this one, or one that is measured otherwise. One that other
    code began, or with dropout another cut, does not count; if it is further, the first rank names
    it. Every rank must call this.

    Args:
        plan: of the run.
        work: folder for all results.
        ranks: that train together.

    Raises:
        IntegrityError: the run has checkpoints, but all of them are damaged.
        TrainingError: other ranks found a checkpoint of another step.
        RunAgain: another rank is gone.
    """
    reached = _runs_of_same_updates(plan, work)
    if reached and ranks.is_first:
        _name_if_other(*reached[0], plan)
    ours = (run for _, run in reached if not _differences(run.manifest, plan))
    found = next(_good_checkpoints(ours, plan), None)
    _check_ranks_agree(found.record["step"] if found else 0, plan.folder(work), ranks)
    return found


def _runs_of_same_updates(plan: manifest.StagePlan, work: str) -> list[tuple[str, Result]]:
    """Return the runs with these updates, each behind its newest checkpoint, furthest first."""
    reached = [
        (newest, run)
        for run in read_work(work, stages=[PRETRAINING], begun=True).of_stage(PRETRAINING)
        if _updates(run.manifest) == _updates(plan)
        for newest in checkpoint.list_checkpoints(_checkpoints_of(run))[-1:]
    ]

    def place(each: tuple[str, Result]) -> tuple[str, bool]:
        newest, run = each
        return newest.rpartition("/")[2], run.manifest.key == plan.key

    return sorted(reached, key=place, reverse=True)


def _name_if_other(newest: str, run: Result, plan: manifest.StagePlan) -> None:
    """Say how to go on from a run of the same updates that was begun otherwise."""
    if found := _differences(run.manifest, plan):
        log.warning(
            "%s: %s, of the same settings and inputs, was begun %s. "
            "training.continue_from = %s goes on from there; this run does not",
            PRETRAINING,
            run.place,
            " and ".join(found),
            newest,
        )


def _good_checkpoints(runs: Iterable[Result], plan: manifest.StagePlan) -> Iterator[Beginning]:
    """Give the newest good checkpoint of each run that has one."""
    for run in runs:
        folder, is_own = _checkpoints_of(run), run.manifest.key == plan.key
        if found := checkpoint.load_newest(folder, is_own):
            yield Beginning(folder, is_own, *found)


def _check_ranks_agree(step: int, folder: str, ranks: Ranks) -> None:
    """Refuse checkpoints of several steps, before the ranks do anything together by them."""
    steps = torch.tensor(step, dtype=torch.float64, device=ranks.device)
    if ranks.sum(steps).item() != step * ranks.world_size:
        raise errors.TrainingError(
            f"rank {ranks.rank} finds step {step:,} in {folder}, and "
            "other ranks another. Give a work folder that all of them share."
        )


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


def continue_run(
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
