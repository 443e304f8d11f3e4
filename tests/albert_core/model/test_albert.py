import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.model.albert import AlbertForPretraining, AlbertModel, block_route
from albert_core.model.attention import lengths_of
from tests.albert_core.tiny_model import encoded, logits_of, tiny_settings

BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
XLARGE = {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192}
XXLARGE = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}


def shape(
    size: dict[str, int], num_layers: int, embedding_size: int, sharing: str
) -> ModelSettings:
    others = {"num_hidden_layers": num_layers, "embedding_size": embedding_size}
    return ModelSettings.read(size | others | {"sharing": sharing}, "test")


def tiny(**changes: Any) -> ModelSettings:
    return tiny_settings(**{"num_hidden_layers": 4} | changes)


def num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# By the shapes in `modeling.py`: without pooler, with pooler, with pooler and heads.
PARAMETERS = [
    (BASE, 12, 128, "all", 30000, 11_092_992, 11_683_584, 11_813_810),
    (XXLARGE, 12, 128, "all", 30000, 205_814_272, 222_595_584, 223_158_450),
    (BASE, 12, 768, "none", 30000, 108_490_752, 109_081_344, 109_705_010),
    (BASE, 12, 768, "none", 30522, 108_891_648, 109_482_240, 110_106_428),
    (BASE, 12, 64, "none", 30000, 87_057_408, 87_648_000, 87_728_882),
    (BASE, 12, 256, "all", 30000, 15_097_344, 15_687_936, 15_916_850),
    (BASE, 12, 768, "attention", 30000, 82_487_808, 83_078_400, 83_702_066),
    (BASE, 12, 768, "ffn", 30000, 56_527_104, 57_117_696, 57_741_362),
]


@pytest.mark.parametrize("row", PARAMETERS)
def test_has_the_published_number_of_parameters(row: tuple[Any, ...]) -> None:
    *of_shape, vocab_size, bare, pooled, whole = row
    with torch.device("meta"):
        model = AlbertForPretraining(shape(*of_shape), vocab_size)
    assert num_parameters(model.encoder) - num_parameters(model.encoder.pooler) == bare
    assert num_parameters(model.encoder) == pooled
    assert num_parameters(model) == whole


@pytest.mark.parametrize(
    ("changes", "route"),
    [
        ({"sharing": "all", "num_hidden_groups": 2}, [(0, 0), (0, 0), (1, 1), (1, 1)]),
        ({"sharing": "attention", "num_hidden_groups": 2}, [(0, 0), (0, 1), (1, 2), (1, 3)]),
        ({"sharing": "ffn", "num_hidden_groups": 2}, [(0, 0), (1, 0), (2, 1), (3, 1)]),
        ({"sharing": "none", "num_hidden_groups": 2}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ({"inner_group_num": 2}, [(0, 0), (1, 1)] * 4),
    ],
)
def test_layers_share_what_the_settings_say(
    changes: dict[str, Any], route: list[tuple[int, int]]
) -> None:
    assert block_route(tiny(**changes)) == route


@given(st.integers(1, 48), st.data())
def test_groups_follow_each_other_and_differ_by_one_layer_at_most(
    num_layers: int, data: st.DataObject
) -> None:
    num_groups = data.draw(st.integers(1, num_layers))
    route = block_route(tiny(num_hidden_layers=num_layers, num_hidden_groups=num_groups))
    owners = [attention for attention, _ in route]
    assert owners == sorted(owners)
    sizes = [owners.count(group) for group in range(num_groups)]
    assert sum(sizes) == num_layers
    assert max(sizes) - min(sizes) <= 1


def batch(num_sequences: int = 3, length: int = 10) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 50, (num_sequences, length), generator=draw)
    mask = torch.ones_like(input_ids)
    token_types = (torch.arange(length) > length // 2).long().expand_as(input_ids)
    positions = torch.randint(0, length, (num_sequences, 4), generator=draw)
    return input_ids, mask, token_types, positions


PACKINGS = [[(1, 5)], [(3, 4)], [(2, 9), (1, 6), (3, 2), (1, 1)]]


@pytest.mark.parametrize("runs", PACKINGS, ids=["one", "one_length", "four_lengths"])
@pytest.mark.parametrize("settings", [tiny(), tiny(sharing="none", embedding_size=16)])
def test_a_packed_batch_has_the_loss_and_gradients_of_the_padded_one(
    settings: ModelSettings, runs: list[tuple[int, int]]
) -> None:
    torch.manual_seed(0)
    model = AlbertForPretraining(settings, 50).double()
    lengths = lengths_of(runs)
    first = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    rows = [(torch.randint(5, 50, (n,)), torch.arange(n) * 2 // n) for n in lengths]
    columns = [list(column) for column in zip(*rows, strict=True)]
    input_ids, token_types = map(torch.cat, columns)
    padded_ids, padded_types = (
        torch.nn.utils.rnn.pad_sequence(column, batch_first=True, padding_value=1)
        for column in columns
    )
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    last = torch.tensor(lengths) - 1  # two predictions a sequence, perhaps the same one
    positions = torch.stack([last // 2, last], 1)

    def gradients(lm_logits: Tensor, order_logits: Tensor) -> tuple[Tensor, ...]:
        weights = torch.linspace(-1, 1, lm_logits.numel(), dtype=torch.float64)
        loss = lm_logits.flatten() @ weights + order_logits.square().sum()
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    packed = model(input_ids, token_types, runs, first, (first[:, None] + positions).flatten())
    padded = logits_of(model, padded_ids, mask, padded_types, positions)
    torch.testing.assert_close(gradients(*packed), gradients(*padded), rtol=1e-9, atol=1e-12)


def test_the_head_scores_the_masked_positions_with_the_word_embeddings() -> None:
    torch.manual_seed(0)
    model = AlbertForPretraining(tiny(), 50).eval()
    input_ids, mask, token_types, positions = batch()
    lm_logits, order_logits = logits_of(model, input_ids, mask, token_types, positions)
    hidden, pooled = encoded(model.encoder, input_ids, mask, token_types)
    head = model.masked_lm
    row, column = 1, 2
    vector = hidden[row, positions[row, column]]
    vector = head.norm(torch.nn.functional.gelu(head.dense(vector), approximate="tanh"))
    scores = model.encoder.embeddings.word.weight @ vector + head.bias
    torch.testing.assert_close(lm_logits[row, column], scores)
    torch.testing.assert_close(order_logits, model.sentence_order(pooled))


def test_matrices_begin_within_two_deviations_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    model = AlbertForPretraining(tiny(hidden_size=64, initializer_range=0.02), 500)
    truncated_std = 0.02 * math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / 0.9545)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert parameter.abs().max() <= 0.04, name
            assert parameter.std().item() == pytest.approx(truncated_std, rel=0.25), name
        else:
            constant = 1.0 if name.endswith("norm.weight") else 0.0
            assert (parameter == constant).all(), name


@pytest.mark.parametrize("changes", [{}, {"inner_group_num": 2}], ids=["albert", "inner blocks"])
def test_a_model_that_computes_fewer_layers_is_one_that_has_fewer(changes: dict[str, int]) -> None:
    deep, shallow = (
        AlbertForPretraining(tiny(num_hidden_layers=layers, **changes), 50).eval()
        for layers in (4, 2)
    )
    shallow.load_state_dict(deep.state_dict())
    of_four = logits_of(deep, *batch())[0]
    deep.encoder.num_layers = 2
    torch.testing.assert_close(logits_of(deep, *batch()), logits_of(shallow, *batch()))
    assert not torch.equal(logits_of(deep, *batch())[0], of_four)


@pytest.mark.parametrize("setting", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_acts_in_training_only(setting: str) -> None:
    torch.manual_seed(0)
    model = AlbertModel(tiny(**{setting: 0.5}), 50)
    input_ids, mask, token_types, _ = batch()
    first, second = (encoded(model, input_ids, mask, token_types)[0] for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    first, second = (encoded(model, input_ids, mask, token_types)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


def test_shared_weights_sum_their_gradient_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    model = AlbertForPretraining(tiny(num_hidden_layers=8, initializer_range=0.2), 50)
    arguments = batch()

    def gradient(enabled: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            lm_logits, _ = logits_of(model, *arguments)
        lm_logits.float().square().mean().backward()
        weight = model.get_parameter("encoder.attentions.0.value.weight")
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        return weight.grad.clone()

    summed, exact = gradient(True), gradient(False)
    assert (summed - exact).norm() < 0.05 * exact.norm()
    assert not torch.equal(summed, summed.bfloat16().float())  # a sum in bfloat16 would be
