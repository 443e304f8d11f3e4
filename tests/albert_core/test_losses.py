import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.contract.errors import ShapeError
from albert_core.losses import masked_lm_loss, sentence_order_loss

LOGITS = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[1, 2, 0], [4, 0, 0], [3, 3, 1], [2, 0, 0]])
WEIGHTS = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])


def test_matches_torch_with_padding_ignored() -> None:
    kept = LABELS.masked_fill(WEIGHTS == 0, -100)
    expected = F.cross_entropy(LOGITS.flatten(0, 1), kept.flatten())
    torch.testing.assert_close(masked_lm_loss(LOGITS, LABELS, WEIGHTS, WEIGHTS.sum()), expected)


@settings(deadline=None)
@given(st.integers(1, 3))
def test_cutting_the_batch_changes_neither_loss(cut: int) -> None:
    order_logits, order_labels = LOGITS[:, 0, :2], torch.tensor([0, 1, 1, 0])
    parts = (slice(0, cut), slice(cut, 4))
    lm = sum(masked_lm_loss(LOGITS[p], LABELS[p], WEIGHTS[p], WEIGHTS.sum()) for p in parts)
    order = sum(sentence_order_loss(order_logits[p], order_labels[p], 4) for p in parts)
    torch.testing.assert_close(lm, masked_lm_loss(LOGITS, LABELS, WEIGHTS, WEIGHTS.sum()))
    torch.testing.assert_close(order, F.cross_entropy(order_logits, order_labels))


def test_losses_are_float32_under_autocast() -> None:
    logits = LOGITS.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        lm = masked_lm_loss(logits, LABELS, WEIGHTS, WEIGHTS.sum())
        order = sentence_order_loss(logits[:, 0, :2], torch.tensor([0, 1, 1, 0]), 4)
    assert lm.dtype == order.dtype == torch.float32
    torch.testing.assert_close(lm, masked_lm_loss(logits.float(), LABELS, WEIGHTS, WEIGHTS.sum()))


def test_losses_of_float64_are_float64() -> None:
    logits = LOGITS.double()
    lm = masked_lm_loss(logits, LABELS, WEIGHTS, 7.0)
    order = sentence_order_loss(logits[:, 0, :2], torch.tensor([0, 1, 1, 0]), 4)
    assert lm.dtype == order.dtype == torch.float64
    kept = LABELS.masked_fill(WEIGHTS == 0, -100)
    expected = F.cross_entropy(logits.flatten(0, 1), kept.flatten())
    torch.testing.assert_close(lm, expected, rtol=1e-14, atol=0)


def test_tensors_that_do_not_fit_are_refused_with_their_shapes() -> None:
    with pytest.raises(ShapeError, match=r"labels \(4, 2\).*\(4, 3, 5\)"):
        masked_lm_loss(LOGITS, LABELS[:, :2], WEIGHTS, WEIGHTS.sum())
    with pytest.raises(ShapeError, match=r"logits \(B, P, V\) \(12, 5\)"):
        masked_lm_loss(LOGITS.flatten(0, 1), LABELS, WEIGHTS, WEIGHTS.sum())
    with pytest.raises(ShapeError, match=r"labels \(4, 1\).*\(4, 2\)"):
        sentence_order_loss(LOGITS[:, 0, :2], torch.zeros(4, 1, dtype=torch.long), 4)
