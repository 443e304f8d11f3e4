import pytest
import torch
import torch.nn.functional as F

from albert_core.model.losses import masked_lm_loss, sentence_order_loss
from albert_core.stage.errors import ShapeError

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 2, 4, 3, 3, 1, 2])
ORDER_LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0])


@pytest.mark.parametrize("cut", range(8))
def test_cutting_the_batch_changes_neither_loss(cut: int) -> None:
    parts = (slice(0, cut), slice(cut, 7))
    lm = sum(masked_lm_loss(LOGITS[p], LABELS[p], 7) for p in parts)
    order = sum(sentence_order_loss(LOGITS[p, :2], ORDER_LABELS[p], 7) for p in parts)
    torch.testing.assert_close(lm, F.cross_entropy(LOGITS, LABELS))
    torch.testing.assert_close(order, F.cross_entropy(LOGITS[:, :2], ORDER_LABELS))


@pytest.mark.parametrize(
    ("dtype", "of_loss"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_losses_are_at_least_float32_also_under_autocast(
    dtype: torch.dtype, of_loss: torch.dtype
) -> None:
    logits = LOGITS.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        lm = masked_lm_loss(logits, LABELS, 7)
        order = sentence_order_loss(logits[:, :2], ORDER_LABELS, 7)
    assert lm.dtype == order.dtype == of_loss
    torch.testing.assert_close(lm, F.cross_entropy(logits.to(of_loss), LABELS))


def test_losses_of_float64_are_float64() -> None:
    logits = LOGITS.double()
    lm = masked_lm_loss(logits, LABELS, 7.0)
    assert lm.dtype == torch.float64
    torch.testing.assert_close(lm, F.cross_entropy(logits, LABELS), rtol=1e-14, atol=0)


def test_no_predictions_cost_nothing() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    loss = masked_lm_loss(logits, LABELS[:0], 1)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None


def test_tensors_that_do_not_fit_are_refused_with_their_shapes() -> None:
    with pytest.raises(ShapeError, match=r"labels \(6,\).*\(7, 5\)"):
        masked_lm_loss(LOGITS, LABELS[:6], 7)
    with pytest.raises(ShapeError, match=r"logits \(M, V\) \(1, 7, 5\)"):
        masked_lm_loss(LOGITS[None], LABELS, 7)
    with pytest.raises(ShapeError, match=r"labels \(7, 1\).*\(7, 2\)"):
        sentence_order_loss(LOGITS[:, :2], torch.zeros(7, 1, dtype=torch.long), 7)
