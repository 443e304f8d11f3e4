from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.config import ModelSettings, Precision
from albert_core.model import albert, execution
from albert_core.planning.model_size import TrainingMemory
from albert_core.training.optimizer import build_optimizer
from albert_core.training.step import masked_lm_loss, sentence_order_loss
from tests.albert_core.live_memory import LiveBytes, saved_bytes

VOCAB_SIZE = 2000
SIZES: dict[str, Any] = {
    "embedding_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
MODELS: dict[str, dict[str, Any]] = {
    "albert": {},
    "bert": {"embedding_size": 128, "sharing": "none"},
    "dropout": {"hidden_dropout_prob": 0.1},
    "dropout of weights": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "inner groups": {"inner_group_num": 2, "num_hidden_layers": 2},
    "few heads, narrow": {"num_attention_heads": 1, "intermediate_size": 64},
}
SHORT: dict[str, Any] = {"num_sequences": 4, "length": 64, "num_predictions": 10}
LONG: dict[str, Any] = {"num_sequences": 1, "length": 256, "num_predictions": 38}


@pytest.fixture(autouse=True)
def cpu_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace oneDNN's products by plain ones of the same memory, if this CPU lacks some of them.

    A plan is for a CPU that has them in both precisions. One without bfloat16 instructions would
    keep a cast of a shared weight for each use of it.
    """
    if execution._has_products(torch.float32) and execution._has_products(torch.bfloat16):
        return
    monkeypatch.setattr(execution, "_has_products", lambda _: True)
    monkeypatch.setattr(execution, "_times", F.linear)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", Tensor.clone, raising=False)


class Step:
    """The forward and backward pass of one micro-batch of random pieces."""

    def __init__(self, planned: TrainingMemory) -> None:
        self.is_bfloat16 = planned.precision == "bfloat16"
        self.model = albert.AlbertForPretraining(planned.model, VOCAB_SIZE)
        if planned.activation_checkpointing:
            execution.set_layer_execution(
                self.model.encoder.blocks, compiled=False, activation_checkpointing=True
            )
        sequences, predictions = planned.num_sequences, planned.num_predictions
        self.input_ids = torch.randint(5, VOCAB_SIZE, (sequences, planned.length))
        self.token_type_ids = torch.zeros_like(self.input_ids)
        self.positions = torch.randint(0, planned.length, (sequences, predictions))
        self.labels = torch.randint(5, VOCAB_SIZE, (sequences, predictions))
        self.order = torch.zeros(sequences, dtype=torch.int64)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def tensors(self) -> list[Tensor]:
        """Return what is there before the step."""
        inputs = [v for v in vars(self).values() if isinstance(v, Tensor)]
        parameters = list(self.model.parameters())
        return [*inputs, *parameters, *(p.grad for p in parameters if p.grad is not None)]

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the loss, and the logits, which a training step holds as well."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_bfloat16, cache_enabled=False):
            logits, order = self.model(self.input_ids, None, self.token_type_ids, self.positions)
        lm = masked_lm_loss(logits.flatten(0, 1), self.labels.flatten(), self.labels.numel())
        return lm + sentence_order_loss(order, self.order, len(order)), logits

    def forward_and_backward(self) -> None:
        loss, held = self.forward()
        loss.backward()
        del held


def planned(kind: str, shape: dict[str, Any], **others: Any) -> TrainingMemory:
    """Return the plan of a step of the model that is called ``kind``."""
    sizes = SIZES | MODELS[kind] | {name: others.pop(name) for name in SIZES.keys() & others}
    return TrainingMemory(model=ModelSettings(**sizes), vocab_size=VOCAB_SIZE, **shape, **others)


@pytest.mark.parametrize("shape", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_formula_gives_what_autograd_keeps(
    kind: str, precision: Precision, shape: dict[str, Any]
) -> None:
    plan = planned(kind, shape, precision=precision)
    step = Step(plan)
    found = saved_bytes(step.forward, step.tensors())
    assert plan.saved_for_backward == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("shape", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_the_formula_gives_what_autograd_keeps_by_the_rules_of_autocast_on_cuda(
    kind: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_norm = F.layer_norm

    def in_float32(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x.float() if torch.is_autocast_enabled("cpu") else x, *others)

    monkeypatch.setattr(F, "layer_norm", in_float32)
    taken = ("gather", "casts", "stream")
    for module in (albert, execution):
        monkeypatch.setattr(module, "is_fast", lambda path, *_: path in taken)
    plan = planned(kind, shape, precision="bfloat16", device="cuda")
    step = Step(plan)
    found = saved_bytes(step.forward, step.tensors())
    assert plan.saved_for_backward == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("shape", [SHORT | {"num_sequences": 16}, LONG | {"num_sequences": 4}])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["albert", "bert", "dropout"])
def test_the_formula_gives_the_peak_of_a_step_or_a_little_more(
    kind: str, precision: Precision, shape: dict[str, Any], checkpointing: bool
) -> None:
    plan = planned(
        kind,
        shape,
        num_hidden_layers=6,
        precision=precision,
        activation_checkpointing=checkpointing,
    )
    step = Step(plan)
    with LiveBytes(step.tensors()) as live:
        step.forward_and_backward()
    assert 0.95 * live.peak < plan.activations < 1.15 * live.peak


@pytest.mark.parametrize("kind", ["albert", "bert", "few heads, narrow"])
@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_weights_moments_and_the_update_are_what_the_optimizer_takes(
    optimizer: Literal["lamb", "muon"], kind: str
) -> None:
    plan = planned(kind, SHORT, by_muon=optimizer == "muon")
    step = Step(plan)
    parameters = list(step.model.parameters())
    assert plan.weights == sum(p.nbytes for p in parameters)
    assert plan.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    by = build_optimizer(step.model, optimizer, 1e-3, 0.01, 1e-3)
    with LiveBytes(step.tensors()) as first:
        by.step()
    assert first.now == pytest.approx(plan.optimizer_state, rel=0.01)
    moments = [tensor for state in by.state.values() for tensor in state.values()]
    with LiveBytes([*step.tensors(), *moments]) as later:
        by.step()
    assert later.peak == pytest.approx(plan.update, rel=0.1)


def test_the_peak_is_either_of_the_activations_or_of_the_update() -> None:
    lasting = ("weights", "gradients", "optimizer_state")
    many, few = planned("albert", SHORT), planned("bert", SHORT | {"num_sequences": 1})
    assert many.activations > many.update
    assert many.total == sum(getattr(many, part) for part in (*lasting, "activations"))
    assert few.activations < few.update
    assert few.total == sum(getattr(few, part) for part in (*lasting, "update"))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_largest_micro_batch_fits_and_one_more_does_not(checkpointing: bool) -> None:
    plan = planned("albert", SHORT, activation_checkpointing=checkpointing)
    for memory_bytes in (3e7, 1e8, 1e9):
        largest = plan.largest_micro_batch(memory_bytes)
        assert replace(plan, num_sequences=largest).total <= memory_bytes
        assert replace(plan, num_sequences=largest + 1).total > memory_bytes
    assert plan.largest_micro_batch(1e6) == 0


def test_sharding_leaves_weights_and_gradients_whole_and_cuts_the_rest() -> None:
    whole = planned("albert", SHORT | {"num_sequences": 1, "num_predictions": 1})
    cut = replace(whole, num_shards=8)
    weights = whole.weights
    assert cut.weights == cut.gradients == pytest.approx(weights * 9 / 8, rel=1e-6)
    assert cut.optimizer_state == cut.update == pytest.approx(weights * 2 / 8, rel=1e-6)
    assert cut.activations == max(whole.activations, weights)
