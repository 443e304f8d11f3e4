import subprocess
import sys
from pathlib import Path

import pytest

from albert_core.stage.provenance import reachable_sources

PROJECT = Path(__file__).parent.parent
HEAVY = {"apache_beam", "matplotlib", "mlflow", "sklearn", "torch", "transformers"}


@pytest.mark.slow
def test_nobody_imports_whom_they_may_not_know() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "flows.pretrain_albert",
        "flows.refresh_corpus",
        "flows.evaluate_albert",
        "flows.commands.lineage",
        "flows.commands.main",
        "flows.commands.rebuild",
        "flows.commands.retention",
        "flows.commands.trace",
        "infra.serve",
    ],
)
def test_a_flow_is_read_without_the_heavy_libraries(module: str) -> None:
    assert loaded_by(module) & HEAVY == set()


CORE = {"config", "conversion", "intervals", "metrics", "stage", "text", "tracking"}
TRAINING = CORE | {"checkpoint", "model", "planning", "tasks", "training"}


ROOMS_OF = {
    "pipelines.train_vocab": {"stage", "text"},
    "pipelines.clean_corpus": {"stage", "text", "tasks"},
    "pipelines.make_examples": {"stage", "text"},
    "albert_core.training.pretrain": TRAINING,
    "albert_core.finetuning.finetune": TRAINING - {"planning"} | {"finetuning"},
    "albert_core.scores.zero_shot": TRAINING - {"planning", "tracking", "training"} | {"scores"},
    "albert_core.scores.tabulate": CORE - {"conversion", "intervals", "text"} | {"scores"},
    "albert_core.registry.register": CORE | {"registry"},
}
FINETUNED = "albert_core.registry.register_finetuned"


@pytest.mark.parametrize(("stage", "rooms"), [*ROOMS_OF.items(), (FINETUNED, CORE | {"registry"})])
def test_a_stage_reaches_these_rooms_of_albert_core(stage: str, rooms: set[str]) -> None:
    names = [name.split(".") for name in reachable_sources(stage)]
    assert {name[1] for name in names if name[0] == "albert_core" and name[1:]} == rooms


def test_what_stages_do_is_planned_without_the_heavy_libraries() -> None:
    stages = (
        *ROOMS_OF,
        *(f"pipelines.{name}" for name in ("make_task", "contamination", "removal")),
    )
    assert loaded_by(", ".join(stages)) & (HEAVY | {"prefect", "pandas"}) == set()


def test_text_pipelines_are_read_without_torch() -> None:
    modules = "pipelines.engine.runner, pipelines.transforms"
    assert loaded_by(modules) & (HEAVY - {"apache_beam"}) == set()


def test_what_text_and_training_share_is_read_without_the_heavy_libraries() -> None:
    modules = "albert_core.stage.manifest, albert_core.text.tokenizer, albert_core.config"
    assert loaded_by(modules) & (HEAVY | {"prefect"}) == set()


def loaded_by(modules: str) -> set[str]:
    """Return the packages that importing ``modules`` loads."""
    code = f"import sys, {modules}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
