"""A fine-tuned model as a folder: encoder, head, tokenizer and task; and its predictions.

The folder is in Hugging Face's layout, so `transformers` reads the same one where it has a class
for the head: `AlbertForSequenceClassification`, `AlbertForMultipleChoice` and, for a head of one
dense layer named "qa_outputs", `AlbertForQuestionAnswering`; or BERT's classes for a model of
BERT's shape. It reads a folder with any other head as an `AlbertModel`. task.json contains what
`transformers` has no field for.

config.json         the encoder's shape, the class, the labels
model.safetensors   encoder by Hugging Face's names, head by its own
task.json           the task, and the settings of its inputs and of its head
spiece.model, tokenizer.json, tokenizer_config.json, special_tokens_map.json
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, PositiveInt, ValidationError
from torch import Tensor

from albert_core.config import FinetuningSettings, SpanSettings
from albert_core.conversion import huggingface
from albert_core.conversion.huggingface import architecture_of, hf_config
from albert_core.conversion.model_files import CONFIG, TASK, WEIGHTS, read_task
from albert_core.model.albert import AlbertModel
from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError, TaskError
from albert_core.stage.settings import describe
from albert_core.tasks.examples import ChoiceExamples, Examples, SpanExamples, Task, TextExamples
from albert_core.tasks.problem import ChoiceProblem, Head, Problem, TextProblem, outputs_of
from albert_core.tasks.spans import SpanProblem
from albert_core.tasks.squad import no_answer_probability
from albert_core.text.tokenizer import Tokenizer

COLUMNS = {
    "classification": ("text", "text_b"),
    "regression": ("text", "text_b"),
    "choice": ("article", "question", "options"),
    "spans": ("question", "context"),
}
"""The columns of a row, by the kind of task; "text_b" only if the task is about pairs."""
MICRO_BATCH_PIECES = 16_384
"""Pieces in one forward pass."""

_HEAD_SUFFIX = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "spans": "ForQuestionAnswering",
}
_SPAN_CLASSIFIER = "qa_outputs.weight"
"""The part of a span head that Hugging Face's classes can read."""
_DROPOUT_NAME = {"albert": "classifier_dropout_prob", "bert": "classifier_dropout"}
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
"""JSON may hold it, but it is no character."""
_NUMBER = "number"
"""The one label of a regression in config.json."""

Row = Mapping[str, Any]
Prediction = dict[str, Any]


def problem_of(task: Task, settings: FinetuningSettings) -> Problem[Any]:
    """Return how ``task`` is learned and scored."""
    if task.kind == "choice":
        return ChoiceProblem(task)
    if task.kind == "spans":
        return SpanProblem(task, settings.spans)
    return TextProblem(task)


def save_finetuned(
    folder: str,
    encoder: AlbertModel,
    head: Head,
    tokenizer: Tokenizer,
    task: Task,
    settings: Mapping[str, Any],
) -> None:
    """Write a fine-tuned model to ``folder`` (a URI), for us and for `transformers`.

    Args:
        folder: overwritten where it exists.
        encoder: the encoder, on any device.
        head: the task's head.
        tokenizer: the vocabulary that the model was trained with.
        task: the task that the head was trained for.
        settings: JSON values from which its inputs and its head are made again, e.g.
            max_seq_length, and what was searched on dev, such as a threshold.

    Raises:
        IntegrityError: the model's vocabulary does not have the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    vocab_size = len(encoder.embeddings.word.weight)
    huggingface.check_vocabulary(vocab_size, tokenizer, "the model")
    own = head.plain_state()
    state = huggingface.encoder_to_hf_state(encoder) | own
    state = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
    config = hf_config(encoder.settings, vocab_size) | _head_config(encoder, task, own, settings)
    # Text is cut here, and positions beyond were not learned; that of spans is read in windows.
    most = encoder.settings.max_position_embeddings
    max_seq_length = most if task.kind == "spans" else settings.get("max_seq_length", most)
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(config, indent=1).encode(),
        TASK: json.dumps({"task": asdict(task), "settings": dict(settings)}, indent=1).encode(),
        **huggingface.tokenizer_files(tokenizer, max_seq_length),
    }
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content)


def _head_config(
    encoder: AlbertModel, task: Task, head: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the part of config.json that describes the head."""
    architecture = architecture_of(encoder.settings)
    is_unknown = task.kind == "spans" and _SPAN_CLASSIFIER not in head
    suffix = "Model" if is_unknown else _HEAD_SUFFIX[task.kind]
    name = architecture.capitalize() + suffix
    config: dict[str, Any] = {"architectures": [name], "finetuning_task": task.name}
    if "classifier_dropout_prob" in settings:
        config[_DROPOUT_NAME[architecture]] = settings["classifier_dropout_prob"]
    if task.kind in ("classification", "regression"):
        labels = dict(enumerate(task.labels or (_NUMBER,)))
        is_number = task.kind == "regression"
        config |= {
            "id2label": labels,
            "label2id": {label: number for number, label in labels.items()},
            "problem_type": "regression" if is_number else "single_label_classification",
        }
    return config


class _Inputs(BaseModel):
    """How the inputs of a fine-tuned model are made; task.json has more, which nobody reads."""

    max_seq_length: PositiveInt
    num_texts: int | None = None
    """Texts of a row; None: a model of an earlier version."""
    no_answer_threshold: float | None = None
    """Of questions that may have no answer, found on dev."""
    spans: SpanSettings = SpanSettings()


class _Described(BaseModel):
    """The content of task.json."""

    task: Task
    settings: _Inputs


class FinetunedModel:
    """Encoder, head and tokenizer of a task, ready to predict; on the GPU if there is one.

    Several threads may use one at the same time: it is never changed, apart from the tokenizer's
    table of words, which has a lock.

    Args:
        folder: URI of the folder that `save_finetuned` wrote.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged.
    """

    def __init__(self, folder: str) -> None:
        try:
            described = _Described.model_validate(read_task(folder))
        except ValidationError as error:
            raise IntegrityError(
                f"{storage.join(folder, TASK)} does not describe a task "
                f"({describe(error, _Described)}). Copy or write it again."
            ) from error
        encoder, head = huggingface.split_model_folder(folder)
        self.task, self.settings = described.task, described.settings
        self.tokenizer = huggingface.read_tokenizer(folder)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.problem = problem_of(self.task, FinetuningSettings(spans=self.settings.spans))
        self.encoder = encoder.to(self.device).eval()
        self.head = self.problem.head(encoder.settings, 0.0).to(self.device).eval()
        try:
            self.head.load_state_dict(head)
        except RuntimeError as error:
            told = " ".join(str(error).split())  # torch writes a line for each tensor
            raise IntegrityError(
                f"{storage.join(folder, WEIGHTS)} has another head than {self.task.name} needs "
                f"({told}). Copy or write the folder again."
            ) from error

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """Return a prediction for each row, in their order.

        Args:
            rows: texts by the names in `COLUMNS`; the options of a choice are a list, with as many
                texts as in training. A text that is longer than the model was fine-tuned for is
                cut as in training; a long context is read in windows.

        Returns:
            For a classification: label, probability, probabilities (by label). For a regression:
            value. For a choice: option, index, probability, probabilities (by index). For spans:
            answer ("" if the question has none), start and end in the context (None likewise),
            score; and no_answer_probability if questions may have none.

        Raises:
            TaskError: a text is missing, empty or no Unicode.
        """
        if not rows:
            return []
        examples = _examples(self.task, rows, self.settings.num_texts)
        inputs = self.problem.inputs(examples, self.tokenizer, self.settings.max_seq_length)
        outputs = outputs_of(self.encoder, self.head, inputs, self.device, MICRO_BATCH_PIECES)
        found = self.problem.score(outputs, inputs, examples).predictions.to_pylist()
        return [self._prediction(one, row) for one, row in zip(found, rows, strict=True)]

    def _prediction(self, found: Row, row: Row) -> Prediction:
        if self.task.kind == "spans":
            return _answer(found, self.settings.no_answer_threshold)
        if self.task.kind == "regression":
            return {"value": found["prediction"]}
        probabilities: list[float] = found["probabilities"]
        index = int(np.argmax(probabilities))
        if self.task.kind == "choice":
            chosen = {"option": row["options"][index], "index": index}
            return chosen | {"probability": probabilities[index], "probabilities": probabilities}
        return {
            "label": found["prediction"],
            "probability": probabilities[index],
            "probabilities": dict(zip(self.task.labels, probabilities, strict=True)),
        }


def _answer(found: Row, threshold: float | None) -> Prediction:
    """Return the best span, or none where that is more probable than ``threshold``.

    The threshold is the one found on dev; it cannot be searched without labels.
    """
    best, more = next(iter(found["n_best"]), None), {}
    if threshold is not None:
        no_answer = float(no_answer_probability(found["null_score"]))
        best = best if no_answer <= threshold else None
        more = {"no_answer_probability": no_answer}
    best = best or {"text": "", "start": None, "end": None, "score": None}
    return {"answer": best["text"], **{n: best[n] for n in ("start", "end", "score")}, **more}


def _examples(task: Task, rows: Sequence[Row], num_texts: int | None) -> Examples:
    ids = [str(number) for number in range(len(rows))]
    if task.kind == "spans":
        return SpanExamples(
            ids=ids,
            paragraphs=_texts(rows, "context"),
            paragraph_of=np.arange(len(rows)),
            clusters=np.arange(len(rows)),
            questions=_texts(rows, "question"),
            answers=[()] * len(rows),
            is_labelled=False,
        )
    if task.kind == "choice":
        return ChoiceExamples(
            ids=ids,
            articles=_texts(rows, "article"),
            article_of=np.arange(len(rows)),
            questions=_texts(rows, "question"),
            options=_options(rows, len(task.labels)),
            targets=None,
            groups=[""] * len(rows),
        )
    are_pairs = any(row.get("text_b") is not None for row in rows)
    are_pairs = are_pairs or (num_texts == 2 and any("text_b" in row for row in rows))
    if num_texts is not None and num_texts != 1 + are_pairs:
        found, expected = ("text and text_b", "text alone")[:: 1 if are_pairs else -1]
        raise TaskError(f"the rows have {found}; {task.name} was learned from {expected}.")
    if not are_pairs:
        return TextExamples(ids=ids, texts_a=_texts(rows, "text"), texts_b=None, targets=None)
    texts_a, texts_b = zip(*itertools.starmap(_pair, enumerate(rows)), strict=True)
    return TextExamples(ids=ids, texts_a=[*texts_a], texts_b=[*texts_b], targets=None)


def _texts(rows: Sequence[Row], name: str) -> list[str]:
    return [_text(row.get(name), f"row {number}: {name}") for number, row in enumerate(rows)]


def _pair(number: int, row: Row) -> tuple[str, str]:
    """Return both texts of a row; one of them may be empty, as in training."""
    text_a, text_b = (
        ""
        if name in row and _is_empty(row[name])
        else _text(row.get(name), f"row {number}: {name}")
        for name in ("text", "text_b")
    )
    if not text_a and not text_b:
        raise TaskError(f"row {number}: text and text_b are empty, expected a text in one of them.")
    return text_a, text_b


def _is_empty(value: Any) -> bool:
    """Return whether a table has no text there; pandas reads an empty field as NaN."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _options(rows: Sequence[Row], expected: int) -> list[tuple[str, ...]]:
    found = []
    for number, row in enumerate(rows):
        options = row.get("options")
        if not isinstance(options, list | tuple | np.ndarray) or len(options) != expected:
            raise TaskError(f"row {number}: options is {options!r}, expected {expected} texts.")
        found.append(tuple(_text(option, f"row {number}: an option") for option in options))
    return found


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where} is {value!r}, expected a text.")
    if _HALF_A_PAIR.search(value):
        raise TaskError(f"{where} is {value!r}, expected a text without half of a surrogate pair.")
    return value
