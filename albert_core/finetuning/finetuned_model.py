"""A fine-tuned model as a folder: encoder, head, tokenizer and task.

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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import safetensors.torch
from torch import Tensor, nn

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
from albert_core.stage.errors import IntegrityError
from albert_core.tasks.examples import Task
from albert_core.text.tokenizer import Tokenizer

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
