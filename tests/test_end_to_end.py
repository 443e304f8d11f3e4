"""The tiny recipe through the flow, from raw text to a registered model, as a user types it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import PretrainingResult
from albert_core.tracking.server import open_client
from tests.generated_text import write_jsonl, write_source

PROJECT = Path(__file__).parents[1]
ALBERT = Path(sys.executable).with_name("albert")
pytestmark = pytest.mark.slow
STAGES = {
    *("corpus", "vocab", "examples", "task", "pretraining", "finetuning", "scores", "registration")
}
SMALLER = {
    "source.file_share": 1.0,
    "vocabulary.vocab_size": 150,
    "examples.held_out_share": 0.2,
    "model.embedding_size": 16,
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "training.num_steps": 20,
    "training.warmup_steps": 2,
    "training.batch_size": 16,
    "training.log_steps": 10,
    "training.checkpoint_steps": 10,
    "finetuning.num_steps": 4,
    "finetuning.warmup_steps": 2,
    "finetuning.evaluation_steps": 4,
    "evaluation.num_seeds": 2,
}


@dataclass(frozen=True)
class Typed:
    """A run of the flow: what it was given, and what came of it."""

    source: Path | str
    work: Path
    status: int
    output: str


def run_flow(
    source: Path | str,
    work: Path,
    command: str = "pretrain",
    environment: Mapping[str, str] | None = None,
    **overrides: object,
) -> Typed:
    """Run the flow as ``make demo`` does, with settings that take seconds."""
    settings = SMALLER | {name.replace("__", "."): value for name, value in overrides.items()}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    places = {"PREFECT_API_URL": "", "PREFECT_HOME": str(work.parent / "prefect-home")}
    done = subprocess.run(
        [ALBERT, command, "--recipe=tiny", *options, f"--source={source}", f"--work={work}"],
        cwd=PROJECT,
        env={**os.environ, **places, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return Typed(source, work, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def first(
    empty_database: Path, empty_prefect_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Typed:
    folder = tmp_path_factory.mktemp("whole-way")
    (folder / "work").mkdir()
    for database in (empty_database, empty_prefect_database):
        shutil.copy(database, folder / "work")
    return run_flow(write_source(folder / "source", 40), folder / "work", evaluation__num_seeds=1)


def test_the_first_run_ends_with_a_registered_model_that_is_not_above_chance(first: Typed) -> None:
    assert first.status == 0, first.output
    assert re.search(r"documents read +120", first.output)
    assert re.search(r"masked LM loss, nats +\d\.\d+ \[", first.output)
    assert re.search(r"sentence order accuracy +0\.\d+ \[", first.output)
    assert re.search(r"model +albert-tiny, version 1", first.output)
    assert re.search(r"alias +none", first.output)
    assert re.search(r"the gate +refused", first.output)
    assert re.search(r"because +not surely above the best constant answer", first.output)
    assert re.search(r"gate: with one seed \(evaluation.num_seeds\) the gate decid", first.output)


def test_the_first_run_takes_about_the_memory_that_was_planned(first: Typed) -> None:
    (manifest,) = first.work.glob("pretraining/*/manifest.json")
    run_id = read_manifest(str(manifest)).result_as(PretrainingResult).mlflow_run_id
    metrics = open_client(str(first.work)).get_run(str(run_id)).data.metrics
    assert 0.8 < metrics["memory_to_plan"] < 1.2  # nearly all of it is the process itself


def finished(work: Path) -> dict[str, tuple[str, int]]:
    """Return the stage of each finished run, and when its manifest was written, by its path."""
    manifests = work.glob("*/*/manifest.json")
    return {str(path): (path.parts[-3], path.stat().st_mtime_ns) for path in manifests}


def test_the_second_run_finds_every_stage_done(first: Typed) -> None:
    before = finished(first.work)
    assert {stage for stage, _ in before.values()} >= STAGES
    again = run_flow(first.source, first.work, evaluation__num_seeds=1)
    assert again.status == 0, again.output
    assert re.search(r"model +albert-tiny, version 1", again.output)
    assert "to do, because" not in again.output
    assert "starting the flow" not in again.output
    assert finished(first.work) == before


def test_a_mistake_of_a_later_stage_ends_in_one_message_and_leaves_no_half_result(
    first: Typed,
) -> None:
    before = finished(first.work)
    failed = run_flow(first.source, first.work, "refresh", vocabulary__vocab_size=9000)
    assert failed.status == 2
    assert failed.output.count("error: ") == 1
    message = failed.output.rpartition("error: ")[2]
    assert re.search(r"vocab_size is 9000, but the text carries at most \d+ pieces", message)
    assert "Traceback" not in failed.output
    assert finished(first.work) == before


@pytest.mark.long
def test_a_changed_file_is_named_and_what_depends_on_it_is_redone(first: Typed) -> None:
    promote = ["promote", "albert-tiny", "1", "--reason=a test", f"--work={first.work}"]
    subprocess.run([ALBERT, *promote], cwd=PROJECT, check=True)
    write_jsonl(Path(first.source) / "1.jsonl", [*range(40, 80), 500])
    again = run_flow(first.source, first.work)
    assert again.status == 0, again.output
    assert "source files: 1 changed (1.jsonl)" in again.output
    assert "examples: to do, because input corpus was" in again.output
    assert re.search(r"model +albert-tiny, version 2", again.output)
    assert re.search(r"the gate +(refused|promoted)", again.output)
    assert re.search(r"passage-source +-?\d\.\d+ against -?\d\.\d+ of version 1", again.output)
