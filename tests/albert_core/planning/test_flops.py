from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from albert_core.config import ModelSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.flops import training_flops, training_flops_of

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
    """Run a step and count its matrix products, all by operations that the counter knows.

    So attention by plain products; and in float64, which oneDNN has no products for.
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
    found = training_flops(
        settings, VOCAB_SIZE, [length] * num_sequences, num_sequences * num_predictions
    )
    assert found == flops_counted_by_torch(settings, num_sequences, length, num_predictions)


def test_sequences_of_several_lengths_cost_what_each_costs_alone() -> None:
    settings = ModelSettings(**SIZES)
    together = training_flops(settings, VOCAB_SIZE, np.array([4, 9, 30]), 6)
    alone = [flops_counted_by_torch(settings, 1, length, 2) for length in (4, 9, 30)]
    assert together == sum(alone)


def test_a_mean_example_times_their_number_costs_what_all_do() -> None:
    settings, lengths = ModelSettings(**SIZES), np.array([4, 9, 30, 17])
    mean = training_flops_of(
        settings, VOCAB_SIZE, 1, lengths.mean(), np.square(lengths).mean(), 10 / 4
    )
    assert 4 * mean == pytest.approx(training_flops(settings, VOCAB_SIZE, lengths, 10))


# Source: PLATFORM.md part 3, section 4: GFLOP of a sequence; 77 and 20 predictions.
@pytest.mark.parametrize(
    ("hidden_size", "num_layers", "length", "num_predictions", "gflop"),
    [
        (768, 12, 512, 77, 292.0),
        (768, 12, 128, 20, 67.6),
        (1024, 24, 512, 77, 1007),
        (2048, 24, 512, 77, 3868),
        (4096, 12, 512, 77, 7580),
    ],
)
def test_the_published_models_cost_what_is_known_of_them(
    hidden_size: int, num_layers: int, length: int, num_predictions: int, gflop: float
) -> None:
    settings = ModelSettings(
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )
    found = training_flops(settings, 30_000, [length], num_predictions)
    assert found / 1e9 == pytest.approx(gflop, rel=1e-3)
