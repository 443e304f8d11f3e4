"""Which updates are not worth making: those that are not finite, and spikes.

A decision depends on nothing but numbers that are the same on every rank, so all decide alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

NUM_NORMS = 100
"""Updates that the running median is of; before there are as many, nothing counts as a spike."""

Reason = Literal["not_finite", "spike"]


@dataclass(kw_only=True)
class UpdateGuard:
    """What was seen of the updates so far; part of a checkpoint."""

    num_in_a_row: int = 0
    """Updates skipped since the last that was made."""
    num_skipped: dict[str, int] = field(default_factory=lambda: {"not_finite": 0, "spike": 0})
    """Updates skipped, by reason."""
    norms: list[float] = field(default_factory=list)
    """Gradient norms before clipping of the last updates that were made, `NUM_NORMS` at most."""

    @classmethod
    def restored(cls, content: Mapping[str, Any]) -> "UpdateGuard":
        """Return the guard that `dataclasses.asdict` made ``content`` of."""
        return cls(**content)

    @property
    def total_skipped(self) -> int:
        """Updates skipped, whatever the reason."""
        return sum(self.num_skipped.values())

    def judge(self, loss: float, grad_norm: float, spike_factor: float | None) -> Reason | None:
        """Return why the update is to be skipped, or None; and take note of it.

        Args:
            loss: of the whole update, in nats.
            grad_norm: of all gradients together, before clipping.
            spike_factor: how many times the running median a norm may be; None for any.
        """
        reason = self._reason(loss, grad_norm, spike_factor)
        if reason is None:
            self.num_in_a_row = 0
            self.norms = [*self.norms[1 - NUM_NORMS :], grad_norm]
        else:
            self.num_in_a_row += 1
            self.num_skipped[reason] += 1
        return reason

    def _reason(self, loss: float, grad_norm: float, spike_factor: float | None) -> Reason | None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return "not_finite"
        if spike_factor is None or len(self.norms) < NUM_NORMS:
            return None
        return "spike" if grad_norm > spike_factor * median(self.norms) else None
