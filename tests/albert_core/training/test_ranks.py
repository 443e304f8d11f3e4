"""Several ranks (gloo) do the updates of one in float64, with whole and with sharded state."""

import json
import math
import multiprocessing
import os
import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.command import RunAgain
from albert_core.stage.errors import ConfigError
from albert_core.training import pretraining, ranks
from albert_core.training.loader import UpdateBatch, UpdateLoader
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import (
    ALONE,
    Ranks,
    TpuRanks,
    ranks_of_environment,
)
from albert_core.training.sharding import shard_state
from albert_core.training.shards import ExampleShards
from albert_core.training.step import Asked, TrainState, Update, train_step
from flows.recipe import load_recipe
from tests.albert_core import training_runs
from tests.albert_core.made_examples import sizes_of
from tests.albert_core.tiny_model import logits_of
from tests.albert_core.training_runs import MODEL

NUM_EXAMPLES = 8
OPTIMIZERS: tuple[Literal["lamb", "adamw", "muon"], ...] = ("lamb", "adamw", "muon")
SETTINGS = TrainingSettings(max_grad_norm=0.1)
"""Gradients are clipped hard, so that the norm of the whole counts."""


class Case:
    """A model that is trained on places 0..7 of the order.

    Args:
        examples: manifest.
        ranks: that train it.
        parts: the places of each micro-batch of this rank.
        optimizer: its name.
        shard: whether the state is sharded.
    """

    def __init__(
        self,
        examples: str,
        ranks: Ranks,
        parts: list[list[int]],
        optimizer: Literal["lamb", "adamw", "muon"],
        shard: bool,
    ) -> None:
        torch.manual_seed(1)
        self.shards, self.ranks, self.parts = ExampleShards(examples, "train"), ranks, parts
        model = AlbertForPretraining(MODEL, self.shards.result.vocab_size).double()
        if shard:
            shard_state(model, ranks)
        self.state = TrainState(
            model=model, optimizer=build_optimizer(model, optimizer, 0.01, 0.01, 0.01)
        )

    def update(self, asked: Asked | None = None) -> Update:
        order = example_order(0, NUM_EXAMPLES, len(self.shards), 1)
        batch = UpdateBatch(
            sizes=sizes_of(self.shards.rows(order)),
            micro_batches=(self.shards.rows(order[places]).batch() for places in self.parts),
        )
        ask = Asked if asked is None else lambda: asked
        return train_step(self.state, batch, SETTINGS, self.ranks, "sentence_order", ask)

    def after_three_updates(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return weights, moments and the metrics of the last update."""
        for _ in range(3):
            update = self.update()
        return self.state.tensors(), update.metrics

    def after_a_bad_one(self, rank: int) -> tuple[bool, Update]:
        """Give one rank a NaN, SIGTERM and a late clock; return whether the weights stay."""
        asked, before = Asked(), self.state.tensors()["model"]
        before = {name: tensor.clone() for name, tensor in before.items()}
        if self.ranks.rank == rank:
            asked = Asked(stop=True, checkpoint=True)
            pooler = self.state.model.encoder.pooler
            pooler.register_forward_hook(lambda _module, _inputs, output: output * math.nan)
        update = self.update(asked)
        after = self.state.tensors()["model"]
        return all(torch.equal(before[name], after[name]) for name in before), update


def rank_of_several(rank: int, parts: list[list[list[int]]], examples: str, folder: str) -> None:
    """Do what `Case` does with each optimizer, whole and sharded; the first rank saves it."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    num_ranks = len(parts)
    dist.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=num_ranks)
    ranks, found = Ranks(rank, num_ranks, torch.device("cpu")), []
    Ranks.runs_ahead = True  # type: ignore[assignment,method-assign]  # as of other devices
    check_first_weights(examples, ranks)
    check_sizes(examples, ranks)
    for shard, optimizer in product((False, True), OPTIMIZERS):
        case = Case(examples, ranks, parts[rank], optimizer, shard)
        tensors, metrics = case.after_three_updates()
        stayed, bad = case.after_a_bad_one(1)
        found.append((tensors, metrics, [stayed, bad.skipped, tuple(bad.asked)]))
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))
    ranks.wait()
    dist.destroy_process_group()
    os._exit(0)  # threads of the libraries can abort an interpreter that is being taken down


def check_first_weights(examples: str, ranks: Ranks) -> None:
    """Draw other first weights on each rank, as other processors do; all must get the first's."""
    pretraining.derive_seed = lambda *_: ranks.rank  # type: ignore[attr-defined]
    shards = ExampleShards(examples, "train")
    model = pretraining.initial_state(MODEL, SETTINGS, shards, ranks).model
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    of_all = [torch.empty_like(weights) for _ in range(ranks.world_size)]
    dist.all_gather(of_all, weights)
    assert all(torch.equal(of_rank, weights) for of_rank in of_all)


def check_sizes(examples: str, ranks: Ranks) -> None:
    """Take fresh masks, of which each rank draws its own; all must know the number of all."""
    settings, found = training_runs.with_settings(masks="fresh"), []
    for each in (ALONE, ranks):
        place = {"first_example": 0, "num_updates": 2}
        with UpdateLoader(ExampleShards(examples, "train"), settings, each, **place) as loader:
            found.append([update.sizes for update in loader])
    assert found[1] == found[0]


def start(function: Callable[..., None], *arguments: Any, num_ranks: int) -> None:
    """Call a function of this file with the number of a rank and the arguments, in each rank.

    The ranks are forked from a process that has imported this file once for all of them.
    """
    multiprocessing.set_forkserver_preload([__name__])
    start_processes(function, arguments, num_ranks, start_method="forkserver")


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [3, pytest.param(4, marks=pytest.mark.long)])
def test_several_ranks_do_the_updates_of_one_process_and_skip_and_stop_together(
    num_ranks: int, examples: str, tmp_path: Path
) -> None:
    """The first dimensions of most tensors are no multiple of three."""
    of_ranks = np.array_split(np.arange(NUM_EXAMPLES), num_ranks)
    parts = [[part.tolist() for part in np.array_split(places, 2)] for places in of_ranks]
    start(rank_of_several, parts, examples, str(tmp_path), num_ranks=num_ranks)
    alone = Ranks(0, 1, torch.device("cpu"))
    expected = [
        Case(examples, alone, [list(range(NUM_EXAMPLES))], optimizer, shard=False)
        for optimizer in OPTIMIZERS
    ]
    after = [case.after_three_updates() for case in expected]
    found = torch.load(tmp_path / "found.pt")
    for (tensors, metrics), (its_tensors, its_metrics, bad) in zip(after * 2, found, strict=True):
        for what in ("model", "optimizer"):
            ours, theirs = tensors[what], its_tensors[what]
            torch.testing.assert_close(theirs, ours, rtol=1e-11, atol=1e-11)
        assert its_metrics == pytest.approx(metrics, rel=1e-5)  # sums of float32
        assert bad == [True, True, (True, False, True)]


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (dist.DistStoreError("wait timeout after 1800000ms"), True),
        (RuntimeError("[/torch/gloo/gloo/transport/tcp/pair.cc:553] Connection closed"), True),
        (
            RuntimeError("[enforce fail at /torch/gloo/gloo/transport/tcp/pair.cc:446] 8 vs 4"),
            False,
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.AcceleratorError("an illegal memory access"), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_only_what_torch_says_of_other_ranks_makes_a_run_again(
    error: RuntimeError, is_lost: bool
) -> None:
    expected = RunAgain if is_lost else type(error)
    with pytest.raises(expected), Ranks(0, 2, torch.device("cpu")).ending_when_alone():
        raise error


def meet(rank: int, file: Path) -> None:
    """Be a rank of two that meets the other in ``file``, and note what both have in common."""
    meeting = {"ALBERT_MEETING_FILE": str(file), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update(meeting, RANK=str(rank), WORLD_SIZE="2")
    with ranks_of_environment() as ranks:
        file.with_name(f"{rank}").write_text(f"{ranks.total(1)} {file.exists()}")


def test_ranks_meet_in_a_file_whatever_its_name(tmp_path: Path) -> None:
    start(meet, tmp_path / "a #1?", num_ranks=2)
    assert [Path(tmp_path, rank).read_text() for rank in ("0", "1")] == ["2 True"] * 2


def test_a_rank_on_a_gpu_names_it_and_says_how_long_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stands for CUDA, as far as the ranks have met; there are two devices."""
    asked: dict[str, Any] = {}

    def init_process_group(backend: str, **options: Any) -> None:
        asked.update(options, backend=backend)
        raise dist.DistStoreError("nobody came")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H200")
    monkeypatch.setattr("torch.cuda.set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(ranks, "end_with_parent", lambda _: None)
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(RunAgain), ranks_of_environment():
        pass
    assert (asked["backend"], asked["device_id"]) == ("nccl", torch.device("cuda", 1))
    assert asked["timeout"].total_seconds() == 1800
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"no GPU for process 2 .* GPUs are 0 to 1"):
        with ranks_of_environment():
            pass


@pytest.mark.parametrize(
    ("capability", "is_installed", "dropout", "is_used"),
    [
        ((9, 0), True, 0.0, True),
        ((9, 0), True, 0.1, False),
        ((9, 0), False, 0.0, False),
        ((8, 0), True, 0.0, False),
        ((10, 0), True, 0.0, False),
    ],
)
def test_flash_attention_3_is_used_where_it_is_installed_without_dropout_on_hopper(
    capability: tuple[int, int],
    is_installed: bool,
    dropout: float,
    is_used: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activate, shape = Mock(), MODEL.model_copy(update={"attention_probs_dropout_prob": dropout})
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", activate)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr(AlbertForPretraining, "to", lambda model, _: model)
    monkeypatch.syspath_prepend(tmp_path)
    if is_installed:
        (tmp_path / "flash_attn_interface.py").touch()
    Ranks(0, 1, torch.device("cuda")).place(AlbertForPretraining(shape, 9), SETTINGS)
    assert activate.call_args_list == [call("FA3")] * is_used


def test_numbers_on_their_way_from_a_gpu_are_waited_for_and_nothing_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = Mock()
    monkeypatch.setattr("torch.cuda.Event", lambda: event)
    read = Ranks(0, 1, torch.device("cuda")).on_its_way(torch.tensor([1.0, 2.0]))
    assert event.mock_calls == [call.record()]
    assert read() == [1.0, 2.0]
    assert event.mock_calls == [call.record(), call.synchronize()]


TINY = load_recipe("tiny").model
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


RANKS = "from albert_core.training.ranks import ranks_of_environment as ranks; "
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


def test_layer_norms_that_chips_can_split_give_what_those_of_torch_give() -> None:
    """Without XLA."""
    model = AlbertForPretraining(MODEL, 50)
    types, positions = torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)
    batch = torch.randint(50, (2, 8)), None, types, positions
    expected = logits_of(model, *batch)
    placed = TpuRanks(0, 1, torch.device("cpu")).place(model, SETTINGS)
    torch.testing.assert_close(logits_of(placed, *batch), expected)


def test_without_torch_xla_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    with pytest.raises(ConfigError, match=r"but No module named 'torch_xla'.*infra/tpu"):
        with ranks_of_environment():
            pass
