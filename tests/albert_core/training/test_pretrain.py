"""Pretraining on real shards, in this process and by the launcher."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
from torch.distributed.run import parse_args

from albert_core.config import TrainingSettings
from albert_core.conversion.huggingface import read_tokenizer
from albert_core.conversion.initial_weights import convert_model
from albert_core.conversion.model_files import model_digest
from albert_core.stage.command import RUN_AGAIN_STATUS
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import read_manifest
from albert_core.tracking.server import open_client
from albert_core.training import launcher, pretrain, pretraining, ranks
from tests.albert_core import training_runs as runs
from tests.mlflow_server import free_port

MASKED_LM = {"masked_lm_loss", "masked_lm_accuracy"}


def points_of(manifest: str) -> list[dict[str, float]]:
    lines = Path(manifest).with_name("metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_leaves_a_model_and_its_scores(uninterrupted: str) -> None:
    result = runs.result_of(uninterrupted)
    assert result.step == 12
    for score in (*result.before.values(), *result.after.values()):
        assert not score.is_above(score.value)
        assert not score.is_below(score.value)
    assert {shard.kind for shard in read_manifest(uninterrupted).shards} == {"model", "metrics"}
    assert [point["step"] for point in points_of(uninterrupted)] == [4, 8, 12]
    assert [point["step"] for point in result.evaluations] == [6, 12]
    last = {name: score.value for name, score in result.after.items()}
    assert result.evaluations[-1] == last | {"step": 12}
    assert Path(uninterrupted).with_name("curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_becomes_a_model_folder_with_the_vocabulary_of_its_run(
    uninterrupted: str, tmp_path: Path
) -> None:
    checkpoint = max(Path(uninterrupted).with_name("checkpoints").iterdir())
    convert_model(str(checkpoint), str(tmp_path))
    model = Path(uninterrupted).with_name("model")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in model.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (model / path.name).read_bytes()


def test_bfloat16_learns_what_float32_learns(examples: str, tmp_path: Path) -> None:
    result = runs.result_of(runs.train(examples, tmp_path, precision="bfloat16", num_steps=6))
    assert result.after["masked_lm_loss"].value < result.before["masked_lm_loss"].value


def test_examples_longer_than_the_models_positions_are_refused(
    examples: str, tmp_path: Path
) -> None:
    short = runs.MODEL.model_copy(update={"max_position_embeddings": 64})
    with pytest.raises(ConfigError, match="max_position_embeddings is 64"):
        runs.train(examples, tmp_path, short)


def test_layers_that_share_nothing_cannot_come_one_by_one(examples: str, tmp_path: Path) -> None:
    own = runs.MODEL.model_copy(update={"sharing": "none"})
    with pytest.raises(ConfigError, match=r"shallow_share is 0\.5, but"):
        runs.train(examples, tmp_path, own, shallow_share=0.5)


def test_more_ranks_than_examples_in_a_batch_are_refused(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def nine_ranks(*_: object) -> Iterator[ranks.Ranks]:
        yield ranks.Ranks(0, 9, torch.device("cpu"))

    monkeypatch.setattr(pretraining, "ranks_of_environment", nine_ranks)
    with pytest.raises(ConfigError, match="batch_size is 8, but there are 9 ranks"):
        runs.train(examples, tmp_path)


@pytest.mark.parametrize(
    ("objective", "fidelity", "pairs"),
    [
        ("nsp", "google", {"next_sentence_loss", "next_sentence_accuracy"}),
        ("none", "paper", set()),
    ],
)
def test_what_is_learned_from_pairs_is_called_by_its_name(
    objective: str, fidelity: str, pairs: set[str], examples: str, tmp_path: Path
) -> None:
    made = runs.made_again(examples, tmp_path, objective=objective, fidelity=fidelity)
    uri = runs.train(made, tmp_path, num_steps=8)
    tokenizer = read_tokenizer(str(Path(uri).with_name("model")))
    assert tokenizer.split_digit_commas == (fidelity == "google")
    result = runs.result_of(uri)
    assert result.before.keys() == result.after.keys() == MASKED_LM | pairs
    assert [point.keys() - {"step"} for point in result.evaluations] == [MASKED_LM | pairs] * 2
    (first, *_) = points_of(uri)
    assert {name for name in first if name.endswith(("_loss", "_accuracy"))} == MASKED_LM | pairs
    assert Path(uri).with_name("curves.png").read_bytes().startswith(b"\x89PNG")


def test_every_progress_line_has_what_a_person_looks_for(
    examples: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    uri = runs.train(examples, tmp_path)
    numbers = r"[\d.,]+"
    for expected in (
        (
            rf"step 4/12  masked LM {numbers} \(\d+%\)  order {numbers} \(\d+%\)  grad {numbers}  "
            rf"trust {numbers}\.\.{numbers}  lr 8\.18e-03  {numbers} pieces/s  MFU \d+%  "
            r"data wait \d+%  \d+\.\d GB  \d:\d\d left"
        ),
        (
            rf"12 updates in \d:\d\d, {numbers} pieces/s; model FLOPs utilisation {numbers} of "
            rf"{numbers} TFLOP/s \(measured\); of the time, data wait {numbers}%, "
            rf"checkpoint {numbers}%, tracking {numbers}%; peak memory {numbers} GB"
        ),
        rf"planned for 1 x this CPU: {numbers} pieces/s, {numbers} hours",
        (
            rf"{numbers} pieces in a second of a CPU core, {numbers} times the {numbers} planned "
            rf"for 1 x this CPU; model FLOPs utilisation {numbers}, planned {numbers} \(assumed\)"
        ),
        rf"{numbers} MiB of memory at the peak, {numbers} times the {numbers} planned for 4 x 96",
    ):
        assert re.search(expected, caplog.text), caplog.text
    run = open_client(str(tmp_path)).get_run(str(runs.result_of(uri).mlflow_run_id))
    assert run.info.status == "FINISHED"
    assert run.data.params["training.micro_batch_size"] == "4"
    scores = MASKED_LM | {"sentence_order_loss", "sentence_order_accuracy"}
    machine = {name for name in run.data.metrics if name.startswith("system/")}
    assert "system/cpu_utilization_percentage" in machine
    assert run.data.metrics.keys() - machine == {
        *scores,
        *(f"held_out/{score}" for score in scores),
        "pieces_per_second",
        "model_tflops_per_second",
        "model_flops_utilisation",
        "data_wait_share",
        "peak_memory_gb",
        *(f"trust_ratio_{each}" for each in ("min", "mean", "max")),
        "grad_norm",
        "learning_rate",
        "skipped_steps",
        "planned_pieces_per_second",
        "planned_hours",
        "speed_to_plan",
        "memory_to_plan",
        "checkpoint_share",
        "tracking_share",
    }


def test_the_curve_of_the_held_out_loss_begins_before_the_first_update(uninterrupted: str) -> None:
    result, client = runs.result_of(uninterrupted), open_client("")
    curve = client.get_metric_history(str(result.mlflow_run_id), "held_out/masked_lm_loss")
    first = min(curve, key=lambda point: point.step)
    assert (first.step, first.value) == (0, result.before["masked_lm_loss"].value)


def test_mlflow_has_the_model_and_the_kept_checkpoints_with_scores_on_the_held_out_examples(
    uninterrupted: str,
) -> None:
    uri, client = uninterrupted, open_client("")
    run = client.get_run(str(runs.result_of(uri).mlflow_run_id))
    assert run.info.run_name.startswith("pretraining: ")
    assert run.inputs is not None
    contexts = {each.dataset.name: each.tags[0].value for each in run.inputs.dataset_inputs}
    assert contexts == {"examples/train": "train", "examples/held_out": "held_out"}
    assert run.outputs is not None
    made = [client.get_logged_model(each.model_id) for each in run.outputs.model_outputs]
    kept = sorted(Path(uri).parent.glob("checkpoints/step-*"))
    checkpoints = [each for each in made if each.model_type == "checkpoint"]
    assert sorted(each.tags["files"] for each in checkpoints) == [str(path) for path in kept]
    [model] = [each for each in made if each.model_type == "pretrained"]
    assert model.params["training.micro_batch_size"] == "4"
    assert model.tags["model_digest"] == model_digest(f"{Path(uri).parent}/model")
    loss = next(each for each in model.metrics or () if each.key == "held_out/masked_lm_loss")
    assert (loss.step, loss.value) == (12, runs.result_of(uri).after["masked_lm_loss"].value)
    assert loss.dataset_name == "examples/held_out"
    files = client.list_logged_model_artifacts(model.model_id)
    assert {file.path for file in files} == {"MLmodel", "artifacts", "components"}


@pytest.mark.long
def test_compiled_layers_learn_what_plain_ones_do(
    examples: str, uninterrupted: str, tmp_path: Path
) -> None:
    done = runs.run_with_faults(tmp_path, runs.with_settings(compile=True), examples)
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = (tmp_path / "work" / "pretraining").glob("*/manifest.json")
    assert manifest.parent.name == Path(uninterrupted).parent.name  # the same key
    torch.testing.assert_close(
        runs.weights_of(str(manifest)), runs.weights_of(uninterrupted), rtol=1e-3, atol=1e-4
    )


RANK = """
import os, pathlib, signal, sys, time
from albert_core.training.ranks import ranks_of_environment

def stop(*_):
    if rank == "1":
        time.sleep(20)
        pathlib.Path(folder, "slow").touch()
    os._exit(75)

folder, rank = sys.argv[1], os.environ["RANK"]
with ranks_of_environment() as ranks:
    ranks.wait()
    signal.signal(signal.SIGTERM, stop)
    pathlib.Path(folder, rank).touch()
    while True:
        signal.pause()
"""


@pytest.mark.slow
def test_ranks_that_train_on_one_host_are_reached_from_it_alone_and_stopped_in_the_time_there_is(
    tmp_path: Path,
) -> None:
    """The first saves at once. The other would take 20 seconds, and has two."""
    script, ready = tmp_path / "rank.py", tmp_path / "ready"
    script.write_text(RANK)
    ready.mkdir()
    options = ["--standalone", "--nproc-per-node=2", str(script), str(ready)]
    command = [sys.executable, "-m", "albert_core.training.launcher", *options]
    variables = {**os.environ, "ALBERT_STOP_SECONDS": "2"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        while len(list(ready.iterdir())) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        sockets = [each for member in family for each in member.net_connections("tcp")]
        process.terminate()
        said, _ = process.communicate()
    addresses = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}
    assert process.returncode == RUN_AGAIN_STATUS
    assert "goes on from the newest checkpoint" in said
    assert not (ready / "slow").exists()


@pytest.mark.parametrize("host", [0, 1])
def test_hosts_that_do_not_meet_in_time_are_to_be_started_again(
    host: int, caplog: pytest.LogCaptureFixture
) -> None:
    address = [f"--node-rank={host}", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    status = launcher.launch(["--nnodes=2", *address, "--rdzv-conf=timeout=1", "never.py"])
    assert status == RUN_AGAIN_STATUS
    assert "the 2 hosts did not meet at 127.0.0.1:" in caplog.text


def test_a_run_on_several_hosts_meets_under_a_name_of_its_own() -> None:
    def named(*argv: str) -> Any:
        args = parse_args(["--nnodes=2", *argv])
        launcher._meet_others(args)
        return args

    one, same, other = (named("-m", "stage", f"--work={work}") for work in "aab")
    assert one.rdzv_id == same.rdzv_id != other.rdzv_id
    assert one.rdzv_conf == "timeout=1800"
    given = named("--rdzv-id=try-7", "--rdzv-conf=timeout=5", "-m", "stage")
    assert (given.rdzv_id, given.rdzv_conf) == ("try-7", "timeout=5")


@pytest.mark.parametrize(
    ("exitcodes", "status"),
    [([-9], 75), ([75, -9], 75), ([75, 75], 75), ([75, 2], 1), ([1, -15], 1)],
)
def test_the_launcher_says_whether_to_run_again(exitcodes: list[int], status: int) -> None:
    failures = {rank: SimpleNamespace(exitcode=code) for rank, code in enumerate(exitcodes)}
    assert launcher.status_of(cast(Any, failures)) == status


@pytest.mark.long
def test_sentence_order_is_learned_where_it_can_be(tmp_path: Path) -> None:
    settings = TrainingSettings(
        num_steps=250,
        batch_size=32,
        micro_batch_size=32,
        learning_rate=0.01,
        warmup_steps=25,
        log_steps=50,
        checkpoint_steps=250,
    )
    examples = runs.make_days(tmp_path, seed=0, num_documents=2000)
    uri = pretrain.run(runs.MODEL, settings, examples, str(tmp_path))
    assert runs.result_of(uri).after["sentence_order_accuracy"].value > 0.9
