import subprocess
import sys
from pathlib import Path

import pytest

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


def test_text_stages_are_read_without_torch() -> None:
    modules = "pipelines.make_examples, pipelines.contamination"
    assert loaded_by(modules) & (HEAVY - {"apache_beam"}) == set()


def test_what_text_and_training_share_is_read_without_the_heavy_libraries() -> None:
    modules = "albert_core.stage.manifest, albert_core.text.tokenizer, albert_core.config"
    assert loaded_by(modules) & (HEAVY | {"prefect"}) == set()


def loaded_by(modules: str) -> set[str]:
    """Return the packages that importing ``modules`` loads."""
    code = f"import sys, {modules}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
