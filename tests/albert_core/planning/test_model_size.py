from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from albert_core.config import ModelSettings, Precision, Sharing
from albert_core.model import albert, execution
from albert_core.planning import model_size, run_plan
from albert_core.planning.model_size import TrainingMemory
from albert_core.text.records import Sizes
from albert_core.training.optimizer import build_optimizer
from albert_core.training.step import masked_lm_loss, sentence_order_loss
from tests.albert_core.live_memory import LiveBytes, saved_bytes
from tests.albert_core.tiny_model import logits_of, tiny_settings

FEW_PIECES = 50
SHALLOW: dict[str, Any] = {"num_hidden_layers": 3, "max_position_embeddings": 32}
DIFFERS_FROM_PAPER = {
    "ALBERT xlarge",
    "ALBERT xxlarge",
    "3 layers, H 2048",
    "3 layers, H 4096",
    "3 layers, H 6144",
}


def counted_in_a_model(
    model_settings: ModelSettings, vocab_size: int
) -> model_size.ParameterCounts:
    """Build the model on the meta device and count its tensors."""
    with torch.device("meta"):
        model = albert.AlbertForPretraining(model_settings, vocab_size)

    def number(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    counts = model_size.ParameterCounts(
        embeddings=number(model.encoder.embeddings),
        projection=number(model.encoder.projection),
        attention=number(model.encoder.attentions),
        feed_forward=number(model.encoder.feed_forwards),
        pooler=number(model.encoder.pooler),
        masked_lm=number(model.masked_lm),
        sentence_order=number(model.sentence_order),
    )
    assert counts.with_heads == number(model)
    return counts


@pytest.mark.parametrize(
    "published", model_size.PUBLISHED_SIZES, ids=lambda p: f"table {p.table}, {p.row}"
)
def test_a_shared_row_of_the_paper_counts_the_pooler_and_an_unshared_one_does_not(
    published: model_size.PublishedSize,
) -> None:
    counts = published.counts
    assert counts == counted_in_a_model(published.settings, published.vocab_size)
    if published.row in DIFFERS_FROM_PAPER or published.millions is None:
        assert published.matching == []
    elif published.settings.sharing == "none":
        assert published.matching == ["without pooler"]
    else:
        assert "with pooler" in published.matching


def test_the_conventions_count_more_and_more_of_a_model() -> None:
    # With the pooler: as `transformers.AlbertModel` has them for albert-base-v2.
    base = model_size.count_parameters(ModelSettings(), 30_000)
    assert base.by_convention() == {
        "without pooler": 11_092_992,
        "with pooler": 11_683_584,
        "with heads": 11_813_810,
    }


@pytest.mark.parametrize("embedding_size", [5, 24])
@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize(("num_hidden_groups", "inner_group_num"), [(1, 1), (3, 1), (2, 3)])
def test_the_arithmetic_counts_what_a_model_has_part_by_part(
    embedding_size: int, sharing: Sharing, num_hidden_groups: int, inner_group_num: int
) -> None:
    model_settings = ModelSettings(
        embedding_size=embedding_size,
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=37,
        sharing=sharing,
        num_hidden_groups=num_hidden_groups,
        inner_group_num=inner_group_num,
        max_position_embeddings=11,
        type_vocab_size=3,
    )
    assert model_size.count_parameters(model_settings, 71) == counted_in_a_model(model_settings, 71)


def flops_counted_by_torch(
    model_settings: ModelSettings, num_sequences: int, length: int, num_predictions: int
) -> int:
    """Run a step and count its matrix products.

    Attention is made of plain products and everything is float64, which oneDNN has no products
    for, so that torch's counter knows every operation.
    """
    model = albert.AlbertForPretraining(model_settings, FEW_PIECES).double()
    input_ids = torch.randint(5, FEW_PIECES, (num_sequences, length))
    positions = torch.randint(0, length, (num_sequences, num_predictions))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        lm, order = logits_of(model, input_ids, None, torch.zeros_like(input_ids), positions)
        (lm.square().sum() + order.square().sum()).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 16},
        {"sharing": "none"},
        {"sharing": "attention", "num_hidden_groups": 3},
        {"inner_group_num": 2},
        {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("num_sequences", "length", "num_predictions"), [(1, 1, 1), (3, 32, 5), (4, 10, 2)]
)
def test_the_formula_counts_what_torch_counts(
    changes: dict[str, Any], num_sequences: int, length: int, num_predictions: int
) -> None:
    model_settings = tiny_settings(**SHALLOW | changes)
    lengths = np.full(num_sequences, length)
    sizes = Sizes.of_lengths(lengths, num_sequences * num_predictions)
    counted = flops_counted_by_torch(model_settings, num_sequences, length, num_predictions)
    assert model_size.training_flops(model_settings, FEW_PIECES, sizes) == counted


def test_sequences_of_several_lengths_cost_what_each_costs_alone() -> None:
    shape, lengths = tiny_settings(**SHALLOW), np.array([4, 9, 30])
    together = model_size.training_flops(shape, FEW_PIECES, Sizes.of_lengths(lengths, 6))
    assert together == sum(flops_counted_by_torch(shape, 1, length, 2) for length in lengths)
    mean = run_plan.ExampleSizes.mean_of(lengths, 6, "here")
    assert 3 * model_size.training_flops(shape, FEW_PIECES, mean) == pytest.approx(together)


@pytest.mark.parametrize("sharing", ["all", "attention", "none"])
def test_the_operations_of_muon_are_what_torch_counts(sharing: Any) -> None:
    model_settings = tiny_settings(sharing=sharing, num_hidden_layers=3)
    model = albert.AlbertForPretraining(model_settings, FEW_PIECES)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = build_optimizer(model, "muon", 0.02, 0.01, 0.003)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert model_size.muon_flops(model_settings) == counter.get_total_flops()


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
    "relu": {"hidden_act": "relu"},
    "few heads, narrow": {"num_attention_heads": 1, "intermediate_size": 64},
}
SHORT: dict[str, Any] = {"num_sequences": 4, "length": 64, "num_predictions": 10}
LONG: dict[str, Any] = {"num_sequences": 1, "length": 256, "num_predictions": 38}


@pytest.fixture
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
            given = self.input_ids, None, self.token_type_ids, self.positions
            logits, order = logits_of(self.model, *given)
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


@pytest.mark.usefixtures("cpu_of_a_plan")
@pytest.mark.parametrize("shape", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_formula_gives_what_autograd_keeps(
    kind: str, precision: Precision, shape: dict[str, Any]
) -> None:
    plan = planned(kind, shape, precision=precision)
    step = Step(plan)
    found = saved_bytes(step.forward, step.tensors())
    assert plan.saved_for_backward == pytest.approx(found, rel=0.01)


@pytest.mark.usefixtures("cpu_of_a_plan")
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
    monkeypatch.setattr(execution, "is_fast", lambda path, *_: path in taken)
    plan = planned(kind, shape, precision="bfloat16", device="cuda")
    step = Step(plan)
    found = saved_bytes(step.forward, step.tensors())
    assert plan.saved_for_backward == pytest.approx(found, rel=0.01)


@pytest.mark.usefixtures("cpu_of_a_plan")
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
    assert live.peak < plan.activations < 1.15 * live.peak


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


def test_on_a_cpu_the_peak_has_the_process_too() -> None:
    cpu = planned("albert", SHORT)
    assert cpu.peak == cpu.process + cpu.total > 400 << 20
    gpu = replace(cpu, device="cuda")
    assert gpu.peak == gpu.total


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
