"""Versions whose code is wrong for several threads: not registered, not promoted, and marked."""

import inspect
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from albert_core.registry import versions
from albert_core.registry.versions import (
    CHAMPION,
    FAULT,
    PREVIOUS,
    RIGHT,
    THREADS_TAG,
    WORD_TABLE,
    has_lock,
    is_right,
)
from albert_core.stage.errors import RegistryError
from albert_core.stage.provenance import reachable_sources
from albert_core.text import word_table
from albert_core.tracking.server import open_client
from flows.commands.main import main
from tests.albert_core.tiny_finetuned import register_tiny

NAME = "tiny it's"
"""A quote and a blank are allowed in a name."""
WITH_LOCK = inspect.getsource(word_table)
WITHOUT_LOCK = WITH_LOCK.replace("threading.Lock()", "nullcontext()")


@pytest.fixture
def client(work: str) -> MlflowClient:
    """A registry without ``NAME``."""
    client = open_client(work)
    if client.search_registered_models(f'name = "{NAME}"'):
        client.delete_registered_model(NAME)
    client.create_registered_model(NAME)
    return client


def add(client: MlflowClient, folder: Path, table: str, kind: str, **tags: str) -> str:
    """Make a version with the files that count; return its number."""
    files = {"artifacts/model/task.json": json.dumps({"task": {"kind": kind}})}
    if table:
        files["code/albert_core/contract/word_table.py"] = table
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(content)
    manifest = {"manifest.finetuning": "/w/finetuning/1a/manifest.json, /w/finetuning/2b/m.json"}
    made = client.create_model_version(NAME, str(folder), tags=manifest | tags)
    return str(made.version)


def test_the_present_word_table_is_right() -> None:
    assert has_lock(WITH_LOCK)
    assert not has_lock(WITHOUT_LOCK)


@pytest.mark.parametrize(
    ("table", "kind", "right"),
    [
        (WITHOUT_LOCK, "classification", False),
        (WITHOUT_LOCK, "regression", False),
        (WITHOUT_LOCK, "choice", False),
        (WITHOUT_LOCK, "spans", True),  # the table is not asked
        (WITH_LOCK, "classification", True),
        ("", "pretrained", True),
    ],
)
def test_the_code_that_a_version_carries_says_whether_it_is_right(
    table: str, kind: str, right: bool, client: MlflowClient, tmp_path: Path
) -> None:
    number = add(client, tmp_path, table, kind)
    assert is_right(client, client.get_model_version(NAME, number)) is right


def test_of_a_version_looked_at_when_it_was_registered_nothing_is_read(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = add(client, tmp_path, WITHOUT_LOCK, "choice", **{THREADS_TAG: RIGHT})
    monkeypatch.setattr("mlflow.artifacts.list_artifacts", None)
    assert is_right(client, client.get_model_version(NAME, number))


@pytest.mark.parametrize(
    "words",
    [("promote", NAME, "1", "--reason", "x"), ("rollback", NAME), ("rollback", NAME, "--to", "1")],
)
def test_a_version_that_is_wrong_is_not_made_champion(
    words: tuple[str, ...],
    client: MlflowClient,
    work: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for alias, table in ((PREVIOUS, WITHOUT_LOCK), (CHAMPION, WITH_LOCK)):
        number = add(client, tmp_path / alias, table, "classification")
        client.set_registered_model_alias(NAME, alias, number)
    before = client.get_registered_model(NAME)
    assert main([*words, f"--work={work}"]) == 2
    said = capsys.readouterr().err
    assert f"version 1 of {NAME} answers wrongly where a server asks it from several thr" in said
    assert "register_finetuned --recipe=/w/recipes/<...>.json" in said
    assert "--finetuning=/w/finetuning/1a/manifest.json --name='tiny it'\"'\"'s' --work=/w`" in said
    after = client.get_registered_model(NAME)
    assert (after.aliases, after.tags) == (before.aliases, before.tags)
    assert "champion_by_hand" not in client.get_model_version(NAME, "1").tags


def test_lists_and_decisions_mark_a_version_that_is_wrong(
    client: MlflowClient, work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, table in (("1", WITHOUT_LOCK), ("2", WITH_LOCK)):
        add(client, tmp_path / number, table, "choice")
    client.set_registered_model_alias(NAME, CHAMPION, "1")
    assert main(["models", NAME, f"--work={work}"]) == 0
    _, second, first = capsys.readouterr().out.splitlines()
    assert first.endswith(f"not decided yet; {FAULT}")
    assert FAULT not in second
    assert main(["models", f"--work={work}"]) == 0
    assert f"champion: version 1; {FAULT}" in capsys.readouterr().out
    assert main(["models", NAME, "1", f"--work={work}"]) == 0
    assert f"It {FAULT}. Register its fine-tuning again" in capsys.readouterr().out


def test_a_list_is_given_though_files_are_away(
    client: MlflowClient,
    work: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add(client, tmp_path, WITHOUT_LOCK, "choice")

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the store does not answer")

    monkeypatch.setattr("mlflow.artifacts.list_artifacts", away)
    assert main(["models", NAME, f"--work={work}"]) == 0
    assert "has code that can't be read now (ConnectionError)" in capsys.readouterr().out


def test_code_that_is_wrong_is_not_registered(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_old_table(module: str) -> dict[str, str]:
        return reachable_sources(module) | {WORD_TABLE: WITHOUT_LOCK}

    with monkeypatch.context() as patch:
        patch.setattr(versions, "reachable_sources", with_old_table)
        with pytest.raises(RegistryError, match=r"word_table\.py has no lock.* update that check"):
            register_tiny(work, "sst-2", 0.5)
    client = open_client(work)
    assert not client.search_model_versions("name = 'tiny-sst-2'")
    assert register_tiny(work, "sst-2", 0.5).facts["alias"] == CHAMPION
    assert client.get_model_version("tiny-sst-2", "1").tags[THREADS_TAG] == RIGHT
