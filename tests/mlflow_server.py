"""A real MLflow server for tests, and a gate before it that shuts, or loses answers."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
_START_SECONDS = 180.0
_LOOK_SECONDS = 0.1
_UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def start_server(
    command: Sequence[str], health: str, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server in a group of its own; return it when the page ``health`` answers."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=log.parent, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(health, timeout=5).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                kill(process)
                raise AssertionError(log.read_text()) from None
            time.sleep(0.2)
        else:
            return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


class MlflowServer:
    """An MLflow server in ``folder``, at the same address each time that it is started."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; return when it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", HOST, "--port", str(self.port)]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {name: v for name, v in os.environ.items() if not name.startswith("MLFLOW")}
        environment["MLFLOW_BACKEND_STORE_URI"] = f"sqlite:///{self.folder / 'server.db'}"
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        health, log = f"{self.url}/health", self.folder / "server.log"
        self._process = start_server(command, health, log, environment)

    def stop(self) -> None:
        """Kill it and all that it started."""
        if self._process is not None:
            kill(self._process)
            self._process = None


class Gate:
    """A port before a server, which can be shut without stopping the server.

    Args:
        port: of the server.
        authorization: the header without which nobody comes through; empty: everybody does.
    """

    def __init__(self, port: int, authorization: str = "") -> None:
        self.is_shut = False
        """Whether who comes is sent away."""
        self.lost_answers = ""
        """Part of the paths of requests that arrive, but whose answers are lost."""
        self.num_lost = 0
        self._server_port, self._authorization = port, authorization
        self._listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Be no port any more."""
        self.is_shut = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=[client], daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if self.is_shut:
                return
            with socket.create_connection((HOST, self._server_port)) as server:
                self._exchange(client, server)

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        is_lost = False
        while not self.is_shut:
            for source in select.select([client, server], [], [], _LOOK_SECONDS)[0]:
                data = source.recv(1 << 16)
                if self.is_shut or not data:
                    return
                if source is client:
                    if _begins_request(data) and self._authorization.encode() not in data:
                        client.sendall(_UNAUTHORIZED)
                        return
                    is_lost |= bool(self.lost_answers) and self.lost_answers.encode() in data
                    server.sendall(data)
                elif is_lost:
                    self.num_lost += 1
                    return
                else:
                    client.sendall(data)


def _begins_request(data: bytes) -> bool:
    return data.startswith((b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE "))
