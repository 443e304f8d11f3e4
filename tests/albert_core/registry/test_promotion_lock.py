"""The lock of tags, with clients of one database, and with processes at a real MLflow server."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from albert_core.registry.versions import CLAIM, promotion_lock
from albert_core.stage import storage
from albert_core.tracking.server import open_client
from tests.albert_core.made_scores import pretrained, scored
from tests.mlflow_server import MlflowServer

NAME = "locked"


@pytest.fixture
def locked(work: str) -> str:
    client = open_client(work)
    if not client.search_registered_models(f"name = '{NAME}'"):
        client.create_registered_model(NAME)
    return work


def claims(work: str, name: str = NAME) -> list[str]:
    tags = open_client(work).get_registered_model(name).tags
    return [key for key in tags if key.startswith(CLAIM)]


def test_only_one_at_a_time_is_inside_and_an_error_leaves_no_claim(locked: str) -> None:
    inside, found = 0, []

    def decide() -> None:
        nonlocal inside
        with suppress(ZeroDivisionError), promotion_lock(open_client(locked), NAME):
            inside += 1
            found.append((inside, len(claims(locked)) >= 1))
            time.sleep(0.05)
            inside -= 1
            raise ZeroDivisionError

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(1, True)] * 3
    assert claims(locked) == []


def test_the_claim_of_a_dead_process_is_removed(
    locked: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_client(locked)
    client.set_registered_model_tag(NAME, f"{CLAIM}000", "it died")
    began = time.monotonic()
    with promotion_lock(client, NAME, stale_seconds=0.5):
        assert time.monotonic() - began >= 0.5
    assert "removed the claim of a process that is gone" in caplog.text
    assert claims(locked) == []


def test_who_decides_for_long_is_not_taken_for_dead(locked: str) -> None:
    inside = threading.Event()
    order: list[str] = []

    def decide() -> None:
        with promotion_lock(open_client(locked), NAME, stale_seconds=0.6):
            inside.set()
            time.sleep(2)
            order.append("first")

    thread = threading.Thread(target=decide)
    thread.start()
    inside.wait()
    with promotion_lock(open_client(locked), NAME, stale_seconds=0.6):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


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
    assert not claims(work, name)
