"""Pretraining: masked LM and sentence order, resumable to the bit.

What a step changes is in `TrainState`, and a checkpoint saves all of it. Which examples a step
sees, and its dropout, are pure functions of the seed and the step, so there is nothing else to
restore. Start several ranks with ``torchrun --nproc-per-node N -m albert_core.training ...``.
"""

import json
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albert_core.checkpoint import load_newest, save_checkpoint
from albert_core.config import ModelSettings, TrainingSettings
from albert_core.contract import storage
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import ConfigError, TrainingError
from albert_core.contract.manifest import (
    MANIFEST,
    Account,
    Manifest,
    Shard,
    StagePlan,
    read_manifest,
    shard_of,
)
from albert_core.contract.seeds import derive_seed
from albert_core.contract.stage_command import stage_main
from albert_core.contract.tokenizer import Tokenizer
from albert_core.conversion import save_model_folder
from albert_core.curves import draw_curves
from albert_core.data import Batch, ExampleShards, example_order
from albert_core.distributed import Ranks, joined_ranks
from albert_core.evaluation import Evaluation, evaluate
from albert_core.losses import masked_lm_loss, sentence_order_loss
from albert_core.metrics import Estimate
from albert_core.model import AlbertForPretraining
from albert_core.optimizer import build_optimizer, learning_rate_at
from albert_core.tracking import TrackedRun, tracked_run

STAGE = "pretraining"
CHECKPOINTS, MODEL_FOLDER, METRICS, CURVES = "checkpoints", "model", "metrics.jsonl", "curves.png"

log = logging.getLogger(STAGE)


def run(model: ModelSettings, training: TrainingSettings, examples: str, work: str) -> str:
    """Pretrain a model on the examples; return the manifest with its folder and scores.

    A run that was killed goes on from its newest checkpoint.

    Raises:
        ConfigError: the examples are longer than the model's positions.
        IntegrityError: a shard is not the one that was written.
        TrainingError: the loss is not finite.
    """
    manifest = read_manifest(examples)
    plan = StagePlan(
        stage=STAGE,
        settings={"model": model.model_dump(), "training": training.model_dump()},
        inputs={"examples": manifest.content, "vocab": manifest.inputs["vocab"]},
        code=code_digest(__name__),
        libraries=library_versions("torch"),
        input_manifests={"examples": examples, "vocab": manifest.facts["vocab_manifest"]},
    )
    if done := plan.find(work):
        return done
    if manifest.facts["max_seq_length"] > model.max_position_embeddings:
        raise ConfigError(
            f"examples have up to {manifest.facts['max_seq_length']} pieces, but "
            f"model.max_position_embeddings is {model.max_position_embeddings}. Raise it, or "
            "lower examples.max_seq_length."
        )
    with joined_ranks() as ranks:
        pretraining = Pretraining(plan, work, model, training, examples, ranks)
        pretraining.train()
        if ranks.is_first:
            pretraining.finish()
    return storage.join(plan.folder(work), MANIFEST)


@dataclass(kw_only=True)
class TrainState:
    """Everything that a step changes, so everything that a checkpoint saves."""

    model: AlbertForPretraining
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Updates done."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One point for each progress line."""


class Pretraining:
    """One run of pretraining in its folder."""

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        model: ModelSettings,
        settings: TrainingSettings,
        examples: str,
        ranks: Ranks,
    ) -> None:
        self.plan, self.work, self.settings, self.ranks = plan, work, settings, ranks
        self.folder = plan.folder(work)
        self.train_examples = ExampleShards(examples, "train")
        self.held_out_examples = ExampleShards(examples, "held_out")
        self.facts: dict[str, Any] = self.train_examples.manifest.facts
        torch.manual_seed(derive_seed(settings.seed, "initial-weights"))
        network = AlbertForPretraining(model, self.facts["vocab_size"]).to(ranks.device)
        optimizer = build_optimizer(
            network, settings.optimizer, settings.learning_rate, settings.weight_decay
        )
        self.state = TrainState(model=network, optimizer=optimizer)
        self._resume()
        self.tracked: TrackedRun | None = self._track() if ranks.is_first else None
        self.before = self._evaluate_untrained() if ranks.is_first else {}

    def train(self) -> None:
        """Do the updates that are left, with a progress line and a checkpoint now and then."""
        window = _Window(self.state.step, self.settings.num_steps)
        self.state.model.train()
        while self.state.step < self.settings.num_steps:
            micro_batches = window.time_data(lambda: self._micro_batches(self.state.step))
            torch.manual_seed(
                derive_seed(self.settings.seed, "dropout", self.state.step, self.ranks.rank)
            )
            learning_rate = self._set_learning_rate()
            metrics = train_step(self.state, micro_batches, self.settings, self.ranks)
            window.add(metrics, sum(batch.num_pieces for batch in micro_batches))
            if self.state.step % self.settings.log_steps == 0 or self._is_last():
                self._report(window, learning_rate)
                window = _Window(self.state.step, self.settings.num_steps)
            if self.state.step % self.settings.checkpoint_steps == 0 or self._is_last():
                self._save()

    def finish(self) -> None:
        """Evaluate and write the trained model, and the run's manifest."""
        after = evaluate(
            self.state.model, self.held_out_examples, self.settings.max_evaluation_examples
        )
        log.info("%s: held-out, after: %s", STAGE, _say(after))
        vocab = self.plan.input_manifests["vocab"]
        lower_case = read_manifest(vocab).facts["lower_case"]
        tokenizer = Tokenizer.load(vocab.rpartition("/")[0], lower_case)
        model_folder = storage.join(self.folder, MODEL_FOLDER)
        save_model_folder(self.state.model, tokenizer, model_folder)
        lines = "".join(json.dumps(_without_speed(point)) + "\n" for point in self.state.history)
        storage.write_bytes(storage.join(self.folder, METRICS), lines.encode())
        curves = draw_curves(self.state.history, self.facts["unigram_nats"])
        storage.write_bytes(storage.join(self.folder, CURVES), curves)
        assert self.tracked is not None
        self.tracked.log_metrics(
            self.state.step, {f"held_out/{name}": score.value for name, score in after.items()}
        )
        uri = self.plan.write(
            self.work, self._shards(), [self._examples_account()], self._manifest_facts(after)
        )
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(storage.join(self.folder, CURVES))
        self.tracked.finish("FINISHED")

    def _resume(self) -> None:
        folder = storage.join(self.folder, CHECKPOINTS)
        found = load_newest(folder, self.train_examples.manifest.content)
        if found is None:
            return
        state, record = found
        self.state.model.load_state_dict(state["model"])
        self.state.optimizer.load_state_dict(state["optimizer"])
        self.state.step, self.state.history = record["step"], record["history"]

    def _save(self) -> None:
        if self.ranks.is_first:
            state = {
                "model": self.state.model.state_dict(),
                "optimizer": self.state.optimizer.state_dict(),
            }
            record = {
                "examples": self.train_examples.manifest.content,
                "examples_seen": self.state.step * self.settings.batch_size,
                "history": self.state.history,
                "settings": self.plan.settings,
            }
            folder = storage.join(self.folder, CHECKPOINTS)
            save_checkpoint(folder, self.state.step, state, record, self.settings.keep_checkpoints)
        self.ranks.wait()

    def _track(self) -> TrackedRun:
        run = tracked_run(self.work, self.folder, f"pretraining-{self.plan.key}")
        run.log_params(self.plan.settings)
        manifest: Manifest = self.train_examples.manifest
        run.log_dataset("examples", manifest.content, self.plan.input_manifests["examples"])
        return run

    def _evaluate_untrained(self) -> Evaluation:
        """Return the scores before the first update; a resumed run reads what the first wrote."""
        uri = storage.join(self.folder, "before.json")
        if not storage.exists(uri):
            scores = evaluate(
                self.state.model, self.held_out_examples, self.settings.max_evaluation_examples
            )
            content = {name: score.model_dump() for name, score in scores.items()}
            storage.write_bytes(uri, json.dumps(content).encode())
        content = json.loads(storage.read_bytes(uri))
        before = {name: Estimate(**score) for name, score in content.items()}
        log.info("%s: held-out, before: %s", STAGE, _say(before))
        return before

    def _micro_batches(self, step: int) -> list[Batch]:
        """Return this rank's part of the batch of update ``step``."""
        size = self.settings.batch_size
        order = example_order(
            step * size, size, len(self.train_examples), derive_seed(self.settings.seed, "order")
        )
        mine = np.array_split(order, self.ranks.world_size)[self.ranks.rank]
        cuts = range(self.settings.micro_batch_size, len(mine), self.settings.micro_batch_size)
        return [
            self.train_examples.batch(part).to(self.ranks.device)
            for part in np.split(mine, list(cuts))
        ]

    def _set_learning_rate(self) -> float:
        rate = learning_rate_at(
            self.state.step,
            self.settings.learning_rate,
            self.settings.warmup_steps,
            self.settings.num_steps,
        )
        for group in self.state.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _report(self, window: "_Window", learning_rate: float) -> None:
        metrics = window.means(self.ranks) | {"learning_rate": learning_rate}
        if not np.isfinite(list(metrics.values())).all():
            raise TrainingError(
                f"the loss is not finite by step {self.state.step}: {metrics}. Lower "
                "training.learning_rate or raise training.warmup_steps; the last checkpoint "
                f"below {self.folder} is good."
            )
        if self.tracked is not None:
            self.state.history.append({"step": self.state.step, **metrics})
            self.tracked.log_metrics(self.state.step, metrics)
            log.info("%s: %s", STAGE, window.line(self.state.step, metrics))

    def _is_last(self) -> bool:
        return self.state.step == self.settings.num_steps

    def _shards(self) -> list[Shard]:
        model_folder = storage.join(self.folder, MODEL_FOLDER)
        names = storage.list_names(model_folder)
        files = {storage.join(model_folder, name): MODEL_FOLDER for name in names}
        files[storage.join(self.folder, METRICS)] = "metrics"
        return [shard_of(uri, self.folder, kind, 1) for uri, kind in files.items()]

    def _examples_account(self) -> Account:
        seen = self.settings.num_steps * self.settings.batch_size
        return Account(what="examples trained on", total=seen, kept=seen)

    def _manifest_facts(self, after: Evaluation) -> dict[str, Any]:
        assert self.tracked is not None
        return {
            "step": self.state.step,
            "model_folder": MODEL_FOLDER,
            "num_parameters": sum(p.numel() for p in self.state.model.parameters()),
            "before": {name: score.model_dump() for name, score in self.before.items()},
            "after": {name: score.model_dump() for name, score in after.items()},
            "unigram_nats": self.facts["unigram_nats"],
            "mlflow_run_id": self.tracked.run_id,
        }


def train_step(
    state: TrainState, micro_batches: Sequence[Batch], settings: TrainingSettings, ranks: Ranks
) -> dict[str, Tensor]:
    """Do one update over ``micro_batches`` of every rank; return the means of what it saw.

    How the batch was cut into micro-batches and ranks does not change the update, up to rounding.

    Returns:
        masked_lm_loss, sentence_order_loss, sentence_order_accuracy and grad_norm (before
        clipping), float32 scalars on the device, over this rank's part of the batch; they sum
        over ranks, but for grad_norm.
    """
    counts = torch.stack(
        [
            torch.stack([b.masked_lm_weights.sum() for b in micro_batches]).sum(),
            torch.tensor(float(sum(len(b.input_ids) for b in micro_batches)), device=ranks.device),
        ]
    )
    num_predictions, num_sequences = ranks.sum(counts).clamp(min=1)
    seen = torch.zeros(3, device=ranks.device)
    for batch in micro_batches:
        with _autocast(settings, ranks.device):
            lm_logits, order_logits = state.model(
                batch.input_ids,
                batch.attention_mask,
                batch.token_type_ids,
                batch.masked_lm_positions,
            )  # (B, P, V), (B, 2)
        lm = masked_lm_loss(
            lm_logits, batch.masked_lm_labels, batch.masked_lm_weights, num_predictions
        )
        order = sentence_order_loss(order_logits, batch.sentence_order_labels, num_sequences)
        (lm + order).backward()
        right = (order_logits.argmax(-1) == batch.sentence_order_labels).sum() / num_sequences
        seen += torch.stack([lm, order, right]).detach()
    ranks.sum_gradients(state.model)
    grad_norm = nn.utils.clip_grad_norm_(state.model.parameters(), settings.max_grad_norm)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return {
        "masked_lm_loss": seen[0],
        "sentence_order_loss": seen[1],
        "sentence_order_accuracy": seen[2],
        "grad_norm": grad_norm,
    }


def _autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[Any]:
    if settings.precision == "float32":
        return nullcontext()
    # Without the cache each use of a shared weight has its own cast, so that autograd sums the
    # uses' gradients in float32.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class _Window:
    """What happened between two progress lines; waits for the device only at the line."""

    def __init__(self, step: int, num_steps: int) -> None:
        self.first_step, self.num_steps = step, num_steps
        self.began = time.perf_counter()
        self.waited = 0.0
        self.num_pieces = 0
        self.metrics: list[dict[str, Tensor]] = []

    def time_data(self, load: Any) -> list[Batch]:
        """Return what ``load`` gives, counting the time it takes as waiting for data."""
        began = time.perf_counter()
        batches: list[Batch] = load()
        self.waited += time.perf_counter() - began
        return batches

    def add(self, metrics: dict[str, Tensor], num_pieces: int) -> None:
        """Add one step."""
        self.metrics.append(metrics)
        self.num_pieces += num_pieces

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Return the means over the window's steps and all ranks, and the speed."""
        means = {}
        for name in self.metrics[0]:
            values = torch.stack([metrics[name] for metrics in self.metrics])
            means[name] = float((values if name == "grad_norm" else ranks.sum(values)).mean())
        seconds = time.perf_counter() - self.began
        means["pieces_per_second"] = self.num_pieces * ranks.world_size / seconds
        means["data_wait_share"] = self.waited / seconds
        return means

    def line(self, step: int, metrics: dict[str, float]) -> str:
        """Return the progress line at ``step``."""
        seconds = (time.perf_counter() - self.began) / (step - self.first_step)
        left = int(seconds * (self.num_steps - step))
        return (
            f"step {step:,}/{self.num_steps:,}  masked LM {metrics['masked_lm_loss']:.3f}  "
            f"order {metrics['sentence_order_loss']:.3f} "
            f"({metrics['sentence_order_accuracy']:.0%} right)  "
            f"lr {metrics['learning_rate']:.2e}  {metrics['pieces_per_second']:,.0f} pieces/s  "
            f"data wait {metrics['data_wait_share']:.0%}  {left // 60:d}:{left % 60:02d} left"
        )


def _without_speed(point: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in point.items() if k not in ("pieces_per_second", "data_wait_share")}


def _say(scores: Evaluation) -> str:
    return ", ".join(
        f"{name} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
        for name, score in scores.items()
    )


if __name__ == "__main__":
    stage_main(run)
