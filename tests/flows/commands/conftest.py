"""The tiny model for tests that change its source or its work folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.tiny_way import Tiny


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
        file.write_text(file.read_text().replace(tiny.work, work))
    manifests = {name: uri.replace(tiny.work, work) for name, uri in tiny.manifests.items()}
    return Tiny(source, work, manifests)
