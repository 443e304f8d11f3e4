"""The whole way to a registered tiny model, each stage by its command line, in this process."""

import io
import json
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from albert_core.registry.versions import promote_version
from albert_core.stage.command import FAILURE_STATUS, run_command_line, stage_argv
from albert_core.stage.errors import StageError
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import PASSAGE_SOURCE, RegistrationResult
from flows.recipe import load_recipe, save_recipe
from tests.albert_core.stage.test_command import own_logging
from tests.test_end_to_end import SMALLER


@dataclass(frozen=True)
class Tiny:
    """A registered model and where it was made."""

    source: Path
    work: str
    manifests: dict[str, str]
    """Stage -> manifest's URI."""

    def make(self, name: str, module: str, *inputs: str, **options: str) -> str:
        """Run a stage on results made before, called ``inputs``; return its manifest."""
        given = {each: self.manifests[each] for each in inputs} | options
        argv = stage_argv(module, self.manifests["recipe"], **given, work=self.work)
        self.manifests[name] = run_in_this_process(argv, {})
        return self.manifests[name]

    def tasks(self) -> dict[str, str]:
        """Return the input that is the folder of its tasks."""
        return {"task_folder": self.manifests["task"].rpartition("/")[0]}

    def model(self) -> dict[str, str]:
        """Return the input that is the folder of its pretrained model."""
        return {"model_folder": self.manifests["pretraining"].replace("manifest.json", "model")}

    def finetuning(self) -> dict[str, str]:
        """Return the inputs of its fine-tuning."""
        return {**self.model(), **self.tasks(), "task": PASSAGE_SOURCE, "seed": "12345"}

    def scoring(self) -> dict[str, str]:
        """Return the inputs of its table of scores."""
        finetunings = json.dumps([self.manifests["finetuning"]])
        return {
            "model": "tiny",
            "finetunings": finetunings,
            "missing": "{}",
            "zero_shot": self.manifests["zero-shot"],
        }


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


def refresh(source: Path, work: str) -> Tiny:
    """Make corpus, vocabulary and examples."""
    settings = [f"{name}={json.dumps(value)}" for name, value in SMALLER.items()]
    recipe = save_recipe(load_recipe("tiny", settings, str(source)), work)
    tiny = Tiny(source, work, {"recipe": recipe})
    tiny.make("corpus", "pipelines.clean_corpus")
    tiny.make("vocab", "pipelines.train_vocab", "corpus")
    tiny.make("examples", "pipelines.make_examples", "corpus", "vocab")
    return tiny


def make_tiny(source: Path, work: str) -> Tiny:
    """Make and register a model of the source."""
    tiny = refresh(source, work)
    tiny.make("task", "pipelines.make_task", "examples", "corpus")
    tiny.make("pretraining", "albert_core.training.pretrain", "examples", **tiny.tasks())
    tiny.make("zero-shot", "albert_core.scores.zero_shot", **tiny.model(), **tiny.tasks())
    tiny.make("finetuning", "albert_core.finetuning.finetune", **tiny.finetuning())
    tiny.make("scores", "albert_core.scores.tabulate", **tiny.scoring())
    registration = ("registration", "albert_core.registry.register", "pretraining", "scores")
    made = read_manifest(tiny.make(*registration)).result_as(RegistrationResult)
    if not made.alias:  # so little training is not above chance
        promote_version(made.name, made.version, "a test", work)
        tiny.make(*registration)
    return tiny
