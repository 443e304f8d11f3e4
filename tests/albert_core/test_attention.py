import pytest
import torch
from torch import Tensor

from albert_core.attention import _PlainAttention, attend

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
