"""The cross-entropy, and how many rows are right.

Dimensions: M rows, V classes.
"""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.model import execution

IGNORED = -100
"""The label of padding: it adds nothing to a loss, and no prediction can equal it."""
_LOGITS_PER_BLOCK = 1 << 19
"""Logits to work on at a time, few enough for a processor's cache."""


def cross_entropy(
    logits: Tensor, labels: Tensor, number: Tensor | float, compiled: bool = False
) -> Tensor:
    """Return the sum of the cross-entropy of rows whose label is not `IGNORED`, over ``number``.

    Args:
        logits: float (M, V), any precision.
        labels: int64 (M,).
        number: above 0.
        compiled: by `torch.compile`, where there is no faster path.

    Returns:
        float32 scalar; float64 for float64 logits.
    """
    if not execution.is_fast("rows", logits.device, logits.dtype):
        summed = _compiled_sum() if compiled else summed_cross_entropy
        return summed(logits, labels) / number
    is_real = labels != IGNORED
    if not is_real.all():
        logits, labels = logits[is_real], labels[is_real]
    mean: Tensor = _CrossEntropy.apply(logits, labels, number)
    return mean


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the cross-entropy, as `cross_entropy` does, by PyTorch's own function."""
    # Not of `logits.float()`: CUDA has a kernel that reads half precision, and writes float32.
    log_p = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return F.nll_loss(log_p, labels, reduction="sum", ignore_index=IGNORED)


def num_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Return in how many rows the label's score is the highest; padding is none of them.

    The fast path "rows" counts a tie as right. A CPU takes several times as long to find the place
    of the highest score.

    Args:
        logits: float (M, V), any precision.
        labels: int64 (M,).

    Returns:
        int64 scalar.
    """
    if not execution.is_fast("rows", logits.device, logits.dtype):
        return (logits.max(1).indices == labels).sum()
    of_labels = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return ((of_labels >= logits.amax(1)) & (labels != IGNORED)).sum()


@cache
def _compiled_sum() -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(summed_cross_entropy, dynamic=True)


class _CrossEntropy(torch.autograd.Function):
    """The cross-entropy, and with it its gradient, a few rows at a time.

    There is no float32 copy of all logits, and each exponential is computed once. The label's own
    share may be too small for its logarithm; the largest one never is.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, number: Tensor | float) -> Tensor:
        of_logits = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        rows = max(1, _LOGITS_PER_BLOCK // logits.shape[1])
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        for first in range(0, len(logits), rows):
            block = slice(first, first + rows)
            scores, places = logits[block].to(total.dtype), labels[block, None]
            shares = scores.softmax(1)
            below_top = scores.amax(1, keepdim=True) - scores.gather(1, places)
            total += (below_top - shares.amax(1, keepdim=True).log()).sum()
            if of_logits is not None:
                shares.scatter_add_(1, places, shares.new_tensor(-1).expand_as(places))
                of_logits[block] = shares.div_(number)
            del scores, shares  # before there are those of the next rows
        ctx.save_for_backward(of_logits)
        return total / number

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [of_logits], [gradient] = ctx.saved_tensors, gradients
        return of_logits if gradient == 1 else of_logits * gradient, None, None
