"""The folder of a fine-tuned model: written, read back, and read by `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning.finetuned_model import read_finetuned, save_finetuned
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.tasks.examples import Task
from tests.albert_core.tiny_model import random_model, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_vocab

SHAPES: dict[str, dict[str, Any]] = {
    "albert": {},
    "albert, not shared": {"sharing": "none"},
    "bert": {"embedding_size": 16, "sharing": "none"},
}
TASKS = {
    "classification": Task(
        name="mnli",
        title="MNLI",
        kind="classification",
        labels=("contradiction", "entailment", "neutral"),
        metrics=("accuracy",),
    ),
    "regression": Task(
        name="sts-b", title="STS-B", kind="regression", metrics=("pearson", "spearman")
    ),
    "choice": Task(name="race", title="RACE", kind="choice", metrics=("accuracy",)),
    "spans": Task(
        name="squad-2.0", title="SQuAD 2.0", kind="spans", metrics=("f1",), has_answerless=True
    ),
}
NUM_OUTPUTS = {"classification": 3, "regression": 1, "choice": 1, "spans": 2}
LENGTH = 12


class OneLayer(nn.Module):
    """A dense layer of the name that Hugging Face's class of the task has."""

    def __init__(self, kind: str, hidden_size: int) -> None:
        super().__init__()
        name = "qa_outputs" if kind == "spans" else "classifier"
        self.add_module(name, nn.Linear(hidden_size, NUM_OUTPUTS[kind]))


class TwoLayers(nn.Module):
    """A head that `transformers` has no class for."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.start = nn.Linear(hidden_size, 1)
        self.end = nn.Linear(2 * hidden_size, 1)


def encoder_of(shape: str) -> AlbertModel:
    return random_model(**SHAPES[shape], max_position_embeddings=32).encoder


def save(folder: str, shape: str, kind: str) -> tuple[AlbertModel, nn.Module]:
    encoder = encoder_of(shape)
    head = OneLayer(kind, encoder.settings.hidden_size)
    settings = {"max_seq_length": 24, "classifier_dropout_prob": 0.25}
    save_finetuned(folder, encoder, head, tiny_vocab(), TASKS[kind], settings)
    return encoder, head


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TASKS)
def test_what_is_read_is_what_was_written(shape: str, kind: str, tmp_path: Path) -> None:
    encoder, head = save(str(tmp_path), shape, kind)
    stored = read_finetuned(str(tmp_path))
    assert stored.task == TASKS[kind]
    assert stored.settings == {"max_seq_length": 24, "classifier_dropout_prob": 0.25}
    assert stored.tokenizer.model == tiny_vocab().model
    assert stored.encoder.settings == encoder.settings
    for written, read in (
        (encoder.state_dict(), stored.encoder.state_dict()),
        (head.state_dict(), stored.head),
    ):
        assert written.keys() == read.keys()
        assert all(torch.equal(written[name], read[name]) for name in written)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "auto_class"),
    [
        ("classification", transformers.AutoModelForSequenceClassification),
        ("regression", transformers.AutoModelForSequenceClassification),
        ("choice", transformers.AutoModelForMultipleChoice),
        ("spans", transformers.AutoModelForQuestionAnswering),
    ],
)
def test_transformers_computes_the_same_from_the_folder(
    shape: str, kind: str, auto_class: Any, tmp_path: Path
) -> None:
    encoder, head = save(str(tmp_path), shape, kind)
    model, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model).__name__ == model.config.architectures[0]
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    ids = torch.randint(5, 200, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(LENGTH) > 5).long().expand(4, LENGTH)
    theirs = given_to(model.eval(), kind, ids, types)
    with torch.no_grad():
        last, pooled = encoder(ids, None, types)
        (layer,) = head.children()
        ours = layer(last if kind == "spans" else pooled)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


def given_to(model: Any, kind: str, ids: Tensor, types: Tensor) -> Tensor:
    """Return Hugging Face's outputs in the shape of ours; a choice has two options."""
    if kind == "choice":
        ids, types = ids.reshape(2, 2, LENGTH), types.reshape(2, 2, LENGTH)
    with torch.no_grad():
        output = model(input_ids=ids, token_type_ids=types)
    if kind == "spans":
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits.reshape(4, 1) if kind == "choice" else output.logits  # type: ignore[no-any-return]


def test_config_json_has_the_labels_and_the_dropout(tmp_path: Path) -> None:
    save(str(tmp_path), "albert", "classification")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.id2label == {0: "contradiction", 1: "entailment", 2: "neutral"}
    assert config.classifier_dropout_prob == 0.25
    save(str(tmp_path), "bert", "regression")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.num_labels == 1
    assert config.problem_type == "regression"
    assert config.classifier_dropout == 0.25


def test_a_head_without_a_class_there_is_kept_and_the_encoder_is_read(tmp_path: Path) -> None:
    encoder = encoder_of("albert")
    head = TwoLayers(encoder.settings.hidden_size)
    save_finetuned(str(tmp_path), encoder, head, tiny_vocab(), TASKS["spans"], {})
    stored = read_finetuned(str(tmp_path))
    assert torch.equal(stored.head["end.weight"], head.end.weight)
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()(ids).last_hidden_state
        ours, _ = encoder(ids, None, torch.zeros_like(ids))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


def test_an_encoder_is_read_from_a_pretrained_and_from_a_fine_tuned_folder(tmp_path: Path) -> None:
    pretrained: AlbertForPretraining = save_tiny_model(f"{tmp_path}/pretrained")
    head = OneLayer("classification", 32)
    save_finetuned(
        f"{tmp_path}/tuned", pretrained.encoder, head, tiny_vocab(), TASKS["classification"], {}
    )
    expected = pretrained.encoder.state_dict()
    for folder in ("pretrained", "tuned"):
        encoder, tokenizer = load_encoder(f"{tmp_path}/{folder}")
        found = encoder.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert tokenizer.vocab_size == 200


def test_a_pretrained_folder_is_no_fine_tuned_one(tmp_path: Path) -> None:
    save_tiny_model(str(tmp_path))
    with pytest.raises(IntegrityError, match=r"task\.json is missing: .* a fine-tuned model"):
        read_finetuned(str(tmp_path))


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]"])
def test_a_damaged_task_is_said(content: bytes, tmp_path: Path) -> None:
    save(str(tmp_path), "albert", "classification")
    storage.write_bytes(f"{tmp_path}/task.json", content)
    with pytest.raises(IntegrityError, match=r"task\.json does not describe a task"):
        read_finetuned(str(tmp_path))


def test_an_encoder_with_a_tensor_too_few_is_said(tmp_path: Path) -> None:
    save(str(tmp_path), "albert", "classification")
    config = json.loads(storage.read_bytes(f"{tmp_path}/config.json"))
    config["albert_core"]["sharing"] = "none"
    config["albert_core"]["num_hidden_layers"] = 3
    config |= {"num_hidden_layers": 3, "num_hidden_groups": 3}
    storage.write_bytes(f"{tmp_path}/config.json", json.dumps(config).encode())
    with pytest.raises(IntegrityError, match="does not hold the whole encoder of this shape"):
        read_finetuned(str(tmp_path))
