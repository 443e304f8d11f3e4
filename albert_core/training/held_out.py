"""A model on held-out examples and minimal pairs: losses and accuracies, with intervals."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.config import Precision
from albert_core.metrics import RATIO, SHARE, estimate, mean_share
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import products_in
from albert_core.model.losses import IGNORED
from albert_core.stage.manifest import Account
from albert_core.stage.results import Estimate
from albert_core.tasks.likelihoods import is_right
from albert_core.tasks.minimal_pairs import Pair, PairFiles, read_pairs, sample_of, that_fit
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.batches import Batch
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.sharding import gathered
from albert_core.training.shards import ExampleShards

PAIRS_ACCURACY = "minimal_pairs_accuracy"
_MAX_PAIRS = 500
_BATCH_SIZE, _BATCH_PIECES = 32, 4096
"""Most examples at a time, and most pieces of these if all are of full length."""
_SUMS = ("masked_lm_loss", "masked_lm_accuracy", "pair_loss", "pair_accuracy", "num_predictions")
"""The sums over each example's predictions."""

Evaluation = dict[str, Estimate]


def point_of(evaluation: Evaluation) -> dict[str, float]:
    """Return the scores as a point of curves, by name.

    The sample of minimal pairs is small, so the ends of its interval are in the point as well.
    """
    point = {name: score.value for name, score in evaluation.items()}
    pairs = evaluation.get(PAIRS_ACCURACY)
    if pairs and pairs.low is not None and pairs.high is not None:
        point |= {f"{PAIRS_ACCURACY}_low": pairs.low, f"{PAIRS_ACCURACY}_high": pairs.high}
    return point


@torch.no_grad()
def evaluate(
    model: AlbertForPretraining,
    examples: ExampleShards,
    max_examples: int,
    pair_task: str | None = "sentence_order",
    ranks: Ranks = ALONE,
    precision: Precision = "float32",
) -> Evaluation:
    """Return the model's scores on the first ``max_examples`` examples, without dropout.

    The ranks share the work; each returns the same scores, whatever their number.

    Args:
        model: on the device of ``ranks``.
        examples: held-out ones.
        max_examples: how many to score, if there are as many.
        pair_task: what the model learned from pairs, a value of `step.PAIR_TASKS`; None for
            nothing.
        ranks: all of them must call this, with the same model.
        precision: of the matrix products. In that of the training, compiled layers do for both.

    Returns:
        masked_lm_loss (nats per prediction), masked_lm_accuracy (share of the predictions), and
        by the pair task's name its loss (nats per pair) and accuracy (share of the pairs), each
        with its 95 % interval over documents, because the examples of one document are alike; of
        a single document there is none, nor of a loss where one document is most of them.
    """
    size = max(1, min(_BATCH_SIZE, _BATCH_PIECES // examples.result.max_seq_length))
    shape = examples.shape_for(ranks, size)
    was_training = model.training
    model.eval()
    count = min(len(examples), max_examples)
    # float32 sums of a few numbers each; where another rank fills a batch, they stay 0.
    sums = torch.zeros(len(_SUMS), count, device=ranks.device)
    with gathered(model, ranks):
        for begin in range(ranks.rank * size, count, ranks.world_size * size):
            end = min(begin + size, count)
            numbers = np.arange(begin, end)
            by_length = np.argsort(examples.sizes(numbers)[0], kind="stable")
            batch = examples.rows(numbers[by_length]).batch(shape).each(ranks.to_device)
            with products_in(precision, ranks.device):
                lm_logits, pair_logits = model(**batch.model_inputs)
            scores = _score(batch, lm_logits, pair_logits)
            sums[:, numbers[by_length]] = scores[:, : end - begin]
            ranks.begin_pending()
    model.train(was_training)
    totals = dict(zip(_SUMS, ranks.sum(sums).cpu().double().numpy(), strict=True))
    _, documents = np.unique(examples.document_ids()[:count], return_inverse=True)
    counts = {"masked_lm": totals.pop("num_predictions"), "pair": np.ones(count)}
    evaluation = {}
    for name, values in totals.items():
        task, _, measure = name.rpartition("_")
        shown = task if task == "masked_lm" else pair_task
        if shown is not None:
            sample = (SHARE if measure == "accuracy" else RATIO).of(values, counts[task])
            evaluation[f"{shown}_{measure}"] = estimate(sample, documents)
    return evaluation


@dataclass(frozen=True)
class PairSample:
    """The minimal pairs on which a run is scored at each evaluation."""

    pairs: list[Pair]
    tokenizer: Tokenizer
    account: Account
    """All pairs that there are = those of the sample + those left out."""


def read_sample(
    files: PairFiles, tokenizer: Tokenizer, max_pieces: int, ranks: Ranks
) -> PairSample:
    """Return at most `_MAX_PAIRS` pairs of all sets, the same ones in every run.

    A TPU would compile each batch of them, so there they are left out.

    Args:
        files: of the sets.
        tokenizer: of the model.
        max_pieces: the positions of the model.
        ranks: of the run.

    Raises:
        TaskError: a file is malformed.
    """
    sets, dropped = {}, Counter[str]()
    for name, uris in files.items():
        sets[name], account = that_fit(name, read_pairs(name, uris), tokenizer, max_pieces)
        dropped.update(account.dropped)
    fitting = sum(map(len, sets.values()))
    sample = sample_of(sets, 0 if ranks.device.type == "xla" else _MAX_PAIRS)
    total = fitting + dropped.total()
    dropped["not_drawn"] = fitting - len(sample)
    account = Account(what="minimal pairs", total=total, kept=len(sample), dropped=dropped)
    return PairSample(sample, tokenizer, account)


@torch.no_grad()
def evaluate_pairs(
    model: AlbertForPretraining, sample: PairSample, ranks: Ranks = ALONE
) -> Evaluation:
    """Return how often the model finds the acceptable sentence of a pair more likely.

    The ranks share the work; each returns the same score.

    Args:
        model: on the device of ``ranks``.
        sample: the pairs.
        ranks: all of them must call this, with the same model and pairs.

    Returns:
        `PAIRS_ACCURACY`, the share of the pairs, with its 95 % interval; nothing without pairs.
    """
    if not sample.pairs:
        return {}
    size = len(sample.pairs)
    mine = sample.pairs[ranks.rank :: ranks.world_size]
    was_training = model.training
    model.eval()
    num_right = torch.zeros(1, device=ranks.device)
    with gathered(model, ranks):
        if mine:
            num_right += int(is_right(model, sample.tokenizer, mine, ranks.device).sum())
    model.train(was_training)
    hits = ranks.sum(num_right).cpu().double().numpy()
    return {PAIRS_ACCURACY: mean_share(hits, np.array([size]))}


def _score(batch: Batch, lm_logits: Tensor, pair_logits: Tensor) -> Tensor:
    """Return sums over each example's real predictions, float32 (len(_SUMS), B)."""
    lm_labels = batch.masked_lm_labels
    begun = batch.masked_lm_positions[:, None] >= batch.first_positions  # (M, B)
    sequences = begun.sum(1) - 1  # XLA has no searchsorted
    of_predictions = [*_nats_and_hits(lm_logits, lm_labels), (lm_labels != IGNORED).float()]
    sums = torch.zeros(3, len(batch.first_positions), device=lm_labels.device)
    nats, right, num_predictions = sums.index_add_(1, sequences, torch.stack(of_predictions))
    pair_nats, pair_right = _nats_and_hits(pair_logits, batch.sentence_order_labels)
    return torch.stack([nats, right, pair_nats, pair_right, num_predictions])


def _nats_and_hits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, 0 at padding, and whether its label has the highest score."""
    logits = logits.float()  # first, as a CPU finds the highest of bfloat16 slowly
    nats = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    return nats, (logits.argmax(-1) == labels).float()
