import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.hardware import HARDWARE
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.run_log import (
    MEASURING_SECONDS,
    ExpectedSpeed,
    expected_speed,
    measured_peak_flops,
)
from albert_core.training.shards import ExampleShards
from tests.albert_core.made_examples import made_examples

MODEL, TRAINING = ModelSettings(), TrainingSettings(precision="bfloat16")
H200 = HARDWARE["h200"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    return ExampleShards(made_examples(str(tmp_path_factory.mktemp("made")), 101, 60), "train")


@pytest.fixture
def gpu_name(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A name that every GPU answers to, to be set."""
    answer = SimpleNamespace(name="")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: answer.name)
    return answer


class TwoGpus(Ranks):
    """The first of two ranks with a GPU each: a sum is twice what it has."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return 2 * tensor


def on_two_gpus(examples: ExampleShards, monkeypatch: pytest.MonkeyPatch) -> ExpectedSpeed:
    on_cpu = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda value, dtype, device: on_cpu(value, dtype=dtype))
    ranks = TwoGpus(0, 2, torch.device("cuda", 0))
    return expected_speed(MODEL, TRAINING, examples, ranks)


def test_the_peak_of_known_gpus_is_the_vendors_times_their_number(
    examples: ExampleShards, gpu_name: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_name.name = "NVIDIA H200"
    expected = on_two_gpus(examples, monkeypatch)
    assert expected.peak_flops == 2 * 989.5e12
    assert expected.plan is not None
    assert expected.plan.hardware is H200
    assert expected.plan.num_devices == 2
    lengths, _ = examples.sizes(np.arange(len(examples)))
    assert expected.plan.sizes.num_pieces == pytest.approx(lengths.mean())


def test_of_an_unknown_gpu_nothing_is_claimed(
    examples: ExampleShards, gpu_name: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_name.name = "A device of tomorrow"
    expected = on_two_gpus(examples, monkeypatch)
    assert (expected.peak_flops, expected.plan) == (None, None)
    assert expected.peak_source == "A device of tomorrow is not known"


def test_the_peak_of_a_cpu_is_what_its_products_reach(examples: ExampleShards) -> None:
    began = time.perf_counter()
    peak = measured_peak_flops("float32")
    assert MEASURING_SECONDS <= time.perf_counter() - began < MEASURING_SECONDS + 5
    one = torch.randn(1024, 1024)
    began = time.process_time()
    for _ in range(10):
        _ = one @ one
    seconds = (time.process_time() - began) / torch.get_num_threads()
    assert 0.3 < peak / (10 * 2 * 1024**3 / seconds) < 3
    expected = expected_speed(MODEL, TRAINING, examples, ALONE)
    assert expected.peak_flops is not None
    assert expected.peak_source == "measured at the start"
