"""Looking into the registry, promoting by hand and rolling back, as a person types it."""

import os
import signal
from pathlib import Path

import pytest
from mlflow import MlflowClient

from albert_core.registry.champion import CLAIM, DECISION_TAG, decision_tags
from albert_core.registry.gate import Decision, TaskDifference
from albert_core.registry.version_lineage import registered_versions
from albert_core.registry.versions import make_candidate, make_champion
from albert_core.tracking.server import open_client
from flows.commands.main import main

NAME = "albert-it's"
"""A quote is allowed in a name, and is one more thing to get wrong in a search."""
FELL = TaskDifference("rte", 0.6, 0.7, -0.1, -0.15, -0.05, 277, fell=True)


@pytest.fixture
def work(work: str) -> str:
    """A registry with three versions: the first was champion, the second is, the third fell."""
    client = open_client(work)
    if client.search_registered_models():
        client.delete_registered_model(NAME)
    client.create_registered_model(NAME)
    add(client, "0.7", Decision("first", "the first champion"))
    add(client, "0.8", Decision("promoted", "better than the champion"))
    add(client, "0.75", Decision("refused", "fell by more than 0.02: rte", -0.1, -0.2, (FELL,)))
    return work


def add(client: MlflowClient, score: str, decision: Decision) -> None:
    version = client.create_model_version(NAME, "/nowhere", tags={"score": score})
    make_candidate(client, version)
    if decision.is_promoted:
        make_champion(client, version)
    verdict = {f"{DECISION_TAG}.verdict": decision.verdict}
    for tag, value in (decision_tags(decision, "2") | verdict).items():
        client.set_model_version_tag(NAME, version.version, tag, value)


def type_in(work: str, *words: str) -> int:
    return main([*words, f"--work={work}"])


def aliases(work: str) -> dict[str, str]:
    found = open_client(work).get_registered_model(NAME).aliases
    return {name: str(version) for name, version in found.items()}


def test_the_versions_that_lineage_asks_for_are_all_there(work: str) -> None:
    assert [str(version) for version in registered_versions(work)] == [
        f"models:/{NAME}/3 @candidate",
        f"models:/{NAME}/2 @champion",
        f"models:/{NAME}/1 @previous",
    ]


def test_the_list_has_aliases_scores_and_decisions(
    work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(work, "models", NAME) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["alias", "score", "decision"],
        ["3", "candidate", "0.7500", "refused:", "fell", "by", "more", "than", "0.02:", "rte"],
        ["2", "champion", "0.8000", "promoted:", "better", "than", "the", "champion"],
        ["1", "previous", "0.7000", "first:", "the", "first", "champion"],
    ]
    assert type_in(work, "models") == 0
    assert capsys.readouterr().out.split(maxsplit=1) == [NAME, "champion: version 2\n"]


def test_a_decision_is_told_task_by_task(work: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in(work, "models", NAME, "3") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{NAME}, version 3: refused: fell by more than 0.02: rte\n")
    assert "0.6000 against 0.7000 of version 2: -0.1000 [-0.1500, -0.0500], 277 examples" in said
    assert type_in(work, "models", NAME, "1") == 0
    assert capsys.readouterr().out == f"{NAME}, version 1: first: the first champion\n"


def test_a_rollback_is_one_command_and_a_second_undoes_it(
    work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(work, "rollback", NAME, "--reason", "wrong answers in production") == 0
    assert "version 1 is champion instead of version 2" in capsys.readouterr().out
    assert aliases(work) == {"champion": "1", "previous": "2", "candidate": "3"}
    type_in(work, "models", NAME)
    assert "instead of version 2: rolled back: wrong answers" in capsys.readouterr().out
    assert type_in(work, "rollback", NAME) == 0
    assert aliases(work) == {"champion": "2", "previous": "1", "candidate": "3"}


def test_a_rollback_may_name_a_version(work: str) -> None:
    assert type_in(work, "rollback", NAME, "--to", "3") == 0
    assert aliases(work) == {"champion": "3", "previous": "2"}


@pytest.mark.parametrize("alias", ["previous", "champion"])
def test_a_rollback_that_was_killed_is_ended_by_the_next(
    alias: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MlflowClient.set_registered_model_alias

    def killed(self: MlflowClient, name: str, moved: str, version: str) -> None:
        real(self, name, moved, version)
        if moved == alias:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        monkeypatch.setattr(MlflowClient, "set_registered_model_alias", killed)
        type_in(work, "rollback", NAME)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    client = open_client(work)
    for tag in client.get_registered_model(NAME).tags:
        if tag.startswith(CLAIM):  # which would run out
            client.delete_registered_model_tag(NAME, tag)
    if alias == "previous":
        assert type_in(work, "rollback", NAME) == 0
    assert aliases(work) == {"champion": "1", "previous": "2", "candidate": "3"}
    assert type_in(work, "rollback", NAME) == 0
    assert aliases(work) == {"champion": "2", "previous": "1", "candidate": "3"}


def test_a_person_may_promote_for_a_reason(work: str) -> None:
    assert type_in(work, "promote", NAME, "3", "--reason", "rte does not matter to us") == 0
    assert aliases(work) == {"champion": "3", "previous": "2"}
    tags = open_client(work).get_model_version(NAME, "3").tags
    assert tags["champion_by_hand"].endswith("instead of version 2: rte does not matter to us")
    assert tags[f"{DECISION_TAG}.verdict"] == "refused"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("promote", NAME, "2", "--reason", "x"), "version 2 of albert-it's is champion already"),
        (("promote", NAME, "9", "--reason", "x"), "has no version 9"),
        (("promote", NAME, "3", "--reason", " "), "give a reason"),
        (("rollback", "nobody"), "there is no registered model 'nobody'"),
        (("models", NAME, "9"), "has no version 9"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: tuple[str, ...], message: str, work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = aliases(work)
    assert type_in(work, *words) == 2
    assert message in capsys.readouterr().err
    assert aliases(work) == before


def test_without_a_previous_champion_a_rollback_needs_a_version(
    work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_client(work).delete_registered_model_alias(NAME, "previous")
    assert type_in(work, "rollback", NAME) == 2
    assert "no previous champion to roll back to; name a version with --to" in (
        capsys.readouterr().err
    )


def test_a_registry_that_is_away_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert type_in(str(tmp_path), "models") == 75
    assert "refuses or does not answer" in capsys.readouterr().err
