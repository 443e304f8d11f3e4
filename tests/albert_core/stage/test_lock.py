"""One process makes a result, others wait for it: on a file system, and in an S3 store."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from albert_core.stage import lock, storage
from albert_core.stage.manifest import StagePlan
from tests.s3_server import serve_s3

MAKER = """
import logging, sys, time
from pathlib import Path
from albert_core.stage import storage
from albert_core.stage.manifest import StagePlan
from albert_core.stage.settings import Settings

who, work, end = sys.argv[1], sys.argv[2], Path(sys.argv[3])
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
plan = StagePlan("corpus", {}, {}, "code", {})
done = plan.find(work)
print("found" if done else "makes", flush=True)
if not done:
    while not end.exists():
        time.sleep(0.05)
    storage.write_bytes(storage.join(plan.folder(work), "made_by"), who.encode())
    plan.write(work, [], [], Settings())
"""
LATE = """
import sys, time
from albert_core.stage import lock

lock.RENEW_SECONDS = 0.2
assert lock.Lease(sys.argv[1]).take(lock.Owner.this_process())
print("holds", flush=True)
time.sleep(600)
"""
SLEPT = """
import sys
from albert_core.stage import lock, storage

assert lock.Lease(sys.argv[1]).take(lock.Owner.this_process())
print("holds", flush=True)
sys.stdin.readline()
lock.RENEW_SECONDS = 0.0
storage.{change}
print("changed", flush=True)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of an S3 server on this machine."""
    with serve_s3("claims"):
        yield "s3://claims"


@pytest.fixture(params=["local", "s3"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path)
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


class Makers:
    """Processes that make the same result."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def __call__(
        self, who: str, work: str, end: Path | None = None, **environment: str
    ) -> "subprocess.Popen[str]":
        """Start one, which finishes when ``end`` exists; without it immediately."""
        return self.run(MAKER, who, work, str(end or "/"), **environment)

    def run(self, code: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.started.append(process)
        return process


@pytest.fixture
def make() -> Iterator[Makers]:
    makers = Makers()
    yield makers
    for process in makers.started:
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[str]", word: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(lines)


def somebody(**changes: object) -> lock.Owner:
    return lock.Owner.this_process().model_copy(update=changes)


def never() -> bool:
    return False


def found_in(work: str) -> list[str]:
    fs, path = storage.filesystem(work)
    return [str(fs.unstrip_protocol(found)) for found in fs.find(path, refresh=True)]


def test_of_two_processes_one_makes_it_and_the_other_waits_and_finds_it(
    make: Makers, work: str, tmp_path: Path
) -> None:
    first = make("first", work, tmp_path / "end")
    read_until(first, "makes")
    second = make("second", work)
    name = f"is being made by process {first.pid} on {socket.gethostname()}, since 20"
    assert name in read_until(second, "waiting")[-1]
    (tmp_path / "end").touch()
    assert "makes\n" not in read_until(second, "found")
    assert first.wait(timeout=30) == second.wait(timeout=30) == 0
    [made_by] = [uri for uri in found_in(work) if uri.endswith("made_by")]
    assert storage.read_bytes(made_by) == b"first"
    left = found_in(storage.join(work, lock.CLAIMS))
    assert [uri for uri in left if uri.endswith(".json")] == []


def test_who_cannot_wait_is_told_at_once(
    make: Makers, work: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = make("maker", work, tmp_path / "never")
    read_until(maker, "makes")
    with caplog.at_level("INFO"):
        assert not lock.take_at_once(work, StagePlan("corpus", {}, {}, "code", {})._place)
    assert caplog.records == []


def test_when_the_maker_is_killed_another_one_takes_over_without_waiting_for_the_lease(
    make: Makers, work: str, tmp_path: Path
) -> None:
    first = make("first", work, tmp_path / "never")
    read_until(first, "makes")
    second = make("second", work)
    read_until(second, "waiting")
    first.kill()
    first.wait()
    began = time.monotonic()
    read_until(second, "makes")
    assert time.monotonic() - began < lock.LEASE_SECONDS / 2
    assert second.wait(timeout=30) == 0


def test_all_ranks_of_a_launch_are_one_maker(make: Makers, tmp_path: Path) -> None:
    for rank, run, said in (("0", "a", "makes"), ("1", "a", "makes"), ("1", "b", "waiting")):
        end = tmp_path / "never"
        process = make("rank", str(tmp_path), end, RANK=rank, TORCHELASTIC_RUN_ID=run)
        read_until(process, said)


def test_at_most_one_of_many_gets_the_lease(s3: str, tmp_path: Path) -> None:
    leases = [lock.Lease(f"{s3}/{tmp_path.name}/many") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda each: each.take(somebody()), leases))
    assert sum(got) <= 1
    for each, is_held in zip(leases, got, strict=True):
        if is_held:
            each.release()
    assert leases[0].take(somebody())
    leases[0].release()


def test_a_lease_that_is_not_renewed_runs_out(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{s3}/{tmp_path.name}/silent"
    somebody(host="elsewhere", machine="another").write(f"{uri}/000007.json")
    next_one = lock.Lease(uri)
    assert not next_one.take(somebody())
    assert str(next_one.holder()).startswith(f"process {os.getpid()} on elsewhere, since ")
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.3)
    time.sleep(0.4)
    assert next_one.take(somebody())
    next_one.release()
    assert storage.list_names(uri) == []


@pytest.mark.parametrize(("hours", "is_free"), [(23, False), (25, True)])
def test_a_lease_that_nobody_renewed_for_a_day_is_free_at_once(
    hours: float, is_free: bool, tmp_path: Path
) -> None:
    somebody(machine="another").write(f"{tmp_path}/000001.json")
    then = time.time() - 3600 * hours
    os.utime(tmp_path / "000001.json", (then, then))
    next_one = lock.Lease(str(tmp_path))
    assert next_one.take(somebody()) == is_free
    next_one.release()


def test_a_lease_that_is_renewed_stays(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.2)
    uri = f"{s3}/{tmp_path.name}/renewed"
    holder, onlooker = lock.Lease(uri), lock.Lease(uri)
    assert holder.take(somebody(since="long ago"))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert not onlooker.take(somebody())
        time.sleep(0.1)
    assert "long ago" not in str(onlooker.holder())
    holder.release()


@pytest.mark.parametrize("number", [1, 2, None])
def test_a_holder_that_was_taken_for_dead_ends_to_be_run_again(
    number: int | None, make: Makers, s3: str, tmp_path: Path
) -> None:
    """The next holder has the next number; or the same one, or none, if another released that."""
    uri = f"{s3}/{tmp_path.name}/late{number}"
    process = make.run(LATE, uri)
    read_until(process, "holds")
    if number:
        somebody().write(f"{uri}/00000{number}.json")
    else:
        storage.remove(f"{uri}/000001.json")
    said, _ = process.communicate(timeout=30)
    assert process.returncode == os.EX_TEMPFAIL
    assert "another process took over" in said


@pytest.mark.parametrize("change", ['write_bytes(sys.argv[2], b"late")', "remove(sys.argv[2])"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_holder_that_slept_looks_whether_it_still_is_one_before_it_changes_a_file(
    change: str, is_lost: bool, make: Makers, s3: str, tmp_path: Path
) -> None:
    uri, result = f"{s3}/{tmp_path.name}/slept", str(tmp_path / "result")
    storage.write_bytes(result, b"of the next holder")
    process = make.run(SLEPT.format(change=change), uri, result)
    read_until(process, "holds")
    if is_lost:
        somebody().write(f"{uri}/000002.json")
    said, _ = process.communicate("\n", timeout=30)
    assert ("another process took over" in said) == is_lost == ("changed" not in said)
    assert process.returncode == (os.EX_TEMPFAIL if is_lost else 0)
    if is_lost:
        assert storage.read_bytes(result) == b"of the next holder"


def test_a_disk_that_fails_is_no_error_where_all_locks_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("a", "b"):
        assert lock.take_at_once(str(tmp_path), name)
    monkeypatch.setattr(storage, "remove", refuse)
    lock.release_all()
    assert not lock._held


def test_where_the_file_system_has_no_locks_a_lease_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock.LockFile, "take", without_locks)
    assert lock.take(str(tmp_path), "corpus-1", never)
    assert storage.list_names(str(tmp_path / "claims" / "corpus-1")) == ["000001.json"]
    lock.release_all()
