import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_core.stage import lineage, results, storage
from flows.recipe import RecipeRun
from tests.flows.made_manifests import made_manifest
from tests.flows.tiny_way import Tiny, make_tiny
from tests.generated_text import write_source
from tests.made_results import replace_in_manifest


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server with a database of its own, for flows run in this process."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=400):
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """A registered tiny model of 60 documents; tests leave its folders as they are."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
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
    from flows import flow_run

    fake = FakeStages()
    monkeypatch.setattr(flow_run, "run_stage", fake.run_stage)
    monkeypatch.setattr(flow_run, "find_stage", lambda *_, **__: None)
    monkeypatch.setattr(flow_run, "find_spec", lambda _: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    versions = SimpleNamespace(
        champion_to_beat=lambda name, pretraining, work: fake.champion,
        model_folder_of=lambda model_uri, work: f"/found/{model_uri[8:]}",
        read_version=lambda model_uri, work: (None, lineage.Lineage([])),
    )
    monkeypatch.setitem(sys.modules, "albert_core.registry.versions", versions)
    monkeypatch.setattr(registry_room, "versions", versions, raising=False)
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
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    ignored = shutil.ignore_patterns("mlartifacts", "mlflow.db*")
    work = str(shutil.copytree(tiny.work, tmp_path / "work", ignore=ignored))
    for file in Path(work).rglob("manifest.json"):
        replace_in_manifest(file, tiny.work, work)
    manifests = {name: uri.replace(tiny.work, work) for name, uri in tiny.manifests.items()}
    return Tiny(source, work, manifests)
