"""A fine-tuned model as a folder: encoder, head, tokenizer and task; and what it predicts.

The folder is in Hugging Face's layout, so `transformers` reads the same one where it has a class
for the head: `AlbertForSequenceClassification`, `AlbertForMultipleChoice` and, for a head of one
dense layer named "qa_outputs", `AlbertForQuestionAnswering`; or BERT's classes for a model of
BERT's shape. Any other head's folder is read there as an `AlbertModel`. task.json says what
`transformers` has no word for.

config.json         the encoder's shape, the class, the labels
model.safetensors   encoder by Hugging Face's names, head by its own
task.json           the task, and the settings of its inputs and of its head
spiece.model, tokenizer.json, tokenizer_config.json, special_tokens_map.json
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import FinetuningSettings
from albert_core.conversion.huggingface import architecture_of, hf_config
from albert_core.conversion.model_files import CONFIG, TASK, WEIGHTS, read_task
from albert_core.conversion.model_folder import (
    encoder_to_hf_state,
    read_tokenizer,
    split_model_folder,
    tokenizer_files,
)
from albert_core.model.albert import AlbertModel
from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError, TaskError
from albert_core.tasks.examples import ChoiceExamples, Examples, SpanExamples, Task, TextExamples
from albert_core.tasks.problem import Problem, outputs_of
from albert_core.tasks.spans import SpanProblem
from albert_core.tasks.texts import ChoiceProblem, TextProblem
from albert_core.text.tokenizer import Tokenizer


def problem_of(task: Task, settings: FinetuningSettings) -> Problem[Any]:
    """Return how ``task`` is learned and scored."""
    if task.kind == "choice":
        return ChoiceProblem(task)
    if task.kind == "spans":
        return SpanProblem(task, settings.spans)
    return TextProblem(task)


SPAN_CLASSIFIER = "qa_outputs.weight"
"""What a span head is made of that Hugging Face's classes can read."""
NUMBER = "number"
"""What config.json calls the one output of a regression."""

_CLASS_PREFIX = {"albert": "Albert", "bert": "Bert"}
_DROPOUT_NAME = {"albert": "classifier_dropout_prob", "bert": "classifier_dropout"}


@dataclass(frozen=True)
class StoredModel:
    """What the folder of a fine-tuned model holds."""

    encoder: AlbertModel
    """On the CPU, in float32."""
    head: dict[str, Tensor]
    """The head's state."""
    tokenizer: Tokenizer
    task: Task
    settings: dict[str, Any]
    """Of the task's inputs and head, as `save_finetuned` was given them."""


def save_finetuned(
    folder: str,
    encoder: AlbertModel,
    head: nn.Module,
    tokenizer: Tokenizer,
    task: Task,
    settings: Mapping[str, Any],
) -> None:
    """Write a fine-tuned model to ``folder`` (a URI), for us and for `transformers`.

    Args:
        folder: written over where it exists.
        encoder: on any device.
        head: its parameters are to have the names that Hugging Face's class has for them,
            "classifier" or "qa_outputs", if that class is to read them.
        tokenizer: the vocabulary that the model was trained with.
        task: what the head was trained for.
        settings: JSON values that its inputs and its head are made with again, e.g.
            max_seq_length, and what was searched on dev, such as a threshold.

    Raises:
        IntegrityError: the model's vocabulary is not of the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    vocab_size = len(encoder.embeddings.word.weight)
    if vocab_size != tokenizer.vocab_size:
        raise IntegrityError(
            f"the model has {vocab_size} pieces, the tokenizer {tokenizer.vocab_size}. Save a "
            "model with the vocabulary it was trained with."
        )
    own = head.state_dict()
    state = {name: t.detach().cpu().clone() for name, t in encoder_to_hf_state(encoder).items()}
    state |= {name: t.detach().cpu().clone() for name, t in own.items()}
    described = {"task": asdict(task), "settings": dict(settings)}
    config = _config(encoder, vocab_size, task, own, settings)
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(config, indent=1).encode(),
        TASK: json.dumps(described, indent=1).encode(),
        **tokenizer_files(tokenizer, encoder.settings.max_position_embeddings),
    }
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content)


def read_finetuned(folder: str) -> StoredModel:
    """Return what is in the folder of a fine-tuned model.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged.
    """
    described = read_task(folder)
    encoder, head = split_model_folder(folder)
    task = {name: _tuples(value) for name, value in described["task"].items()}
    return StoredModel(
        encoder, head, read_tokenizer(folder), Task(**task), dict(described["settings"])
    )


def _tuples(value: Any) -> Any:
    """Return ``value`` as `Task` has it, whose lists are tuples."""
    return tuple(value) if isinstance(value, list) else value


def _config(
    encoder: AlbertModel,
    vocab_size: int,
    task: Task,
    head: Mapping[str, Tensor],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return config.json."""
    architecture = architecture_of(encoder.settings)
    config = hf_config(encoder.settings, vocab_size, architecture)
    config["architectures"] = [_CLASS_PREFIX[architecture] + _class_suffix(task, head)]
    config["finetuning_task"] = task.name
    if "classifier_dropout_prob" in settings:
        config[_DROPOUT_NAME[architecture]] = settings["classifier_dropout_prob"]
    if task.kind in ("classification", "regression"):
        labels = task.labels or (NUMBER,)
        config |= {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: number for number, label in enumerate(labels)},
            "problem_type": (
                "regression" if task.kind == "regression" else "single_label_classification"
            ),
        }
    return config


def _class_suffix(task: Task, head: Mapping[str, Tensor]) -> str:
    if task.kind in ("classification", "regression"):
        return "ForSequenceClassification"
    if task.kind == "choice":
        return "ForMultipleChoice"
    return "ForQuestionAnswering" if SPAN_CLASSIFIER in head else "Model"


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
