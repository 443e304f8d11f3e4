from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from albert_core.config import ModelSettings, Precision
from albert_core.model import attention as attention_module
from albert_core.model import dense, losses
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.dense import then_and_again
from albert_core.model.losses import masked_lm_loss, sentence_order_loss
from albert_core.planning.training_memory import (
    MicroBatch,
    largest_micro_batch,
    saved_for_backward,
    training_memory,
)
from albert_core.training.optimizer import build_optimizer
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
SHAPES = {"short": MicroBatch(num_sequences=4, length=64, num_predictions=10)}
SHAPES["long"] = MicroBatch(num_sequences=1, length=256, num_predictions=38)


class Step:
    """The forward and backward pass of one micro-batch of random pieces."""

    def __init__(self, settings: ModelSettings, micro_batch: MicroBatch) -> None:
        self.settings, self.micro_batch = settings, micro_batch
        self.model = AlbertForPretraining(settings, VOCAB_SIZE)
        if micro_batch.activation_checkpointing:
            for block in [*self.model.encoder.attentions, *self.model.encoder.feed_forwards]:
                block.forward = partial(
                    checkpoint, block.forward, use_reentrant=False, context_fn=then_and_again
                )
        sequences, predictions = micro_batch.num_sequences, micro_batch.num_predictions
        self.input_ids = torch.randint(5, VOCAB_SIZE, (sequences, micro_batch.length))
        self.token_type_ids = torch.zeros_like(self.input_ids)
        self.positions = torch.randint(0, micro_batch.length, (sequences, predictions))
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
        """Return the loss, and the logits that a training step holds besides."""
        bfloat16 = self.micro_batch.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            logits, order = self.model(self.input_ids, None, self.token_type_ids, self.positions)
        lm = masked_lm_loss(logits.flatten(0, 1), self.labels.flatten(), self.labels.numel())
        return lm + sentence_order_loss(order, self.order, len(order)), logits

    def forward_and_backward(self) -> None:
        loss, held = self.forward()
        loss.backward()
        del held


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_formula_gives_what_autograd_keeps(kind: str, precision: Precision, shape: str) -> None:
    step = Step(
        ModelSettings(**(SIZES | MODELS[kind])), replace(SHAPES[shape], precision=precision)
    )
    found = saved_bytes(step.forward, step.tensors())
    expected = saved_for_backward(step.settings, VOCAB_SIZE, step.micro_batch)
    assert expected == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_the_formula_gives_what_autograd_keeps_by_the_rules_of_autocast_on_cuda(
    kind: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_norm = F.layer_norm

    def in_float32(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x.float(), *others)

    def fused(*arguments: Any) -> Tensor:
        return F.scaled_dot_product_attention(*arguments)

    def whole_loss(logits: Tensor, labels: Tensor, number: float) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="sum") / number

    monkeypatch.setattr(F, "layer_norm", in_float32)
    monkeypatch.setattr(losses._CrossEntropy, "apply", whole_loss)
    monkeypatch.setattr(dense, "_has_product", lambda *_: False)
    monkeypatch.setattr(attention_module, "attend", fused)
    step = Step(
        ModelSettings(**(SIZES | MODELS[kind])), replace(SHAPES[shape], precision="bfloat16")
    )
    found = saved_bytes(step.forward, step.tensors())
    on_cuda = replace(step.micro_batch, device="cuda")
    assert saved_for_backward(step.settings, VOCAB_SIZE, on_cuda) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("num_sequences", "length", "num_predictions"), [(16, 64, 10), (4, 256, 38)]
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["albert", "bert", "dropout"])
def test_the_formula_gives_the_peak_of_a_step_or_a_little_more(
    kind: str,
    precision: Precision,
    num_sequences: int,
    length: int,
    num_predictions: int,
    checkpointing: bool,
) -> None:
    micro_batch = MicroBatch(
        num_sequences=num_sequences,
        length=length,
        num_predictions=num_predictions,
        precision=precision,
        activation_checkpointing=checkpointing,
    )
    step = Step(ModelSettings(**(SIZES | {"num_hidden_layers": 6} | MODELS[kind])), micro_batch)
    with LiveBytes(step.tensors()) as live:
        step.forward_and_backward()
    expected = training_memory(step.settings, VOCAB_SIZE, micro_batch).activations
    assert 0.95 * live.peak < expected < 1.15 * live.peak


def test_weights_moments_and_the_update_are_what_the_optimizer_takes() -> None:
    step = Step(ModelSettings(**SIZES), SHAPES["short"])
    memory = training_memory(step.settings, VOCAB_SIZE, step.micro_batch)
    parameters = list(step.model.parameters())
    assert memory.weights == sum(p.nbytes for p in parameters)
    assert memory.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    optimizer = build_optimizer(step.model, "lamb", 1e-3, 0.01)
    with LiveBytes(step.tensors()) as first:
        optimizer.step()
    assert first.now == pytest.approx(memory.optimizer_state, rel=0.01)
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    with LiveBytes([*step.tensors(), *moments]) as later:
        optimizer.step()
    assert later.peak == pytest.approx(memory.update, rel=0.1)


def test_the_peak_is_either_of_the_activations_or_of_the_update() -> None:
    settings = ModelSettings(**SIZES)
    one = training_memory(settings, VOCAB_SIZE, SHAPES["short"])
    assert one.total == one.weights + one.gradients + one.optimizer_state + one.activations
    none = replace(one, activations=0)
    assert none.total == one.total - one.activations + one.update


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_largest_micro_batch_fits_and_one_more_does_not(checkpointing: bool) -> None:
    settings = ModelSettings(**SIZES)
    given = replace(SHAPES["short"], activation_checkpointing=checkpointing)
    for memory in (3e7, 1e8, 1e9):
        largest = largest_micro_batch(settings, VOCAB_SIZE, given, memory)
        totals = [
            training_memory(settings, VOCAB_SIZE, replace(given, num_sequences=number)).total
            for number in (largest, largest + 1)
        ]
        assert totals[0] <= memory < totals[1]
    assert largest_micro_batch(settings, VOCAB_SIZE, given, 1e6) == 0


def test_base_takes_what_is_known_of_it_on_an_h200() -> None:
    # Source: PLATFORM.md part 3, section 3b: 16 H numbers of 2 bytes for a piece and layer, 39 GB
    # of activations for 256 sequences of 512; autocast's float32 stream and casts add a quarter.
    micro_batch = MicroBatch(
        num_sequences=256, length=512, num_predictions=77, precision="bfloat16", device="cuda"
    )
    saved = saved_for_backward(ModelSettings(), 30_000, micro_batch)
    assert 39e9 < saved < 1.35 * 39e9


def test_a_step_of_base_takes_what_a_process_grew_by() -> None:
    # Source: PLATFORM.md part 3, section 1: 1,357 MB for a prototype, 16 x 128, float32.
    micro_batch = MicroBatch(num_sequences=16, length=128, num_predictions=20)
    memory = training_memory(ModelSettings(), 30_000, micro_batch)
    assert memory.activations + memory.gradients == pytest.approx(1357e6, rel=0.05)


def test_sharding_leaves_weights_and_gradients_whole_and_cuts_the_rest() -> None:
    micro_batch = MicroBatch(num_sequences=1, length=64, num_predictions=10)
    whole = training_memory(ModelSettings(), 30_000, micro_batch)
    cut = training_memory(ModelSettings(), 30_000, micro_batch, num_shards=8)
    weights = whole.weights
    assert cut.weights == cut.gradients == pytest.approx(weights * 9 / 8, rel=1e-6)
    assert cut.optimizer_state == cut.update == pytest.approx(weights * 2 / 8, rel=1e-6)
    assert cut.activations == max(whole.activations, weights)
