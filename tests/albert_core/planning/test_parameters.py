from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from albert_core.config import ModelSettings, Sharing
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning import model_size, run_plan
from albert_core.training.loader import UpdateSizes
from albert_core.training.optimizer import build_optimizer
from tests.albert_core.tiny_model import tiny_settings

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
        model = AlbertForPretraining(model_settings, vocab_size)

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


# -- operations


VOCAB_SIZE = 50
SIZES: dict[str, Any] = {"num_hidden_layers": 3, "max_position_embeddings": 32}


def flops_counted_by_torch(
    model_settings: ModelSettings, num_sequences: int, length: int, num_predictions: int
) -> int:
    """Run a step and count its matrix products.

    Attention is made of plain products and everything is float64, which oneDNN has no products
    for, so that torch's counter knows every operation.
    """
    model = AlbertForPretraining(model_settings, VOCAB_SIZE).double()
    input_ids = torch.randint(5, VOCAB_SIZE, (num_sequences, length))
    positions = torch.randint(0, length, (num_sequences, num_predictions))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(input_ids, None, torch.zeros_like(input_ids), positions)
        sum(part.square().sum() for part in logits).backward()
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
    model_settings = tiny_settings(**SIZES | changes)
    lengths = np.full(num_sequences, length)
    sizes = UpdateSizes.of_lengths(lengths, num_sequences * num_predictions)
    counted = flops_counted_by_torch(model_settings, num_sequences, length, num_predictions)
    assert model_size.training_flops(model_settings, VOCAB_SIZE, sizes) == counted


def test_sequences_of_several_lengths_cost_what_each_costs_alone() -> None:
    shape, lengths = tiny_settings(**SIZES), np.array([4, 9, 30])
    together = model_size.training_flops(shape, VOCAB_SIZE, UpdateSizes.of_lengths(lengths, 6))
    assert together == sum(flops_counted_by_torch(shape, 1, length, 2) for length in lengths)
    mean = run_plan.ExampleSizes.of_lengths(lengths, 6, "here")
    assert 3 * model_size.training_flops(shape, VOCAB_SIZE, mean) == pytest.approx(together)


@pytest.mark.parametrize("sharing", ["all", "attention", "none"])
def test_the_operations_of_muon_are_what_torch_counts(sharing: Any) -> None:
    model_settings = tiny_settings(sharing=sharing, num_hidden_layers=3)
    model = AlbertForPretraining(model_settings, VOCAB_SIZE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = build_optimizer(model, "muon", 0.02, 0.01, 0.003)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert model_size.muon_flops(model_settings) == counter.get_total_flops()
