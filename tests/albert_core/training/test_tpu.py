"""PyTorch/XLA on ``PJRT_DEVICE=CPU``, in a Python of its own: ALBERT_XLA_PYTHON names it.

Install it by infra/tpu/constraints.txt, whose head says how.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_core.config import ModelSettings
from albert_core.stage.errors import ConfigError
from albert_core.training.devices import ranks_of_environment
from tests.albert_core.training_runs import (
    MODEL,
    make_days,
    recipe_file,
    weights_of,
    with_settings,
)

TINY = ModelSettings(
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
)
"""The model of the recipe tiny."""
UPDATES = with_settings(num_steps=6, batch_size=16)
NUM_PIECES = UPDATES.micro_batch_size * 96
"""Of a padded batch."""
with_xla = pytest.mark.skipif(
    "ALBERT_XLA_PYTHON" not in os.environ, reason="names no python with torch_xla"
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of many lengths."""
    folder = tmp_path_factory.mktemp("days")
    return make_days(folder, seed=0, num_documents=300, short_seq_prob=0.4)


def xla_environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()), **variables}


def updates(examples: str, **variables: str) -> dict[str, Any]:
    """Return what `xla_updates` prints."""
    module = "tests.albert_core.xla_updates"
    settings = (TINY.model_dump_json(), UPDATES.model_dump_json())
    done = subprocess.run(
        [os.environ["ALBERT_XLA_PYTHON"], "-m", module, examples, *settings],
        env=xla_environment(**variables),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def by_torch(examples: str) -> dict[str, Any]:
    """By packed batches, without XLA; of the same version of torch, and so the same weights."""
    return updates(examples)


@with_xla
@pytest.mark.slow
def test_xla_has_the_losses_of_the_cpu_and_compiles_nothing_after_two_updates(
    examples: str, by_torch: dict[str, Any]
) -> None:
    found = updates(examples, PJRT_DEVICE="CPU")
    print(found["compiled"])
    torch.testing.assert_close(found["losses"], by_torch["losses"], rtol=0, atol=1e-5)
    assert found["scores"] == pytest.approx(by_torch["scores"], abs=1e-5)
    *each_update, evaluation, again = found["compiled"]
    # In the first update the passes of the first micro-batch and of the further ones, what is
    # read of it, the norm, the optimizer's first step; in the second the optimizer's later steps.
    assert each_update == [5, 6, 6, 6, 6, 6]
    assert again == evaluation


@with_xla
@pytest.mark.slow
def test_two_chips_share_the_work_and_have_the_losses_of_the_cpu(
    examples: str, by_torch: dict[str, Any], tmp_path: Path
) -> None:
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    found = updates(examples, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2", XLA_FLAGS=flags)
    torch.testing.assert_close(found["losses"], by_torch["losses"], rtol=0, atol=1e-5)
    programs = [path.read_text() for path in tmp_path.glob("*.cpu_after_optimizations.txt")]
    shapes = [
        [int(size) for size in sizes.split(",")]
        for program in programs
        for sizes in re.findall(r"= f32\[([\d,]+)\]\S* (?:dot|all-gather)\(", program)
    ]
    # Each has half of the pieces: no product is over all of them, and none has those of both.
    assert any(NUM_PIECES // 2 in shape for shape in shapes)
    assert not any(NUM_PIECES in shape for shape in shapes)


@with_xla
@pytest.mark.slow
def test_a_run_on_xla_that_was_killed_resumes_to_the_same_bits(
    examples: str, tmp_path: Path
) -> None:
    with_dropout = MODEL.model_copy(update={"hidden_dropout_prob": 0.1})
    recipe = recipe_file(tmp_path, with_settings(batch_size=16), with_dropout)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    [first] = trained(start_training(recipe, examples, whole), whole)
    process = start_training(recipe, examples, killed)
    deadline = time.monotonic() + 300
    while not list(killed.rglob("checkpoint.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list(killed.glob("pretraining/*/manifest.json"))
    resumed = start_training(recipe, examples, killed)
    [again] = trained(resumed, killed)
    torch.testing.assert_close(weights_of(again), weights_of(first), rtol=0, atol=0)


def start_training(recipe: str, examples: str, work: Path) -> subprocess.Popen[str]:
    work.mkdir(exist_ok=True)
    options = [f"--recipe={recipe}", f"--examples={examples}", f"--work={work}"]
    return subprocess.Popen(
        [os.environ["ALBERT_XLA_PYTHON"], "-m", "albert_core.training.pretrain", *options],
        env=xla_environment(PJRT_DEVICE="CPU"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trained(process: subprocess.Popen[str], work: Path) -> list[str]:
    """Return the manifests below ``work`` when the process has ended well."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return [str(path) for path in work.glob("pretraining/*/manifest.json")]


@pytest.mark.parametrize("setting", ["compile", "activation_checkpointing"])
@with_xla
def test_what_does_not_work_on_xla_is_refused(setting: str) -> None:
    code = (
        "from albert_core.config import TrainingSettings as Settings; "
        "from albert_core.training.devices import ranks_of_environment; "
        f"ranks_of_environment().__enter__().place(None, Settings({setting}=True))"
    )
    refused = subprocess.run(
        [os.environ["ALBERT_XLA_PYTHON"], "-c", code],
        env=xla_environment(PJRT_DEVICE="CPU"),
        capture_output=True,
        text=True,
    )
    assert f"ConfigError: training.{setting} is true, but it does not work" in refused.stderr


@with_xla
def test_several_processes_are_refused() -> None:
    ranks = "from albert_core.training.devices import ranks_of_environment as ranks"
    code = f"{ranks}; ranks().__enter__()"
    refused = subprocess.run(
        [os.environ["ALBERT_XLA_PYTHON"], "-c", code],
        env=xla_environment(PJRT_DEVICE="CPU", WORLD_SIZE="2"),
        capture_output=True,
        text=True,
    )
    assert "ConfigError: PJRT_DEVICE is set, and this is one of 2 processes" in refused.stderr


def test_without_torch_xla_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    with pytest.raises(ConfigError, match=r"but No module named 'torch_xla'.*infra/tpu"):
        with ranks_of_environment():
            pass
