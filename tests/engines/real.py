"""Flink, Spark and Prism as processes of this machine, started from the folder ALBERT_ENGINES.

The folder has the commands `cluster`, `job-server` and `prism`, and Beam's job servers in one jar.
The environments with Flink's and Spark's own classes are those that `make test-engines` makes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("ALBERT_ENGINES", PROJECT.parent / "shared" / "engines"))
CLASSES = {
    "flink": next(PROJECT.glob(".engines/flink/lib/python*/site-packages/pyflink/lib"), None),
    "spark": next(PROJECT.glob(".engines/spark/lib/python*/site-packages/pyspark/jars"), None),
}
_MAIN = {
    "flink": "org.apache.beam.runners.flink.FlinkJobServerDriver",
    "spark": "org.apache.beam.runners.spark.SparkJobServerDriver",
}
_OPENED = [
    *(f"java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.{name}" for name in ("text", "time", "util", "util.concurrent")),
    *("java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch", "sun.nio.cs"),
    *("sun.net.util", "sun.security.action", "sun.util.calendar", "jdk.internal.ref"),
]
"""Packages of Java that Flink and Spark reach into."""
_START_SECONDS = 60.0


def missing(kind: str) -> str:
    """Return why this engine can't be started here; empty if it can."""
    if not (ENGINES / "beam-job-servers.jar").exists():
        return f"{ENGINES} has no engines: set ALBERT_ENGINES"
    if kind == "prism":
        return ""
    if shutil.which("java") is None:
        return "there is no Java"
    return "" if CLASSES[kind] else f".engines/{kind} is missing: run make test-engines"


def job_server_jar(kind: str, folder: Path) -> Path:
    """Write a jar for --flink_job_server_jar or --spark_job_server_jar; return it."""
    classes = CLASSES[kind]
    assert classes is not None
    jars = [ENGINES / "beam-job-servers.jar", *sorted(classes.glob("*.jar"))]
    entries = {
        "Manifest-Version": "1.0",
        "Main-Class": _MAIN[kind],
        "Class-Path": " ".join(jar.resolve().as_uri() for jar in jars),
        "Add-Opens": " ".join(f"java.base/{package}" for package in _OPENED),
    }
    target = folder / f"{kind}-job-server.jar"
    with zipfile.ZipFile(target, "w") as jar:
        lines = [_folded(f"{name}: {value}") for name, value in entries.items()]
        jar.writestr("META-INF/MANIFEST.MF", "".join(lines) + "\r\n")
    return target


def _folded(line: str) -> str:
    """Return a line of a jar's manifest, which holds 72 bytes and goes on after a space."""
    rest = range(70, len(line), 69)
    return "\r\n ".join([line[:70], *(line[begin : begin + 69] for begin in rest)]) + "\r\n"


@dataclass(frozen=True)
class Running:
    """An engine that runs."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    """Its logs, and the numbers of its processes: NAME.pid."""
    environment: Mapping[str, str]

    def pid(self, name: str) -> int:
        """Return the number of one of the cluster's processes."""
        return int((self.folder / f"{name}.pid").read_text())


@contextmanager
def flink_cluster(folder: Path, restarts: int = 0) -> Iterator[Running]:
    """Run a session cluster of two task managers at localhost:8081."""
    environment = {"ENGINES_RESTARTS": str(restarts)} if restarts else {}
    with _started([ENGINES / "cluster", "flink", "2"], folder, "flink", environment) as running:
        _wait_until(lambda: b'"taskmanagers":2' in _page("http://localhost:8081/overview"))
        yield running


def replace_task_manager(cluster: Running, name: str) -> None:
    """Start a task manager in place of a lost one, as Kubernetes or YARN would."""
    log = cluster.folder / "replacement.log"
    command = f'"{ENGINES}/cluster" flink-worker {name} >"{log}" 2>&1 &'
    subprocess.run(["sh", "-c", command], env=cluster.environment, check=True)


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Running]:
    """Run a standalone cluster of two workers at spark://localhost:7077."""
    with _started([ENGINES / "cluster", "spark", "2"], folder, "spark") as running:
        registered = [folder / f"worker{number}.log" for number in (1, 2)]
        _wait_until(lambda: all("Successfully registered" in log.read_text() for log in registered))
        yield running


@contextmanager
def job_server(kind: str, master: str, folder: Path) -> Iterator[str]:
    """Run a resident job server; give its address."""
    from pipelines.engine.job_server import answers

    port = "8099" if kind == "flink" else "8098"
    with _started([ENGINES / "job-server", kind, master, port], folder, kind):
        _wait_until(lambda: answers(f"localhost:{port}", seconds=1))
        yield f"localhost:{port}"


@contextmanager
def prism(folder: Path) -> Iterator[Running]:
    """Run Prism at localhost:8073."""
    with _started([ENGINES / "prism"], folder, "prism") as running:
        _wait_until(lambda: bool(_page("http://localhost:8074")))
        yield running


def _page(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            content: bytes = answer.read()
            return content
    except OSError:
        return b""


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.2)
    raise AssertionError("the engine did not start in time: see its logs")


@contextmanager
def _started(
    command: "list[str | Path]",
    folder: Path,
    kind: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    temporary = folder / "java"  # gigabytes of job files, which a killed engine leaves
    temporary.mkdir(parents=True, exist_ok=True)
    python = PROJECT / ".engines" / kind / "bin" / "python"
    # Workers that the engine starts find the tests' own stage by PYTHONPATH.
    variables = {
        "ENGINES_PYTHON": str(python),
        "ENGINES_RUN": str(folder),
        "PYTHONPATH": str(PROJECT),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
        **(environment or {}),
    }
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            env=os.environ | variables,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Running(process, folder, os.environ | variables)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
