import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from albert_core.config import Schedule
from albert_core.training import optimizer as optimizers
from albert_core.training.optimizer import build_optimizer, clip, learning_rate_at
from tests.albert_core.tiny_model import random_model

KINDS: list[Literal["lamb", "adamw"]] = ["lamb", "adamw"]
RATE, DECAY = 0.01, 0.1


def toy_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def set_gradients(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def plain_update(kind: str, weight: Tensor, gradients: list[Tensor]) -> Tensor:
    """Return ``weight`` after the gradients, by the formula of You et al. 2020."""
    weight = weight.double()
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for gradient in gradients:
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        update = m / (v.sqrt() + 1e-6)
        ratio = torch.tensor(1.0)
        if weight.ndim > 1:
            update += DECAY * weight
            if kind == "lamb" and weight.norm() > 0 and update.norm() > 0:
                ratio = weight.norm() / update.norm()
        weight = weight - RATE * ratio * update
    return weight


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_the_plain_formula(kind: Literal["lamb", "adamw"]) -> None:
    model = toy_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients: list[list[Tensor]] = [[] for _ in before]
    optimizer = build_optimizer(model, kind, RATE, DECAY)
    for step in range(5):
        set_gradients(model, step)
        for seen, parameter in zip(gradients, model.parameters(), strict=True):
            assert parameter.grad is not None
            seen.append(parameter.grad.double())
        optimizer.step()
    for start, seen, parameter in zip(before, gradients, model.parameters(), strict=True):
        expected = plain_update(kind, start, seen).float()
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)


def test_muon_moves_the_linear_maps_of_layers_equally_far_in_all_directions() -> None:
    model = random_model()
    set_gradients(model, 0)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    build_optimizer(model, "muon", RATE, 0.0, 2 * RATE).step()
    settings = model.encoder.settings
    head_size = settings.hidden_size // settings.num_attention_heads
    for name, parameter in model.named_parameters():
        moved = (before[name] - parameter.detach()) / RATE
        if parameter.ndim == 2 and ("attentions" in name or "feed_forwards" in name):
            size, side = head_size, int("output" in name)
            for gradient, part in zip(
                gradients[name].split(size, side), moved.split(size, side), strict=True
            ):
                values = torch.linalg.svdvals(gradient)
                bound = values.norm(4)  # which they are divided by
                num_large = int((values > 0.01 * bound).sum())
                assert (torch.linalg.svdvals(part)[:num_large] - 1).abs().max() < 0.3
                assert num_large > 0.8 * len(values)
        else:  # the first update of AdamW without bias correction
            mean, root = 0.1 * gradients[name], 0.01**0.5 * gradients[name].abs() + 1e-8
            torch.testing.assert_close(moved, 2 * mean / root, rtol=1e-3, atol=1e-3)


def test_muon_moves_all_else_too_where_no_rate_is_given_for_it() -> None:
    rates = {g["lr"] for g in build_optimizer(random_model(), "muon", RATE, DECAY).param_groups}
    assert rates == {RATE}


def test_muon_is_that_of_torch_where_both_make_the_singular_values_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = (1.875, -1.25, 0.375)
    monkeypatch.setattr(optimizers, "_NEWTON_SCHULZ", [step] * 30)
    model = random_model()
    block = model.get_parameter("encoder.feed_forwards.0.inner.weight")
    settings = model.encoder.settings
    head_size = settings.hidden_size // settings.num_attention_heads
    theirs = [torch.nn.Parameter(part.detach().clone()) for part in block.split(head_size)]
    torch_muon = torch.optim.Muon(
        theirs, RATE, DECAY, momentum=0.95, ns_coefficients=step, ns_steps=30
    )
    ours = build_optimizer(model, "muon", RATE, DECAY, RATE)
    for number in range(3):
        set_gradients(model, number)
        assert block.grad is not None
        for part, gradient in zip(theirs, block.grad.split(head_size), strict=True):
            part.grad = gradient.clone()
        torch_muon.step()
        ours.step()
    torch.testing.assert_close(block, torch.cat([*theirs]), rtol=0, atol=RATE * 0.03)


@pytest.mark.parametrize("kind", [*KINDS, "muon"])
def test_an_update_that_the_device_does_not_make_changes_nothing_and_others_have_the_same_bits(
    kind: Literal["lamb", "adamw", "muon"],
) -> None:
    found = []
    for decides in (False, True):
        model = random_model()
        optimizer = build_optimizer(model, kind, RATE, DECAY, RATE)
        for step, made in enumerate([True, False, False, True]):
            set_gradients(model, step)
            if not made:
                for number, parameter in enumerate(model.parameters()):
                    parameter.grad = torch.full_like(parameter, (math.nan, math.inf)[number % 2])
            if decides:
                optimizer.step(made=torch.tensor(made))
            elif made:
                optimizer.step()
        moments = [each for state in optimizer.state.values() for each in state.values()]
        ratios = [] if optimizer.trust_ratios is None else [optimizer.trust_ratios]
        found.append([*model.parameters(), *moments, *ratios])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize(("norm", "factor"), [(0.5, 1.0), (4.0, 0.25)])
def test_gradients_are_scaled_down_to_the_norm_allowed_and_never_up(
    norm: float, factor: float
) -> None:
    gradients = [torch.ones(2, 3), torch.full((4,), 2.0)]
    clip(gradients, torch.tensor(norm), 1.0)
    assert gradients[0].unique().tolist() == [factor]
    assert gradients[1].unique().tolist() == [2 * factor]


def test_learning_rate_of_the_reference() -> None:
    rates = [learning_rate_at(step, 0.00176, 3125, 125_000, "google") for step in range(125_000)]
    assert rates[0] == 0
    assert max(rates) == rates[3124] == pytest.approx(0.00175944, abs=1e-8)
    assert rates[3125] == pytest.approx(0.001716)
    assert rates[-1] == pytest.approx(0.00176 / 125_000)


def test_learning_rate_reaches_its_peak_once_and_has_no_jump() -> None:
    rates = np.array(
        [learning_rate_at(n, 0.00176, 3125, 125_000, "linear") for n in range(125_001)]
    )
    assert rates[0] == pytest.approx(0.00176 / 3125)
    assert rates.argmax() == 3124
    assert rates.max() == 0.00176
    assert rates[-1] == 0
    assert (rates[:-1] > 0).all()
    np.testing.assert_allclose(np.diff(rates[:3125]), 0.00176 / 3125, rtol=1e-9)
    np.testing.assert_allclose(np.diff(rates[3124:]), -0.00176 / (125_000 - 3124), rtol=1e-6)


def test_a_constant_rate_falls_to_0_in_the_last_two_fifths_of_the_updates() -> None:
    rates = [learning_rate_at(step, 2.0, 5, 50, "constant") for step in range(51)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert set(rates[5:31]) == {2.0}
    np.testing.assert_allclose(np.diff(rates[30:]), -0.1)


@pytest.mark.parametrize("schedule", ["linear", "google"])
def test_without_a_warm_up_the_first_update_has_the_peak(schedule: Schedule) -> None:
    assert learning_rate_at(0, 2.0, 0, 10, schedule) == 2.0
    assert learning_rate_at(5, 2.0, 0, 10, schedule) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "constant", "google"])
def test_after_the_last_update_the_rate_is_0_also_of_a_run_of_one(schedule: Schedule) -> None:
    assert [learning_rate_at(step, 2.0, 0, 1, schedule) for step in (1, 2)] == [0.0, 0.0]
