"""Scaled dot-product attention: PyTorch's, but where its own is slow.

Dimensions: B sequences, N heads, S pieces, D head size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout_prob: float
) -> Tensor:
    """Return, for each query, the mean of the values, weighted by softmax(query . key / sqrt(D)).

    Args:
        query: (B, N, S, D), as are the next two.
        key: one for each piece.
        value: one for each piece.
        key_mask: bool (B, 1, 1, S), false at a key that no query may see; each query sees some.
        dropout_prob: share of the weights set to 0.

    Returns:
        (B, N, S, D).

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    # On a CPU, the backward pass of PyTorch's fused attention takes four times as long in
    # bfloat16 as plain matrix products do.
    if query.dtype == torch.bfloat16 and query.device.type == "cpu" and not dropout_prob:
        seen: Tensor = _PlainAttention.apply(query, key, value, key_mask)  # type: ignore[no-untyped-call]
        return seen
    return F.scaled_dot_product_attention(query, key, value, key_mask, dropout_prob)


class _PlainAttention(torch.autograd.Function):
    """Attention by matrix products, which keeps its weights (B, N, S, S) for the way back.

    A product copies what does not lie head after head: here each is laid so once, for all.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None
    ) -> Tensor:
        ctx.scale = query.shape[-1] ** -0.5
        query, key, value = (x.contiguous() for x in (query * ctx.scale, key, value))
        scores = query @ key.transpose(-1, -2)
        if key_mask is not None:
            scores.masked_fill_(~key_mask, -torch.inf)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_weights = gradient @ value.transpose(-1, -2)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)  # noqa: SLF001
        return (
            (of_scores @ key).mul_(ctx.scale),
            of_scores.transpose(-1, -2) @ query,
            weights.transpose(-1, -2) @ gradient,
            None,
        )
