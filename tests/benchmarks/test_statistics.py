"""What the simulations count."""

from itertools import cycle

import numpy as np
import pytest

from albert_core.metrics import RATIO
from benchmarks.statistics import INTERVALS, Draw, Drawing, coverage


def test_draws_without_an_interval_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = cycle([1, 4])

    def drawn(draw: Draw) -> Drawing:
        number = next(numbers)
        return RATIO.of(np.arange(number), np.ones(number)), np.arange(number), 1.5

    monkeypatch.setitem(INTERVALS, "one document, or four", drawn)
    found = coverage("one document, or four", 6, ["now"])
    assert found == {"now": 1.0, "without_interval": 0.5}
