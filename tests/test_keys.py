"""A stage's key changes when its result could, and at nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
STAGES = {
    "corpus": "pipelines.clean_corpus",
    "vocab": "pipelines.train_vocab",
    "examples": "pipelines.make_examples",
    "pretraining": "albert_core.training.pretrain",
    "finetuning": "albert_core.finetuning.finetune",
    "task": "pipelines.make_task",
}
EDITS = {
    "a price": ("albert_core/planning/run_plan.py", " 4.59,", " 4.6,", ""),
    "what is counted of a model": (
        "albert_core/planning/model_size.py",
        "STEPS = 3",
        "STEPS = 5",
        "",
    ),
    "a log format": ("albert_core/stage/log.py", "%(message)s", "%(message)s.", ""),
    "how progress is shown": (
        "pipelines/engine/work_notes.py",
        "{done[many]:,}",
        "{done[many]}",
        "",
    ),
    "an error's words": ("albert_core/training/beginning.py", "Raise it.", "Raise this.", ""),
    "tracking": ("albert_core/tracking/server.py", "http", "HTTP", ""),
    "the metrics page": ("albert_core/tracking/live_metrics.py", "127.0.0.1", "localhost", ""),
    "an engine": ("pipelines/engine/engines.py", "flink_master", "flink-master", ""),
    "a default of fine-tuning": ("albert_core/config.py", "16_384", "8_192", ""),
    "masking": ("albert_core/text/masking.py", "1.0 / np", "2.0 / np", "examples pretraining"),
    "pairs": ("pipelines/examples/pairs.py", "documents + 1", "documents + 2", "examples"),
    "the optimizer": (
        "albert_core/training/optimizer.py",
        "1 - mean_beta",
        "mean_beta",
        "pretraining finetuning",
    ),
    "a loss": ("albert_core/training/step.py", "1e-5", "1e-4", "pretraining"),
    "the model": (
        "albert_core/model/albert.py",
        "self.norm(total)",
        "total",
        "pretraining finetuning",
    ),
    "a reader": ("pipelines/readers/tables.py", '"not_json", row', '"no_json", row', "corpus"),
    "a cleaning rule": (
        "pipelines/corpus/quality.py",
        "_LATIN_BYTES: Final = 1.4",
        "_LATIN_BYTES: Final = 1.5",
        "corpus",
    ),
    "the tokenizer": (
        "albert_core/text/tokenizer.py",
        '"NFKD"',
        '"NFD"',
        "vocab examples pretraining finetuning",
    ),
}
"""What is edited -> file, text, what stands there afterwards, stages that are due again."""
IN_A_COPY = """
import json, sys
from pathlib import Path
from albert_core.stage.provenance import code_digest

def digests():
    code_digest.cache_clear()
    return {name: code_digest(module) for name, module in stages.items()}

stages, edits = json.load(sys.stdin)
before, due = digests(), {}
for what, (path, old, new, _) in edits.items():
    source = Path(path).read_text()
    Path(path).write_text(source.replace(old, new, 1))
    after = digests()
    due[what] = [name for name in stages if after[name] != before[name]]
    Path(path).write_text(source)
print(json.dumps(due))
"""


@pytest.fixture(scope="module")
def due(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is edited in a copy of the packages -> stages whose code is another one then."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("albert_core", "pipelines"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / package, tree / package, ignore=without)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_COPY],
        input=json.dumps([STAGES, EDITS]),
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", EDITS)
def test_stages_are_due_again_whose_result_an_edit_can_change(
    what: str, due: dict[str, list[str]]
) -> None:
    path, old, _, expected = EDITS[what]
    assert old in (PROJECT / path).read_text()
    assert due[what] == expected.split()
