import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albert_core.model import dense
from albert_core.model.dense import Linear, then_and_again, weights_laid_out_once

needs_products = pytest.mark.skipif(
    not dense._has_products(torch.bfloat16), reason="oneDNN has no such products here"
)


def made(num_rows: int = 40) -> tuple[Linear, Tensor]:
    """Return a layer and what goes in, of which the gradient is asked for too."""
    torch.manual_seed(0)
    return Linear(24, 24), torch.randn(num_rows, 24, requires_grad=True)


def used_thrice(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, and the gradients of input, weight and bias."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(torch.tanh(layer(torch.tanh(layer(x)))))
    y.float().square().sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()


@needs_products
def test_a_weight_laid_out_once_gives_the_product_and_gradients_of_the_plain_layer() -> None:
    layer, x = made()
    plain = used_thrice(layer, x)
    with weights_laid_out_once():
        found = used_thrice(layer, x)
    torch.testing.assert_close(found, plain)


@needs_products
def test_it_is_laid_out_at_its_first_use_and_anew_in_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_out: list[Tensor] = []

    class Counted(dense._LaidOut):
        def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
            super().__init__(weight, bias, dtype)
            laid_out.append(weight)

    monkeypatch.setattr(dense, "_LaidOut", Counted)
    layer, x = made()
    for _ in range(2):
        with weights_laid_out_once():
            used_thrice(layer, x)
        with torch.no_grad():
            layer.weight.mul_(2)
    assert len(laid_out) == 2
    with weights_laid_out_once():
        torch.testing.assert_close(used_thrice(layer, x), used_thrice(layer.float(), x))


@needs_products
def test_gradients_of_the_uses_are_float32_and_nearer_to_the_truth_than_a_sum_in_bfloat16() -> None:
    layer, x = made(num_rows=400)
    _, _, exact, _ = used_thrice(layer.double(), x.double())
    layer.float()
    with torch.autocast(
        "cpu", torch.bfloat16, cache_enabled=True
    ):  # shares the cast, so sums in it
        _, _, summed_in_bfloat16, _ = used_thrice(layer, x)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), weights_laid_out_once():
        _, _, found, _ = used_thrice(layer, x)
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
    assert (found - exact).norm() < (summed_in_bfloat16 - exact).norm()


@needs_products
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_computed_again_after_the_pass_uses_the_same_layout(dtype: torch.dtype) -> None:
    layer, x = made()
    enabled = dtype == torch.bfloat16
    with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False):
        with weights_laid_out_once():
            kept = layer(x)
            again = checkpoint(layer, x, use_reentrant=False, context_fn=then_and_again)
    gradients = [torch.autograd.grad(y.sum(), [layer.weight, x]) for y in (kept, again)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


@needs_products
@pytest.mark.parametrize("is_trained", [True, False])
def test_what_is_laid_out_is_freed_with_the_pass(
    is_trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_ones: list[weakref.ref[dense._LaidOut]] = []

    class Watched(dense._LaidOut):
        def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
            super().__init__(weight, bias, dtype)
            made_ones.append(weakref.ref(self))

    monkeypatch.setattr(dense, "_LaidOut", Watched)
    layer, x = made()
    gc.disable()  # by counting references alone
    try:
        with weights_laid_out_once():
            y = layer(torch.tanh(layer(x))).sum()
        if is_trained:
            y.backward()
        del y
    finally:
        gc.enable()
    [laid_out] = made_ones
    assert laid_out() is None


@needs_products
def test_only_the_uses_that_a_backward_pass_reaches_count_and_none_counts_twice() -> None:
    layer, x = made()
    with weights_laid_out_once():
        first, second, apart = layer(x).sum(), layer(torch.tanh(x)).sum(), layer(x * 2).sum()
    plain = nn.Linear(24, 24)
    plain.load_state_dict(layer.state_dict())
    for found, expected in (
        (first + second, plain(x).sum() + plain(torch.tanh(x)).sum()),
        (apart, plain(x * 2).sum()),
    ):
        torch.testing.assert_close(
            torch.autograd.grad(found, [*layer.parameters(), x]),
            torch.autograd.grad(expected, [*plain.parameters(), x]),
        )


@needs_products
def test_a_frozen_layer_passes_the_gradient_on_and_gets_none() -> None:
    layer, x = made()
    _, of_x, _, _ = used_thrice(layer, x)
    layer.zero_grad()
    layer.requires_grad_(requires_grad=False)
    with weights_laid_out_once():
        y = layer(torch.tanh(layer(torch.tanh(layer(x)))))
    y.square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, of_x)
    assert layer.weight.grad is None


def test_float64_is_multiplied_as_ever() -> None:
    layer, x = made()
    plain = used_thrice(layer.double(), x.double())
    with weights_laid_out_once():
        torch.testing.assert_close(used_thrice(layer, x.double()), plain, rtol=0, atol=0)
