"""Fine-tuning on a downstream task: a classification head on the pooled [CLS], and its scores.

The score is the best of all evaluations on dev, chosen on that same dev set. That is the paper's
practice (its "early stopping", REFERENCE.md D.1), so that numbers can be compared with it; it is
a little above what fresh data would give, and the interval does not know of the choice.

Which examples an update sees, and its dropout, are pure functions of the seed and the step.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import FinetuningSettings
from albert_core.contract import storage
from albert_core.contract.arrow_files import write_arrow
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import ConfigError, IntegrityError, TrainingError
from albert_core.contract.manifest import MANIFEST, Account, StagePlan, digest_of, shard_of
from albert_core.contract.records import CLS, PAD, SEP
from albert_core.contract.seeds import derive_seed, random_bits
from albert_core.contract.stage_command import stage_main
from albert_core.contract.tokenizer import Tokenizer
from albert_core.conversion import load_model_folder
from albert_core.metrics import METRICS, bootstrap_interval
from albert_core.model import AlbertModel
from albert_core.optimizer import build_optimizer, learning_rate_at
from albert_core.tasks.glue import TASKS, LabelledTexts, Task, read_split, split_uri
from albert_core.tracking import TrackedRun, tracked_run

STAGE = "finetuning"
PREDICTIONS = "predictions"
MODEL_CONTENT = ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json")
"""The files of a model folder that its scores depend on."""

_NUM_SPECIAL = 2  # [CLS] text [SEP]
_EVALUATION_BATCH_SIZE = 64
_PREDICTIONS_SCHEMA = pa.schema(
    [
        ("row", pa.uint32()),
        ("label", pa.uint8()),
        ("prediction", pa.uint8()),
        ("score", pa.float32()),
    ]
)
"""One example of dev.

row         its number in dev.tsv, from 0, the header not counted
label       index of the right label
prediction  index of the label with the highest probability
score       probability of the last label
"""

log = logging.getLogger(STAGE)


def run(finetuning: FinetuningSettings, model_folder: str, task_folder: str, work: str) -> str:
    """Fine-tune the model on the task and score it on dev; return the manifest.

    Args:
        finetuning: settings.
        model_folder: the pretrained model, in Hugging Face's layout.
        task_folder: GLUE's folder, or the task's own folder in it.
        work: folder for all results.

    Raises:
        ConfigError: max_seq_length exceeds the model's positions.
        IntegrityError: a file of the model is missing.
        TaskError: a file of the task is missing or malformed.
        TrainingError: the loss is not finite.
    """
    task = TASKS[finetuning.task]
    plan = StagePlan(
        stage=STAGE,
        settings={"finetuning": finetuning.model_dump()},
        inputs={
            "model": model_digest(model_folder),
            "train": storage.sha256_of(split_uri(task, task_folder, "train")),
            "dev": storage.sha256_of(split_uri(task, task_folder, "dev")),
        },
        code=code_digest(__name__),
        libraries=library_versions("torch"),
        input_manifests=_manifests_beside(pretraining=model_folder, task=task_folder),
    )
    if done := plan.find(work):
        return done
    finetuner = Finetuning(plan, work, finetuning, model_folder, task_folder)
    with finetuner.tracked:
        finetuner.train()
        return finetuner.finish()


def model_digest(model_folder: str) -> str:
    """Return a digest of the model in ``model_folder``: the same wherever it lies.

    Raises:
        IntegrityError: a file is missing.
    """
    for name in MODEL_CONTENT:
        if not storage.exists(storage.join(model_folder, name)):
            raise IntegrityError(
                f"{storage.join(model_folder, name)} is missing: a model folder holds "
                f"{', '.join(MODEL_CONTENT)}. Give the folder of a finished pretraining, or "
                "models:/<name>@champion."
            )
    return digest_of(
        [[name, storage.sha256_of(storage.join(model_folder, name))] for name in MODEL_CONTENT]
    )


class SequenceClassifier(nn.Module):
    """The encoder; on its pooled output dropout and one dense layer. Source: REFERENCE.md D.2."""

    def __init__(self, encoder: AlbertModel, num_labels: int, dropout_prob: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = nn.Linear(encoder.settings.hidden_size, num_labels)
        std = encoder.settings.initializer_range
        nn.init.trunc_normal_(self.classifier.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return logits (B, num_labels) of one segment each.

        Args:
            input_ids: int64 (B, S), [CLS] text [SEP].
            attention_mask: bool (B, S), true at a real piece; None when none is padded.
        """
        _, pooled = self.encoder(input_ids, attention_mask, torch.zeros_like(input_ids))
        return self.classifier(self.dropout(pooled))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PackedTexts:
    """The texts of a split as piece ids, [CLS] text [SEP], not padded; and their labels."""

    sequences: list[list[int]]
    labels: NDArray[np.int64]
    pieces: Account
    """Pieces of the texts: kept, and dropped because a text was too long."""

    def batch(self, rows: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return input_ids (B, S), padded to the longest of ``rows``, and their mask or None."""
        chosen = [self.sequences[row] for row in rows]
        longest = max(map(len, chosen))
        ids = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in chosen])
        lengths = torch.tensor([len(ids) for ids in chosen])
        if (lengths == longest).all():
            return ids.to(device), None
        return ids.to(device), (torch.arange(longest) < lengths[:, None]).to(device)


def pack_texts(
    texts: LabelledTexts, split: str, tokenizer: Tokenizer, max_seq_length: int
) -> PackedTexts:
    """Return ``texts`` as sequences of at most ``max_seq_length`` pieces; the tail is cut."""
    room = max_seq_length - _NUM_SPECIAL
    encoded = tokenizer.encode(texts.texts)
    total, kept = sum(map(len, encoded)), sum(min(len(ids), room) for ids in encoded)
    account = Account(
        what=f"{split} pieces", total=total, kept=kept, dropped={"too_long": total - kept}
    )
    return PackedTexts([[CLS, *ids[:room], SEP] for ids in encoded], texts.labels, account)


def rows_of_update(step: int, batch_size: int, num_examples: int, seed: int) -> NDArray[np.int64]:
    """Return the rows (batch_size,) of update ``step``: epochs follow each other without a gap.

    The order of an epoch is a pure function of the seed and the epoch.
    """
    positions = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, places = positions // num_examples, positions % num_examples
    rows = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        bits = random_bits(derive_seed(seed, "order", int(epoch)), np.arange(num_examples))
        order = np.argsort(bits, kind="stable")
        rows[epochs == epoch] = order[places[epochs == epoch]]
    return rows


@dataclass(frozen=True)
class DevScores:
    """One evaluation on dev."""

    step: int
    scores: dict[str, float]
    """By the names of `metrics.METRICS`."""
    loss: float
    """Mean cross-entropy, in nats per example."""
    probabilities: NDArray[np.float32]
    """(N, num_labels), in the order of the file."""

    @property
    def predictions(self) -> NDArray[np.int64]:
        """(N,), index of the most probable label."""
        predictions: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return predictions


class Finetuning:
    """One run of fine-tuning in its folder."""

    def __init__(
        self,
        plan: StagePlan,
        work: str,
        settings: FinetuningSettings,
        model_folder: str,
        task_folder: str,
    ) -> None:
        self.plan, self.work, self.settings = plan, work, settings
        self.folder = plan.folder(work)
        self.task = TASKS[settings.task]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        pretrained, tokenizer = load_model_folder(model_folder)
        self._check_length(pretrained.encoder, model_folder)
        self.train_texts, self.dev_texts = (
            pack_texts(
                read_split(self.task, task_folder, split),
                split,
                tokenizer,
                settings.max_seq_length,
            )
            for split in ("train", "dev")
        )
        torch.manual_seed(derive_seed(settings.seed, "initial-head"))
        self.model = SequenceClassifier(
            pretrained.encoder, len(self.task.labels), settings.classifier_dropout_prob
        ).to(self.device)
        self.optimizer = build_optimizer(
            self.model, "adamw", settings.learning_rate, settings.weight_decay
        )
        self.best: DevScores | None = None
        self.tracked = self._track(task_folder)

    def train(self) -> None:
        """Do all updates; evaluate now and then and at the end, and keep the best."""
        began = time.perf_counter()
        losses: list[Tensor] = []
        for step in range(self.settings.num_steps):
            losses.append(self._update(step))
            done = step + 1
            if done % self.settings.evaluation_steps == 0 or done == self.settings.num_steps:
                self._report(done, losses, time.perf_counter() - began)
                losses = []

    def finish(self) -> str:
        """Write the predictions of the best evaluation, and the manifest; return its URI."""
        assert self.best is not None
        predictions = storage.join(self.folder, f"{PREDICTIONS}.arrow")
        self._write_predictions(self.best, predictions)
        uri = self.plan.write(
            self.work,
            [shard_of(predictions, self.folder, PREDICTIONS, len(self.dev_texts.labels))],
            [self.train_texts.pieces, self.dev_texts.pieces],
            self._facts(self.best),
        )
        self.tracked.log_artifact(uri)
        self.tracked.log_artifact(predictions)
        return uri

    def _check_length(self, encoder: AlbertModel, model_folder: str) -> None:
        room = encoder.settings.max_position_embeddings
        if self.settings.max_seq_length > room:
            raise ConfigError(
                f"finetuning.max_seq_length is {self.settings.max_seq_length}, but the model in "
                f"{model_folder} has {room} positions. Set it to {room} or less."
            )

    def _track(self, task_folder: str) -> TrackedRun:
        run = tracked_run(
            self.work,
            self.folder,
            f"finetuning-{self.task.name}",
            {"model_digest": self.plan.inputs["model"]},
        )
        run.log_params(self.plan.settings)
        for split in ("train", "dev"):
            run.log_dataset(f"{self.task.folder}/{split}", self.plan.inputs[split], task_folder)
        return run

    def _update(self, step: int) -> Tensor:
        """Do update ``step``, from 0; return its loss, on the device."""
        settings = self.settings
        rows = rows_of_update(
            step, settings.batch_size, len(self.train_texts.labels), settings.seed
        )
        torch.manual_seed(derive_seed(settings.seed, "dropout", step))
        self.model.train()
        logits = self.model(*self.train_texts.batch(rows, self.device))
        labels = torch.from_numpy(self.train_texts.labels[rows]).to(self.device)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(
                step, settings.learning_rate, settings.warmup_steps, settings.num_steps
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _report(self, step: int, losses: Sequence[Tensor], seconds: float) -> None:
        loss = float(torch.stack(list(losses)).mean())
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of fine-tuning on {self.task.name} is {loss} by step {step}. Lower "
                "finetuning.learning_rate or raise finetuning.warmup_steps."
            )
        found = self._evaluate(step)
        key = self.task.metric
        if self.best is None or found.scores[key] > self.best.scores[key]:
            self.best = found
        dev = {f"dev/{name}": value for name, value in found.scores.items()}
        self.tracked.log_metrics(step, {"train/loss": loss, "dev/loss": found.loss, **dev})
        left = int(seconds / step * (self.settings.num_steps - step))
        line = (
            f"step {step:,}/{self.settings.num_steps:,}  loss {loss:.3f}  "
            f"dev loss {found.loss:.3f}  {key} {found.scores[key]:.3f} "
            f"(best {self.best.scores[key]:.3f} at {self.best.step:,})  "
            f"{left // 60}:{left % 60:02d} left"
        )
        log.info("%s: %s", STAGE, line)

    @torch.no_grad()
    def _evaluate(self, step: int) -> DevScores:
        """Return the scores on dev, in batches of similar length."""
        self.model.eval()
        labels = self.dev_texts.labels
        by_length = np.argsort([len(ids) for ids in self.dev_texts.sequences], kind="stable")
        logits = torch.empty(len(labels), len(self.task.labels))
        for begin in range(0, len(labels), _EVALUATION_BATCH_SIZE):
            rows = by_length[begin : begin + _EVALUATION_BATCH_SIZE]
            logits[rows] = self.model(*self.dev_texts.batch(rows, self.device)).float().cpu()
        probabilities = logits.softmax(dim=1).numpy()
        predictions = probabilities.argmax(axis=1)
        return DevScores(
            step=step,
            scores={name: METRICS[name](labels, predictions) for name in metric_names(self.task)},
            loss=float(F.cross_entropy(logits, torch.from_numpy(labels))),
            probabilities=probabilities,
        )

    def _write_predictions(self, best: DevScores, uri: str) -> None:
        columns = [
            np.arange(len(self.dev_texts.labels)),
            self.dev_texts.labels,
            best.predictions,
            best.probabilities[:, -1],
        ]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, _PREDICTIONS_SCHEMA, strict=True)
        ]
        write_arrow(pa.Table.from_arrays(arrays, schema=_PREDICTIONS_SCHEMA), uri)

    def _facts(self, best: DevScores) -> dict[str, Any]:
        intervals = {
            name: bootstrap_interval(
                METRICS[name],
                self.dev_texts.labels,
                best.predictions,
                derive_seed(self.settings.seed, "bootstrap"),
            )
            for name in best.scores
        }
        key = intervals[self.task.metric]
        log.info("%s: %s, dev %s %s", STAGE, self.task.name, self.task.metric, key)
        return {
            "task": self.task.name,
            "metric": self.task.metric,
            "score": key.value,
            "interval": [key.low, key.high],
            "scores": best.scores,
            "intervals": {name: [e.low, e.high] for name, e in intervals.items()},
            "dev_loss": best.loss,
            "best_step": best.step,
            "num_examples": len(self.dev_texts.labels),
            "num_train": len(self.train_texts.labels),
            "mlflow_run_id": self.tracked.run_id,
        }


def metric_names(task: Task) -> list[str]:
    """Return the names of the metrics that are reported for ``task``, the key metric first."""
    return list(dict.fromkeys([task.metric, "accuracy"]))


def _manifests_beside(**folders: str) -> dict[str, str]:
    """Return the manifests of the stages that wrote ``folders``, where there are any."""
    found = {}
    for name, folder in folders.items():
        parent = folder.rstrip("/").rpartition("/")[0]
        for place in (folder, parent):
            uri = storage.join(place, MANIFEST)
            if place and storage.exists(uri):
                found[name] = uri
                break
    return found


if __name__ == "__main__":
    stage_main(run)
