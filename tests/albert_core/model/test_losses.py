import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.model import losses
from albert_core.model.losses import masked_lm_loss, sentence_order_loss
from albert_core.stage.errors import ShapeError

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 2, 4, 3, 3, 1, 2])
ORDER_LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0])


@settings(deadline=None)
@given(st.integers(0, 7))
def test_cutting_the_batch_changes_neither_loss(cut: int) -> None:
    parts = (slice(0, cut), slice(cut, 7))
    lm = sum(masked_lm_loss(LOGITS[p], LABELS[p], 7) for p in parts)
    order = sum(sentence_order_loss(LOGITS[p, :2], ORDER_LABELS[p], 7) for p in parts)
    torch.testing.assert_close(lm, F.cross_entropy(LOGITS, LABELS))
    torch.testing.assert_close(order, F.cross_entropy(LOGITS[:, :2], ORDER_LABELS))


def test_losses_are_float32_under_autocast() -> None:
    logits = LOGITS.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        lm = masked_lm_loss(logits, LABELS, 7)
        order = sentence_order_loss(logits[:, :2], ORDER_LABELS, 7)
    assert lm.dtype == order.dtype == torch.float32
    torch.testing.assert_close(lm, masked_lm_loss(logits.float(), LABELS, 7))


def test_losses_of_float64_are_float64() -> None:
    logits = LOGITS.double()
    lm = masked_lm_loss(logits, LABELS, 7.0)
    order = sentence_order_loss(logits[:, :2], ORDER_LABELS, 7)
    assert lm.dtype == order.dtype == torch.float64
    torch.testing.assert_close(lm, F.cross_entropy(logits, LABELS), rtol=1e-14, atol=0)


def test_the_loss_and_its_gradient_a_few_rows_at_a_time_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "_LOGITS_PER_BLOCK", 11)  # two rows of five
    logits = LOGITS.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: masked_lm_loss(x, LABELS, 3.0), [logits])
    for dtype in (torch.float32, torch.bfloat16):
        found, expected = (LOGITS.to(dtype, copy=True).requires_grad_() for _ in range(2))
        masked_lm_loss(found, LABELS, 7).backward()
        F.cross_entropy(expected.float(), LABELS).backward()
        assert found.grad is not None
        assert found.grad.dtype == dtype
        torch.testing.assert_close(found.grad, expected.grad)


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
