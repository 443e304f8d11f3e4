"""A stand-in for TensorFlow, which is not installed."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.albert_core.tiny_tf_release import DATA


@pytest.fixture
def fake_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for TensorFlow: its two functions that are called, on files of numpy."""

    def load_checkpoint(prefix: str) -> Any:
        assert Path(f"{prefix}.index").exists()
        with np.load(f"{prefix}{DATA}") as file:
            variables = dict(file)
        return SimpleNamespace(
            get_variable_to_shape_map=lambda: {n: v.shape for n, v in variables.items()},
            get_tensor=variables.__getitem__,
        )

    stand_in = SimpleNamespace(
        __spec__=ModuleSpec("tensorflow", None),
        train=SimpleNamespace(load_checkpoint=load_checkpoint),
        errors=SimpleNamespace(OpError=OSError),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", stand_in)
