"""The lock of tags, with processes' clients of one database."""

import threading
import time

import pytest

from albert_core.registry.champion import CLAIM, promotion_lock
from albert_core.tracking.server import open_client

pytestmark = pytest.mark.usefixtures("one_tracking_database")
NAME = "locked"


@pytest.fixture
def work(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("work"))
    client = open_client(folder)
    if not client.search_registered_models(f"name = '{NAME}'"):
        client.create_registered_model(NAME)
    return folder


def claims(work: str) -> list[str]:
    tags = open_client(work).get_registered_model(NAME).tags
    return [key for key in tags if key.startswith(CLAIM)]


def test_only_one_at_a_time_is_inside(work: str) -> None:
    inside, most, done = 0, 0, 0

    def decide() -> None:
        nonlocal inside, most, done
        with promotion_lock(open_client(work), NAME):
            inside += 1
            most = max(most, inside)
            time.sleep(0.05)
            inside -= 1
            done += 1

    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 4)
    assert claims(work) == []


def test_an_error_inside_leaves_no_claim(work: str) -> None:
    found: list[str] = []

    def fail() -> None:
        with promotion_lock(open_client(work), NAME):
            found.extend(claims(work))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(found) == 1
    assert claims(work) == []


def test_the_claim_of_a_dead_process_is_removed(
    work: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_client(work)
    client.set_registered_model_tag(NAME, f"{CLAIM}000", "it died")
    began = time.monotonic()
    with promotion_lock(client, NAME, stale_seconds=0.5):
        assert time.monotonic() - began >= 0.5
    assert "removed the claim of a process that is gone" in caplog.text
    assert claims(work) == []
