"""LAMB and AdamW as ALBERT was trained with, Muon, clipping, and the rate of each step.

Weights and gradients may be sharded (`albert_core.training.sharding`): each rank keeps the moments
of its part, and updates that.
"""
# ruff: noqa: SLF001 - torch's functions over lists of tensors have no public names

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from albert_core.config import Precision, Schedule
from albert_core.model.albert import Attention, FeedForward
from albert_core.training.sharding import part_like, parts_of

DECAY_SHARE = 0.4
"""Share of the updates in which the schedule "constant" falls. Source: Hägele et al. 2024,
"Scaling laws and compute-optimal training beyond fixed training durations"."""
_MOMENTUM = 0.95
"""Decay of the mean of Muon's gradients."""
_NEWTON_SCHULZ = (
    (7.9424, -22.2873, 15.8239),
    (3.5875, -2.5845, 0.4893),
    (2.6604, -1.9134, 0.4194),
)
"""The factors of x, x³ and x⁵ in each step that brings singular values x near 1: the polynomials
with the least error for values from 0.01 to 1, and then for what the step before makes of those,
where 2 % more is allowed for rounding. After the last they are within 0.29 of 1.
Source: Amsel et al. 2025, "The Polar Express"."""


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay and without bias correction.

    Vectors (biases, layer norms) are not decayed.

    Args:
        parameters: float32 parameters; one without gradient is left as it is.
        lr: learning rate; set it for each step by `set_rate`.
        weight_decay: share of a matrix added to its update.
        betas: decay of the mean of the gradient and of its square.
        eps: added to the root of the mean square.

    Source: google-research/albert `optimization.py`.
    """

    trust_ratios: Tensor | None = None
    """float32 (matrices,), the ratios of LAMB's last update; None before it, and without LAMB."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        parameters = list(parameters)
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "betas": betas, "eps": eps})

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next update; a group with a ratio has that share of it."""
        for group in self.param_groups:
            group["lr"] = rate * group.get("lr_ratio", 1.0)

    @torch.no_grad()
    def step(self, made: Tensor | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            made: bool (), on the device; where it is false, the gradients may be anything, and
                weights and moments stay as they are. None: true.
        """
        for group in self.param_groups:
            weights: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if weights:
                updates = self._updates(weights, group, made)
                if made is not None:
                    torch._foreach_mul_(updates, made.float())
                torch._foreach_add_(parts_of(weights), updates, alpha=-group["lr"])

    def _updates(
        self, weights: list[Tensor], group: dict[str, Any], made: Tensor | None
    ) -> list[Tensor]:
        """Return the update of this rank's part of each weight, before the learning rate."""
        means = parts_of(self._moments("mean", weights))
        mean_squares = parts_of(self._moments("mean_square", weights))
        gradients = parts_of(weight.grad for weight in weights if weight.grad is not None)
        mean_beta, square_beta = group["betas"]
        kept = square_beta
        if made is not None:  # else nothing is taken from the mean squares, nor added to them
            kept = torch.where(made, mean_squares[0].new_full((), square_beta), 1.0)
            _replace(gradients, made)
        torch._foreach_mul_(mean_squares, kept)
        torch._foreach_addcmul_(mean_squares, gradients, gradients, value=1 - square_beta)
        if made is not None:
            _replace(gradients, made, by=means)
        torch._foreach_lerp_(means, gradients, 1 - mean_beta)
        roots = torch._foreach_sqrt(mean_squares)
        torch._foreach_add_(roots, group["eps"])
        updates = list(torch._foreach_div(means, roots))
        torch._foreach_add_(updates, parts_of(weights), alpha=group["weight_decay"])
        return updates

    def _moments(self, name: str, weights: list[Tensor]) -> list[Tensor]:
        """Return the moment of each weight, which is 0 before its first update."""
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(weight)
        return [state[name] for state in states]


class Lamb(AdamW):
    """AdamW whose update of each matrix is as long as the matrix itself, times the rate.

    The ratio of the lengths has no bounds; it is 1 where either is 0, and for vectors.

    Source: You et al. 2020; google-research/albert `lamb_optimizer.py`.
    """

    def _updates(
        self, weights: list[Tensor], group: dict[str, Any], made: Tensor | None
    ) -> list[Tensor]:
        updates = super()._updates(weights, group, made)
        if weights[0].ndim > 1:  # a group holds either matrices or vectors
            weight_norms = norms_of(parts_of(weights), of=weights)
            update_norms = norms_of(updates, of=weights)
            both = (weight_norms > 0) & (update_norms > 0)
            ratios = torch.where(both, weight_norms / update_norms, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
            if made is not None and self.trust_ratios is not None:
                ratios = torch.where(made, ratios, self.trust_ratios)
            self.trust_ratios = ratios
        return updates


class Muon(AdamW):
    """Moves the linear maps of layers equally far in all directions, and all else by AdamW.

    A head's part of a matrix of attention is a matrix of its own, and so are the weights into, or
    out of, as many neurons of a feed-forward block. So none is moved less because others have
    larger gradients, and small matrices are cheap. The momentum of each is replaced by the nearest
    matrix whose singular values are all about 1. Its values are first divided by a bound of the
    largest; those far below it stay below 1.

    Args:
        model: with an encoder, and any heads; it may be sharded.
        lr: learning rate of the matrices.
        weight_decay: share of a matrix added to its update.
        adam_lr: learning rate of everything else: embeddings and the maps from and to them, pooler,
            classifiers, biases and layer norms.
        precision: of the products that make singular values alike.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; by head:
    GLM-5 Team 2026, "GLM-5" (Muon Split).
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float,
        adam_lr: float,
        precision: Precision,
    ) -> None:
        part_of = _parts_of_maps(model)
        others = [p for p in model.parameters() if p not in part_of]
        super().__init__(others, lr, weight_decay, betas=(0.9, 0.99), eps=1e-8)
        for group in self.param_groups:
            group |= {"lr": adam_lr, "lr_ratio": adam_lr / lr}
        self._dtype: torch.dtype = getattr(torch, precision)
        self._part_of = part_of
        """The rows of a matrix's parts, and whether they are its columns."""
        matrices = {"params": list(part_of), "weight_decay": weight_decay, "momentum": _MOMENTUM}
        self.add_param_group(matrices)

    def _updates(
        self, weights: list[Tensor], group: dict[str, Any], made: Tensor | None
    ) -> list[Tensor]:
        if "momentum" not in group:
            return super()._updates(weights, group, made)
        means = parts_of(self._moments("mean", weights))
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if made is not None:
            _replace(parts_of(gradients), made, by=means)
        torch._foreach_lerp_(means, parts_of(gradients), 1 - group["momentum"])
        torch._foreach_lerp_(parts_of(gradients), means, group["momentum"])
        updates = parts_of(map(self._equally_far, weights, gradients))
        torch._foreach_add_(updates, parts_of(weights), alpha=group["weight_decay"])
        return updates

    def _equally_far(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of ``weight`` (rows, columns) with other singular values."""
        if isinstance(gradient, DTensor):
            return part_like(self._equally_far(weight, gradient.full_tensor()), gradient)
        part_size, is_turned = self._part_of[weight]
        rows = gradient.T.contiguous() if is_turned else gradient  # or each product is slower
        found = _orthogonal(rows.unflatten(0, (-1, part_size)), self._dtype).flatten(0, 1)
        return (found.T if is_turned else found).to(gradient.dtype)


def _parts_of_maps(model: nn.Module) -> dict[Tensor, tuple[int, bool]]:
    """Return what `Muon` moves: the rows of the parts of each matrix, or, if true, the columns."""
    [head_size] = {
        len(m.query.weight) // m.num_heads for m in model.modules() if isinstance(m, Attention)
    }
    found: dict[Tensor, tuple[int, bool]] = {}
    for module in model.modules():
        if isinstance(module, Attention | FeedForward):
            for name, layer in module.named_children():
                if isinstance(layer, nn.Linear):
                    is_output = name == "output"
                    part_size = math.gcd(head_size, layer.weight.shape[is_output])
                    found[layer.weight] = part_size, is_output
    return found


def _replace(gradients: list[Tensor], made: Tensor, by: list[Tensor] | None = None) -> None:
    """Set the gradients to 0, or to what they are replaced ``by``, unless the update is ``made``.

    Their bits are multiplied, because NaN times 0 is NaN; a `torch.where` takes a kernel for each.
    """
    kind = {4: torch.int32, 8: torch.int64}[gradients[0].itemsize]
    bits = [gradient.view(kind) for gradient in gradients]
    torch._foreach_mul_(bits, made.to(kind))
    if by is not None:
        others = torch._foreach_mul([each.view(kind) for each in by], (~made).to(kind))
        torch._foreach_add_(bits, list(others))


def _orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``matrices`` (n, rows, columns) with singular values of about 1, as ``dtype``.

    There are at least as many columns as rows.
    """

    def norms(x: Tensor) -> Tensor:
        found: Tensor = x.float().norm(dim=(1, 2), keepdim=True)
        return found + 1e-7

    x = (matrices / norms(matrices)).to(dtype)
    squared = x @ x.mT
    # No singular value is above the root of this norm, which most matrices' own norm is far above.
    bounds = norms(squared)
    x, squared = x / bounds.sqrt().to(dtype), squared / bounds.to(dtype)
    for number, (first, third, fifth) in enumerate(_NEWTON_SCHULZ):
        if number:
            squared = x @ x.mT
        x = first * x + (third * squared + fifth * squared @ squared) @ x
    return x


def build_optimizer(
    model: nn.Module,
    kind: Literal["lamb", "adamw", "muon"],
    learning_rate: float,
    weight_decay: float,
    adam_learning_rate: float | None = None,
    precision: Precision = "float32",
) -> AdamW:
    """Return the optimizer ``kind`` for all parameters of ``model``.

    Args:
        model: ALBERT, perhaps with another head.
        kind: of the optimizer.
        learning_rate: peak; with Muon, that of the blocks' matrices.
        weight_decay: share of a matrix added to its update.
        adam_learning_rate: with Muon, the peak for everything else; None for the same one.
        precision: of Muon's products.
    """
    if kind == "muon":
        adam_rate = learning_rate if adam_learning_rate is None else adam_learning_rate
        return Muon(model, learning_rate, weight_decay, adam_rate, precision)
    optimizer = {"lamb": Lamb, "adamw": AdamW}[kind]
    return optimizer(model.parameters(), learning_rate, weight_decay)


def norms_of(parts: list[Tensor], of: list[Tensor]) -> Tensor:
    """Return (n,), the length of each tensor.

    Args:
        parts: this rank's part of each tensor; at least one.
        of: tensors that are sharded like those.
    """
    norms = torch.stack(torch._foreach_norm(parts))
    if not isinstance(of[0], DTensor):
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=of[0].device_mesh.get_group())
    return squares.sqrt()


def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale ``gradients``, whose common length is ``norm``, in place to at most ``max_norm``.

    Nothing is added to the length, unlike in torch's own function.

    Source: google-research/albert `optimization.py`.
    """
    torch._foreach_mul_(gradients, max_norm / norm.clamp(min=max_norm))


def learning_rate_at(
    step: int, peak: float, warmup_steps: int, num_steps: int, schedule: Schedule
) -> float:
    """Return the learning rate of update ``step``, counted from 0; 0 from ``num_steps`` on.

    Args:
        step: updates done.
        peak: the highest rate.
        warmup_steps: updates in which it grows; 0 for none.
        num_steps: updates of the run.
        schedule: "linear" grows by equal parts, is ``peak`` in the last update of the warm-up,
            and then falls linearly to 0 at ``num_steps``. "constant" grows likewise, stays at
            ``peak``, and falls linearly to 0 in the last `DECAY_SHARE` of the updates. "google" is
            the reference's: it grows from 0, so that the first update changes nothing, and then
            falls on a line from ``peak`` at step 0, so that ``peak`` is never reached and the rate
            drops by a share of warmup_steps / num_steps where the two lines meet.

    Source: google-research/albert `optimization.py`.
    """
    if step >= num_steps:
        return 0.0
    if schedule == "google":
        if step < warmup_steps:
            return peak * step / warmup_steps
        return peak * (1 - step / num_steps)
    peak_step = max(warmup_steps, 1) - 1
    if step <= peak_step:
        return peak * (step + 1) / (peak_step + 1)
    if schedule == "constant":
        peak_step = max(peak_step, round(num_steps * (1 - DECAY_SHARE)))
    return peak * min(1.0, (num_steps - step) / (num_steps - peak_step))
