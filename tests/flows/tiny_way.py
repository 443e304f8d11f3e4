"""The whole way to a registered tiny model, each stage by its command line, in this process."""

import io
import json
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from albert_core.stage.command import FAILURE_STATUS, run_command_line, stage_argv
from albert_core.stage.errors import StageError
from flows.recipe import load_recipe, save_recipe
from tests.albert_core.stage.test_command import own_logging
from tests.generated_text import write_jsonl
from tests.test_end_to_end import SMALLER


@dataclass(frozen=True)
class Tiny:
    """A registered model and where it was made."""

    source: Path
    work: str
    manifests: Mapping[str, str]
    """Stage -> manifest's URI."""


def run_in_this_process(argv: list[str], environment: Mapping[str, str]) -> str:
    """Run a stage's command line as `run_stage_process` does, but here; return the manifest."""
    module, options = argv[2], argv[3:]
    output = io.StringIO()
    with own_logging(), redirect_stdout(output):
        status = run_command_line(import_module(module).run, options)
    if status:
        assert status == FAILURE_STATUS
        raise StageError(output.getvalue())
    [manifest] = re.findall("^manifest: (.*)$", output.getvalue(), re.MULTILINE)
    return str(manifest)


def write_source(folder: Path, num_documents: int = 20) -> Path:
    """Write three files of documents ``d0`` and on."""
    folder.mkdir()
    for number in range(3):
        first = number * num_documents
        write_jsonl(folder / f"{number}.jsonl", range(first, first + num_documents))
    return folder


def refresh(source: Path, work: str) -> dict[str, str]:
    """Make corpus, vocabulary and examples; return their manifests."""
    settings = [f"{name}={json.dumps(value)}" for name, value in SMALLER.items()]
    recipe = save_recipe(load_recipe("tiny", settings, str(source)), work)

    def stage(module: str, **options: str) -> str:
        return run_in_this_process(stage_argv(module, recipe, **options, work=work), {})

    corpus = stage("pipelines.clean_corpus")
    vocab = stage("pipelines.train_vocab", corpus=corpus)
    examples = stage("pipelines.make_examples", corpus=corpus, vocab=vocab)
    return {"recipe": recipe, "corpus": corpus, "vocab": vocab, "examples": examples}


def make_tiny(source: Path, work: str) -> Tiny:
    """Make and register a model of the source."""
    made = refresh(source, work)
    recipe, corpus, examples = (made[name] for name in ("recipe", "corpus", "examples"))

    def stage(module: str, **options: str) -> str:
        return run_in_this_process(stage_argv(module, recipe, **options, work=work), {})

    made["task"] = stage("pipelines.make_task", examples=examples, corpus=corpus)
    made["pretraining"] = stage("albert_core.training.pretrain", examples=examples)
    made["finetuning"] = stage(
        "albert_core.finetuning.finetune",
        model_folder=made["pretraining"].replace("manifest.json", "model"),
        task_folder=made["task"].replace("manifest.json", "CoLA"),
        task="cola",
        seed="12345",
    )
    made["scores"] = stage(
        "albert_core.scores.tabulate",
        model="tiny",
        finetunings=json.dumps([made["finetuning"]]),
        missing="{}",
    )
    made["registration"] = stage(
        "albert_core.registry.register", pretraining=made["pretraining"], scores=made["scores"]
    )
    return Tiny(source, work, made)
