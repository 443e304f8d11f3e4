from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from albert_core.config import ModelSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.parameters import training_flops
from albert_core.planning.run_plan import ExampleSizes
from albert_core.training.shards import UpdateSizes

VOCAB_SIZE = 50
SIZES: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


def flops_counted_by_torch(
    settings: ModelSettings, num_sequences: int, length: int, num_predictions: int
) -> int:
    """Run a step and count its matrix products.

    Attention is made of plain products and everything is float64, which oneDNN has no products
    for, so that torch's counter knows every operation.
    """
    model = AlbertForPretraining(settings, VOCAB_SIZE).double()
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
    settings = ModelSettings(**(SIZES | changes))
    lengths = np.full(num_sequences, length)
    sizes = UpdateSizes.of_lengths(lengths, num_sequences * num_predictions)
    counted = flops_counted_by_torch(settings, num_sequences, length, num_predictions)
    assert training_flops(settings, VOCAB_SIZE, sizes) == counted


def test_sequences_of_several_lengths_cost_what_each_costs_alone() -> None:
    settings, lengths = ModelSettings(**SIZES), np.array([4, 9, 30])
    together = training_flops(settings, VOCAB_SIZE, UpdateSizes.of_lengths(lengths, 6))
    assert together == sum(flops_counted_by_torch(settings, 1, length, 2) for length in lengths)
    mean = ExampleSizes.of_lengths(lengths, 6, "here")
    assert 3 * training_flops(settings, VOCAB_SIZE, mean) == pytest.approx(together)
