"""Listing versions, moving the champion as a person types it, and the lock made of tags."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.store.entities import PagedList

from albert_core.registry import version_commands, version_files, versions
from albert_core.registry.registration import decision_tags
from albert_core.registry.versions import CANDIDATE, CLAIM, PREVIOUS, promotion_lock
from albert_core.stage import servers, storage
from albert_core.stage.errors import OutageError
from albert_core.stage.results import CHAMPION, Decision, TaskDifference
from albert_core.tracking.server import open_client
from flows.commands.main import main
from tests.albert_core.made_scores import pretrained, scored
from tests.mlflow_server import MlflowServer
from tests.threads import at_once

NAME = "albert it's"
"""A quote and a blank are allowed in a name, and are two more things to get wrong."""
FELL = TaskDifference(
    task="rte", candidate=0.6, champion=0.7, difference=-0.1,
    low=-0.15, high=-0.05, num_clusters=277, best=0.7, fell=True,
)  # fmt: skip


@pytest.fixture
def client(work: str) -> MlflowClient:
    """A registry in which ``NAME`` has no version."""
    client = open_client(work)
    if client.search_registered_models(f'name = "{NAME}"'):
        client.delete_registered_model(NAME)
    client.create_registered_model(NAME)
    return client


def test_the_address_of_a_database_may_have_parameters(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{servers.tracking_uri(work)}?timeout=60"
    monkeypatch.setenv(servers.TRACKING_URI, address)
    assert versions.has_registry(work)
    assert NAME in version_commands.list_models(work)
    monkeypatch.setenv(servers.TRACKING_URI, address.replace("mlflow.db", "none.db"))
    assert not versions.has_registry(work)


@pytest.fixture
def lineup(client: MlflowClient, work: str) -> str:
    """Three versions: the first was champion, the second is, the third fell on a task."""
    for score, verdict, reason, tasks in (
        ("0.7", "first", "the first champion", ()),
        ("0.8", "promoted", "better than the champion", ()),
        ("0.75", "refused", "fell by more than 0.02: rte", (FELL,)),
    ):
        kept = {"verdict": verdict, "reason": reason, "tasks": tasks, "against": "2"}
        decision = Decision.model_validate(kept)
        tags = decision_tags(decision)
        tags |= {"score": score, "decision.verdict": decision.verdict}
        made = client.create_model_version(NAME, "/nowhere", tags=tags)
        version = versions.numbered_version(client, NAME, str(made.version))
        assert version is not None
        versions.make_candidate(client, version)
        if decision.is_promoted:
            versions.make_champion(client, version)
    return work


def type_in(work: str, *words: str) -> int:
    return main([*words, f"--work={work}"])


def aliases(work: str) -> dict[str, str]:
    found = open_client(work).get_registered_model(NAME).aliases
    return {name: str(version) for name, version in found.items()}


# -- looking


def test_the_lists_have_aliases_scores_and_decisions(
    lineup: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(lineup, "models", NAME) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["alias", "score", "decision"],
        ["3", "candidate", "0.7500", "refused:", "fell", "by", "more", "than", "0.02:", "rte"],
        ["2", "champion", "0.8000", "promoted:", "better", "than", "the", "champion"],
        ["1", "previous", "0.7000", "first:", "the", "first", "champion"],
    ]
    assert type_in(lineup, "models") == 0
    assert f"{NAME:<32}champion: version 2\n" in capsys.readouterr().out
    assert [
        str(version) for version in versions.registered_versions(lineup) if version.name == NAME
    ] == [
        f"models:/{NAME}/3 @candidate",
        f"models:/{NAME}/2 @champion",
        f"models:/{NAME}/1 @previous",
    ]


def test_a_decision_is_explained_task_by_task(
    lineup: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(lineup, "models", NAME, "3") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{NAME}, version 3: refused: fell by more than 0.02: rte\n")
    assert (
        "0.6000 against 0.7000 of version 2: -0.1000, at least -0.1500 and at most -0.0500  fell"
        in said
    )
    assert type_in(lineup, "models", NAME, "1") == 0
    assert capsys.readouterr().out == f"{NAME}, version 1: first: the first champion\n"


def test_a_model_for_a_work_folder_elsewhere_is_copied_to_a_folder_of_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(files: str, scratch: str, tracking_uri: str) -> Path:
        (found := Path(scratch, "found")).mkdir()
        return found

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(version_files, "_download", download)
    copy = version_files._local_copy("s3://bucket/files", "http://server", "memory://work")
    [folder] = tmp_path.iterdir()
    assert copy.is_dir()
    assert folder in copy.parents
    assert (folder.name, folder.stat().st_mode & 0o077) == (f"albert-models-{os.getuid()}", 0)


def test_every_page_of_a_search_is_read() -> None:
    pages = {None: PagedList([1, 2], "a"), "a": PagedList([], "b"), "b": PagedList([3], "")}
    assert list(versions.every_entry(lambda page_token=None: pages[page_token])) == [1, 2, 3]


def test_a_registry_that_is_empty_or_unavailable_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert type_in(str(tmp_path), "models") == 75
    assert "refuses or does not answer" in capsys.readouterr().err
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert versions.registered_versions(str(tmp_path)) == []
    assert not list(tmp_path.iterdir())


# -- moving the champion


def test_a_rollback_is_one_command_and_a_second_undoes_it(
    lineup: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(lineup, "rollback", NAME, "--reason", "wrong answers in production") == 0
    assert "version 1 is champion instead of version 2" in capsys.readouterr().out
    assert aliases(lineup) == {CHAMPION: "1", PREVIOUS: "2", CANDIDATE: "3"}
    type_in(lineup, "models", NAME)
    assert "instead of version 2: rolled back: wrong answers" in capsys.readouterr().out
    assert type_in(lineup, "rollback", NAME) == 0
    assert aliases(lineup) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}
    assert type_in(lineup, "rollback", NAME, "--to", "3") == 0
    assert aliases(lineup) == {CHAMPION: "3", PREVIOUS: "2"}


def test_after_the_champion_was_deleted_a_rollback_leaves_no_previous_one(lineup: str) -> None:
    open_client(lineup).delete_model_version(NAME, "2")
    assert type_in(lineup, "rollback", NAME) == 0
    assert aliases(lineup) == {CHAMPION: "1", CANDIDATE: "3"}


@pytest.mark.parametrize("alias", [PREVIOUS, CHAMPION])
def test_a_rollback_that_was_killed_is_completed_by_the_next(
    alias: str, lineup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MlflowClient.set_registered_model_alias

    def killed(self: MlflowClient, name: str, moved: str, version: str) -> None:
        real(self, name, moved, version)
        if moved == alias:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        monkeypatch.setattr(MlflowClient, "set_registered_model_alias", killed)
        type_in(lineup, "rollback", NAME)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    client = open_client(lineup)
    for tag in client.get_registered_model(NAME).tags:
        if tag.startswith(CLAIM):  # which would expire
            client.delete_registered_model_tag(NAME, tag)
    if alias == PREVIOUS:
        assert type_in(lineup, "rollback", NAME) == 0
    assert aliases(lineup) == {CHAMPION: "1", PREVIOUS: "2", CANDIDATE: "3"}
    assert type_in(lineup, "rollback", NAME) == 0
    assert aliases(lineup) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}


def test_a_rollback_that_was_killed_is_not_completed_once_another_version_is_champion(
    lineup: str,
) -> None:
    open_client(lineup).set_registered_model_tag(NAME, versions.ROLLING_BACK_TAG, "1")
    assert type_in(lineup, "promote", NAME, "3", "--reason", "x") == 0
    assert type_in(lineup, "rollback", NAME) == 0
    assert aliases(lineup) == {CHAMPION: "2", PREVIOUS: "3"}


def test_a_person_may_promote_for_a_reason(lineup: str) -> None:
    assert type_in(lineup, "promote", NAME, "3", "--reason", "rte does not matter to us") == 0
    assert aliases(lineup) == {CHAMPION: "3", PREVIOUS: "2"}
    tags = open_client(lineup).get_model_version(NAME, "3").tags
    assert tags["champion_by_hand"].endswith("instead of version 2: rte does not matter to us")
    assert tags["decision.verdict"] == "refused"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("promote", NAME, "2", "--reason", "x"), f"version 2 of {NAME} is champion already"),
        (("promote", NAME, "9", "--reason", "x"), "has no version 9"),
        (("promote", NAME, "3", "--reason", " "), "give a reason"),
        (("rollback", NAME, "--to", "9"), "has no version 9"),
        (("rollback", NAME), "no previous champion to roll back to; name a version with --to"),
        (("rollback", "nobody"), "there is no registered model 'nobody'"),
        (("models", NAME, "9"), "has no version 9"),
    ],
)
def test_what_cannot_be_done_is_reported(
    words: tuple[str, ...], message: str, lineup: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_client(lineup).delete_registered_model_alias(NAME, PREVIOUS)
    before = aliases(lineup)
    assert type_in(lineup, *words) == 2
    assert message in capsys.readouterr().err
    assert aliases(lineup) == before


# -- the lock


def claims(client: MlflowClient, name: str = NAME) -> list[str]:
    return [key for key in client.get_registered_model(name).tags if key.startswith(CLAIM)]


def test_only_one_at_a_time_is_inside_and_an_error_leaves_no_claim(
    client: MlflowClient, work: str
) -> None:
    inside, found = 0, []

    def decide() -> None:
        nonlocal inside
        with suppress(ZeroDivisionError), promotion_lock(open_client(work), NAME):
            inside += 1
            found.append((inside, len(claims(client)) >= 1))
            time.sleep(0.05)
            inside -= 1
            raise ZeroDivisionError

    at_once(decide, 3)
    assert found == [(1, True)] * 3
    assert claims(client) == []


def test_the_claim_of_a_dead_process_is_removed(
    client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.set_registered_model_tag(NAME, f"{CLAIM}000", "it died")
    began = time.monotonic()
    with promotion_lock(client, NAME, stale_seconds=0.5):
        assert time.monotonic() - began >= 0.5
    assert "removed the claim of a process that is gone" in caplog.text
    assert claims(client) == []


def test_who_decides_for_long_is_not_taken_for_dead(client: MlflowClient, work: str) -> None:
    inside = threading.Event()
    order: list[str] = []

    def decide() -> None:
        with promotion_lock(open_client(work), NAME, stale_seconds=0.6):
            inside.set()
            time.sleep(2)
            order.append("first")

    thread = threading.Thread(target=decide)
    thread.start()
    inside.wait()
    with promotion_lock(client, NAME, stale_seconds=0.6):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_who_slept_while_another_took_over_is_told_and_claims_no_more(
    client: MlflowClient,
) -> None:
    with promotion_lock(client, NAME, stale_seconds=3) as check:
        check()
        [own] = claims(client)
        client.delete_registered_model_tag(NAME, own)  # as the next one does
        time.sleep(1.3)  # past a renewal, which comes after a third of the time
        assert claims(client) == []
        with pytest.raises(OutageError, match="another process decides about it"):
            check()


@pytest.mark.long
def test_of_registrations_at_the_same_time_the_best_ends_as_champion(
    mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.url)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    work, name = str(tmp_path), "at-once"
    recipe = f"{work}/recipe.json"
    storage.write_bytes(recipe, f'{{"registry": {{"model_name": "{name}"}}}}'.encode())
    started = []
    for seed in range(2):
        model = pretrained(work, seed)
        command = [sys.executable, "-m", "albert_core.registry.register", f"--recipe={recipe}"]
        command += [f"--pretraining={model}", f"--scores={scored(work, model, 0.5 + seed / 10)}"]
        started.append(
            subprocess.Popen([*command, f"--work={work}"], stdout=subprocess.PIPE, text=True)
        )
    texts = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], texts
    client = open_client(work)
    champion = client.get_model_version_by_alias(name, "champion")
    assert champion.tags["score.sst-2"] == "0.6"
    found = [client.get_model_version(name, str(number)) for number in (1, 2)]
    verdicts = [version.tags["decision.verdict"] for version in found]
    compared = [version.tags["decision.against"] for version in found]
    assert verdicts.count("first") == compared.count("") == 1
    for version, verdict, against in zip(found, verdicts, compared, strict=True):
        if against:
            better = version.tags["score"] > client.get_model_version(name, against).tags["score"]
            assert verdict == ("promoted" if better else "refused")
    assert not claims(client, name)
