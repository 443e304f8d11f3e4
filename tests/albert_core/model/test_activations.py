import torch
import torch.nn.functional as F

from albert_core.model.dense import gelu_tanh


def all_finite_bfloat16() -> torch.Tensor:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    return numbers[numbers.isfinite()].clone()


def test_of_every_bfloat16_value_and_slope_are_the_exact_ones_rounded() -> None:
    x = all_finite_bfloat16().requires_grad_()
    exact = x.detach().double().requires_grad_()
    value, exact_value = gelu_tanh(x), F.gelu(exact, approximate="tanh")
    assert torch.equal(value, exact_value.bfloat16())
    value.sum().backward()
    small = exact.detach().abs() < 1e30  # beyond it, the square of float64's slope overflows
    exact_value[small].sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.equal(x.grad[small], exact.grad[small].bfloat16())
    assert x.grad.isfinite().all()


def test_in_float32_it_is_that_of_torch() -> None:
    x = torch.linspace(-6, 6, 101)
    assert torch.equal(gelu_tanh(x), F.gelu(x, approximate="tanh"))


def test_tables_first_used_for_inference_do_for_training() -> None:
    with torch.inference_mode():
        gelu_tanh(torch.ones(2, dtype=torch.bfloat16))
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    gelu_tanh(x.t()).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 3), 1.0829, dtype=torch.bfloat16))
