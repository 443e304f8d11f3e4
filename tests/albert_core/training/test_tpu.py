"""PyTorch/XLA on ``PJRT_DEVICE=CPU``, in a Python of its own: ALBERT_XLA_PYTHON names it.

Install it by infra/tpu/constraints.txt, whose head says how.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_core.config import ModelSettings
from albert_core.stage.errors import ConfigError
from albert_core.training.devices import ranks_of_environment
from tests.albert_core import training_runs

TINY = ModelSettings(
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
)
"""The model of the recipe tiny."""
UPDATES = training_runs.with_settings(num_steps=6, batch_size=16)
NUM_PIECES = UPDATES.micro_batch_size * 96
"""Of a padded batch."""
with_xla = pytest.mark.skipif(
    "ALBERT_XLA_PYTHON" not in os.environ, reason="names no python with torch_xla"
)


@pytest.fixture(scope="module")
def mixed_examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of many lengths."""
    folder = tmp_path_factory.mktemp("days")
    return training_runs.make_days(folder, seed=0, num_documents=300, short_seq_prob=0.4)


def python_with_xla(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [os.environ["ALBERT_XLA_PYTHON"], *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()), **variables},
        capture_output=True,
        text=True,
    )


def updates(mixed_examples: str, **variables: str) -> dict[str, Any]:
    """Return what `xla_updates` prints."""
    settings = (TINY.model_dump_json(), UPDATES.model_dump_json())
    module = "tests.albert_core.xla_updates"
    done = python_with_xla("-m", module, mixed_examples, *settings, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def by_torch(mixed_examples: str) -> dict[str, Any]:
    """By packed batches, without XLA; of the same version of torch, and so the same weights."""
    return updates(mixed_examples)


@with_xla
@pytest.mark.slow
def test_xla_has_the_losses_of_the_cpu_and_compiles_nothing_after_two_updates(
    mixed_examples: str, by_torch: dict[str, Any]
) -> None:
    found = updates(mixed_examples, PJRT_DEVICE="CPU")
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
    mixed_examples: str, by_torch: dict[str, Any], tmp_path: Path
) -> None:
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    found = updates(mixed_examples, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2", XLA_FLAGS=flags)
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
    mixed_examples: str, tmp_path: Path
) -> None:
    weights = []
    for statuses in ([0], [-9, 0]):
        folder = tmp_path / str(len(statuses))
        folder.mkdir()
        for status in statuses:
            faults = {"kill_step": 6} if status else {}
            done = training_runs.run_with_faults(
                folder,
                training_runs.with_settings(batch_size=16),
                mixed_examples,
                faults=faults,
                model=training_runs.MODEL.model_copy(update={"hidden_dropout_prob": 0.1}),
                python=os.environ["ALBERT_XLA_PYTHON"],
                PYTHONPATH=str(Path.cwd()),
                PJRT_DEVICE="CPU",
            )
            assert done.returncode == status, done.stdout + done.stderr
        [manifest] = folder.glob("work/pretraining/*/manifest.json")
        weights.append(training_runs.weights_of(str(manifest)))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


RANKS = "from albert_core.training.devices import ranks_of_environment as ranks; "
PLACE = "from albert_core.config import TrainingSettings as Settings; ranks().__enter__().place"


@with_xla
@pytest.mark.parametrize(
    ("code", "world_size", "message"),
    [
        *(
            (f"{PLACE}(None, Settings({name}=True))", "1", f"training.{name} is true, but it does")
            for name in ("compile", "activation_checkpointing")
        ),
        ("ranks().__enter__()", "2", "PJRT_DEVICE is set, and this is one of 2 processes"),
    ],
)
def test_what_does_not_work_on_xla_is_refused(code: str, world_size: str, message: str) -> None:
    refused = python_with_xla("-c", RANKS + code, PJRT_DEVICE="CPU", WORLD_SIZE=world_size)
    assert f"ConfigError: {message}" in refused.stderr


def test_without_torch_xla_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    with pytest.raises(ConfigError, match=r"but No module named 'torch_xla'.*infra/tpu"):
        with ranks_of_environment():
            pass
