from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from albert_core.model import attention
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.attention import _PlainAttention, attend, layout_of, lengths_of
from tests.albert_core.tiny_model import tiny_settings

MASKS = [None, torch.tensor([[True, True, False], [True, True, True]])[:, None, None]]


def draw(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values (B, N, S, D)."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 3, 4, dtype=torch.float32).to(dtype)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


@pytest.mark.parametrize("mask", MASKS, ids=["unpadded", "padded"])
def test_plain_attention_is_the_fused_one(mask: Tensor | None) -> None:
    inputs = draw(torch.float64)
    plain = _PlainAttention.apply(*inputs, mask)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(plain, attend(*inputs, mask, 0.0))
    assert torch.autograd.gradcheck(lambda *x: _PlainAttention.apply(*x, mask), inputs)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("mask", MASKS, ids=["unpadded", "padded"])
def test_attention_in_bfloat16_is_that_of_float32_but_for_rounding(mask: Tensor | None) -> None:
    expected = attend(*draw(torch.float32), mask, 0.0)
    found = attend(*draw(torch.bfloat16), mask, 0.0)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.03)


def test_dropout_drops_weights_in_bfloat16_too() -> None:
    inputs = draw(torch.bfloat16)
    assert not torch.equal(attend(*inputs, None, 0.5), attend(*inputs, None, 0.5))


# All sequences of a batch in one kernel. The kernel itself needs a GPU; here another that obeys
# the same contract stands in for it.

VOCAB_SIZE = 50
MODEL = tiny_settings(num_hidden_layers=3, max_position_embeddings=20)


def one_by_one(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, key_ends: Tensor, *longest: int
) -> Tensor:
    """Do what `varlen_attn` does, sequence by sequence."""
    assert ends.dtype == key_ends.dtype == torch.int32
    lengths = ends.diff().tolist()
    assert longest == (max(lengths), max(lengths))
    parts = zip(*(each.split(lengths) for each in (query, key, value)), strict=True)
    heads_first = ([each.transpose(0, 1) for each in part] for part in parts)
    return torch.cat([F.scaled_dot_product_attention(*p).transpose(0, 1) for p in heads_first])


def packed(runs: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Return random inputs of a packed batch."""
    lengths = torch.tensor(lengths_of(runs))
    first, num_pieces = lengths.cumsum(0) - lengths, int(lengths.sum())
    return {
        "input_ids": torch.randint(0, VOCAB_SIZE, (num_pieces,)),
        "token_type_ids": torch.randint(0, 2, (num_pieces,)),
        "runs": runs,
        "first_positions": first,
        "masked_lm_positions": first + 1,
    }


def test_all_sequences_in_one_kernel_give_what_run_by_run_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = AlbertForPretraining(MODEL, VOCAB_SIZE).double()
    inputs = packed(((2, 20), (3, 7), (1, 5), (1, 2)))
    found = []
    for has_kernel in (False, True):
        monkeypatch.setattr(attention, "_has_flash", lambda *_, there=has_kernel: there)
        monkeypatch.setattr(attention, "varlen_attn", one_by_one if has_kernel else None)
        logits, orders = model.forward_packed(**inputs)
        model.zero_grad()
        (logits.square().sum() + orders.square().sum()).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((logits, orders, gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-11)


def test_with_dropout_or_padding_attention_goes_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda *_: True)
    monkeypatch.setattr(attention, "varlen_attn", None)  # to call it would be an error
    layout = layout_of(((2, 3),), torch.device("cpu"), 2, 4)
    query, key, value = torch.randn(3, 6, 2, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])[:, None, None]
    for options in ((mask, 0.0), (None, 0.5)):
        assert attention.attend_packed(query, key, value, layout, *options).shape == (6, 2, 4)


def test_the_kernel_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(attention, "varlen_attn", varlen.varlen_attn)
    with FakeTensorMode():
        query, key, value = torch.empty(3, 30, 4, 64, dtype=torch.bfloat16, device="cuda")
        ends = torch.empty(4, dtype=torch.int32, device="cuda")
        layout = attention.Layout((), ends=ends, longest=12)
        seen = attention.attend_packed(query, key, value, layout, None, 0.0)
        assert (seen.shape, seen.dtype, seen.device.type) == ((30, 4, 64), query.dtype, "cuda")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # looked at by torch.compile itself
def test_compiled_layers_with_one_kernel_are_not_compiled_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda *_: True)
    monkeypatch.setattr(attention, "varlen_attn", lambda _q, _k, value, *_: value)
    counter = CompileCounter()
    torch._dynamo.reset()
    model = AlbertForPretraining(MODEL, VOCAB_SIZE)
    for block in [*model.encoder.attentions, *model.encoder.feed_forwards]:
        block.compile(backend=counter)
    counts = []
    for number in range(2, 9):
        model.forward_packed(**packed(((number, 20), (2, 5 + number), (1, number))))
        counts.append(counter.frame_count)
    assert counts[0] > 0
    assert counts[-1] == counts[2] <= 3 * counts[0], counts
