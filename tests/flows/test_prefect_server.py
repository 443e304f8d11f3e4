"""Which Prefect server a flow that is run by hand speaks to."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from httpx import ConnectError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from albert_core.stage import lock
from albert_core.stage.errors import AlbertError, OutageError, StageError
from albert_core.stage.servers import SERVED, Served, note_served
from flows import prefect_server as module
from flows.prefect_server import (
    AUTH_FILE,
    DATABASE,
    kept_secret,
    only_from_here,
    prefect_server,
)


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    thread.join()
    server.server_close()


class Started(Exception):  # noqa: N818
    """A server of its own was to be started."""


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> None:
        raise Started

    monkeypatch.setattr(module, "_start", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b'{"pid": "?"}'])
def test_without_one_that_is_noted_there_is_one_of_its_own(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / SERVED).write_bytes(content)
    with pytest.raises(Started), prefect_server(str(tmp_path)):
        pass


@pytest.mark.parametrize(
    "changed",
    [
        {"prefect_api_url": "http://[::1]:9/api"},
        {"pid": 2**22 + 1},
        {"started": psutil.Process().create_time() - 60},
    ],
    ids=["does not answer", "is gone", "is gone, and another process has its number"],
)
def test_what_a_killed_serve_noted_is_not_believed(
    changed: dict[str, Any], tmp_path: Path, served: str
) -> None:
    note_served(tmp_path, Served(served, "", has_own_database=True))
    noted = json.loads((tmp_path / SERVED).read_bytes())
    (tmp_path / SERVED).write_text(json.dumps({**noted, **changed}))
    with pytest.raises(Started), prefect_server(str(tmp_path)):
        pass


def test_a_flow_whose_served_server_went_away_says_which(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ConnectError("All connection attempts failed")
    monkeypatch.setenv("PREFECT_API_URL", served)
    with pytest.raises(ConnectError), prefect_server(str(tmp_path)):  # it answers again
        raise refused
    gone = f"http://127.0.0.1:{module.free_port('127.0.0.1')}/api"
    monkeypatch.setenv("PREFECT_API_URL", gone)
    with pytest.raises(OutageError, match=f"{gone} no longer answers"), prefect_server("work"):
        raise refused


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_of_this_machine(served: str) -> None:
    code = f"""
import flows, httpx
from albert_core.stage.servers import answers
assert answers("{served}/health")
assert httpx.get("{served}/health").status_code == 200
"""
    nowhere = "http://127.0.0.1:9"
    for others in ({}, {"NO_PROXY": "example.org"}, {"no_proxy": "*"}):
        environment = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
        environment |= {"http_proxy": nowhere, "HTTP_PROXY": nowhere, **others}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_two_servers_never_start_with_one_database_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_free() -> bool:
        other = lock.LockFile(tmp_path / lock.CLAIMS / DATABASE)
        try:
            return other.take(lock.Owner.this_process())
        finally:
            other._lock.release()

    def start(*_: Any) -> subprocess.Popen[bytes]:
        found.append(is_free())
        return subprocess.Popen(["sleep", "600"])

    def wait(*_: Any) -> None:
        found.append(is_free())

    found: list[bool] = []
    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "_wait_until_up", wait)
    with prefect_server(str(tmp_path)):
        found.append(is_free())
    assert found == [False, False, True]


@pytest.mark.parametrize("damage", ["garbage", "half", "page"])
def test_a_damaged_database_is_set_aside_for_a_flow_and_refused_by_what_is_served(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / DATABASE
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE run (name TEXT)")
        database.executemany("INSERT INTO run VALUES (?)", [("x" * 999,)] * 99)
        database.commit()
    with pytest.raises(Started), prefect_server(str(tmp_path)):
        pass
    whole = file.read_bytes()
    flipped = whole[:4096] + bytes(255 - byte for byte in whole[4096:8192]) + whole[8192:]
    file.write_bytes(
        {"garbage": whole[::-1], "half": whole[: len(whole) // 2]}.get(damage, flipped)
    )
    damaged = file.read_bytes()
    with pytest.raises(AlbertError, match=r"a database is damaged .*Restore a backup"):
        module.check_database(file)
    with pytest.raises(Started), prefect_server(str(tmp_path)):
        pass
    [aside] = set(tmp_path.iterdir()) - {tmp_path / lock.CLAIMS}
    assert aside.read_bytes() == damaged
    said = capsys.readouterr().err
    assert re.fullmatch(rf"{file} is damaged \(.*\)\. It is set aside as {aside}, .*\n", said)


def test_a_server_that_is_starting_is_waited_for_as_long_as_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[subprocess.Popen[bytes]]()

    def start(*_: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
        return started[0]

    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "_IDLE_SECONDS", 1.0)
    monkeypatch.setattr(module, "_LOOKS_APART_SECONDS", 0.1)
    stop = threading.Timer(3.0, lambda: started[0].send_signal(signal.SIGSTOP))
    stop.start()
    told = r"did not answer in \d+ s, .*compute for \d s\. Stop other work or .*`nice`"
    with pytest.raises(OutageError, match=told), prefect_server(str(tmp_path)):
        pass
    assert stop.finished.is_set()  # until then it was waited for


def test_a_flow_that_fails_because_the_servers_disk_is_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(port: int, folder: Path, secret: str, printed: Any) -> "subprocess.Popen[bytes]":
        said = "print('Traceback:\\n x\\nsqlite3.OperationalError: database or disk is full')"
        process = subprocess.Popen([sys.executable, "-c", said], stdout=printed)
        process.wait()
        return process

    monkeypatch.setattr(module, "_start", start)
    with pytest.raises(AlbertError, match="is full: make room"), prefect_server(str(tmp_path)):
        pass
    monkeypatch.setattr(module, "_wait_until_up", lambda *_: None)
    with pytest.raises(AlbertError, match="is full: make room"), prefect_server(str(tmp_path)):
        raise RuntimeError("500 Internal Server Error")
    with pytest.raises(StageError, match="own"), prefect_server(str(tmp_path)):
        raise StageError("a sentence of its own")


def test_a_flow_that_fails_because_its_server_was_killed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(["sleep", "600"])
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(module, "_start", start)
    told = "Prefect's server was killed by SIGKILL.*Run the same command again"
    with pytest.raises(OutageError, match=told), prefect_server(str(tmp_path)):
        pass
    monkeypatch.setattr(module, "_wait_until_up", lambda *_: None)
    with pytest.raises(OutageError, match=told), prefect_server(str(tmp_path)):
        raise ConnectionRefusedError("Connection refused")


async def let_through(scope: Any, receive: Any, send: Any) -> None:
    """Be a server that says no more than that it was asked."""
    await send({"type": "let through"})


def answer(kind: str, app: Any = None, **headers: str) -> str:
    """Return what a server behind the check does with a request that has these headers."""
    seen: list[str] = []

    async def send(message: Any) -> None:
        seen.append(str(message.get("status", message["type"])))

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    check: Any = app or only_from_here(let_through, "prefect.example.org, *.lan:4200")
    asyncio.run(check({"type": kind, "headers": given}, None, send))
    return seen[0]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:4200", "localhost:4200", "[::1]:4200", "10.1.2.3:4200"),
        *("prefect.example.org", "prefect.example.org:443", "gpu.lan:4200"),
    ],
)
def test_its_own_pages_and_programs_are_let_through(kind: str, host: str) -> None:
    assert answer(kind, host=host) == "let through"
    assert answer(kind, host=host, origin=f"http://{host}") == "let through"


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "evil.example:4200"},  # a name that now means this machine
        {"host": "evil.example:4200", "origin": "http://evil.example:4200"},
        {"host": "127.0.0.1:4200", "origin": "http://evil.example"},
        {"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:8000"},
        {"host": "127.0.0.1:4200", "origin": "null"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(kind: str, headers: dict[str, str]) -> None:
    assert answer(kind, **headers) == ("403" if kind == "http" else "websocket.close")


def test_a_server_has_the_name_at_which_its_pages_look_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefect.server.api.server.create_app", lambda: let_through)
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "prefect")
    monkeypatch.setenv("PREFECT_SERVER_UI_API_URL", "https://prefect.example.org/api")
    app = module.create_app()
    for host in ("prefect:4200", "prefect.example.org", "127.0.0.1:4200"):
        assert answer("http", app, host=host) == "let through"
    assert answer("http", app, host="evil.example") == "403"


def test_a_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "prefect-auth"
    secret = kept_secret(file, "albert")
    assert re.fullmatch(r"albert:[\w-]{32}", secret)
    assert kept_secret(file, "albert") == secret
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_flows_by_hand_find_the_server_that_serves_their_folder_and_its_secret(
    tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_served(tmp_path, Served(served, "", has_own_database=True))
    secret = kept_secret(tmp_path / AUTH_FILE, "albert")
    for url in ("", served):
        monkeypatch.setenv("PREFECT_API_URL", url)
        with prefect_server(str(tmp_path)) as process:
            assert (process, PREFECT_API_URL.value()) == (None, served)
            assert PREFECT_API_AUTH_STRING.value() == secret
    monkeypatch.setenv("PREFECT_API_URL", "http://another.example/api")
    with prefect_server(str(tmp_path)):
        assert PREFECT_API_AUTH_STRING.value() is None
