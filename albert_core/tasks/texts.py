"""Classification and regression of a text or a pair of texts.

Source: REFERENCE.md D.2 (`run_classifier.py` and `classifier_utils.py` of the reference).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.config import ModelSettings
from albert_core.contract.manifest import Account
from albert_core.contract.tokenizer import Tokenizer
from albert_core.metrics import METRICS
from albert_core.tasks.constant_answers import constant_label_scores, constant_number_scores
from albert_core.tasks.examples import TextExamples
from albert_core.tasks.problem import Head, Inputs, Ints, Outputs, Problem, Scored, Scorer
from albert_core.tasks.sequences import Sequences
from albert_core.tasks.text_heads import LOGITS, TARGET, ClassificationHead, RegressionHead

Pieces = list[int]


class TextProblem(Problem[TextExamples]):
    """What a text, or a pair of texts, is: one of some labels, or a number."""

    def inputs(
        self,
        examples: TextExamples,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ) -> Inputs:
        """Return [CLS] a [SEP], or [CLS] a [SEP] b [SEP]; what is too long loses its tail."""
        firsts = tokenizer.encode(examples.texts_a)
        if examples.texts_b is None:
            room = max_seq_length - 2
            sequences = Sequences.of([(a[:room], None) for a in firsts])
        else:
            seconds = tokenizer.encode(examples.texts_b)
            room = max_seq_length - 3
            pairs = (cut_pair(a, b, room) for a, b in zip(firsts, seconds, strict=True))
            sequences = Sequences.of(list(pairs))
            firsts = [*firsts, *seconds]
        return Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[
                _rows(examples),
                _pieces(firsts, sequences, 2 if examples.texts_b is None else 3),
            ],
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with a score for each label, or with one number."""
        if self.task.kind == "regression":
            return RegressionHead(settings, dropout_prob)
        return ClassificationHead(settings, len(self.task.labels), dropout_prob)

    def score(self, outputs: Outputs, inputs: Inputs, examples: TextExamples) -> Scored:
        """Return the most probable label of each text with all probabilities, or its number."""
        logits, targets = outputs[LOGITS], inputs.targets.get(TARGET)
        if self.task.kind == "regression":
            predictions = logits[:, 0].astype(np.float64)
            columns: dict[str, Any] = {"prediction": predictions}
            if targets is not None:
                columns["target"] = targets
        else:
            predictions = logits.argmax(axis=1)
            columns = label_columns(self.task.labels, predictions, targets, logits)
        table = pa.table({"id": pa.array(examples.ids, pa.string())} | columns)
        return Scored(table, scorers_of(self.task.metrics, targets, predictions))

    def constant_scores(self, examples: TextExamples) -> dict[str, float]:
        """Return what the most frequent label gets, or the mean of the numbers."""
        metrics, targets = self.task.metrics, examples.targets
        assert targets is not None
        if self.task.kind == "regression":
            return constant_number_scores(metrics, targets)
        return constant_label_scores(metrics, targets.astype(np.int64), len(self.task.labels))


def cut_pair(a: Pieces, b: Pieces, room: int) -> tuple[Pieces, Pieces]:
    """Return ``a`` and ``b`` with ``room`` pieces together: the longer loses its tail, then both.

    One piece at a time goes, from the longer; from ``b`` when they are equally long.

    >>> cut_pair([1, 2, 3, 4], [5, 6], 4)
    ([1, 2], [5, 6])
    >>> cut_pair([1, 2], [5, 6], 3)
    ([1, 2], [5])
    """
    if len(a) + len(b) <= room:
        return a, b
    half = room // 2
    if len(a) <= room - half:
        return a, b[: room - len(a)]
    if len(b) <= half:
        return a[: room - len(b)], b
    return a[: room - half], b[:half]


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the softmax over the last dimension."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float32] = shifted / shifted.sum(axis=-1, keepdims=True)
    return shares


def label_columns(
    labels: tuple[str, ...],
    predictions: Ints,
    targets: Ints | None,
    logits: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the columns that say what was predicted, and what was right where it is known.

    Args:
        labels: by their indices.
        predictions: (N,), indices.
        targets: (N,), indices; None where they are not known.
        logits: (N, labels), of which the probabilities are told.
    """
    names = pa.array(labels, pa.string())
    columns = {"prediction": names.take(pa.array(predictions))}
    if targets is not None:
        columns["target"] = names.take(pa.array(targets))
    return columns | {"probabilities": _lists(_probabilities(logits))}


def scorers_of(
    names: tuple[str, ...], targets: NDArray[Any] | None, predictions: NDArray[Any]
) -> Mapping[str, Scorer]:
    """Return the scorers called ``names`` of these predictions; none without targets."""
    if targets is None:
        return {}

    def scorer(name: str) -> Scorer:
        metric = METRICS[name]
        return lambda rows: metric(targets[rows], predictions[rows])

    return {name: scorer(name) for name in names}


def _rows(examples: TextExamples) -> Account:
    kept, skipped = len(examples), dict(examples.skipped)
    total = kept + sum(skipped.values())
    return Account(what="rows", total=total, kept=kept, dropped=skipped)


def _pieces(encoded: list[Pieces], sequences: Sequences, num_special: int) -> Account:
    total = sum(map(len, encoded))
    kept = len(sequences.input_ids) - num_special * len(sequences)
    return Account(what="pieces", total=total, kept=kept, dropped={"too_long": total - kept})


def _lists(rows: NDArray[np.float32]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]).cast(
        pa.list_(pa.float32())
    )
