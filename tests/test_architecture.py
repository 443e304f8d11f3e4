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


FLOWS = (
    *("flows.pretrain_albert", "flows.refresh_corpus", "flows.evaluate_albert", "infra.serve"),
    *(f"flows.commands.{name}" for name in ("by_hand", "main", "plan", "retention")),
    *(f"flows.commands.{name}" for name in ("document_trace", "model_lineage", "model_rebuild")),
)


def test_flows_and_commands_are_read_without_the_heavy_libraries() -> None:
    assert loaded_by(*FLOWS) & HEAVY == set()


CORE = {"config", "conversion", "metrics", "stage", "text", "tracking"}
TRAINING = CORE | {"checkpoint", "model", "planning", "tasks", "training"}


ROOMS_OF = {
    "pipelines.train_vocab": {"stage", "text"},
    "pipelines.clean_corpus": {"stage", "text"},
    "pipelines.make_examples": {"stage", "text"},
    "albert_core.training.pretrain": TRAINING,
    "albert_core.finetuning.finetune": TRAINING - {"planning"} | {"finetuning"},
    "albert_core.scores.zero_shot": TRAINING - {"planning", "tracking", "training"} | {"scores"},
    "albert_core.scores.tabulate": CORE - {"conversion", "metrics", "text"} | {"scores"},
    "albert_core.registry.register": CORE | {"registry"},
}
FINETUNED = "albert_core.registry.register_finetuned"


@pytest.mark.parametrize(("stage", "rooms"), [*ROOMS_OF.items(), (FINETUNED, CORE | {"registry"})])
def test_a_stage_reaches_these_rooms_of_albert_core(stage: str, rooms: set[str]) -> None:
    names = [name.split(".") for name in reachable_sources(stage)]
    assert {name[1] for name in names if name[0] == "albert_core" and name[1:]} == rooms


def test_what_stages_do_is_planned_without_the_heavy_libraries() -> None:
    others = ("make_task", "contamination", "removal")
    stages = (*ROOMS_OF, *(f"pipelines.{name}" for name in others))
    shared = ("albert_core.stage.manifest", "albert_core.text.tokenizer", "albert_core.config")
    assert loaded_by(*stages, *shared) & (HEAVY | {"prefect", "pandas"}) == set()


def test_text_pipelines_are_read_without_torch() -> None:
    loaded = loaded_by("pipelines.engine.runner")
    assert loaded & (HEAVY - {"apache_beam"}) == set()


def loaded_by(*modules: str) -> set[str]:
    """Return the packages that importing ``modules`` loads."""
    names = ", ".join(modules)
    code = f"import sys, {names}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
