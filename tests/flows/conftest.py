import io
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_core.registry.version_commands import promote_version
from albert_core.stage import results, storage
from albert_core.stage.command import FAILURE_STATUS, run_command_line, stage_argv
from albert_core.stage.errors import StageError
from albert_core.stage.lineage import Lineage
from albert_core.stage.manifest import Account, Manifest, read_manifest
from albert_core.stage.provenance import provenance
from albert_core.stage.results import PASSAGE_SOURCE, RegistrationResult
from flows.recipe import RecipeRun, load_recipe, save_recipe
from pipelines.source_files import SourceFile, write_files
from tests.albert_core.stage.test_command import own_logging
from tests.generated_text import write_source
from tests.made_results import made_result, replace_in_manifest
from tests.test_end_to_end import SMALLER

CHAMPION, VERSION = "models:/albert-tiny@champion", "models:/albert-tiny/1 @champion"
"""The registered model."""
MADE_OF = {
    "corpus", "vocab", "examples", "task", "pretraining", "zero-shot", "finetuning", "scores",
}  # fmt: skip
"""The stages of what it was made of."""
ACCOUNTS = {
    "corpus": [
        Account(what="documents", total=1000, kept=900, dropped={"too_short": 60, "duplicate": 40}),
        Account(what="source files", total=9, kept=8, dropped={"broken_link": 1}),
    ],
    "examples": [
        Account(what="documents", total=900, kept=890, dropped={"too_short": 10}),
        Account(
            what="pieces, all copies", total=2_000_000, kept=1_990_000, dropped={"overflow": 10_000}
        ),
    ],
}


def made_manifest(stage: str, **changes: Any) -> Manifest:
    """Return the manifest of ``stage``, with some fields of its result changed."""
    return Manifest(
        stage=stage,
        key="0123456789abcdef",
        settings={},
        inputs={},
        input_manifests={},
        code="",
        libraries={},
        shards=[],
        accounts=ACCOUNTS.get(stage, []),
        result=made_result(stage, **changes).model_dump(mode="json"),
        provenance=provenance(),
    )


@dataclass(frozen=True)
class Tiny:
    """A registered model and where it was made."""

    source: Path
    work: str
    manifests: dict[str, str]
    """Stage -> manifest's URI."""
    calls: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """Stage -> its module and what it was given."""

    def make(self, name: str, module: str, *inputs: str, **options: str) -> str:
        """Run a stage on results made before, called ``inputs``; return its manifest."""
        given = {each: self.manifests[each] for each in inputs} | options
        self.calls[name] = module, given
        argv = stage_argv(module, self.manifests["recipe"], **given, work=self.work)
        self.manifests[name] = run_in_this_process(argv, {})
        return self.manifests[name]


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
    task = tiny.make("task", "pipelines.make_task", "examples", "corpus")
    tasks = {"task_folder": task.rpartition("/")[0]}
    run = tiny.make("pretraining", "albert_core.training.pretrain", "examples", **tasks)
    folders = {"model_folder": run.replace("manifest.json", "model"), **tasks}
    pairs = tiny.make("zero-shot", "albert_core.scores.zero_shot", **folders)
    training = {**folders, "task": PASSAGE_SOURCE, "seed": "12345"}
    finetuned = json.dumps([tiny.make("finetuning", "albert_core.finetuning.finetune", **training)])
    scored = {"model": "tiny", "finetunings": finetuned, "missing": "{}", "zero_shot": pairs}
    tiny.make("scores", "albert_core.scores.tabulate", **scored, contamination="")
    registration = ("registration", "albert_core.registry.register", "pretraining", "scores")
    made = read_manifest(tiny.make(*registration)).result_as(RegistrationResult)
    if not made.alias:  # so little training is not above chance
        promote_version(made.name, made.version, "a test", work)
        tiny.make(*registration)
    return tiny


@pytest.fixture(scope="session")
def prefect_server(
    empty_prefect_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A Prefect server with a database of its own, for flows run in this process."""
    from flows.prefect_server import prefect_server as server

    folder = tmp_path_factory.mktemp("prefect")
    shutil.copy(empty_prefect_database, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(folder))
        with server(str(folder)):
            yield


@pytest.fixture(scope="session")
def tiny(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """A registered tiny model of 60 documents; tests leave its folders as they are."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "work").mkdir()
    shutil.copy(empty_database, folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        yield make_tiny(write_source(folder / "source"), str(folder / "work"))


STAGE_OF = {
    "pipelines.clean_corpus": "corpus",
    "pipelines.train_vocab": "vocab",
    "pipelines.make_examples": "examples",
    "pipelines.audit_shards": "audit",
    "pipelines.make_task": "task",
    "pipelines.contamination": "contamination",
    "albert_core.training.pretrain": "pretraining",
    "albert_core.scores.zero_shot": "zero-shot",
    "albert_core.finetuning.finetune": "finetuning",
    "albert_core.scores.tabulate": "scores",
    "albert_core.registry.register": "registration",
}


_PASSAGES = b"".join(
    b'{"text": "%s.", "source": "%s", "document": "%s"}\n' % (name, name, name)
    for name in (b"a", b"b")
)


class FakeStages:
    """Stands for all stages: writes made manifests and remembers what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        """Stage and inputs; those in the work folder are relative to it."""
        self.receipt = "none"
        self.champion = ""

    def run_stage(self, module: str, run: RecipeRun, environment: Any = None, **inputs: str) -> str:
        if module == "pipelines.removal":
            self.calls.append(("removal", {}))
            return self.receipt
        stage = STAGE_OF[module]
        self.calls.append((stage, {n: v.removeprefix(f"{run.work}/") for n, v in inputs.items()}))
        key = f"{inputs['task']}-{inputs['seed']}" if stage == "finetuning" else "0"
        folder = storage.join(run.work, stage, key)
        for split in ("train", "dev"):
            storage.write_bytes(f"{folder}/{results.PASSAGE_SOURCE}/{split}.jsonl", _PASSAGES)
        if stage == "corpus":
            formats = "html", "pdf", "pdf"
            files = (SourceFile("", "", 0, "", format=each) for each in formats)
            write_files(files, f"{folder}/{results.SOURCE_FILES}")
        if stage == "task":
            storage.write_bytes(f"{folder}/minimal_pairs/generated.jsonl", b"")
        manifest = made_manifest(stage).model_copy(update={"key": key})
        storage.write_bytes(f"{folder}/manifest.json", manifest.model_dump_json().encode())
        return f"{folder}/manifest.json"

    def of(self, stage: str) -> list[dict[str, str]]:
        return [inputs for name, inputs in self.calls if name == stage]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    """Have the flows call fake stages and a fake registry, and track nothing."""
    from albert_core import registry as registry_room
    from albert_core.registry import register
    from flows import stage_task, tracking

    fake = FakeStages()
    monkeypatch.setattr(stage_task, "run_stage", fake.run_stage)
    monkeypatch.setattr(stage_task, "find_stage", lambda *_, **__: None)
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    version_files = SimpleNamespace(
        model_folder_of=lambda model_uri, work: f"/found/{model_uri[8:]}",
        read_version=lambda model_uri, work: (None, Lineage([])),
    )
    monkeypatch.setitem(sys.modules, "albert_core.registry.version_files", version_files)
    monkeypatch.setattr(registry_room, "version_files", version_files, raising=False)
    monkeypatch.setattr(register, "champion_to_beat", lambda *_: fake.champion)
    return fake


@pytest.fixture
def source(tiny: Tiny) -> Iterator[Path]:
    """The folder of the source files, which are restored at the end."""
    before = {path: path.read_bytes() for path in tiny.source.iterdir()}
    yield tiny.source
    for path in {*before, *tiny.source.iterdir()}:
        if path in before:
            path.write_bytes(before[path])
        else:
            path.unlink()


@pytest.fixture
def copied(tiny: Tiny, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """The model with a copy of its work folder, and the same registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    ignored = shutil.ignore_patterns("mlartifacts", "mlflow.db*")
    work = str(shutil.copytree(tiny.work, tmp_path / "work", ignore=ignored))
    for file in Path(work).rglob("manifest.json"):
        replace_in_manifest(file, tiny.work, work)
    manifests = {name: uri.replace(tiny.work, work) for name, uri in tiny.manifests.items()}
    return Tiny(source, work, manifests)


@contextmanager
def work_folder_away(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave of the work folder only what is the registry's, as on another machine."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    away = Path(f"{tiny.work}-away")
    away.mkdir()
    folders = [path for path in Path(tiny.work).iterdir() if not path.name.startswith("ml")]
    for folder in folders:
        folder.rename(away / folder.name)
    yield
    for folder in folders:
        (away / folder.name).rename(folder)
    away.rmdir()
