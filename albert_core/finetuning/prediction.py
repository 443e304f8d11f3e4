"""What a fine-tuned model says of rows as a user has them: texts, questions, articles."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albert_core.config import FinetuningSettings
from albert_core.finetuning.finetuned_model import read_finetuned
from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import ChoiceExamples, Examples, SpanExamples, TextExamples
from albert_core.tasks.problem import outputs_of
from albert_core.tasks.problems import problem_of

MICRO_BATCH_PIECES = 16_384
"""Pieces in one forward pass."""
COLUMNS = {
    "classification": ("text", "text_b"),
    "regression": ("text", "text_b"),
    "choice": ("article", "question", "options"),
    "spans": ("question", "context"),
}
"""What a row has, by the kind of task; "text_b" only if the task is about pairs."""

Row = Mapping[str, Any]
Said = dict[str, Any]


class FinetunedModel:
    """Encoder, head and tokenizer of a task, ready to predict.

    Any number of threads may ask one: nothing of it changes but the tokenizer's table of words,
    which has a lock.

    Args:
        folder: URI of the folder that `save_finetuned` wrote.
        device: where to compute.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged.
    """

    def __init__(self, folder: str, device: torch.device) -> None:
        stored = read_finetuned(folder)
        self.task, self.tokenizer, self.settings = stored.task, stored.tokenizer, stored.settings
        spans = {"spans": stored.settings["spans"]} if "spans" in stored.settings else {}
        self.problem = problem_of(self.task, FinetuningSettings.read(spans, folder))
        self.encoder = stored.encoder.to(device).eval()
        self.head = self.problem.head(self.encoder.settings, 0.0).to(device).eval()
        self.head.load_state_dict(stored.head)
        self.device = device

    def predict(self, rows: Sequence[Row]) -> list[Said]:
        """Return what the model says of each row, in their order.

        Args:
            rows: texts by the names in `COLUMNS`; the options of a choice are a list, of the same
                number in all rows. What is longer than the model was fine-tuned for is cut as it
                was there; a long context is read in windows.

        Returns:
            Of classification: label, probability, probabilities (by label). Of regression: value.
            Of a choice: option, index, probability, probabilities (by index). Of spans: answer
            ("" if the question has none), start and end in the context (None likewise), score;
            and no_answer_probability where there may be none.

        Raises:
            TaskError: a row lacks a text, or has an empty one.
        """
        if not rows:
            return []
        examples = _examples(self.task.kind, rows)
        length = self.settings["max_seq_length"]
        inputs = self.problem.inputs(examples, self.tokenizer, length)
        outputs = outputs_of(self.encoder, self.head, inputs, self.device, MICRO_BATCH_PIECES)
        found = self.problem.score(outputs, inputs, examples).predictions.to_pylist()
        if self.task.kind == "spans":
            threshold = self.settings.get("no_answer_threshold")
            return [_answer(row, threshold) for row in found]
        if self.task.kind == "choice":
            return [_option(row, of["options"]) for row, of in zip(found, rows, strict=True)]
        return [self._label(row) for row in found]

    def _label(self, found: Row) -> Said:
        if self.task.kind == "regression":
            return {"value": found["prediction"]}
        probabilities = dict(zip(self.task.labels, found["probabilities"], strict=True))
        label = found["prediction"]
        return {"label": label, "probability": probabilities[label], "probabilities": probabilities}


def load_finetuned(folder: str) -> FinetunedModel:
    """Return the fine-tuned model in ``folder`` (a URI), on the GPU if there is one.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged.
    """
    return FinetunedModel(folder, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _examples(kind: str, rows: Sequence[Row]) -> Examples:
    ids = [str(number) for number in range(len(rows))]
    if kind == "spans":
        paragraphs, paragraph_of = _once(_texts(rows, "context"))
        return SpanExamples(
            ids=ids,
            paragraphs=paragraphs,
            paragraph_of=paragraph_of,
            questions=_texts(rows, "question"),
            answers=[()] * len(rows),
            is_labelled=False,
        )
    if kind == "choice":
        articles, article_of = _once(_texts(rows, "article"))
        return ChoiceExamples(
            ids=ids,
            articles=articles,
            article_of=article_of,
            questions=_texts(rows, "question"),
            options=_options(rows),
            targets=None,
            groups=[""] * len(rows),
        )
    are_pairs = any(row.get("text_b") is not None for row in rows)
    return TextExamples(
        ids=ids,
        texts_a=_texts(rows, "text"),
        texts_b=_texts(rows, "text_b") if are_pairs else None,
        targets=None,
    )


def _texts(rows: Sequence[Row], name: str) -> list[str]:
    for number, row in enumerate(rows):
        _check_text(row.get(name), f"row {number}: {name}")
    return [row[name] for row in rows]


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where} is {value!r}, expected a text.")


def _options(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    options = []
    for number, row in enumerate(rows):
        value = row.get("options")
        if value is None or isinstance(value, str) or len(value) < 2:
            raise TaskError(f"row {number}: options is {value!r}, expected two texts or more.")
        for option in value:
            _check_text(option, f"row {number}: an option")
        options.append(tuple(value))
    if len({len(each) for each in options}) > 1:
        raise TaskError(
            f"the rows have {sorted({len(each) for each in options})} options, expected the same "
            "number in all. Predict those of each number by themselves."
        )
    return options


def _once(texts: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return each text once, and which of them each is."""
    number_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(number_of), np.array([number_of[text] for text in texts], np.int64)


def _option(found: Row, options: Sequence[str]) -> Said:
    probabilities = found["probabilities"]
    index = int(np.argmax(probabilities))
    return {
        "option": options[index],
        "index": index,
        "probability": probabilities[index],
        "probabilities": probabilities,
    }


def _answer(found: Row, threshold: float | None) -> Said:
    """Return the best span, or none where that is more probable than ``threshold``.

    That is the one found on dev; the rows here have no answers to search it with.
    """
    best = found["n_best"][0] if found["n_best"] else None
    said: Said = {"answer": "", "start": None, "end": None, "score": None}
    if threshold is not None:
        no_answer = float(np.exp(-np.logaddexp(0.0, -found["null_score"])))
        best = best if no_answer <= threshold else None
        said["no_answer_probability"] = no_answer
    if best is None:
        return said
    return said | {
        "answer": best["text"],
        "start": best["start"],
        "end": best["end"],
        "score": best["score"],
    }
