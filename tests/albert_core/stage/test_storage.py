import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from albert_core.stage import errors, storage
from albert_core.stage.errors import is_transient
from tests.s3_server import serve_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with serve_s3("storage"):
        yield "s3://storage"


@pytest.fixture(params=["local", "memory", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder on a local disk, in memory or in S3."""
    if request.param == "local":
        yield str(tmp_path / "folder")
        return
    root = request.getfixturevalue("s3") + "/" if request.param == "s3" else "memory://"
    uri = f"{root}{uuid4().hex}"
    yield uri
    storage.remove(uri)


def test_what_is_written_is_read_back_listed_by_name_and_removed(folder: str) -> None:
    uri = storage.join(folder, "a", "b.bin")
    storage.write_bytes(uri, b"abc")
    assert storage.exists(uri)
    assert storage.read_bytes(uri) == b"abc"
    # Source: FIPS 180-2, appendix B.1.
    assert storage.sha256_of(uri) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    for name in ("d", "c"):
        storage.write_bytes(storage.join(folder, name), b"")
    assert storage.list_names(folder) == ["a", "c", "d"]
    assert storage.list_names(storage.join(folder, "a")) == ["b.bin"]
    for name in ("a", "c", "d", "absent"):
        storage.remove(storage.join(folder, name))
    assert storage.list_folder(folder) == storage.list_folder(f"{folder}/absent") == []


def test_neither_a_file_nor_the_marker_of_a_folder_is_within_itself(folder: str, s3: str) -> None:
    storage.write_bytes(f"{folder}/a", b"")
    assert storage.list_folder(f"{folder}/a") == []
    marked = f"{s3}/{uuid4().hex}"
    storage.write_bytes(f"{marked}/", b"")
    assert (storage.list_names(marked), storage.list_folder(marked)) == ([], [])
    storage.write_bytes(f"{marked}/a", b"")
    assert storage.list_names(marked) == ["a"]
    fs, path = storage.filesystem(marked)
    for name in ("", "b/", "b/c", "d/"):
        fs.touch(f"{path}/{name}")
    assert storage.list_names(marked) == ["a", "b", "d"]
    for found in (storage.find(fs, path), storage.glob(fs, f"{path}/**")):
        assert sorted(found) == [f"{path}/a", f"{path}/b/c"]


def test_a_users_folder_of_temporary_files_is_closed_to_others_and_never_one_that_they_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = storage.own_folder("some")
    assert mine == storage.own_folder("some") == tmp_path / f"some-{os.getuid()}"
    assert mine.stat().st_mode & 0o077 == 0
    (tmp_path / f"link-{os.getuid()}").symlink_to(mine)  # of another user, perhaps
    (tmp_path / f"file-{os.getuid()}").touch()
    for name in ("link", "file"):
        with pytest.raises(errors.ConfigError, match=rf"{name}-\d+ is no folder .* Set TMPDIR"):
            storage.own_folder(name)
    another = os.getuid() + 1
    (tmp_path / f"some-{another}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: another)
    with pytest.raises(errors.ConfigError, match="is no folder of this user's"):
        storage.own_folder("some")


def test_files_are_found_at_any_depth_and_by_a_pattern_in_every_store(folder: str) -> None:
    names = ["a.txt", "b/c.txt", "b/d/e.txt", "f/c.txt"]
    for name in names:
        storage.write_bytes(storage.join(folder, name), b"abc")
    fs, path = storage.filesystem(folder)

    def within(found: Iterable[str]) -> list[str]:
        return sorted(name.removeprefix(f"{path}/") for name in found)

    assert within(storage.find(fs, path)) == names
    assert list(storage.find(fs, f"{path}/a.txt")) == [f"{path}/a.txt"]
    assert storage.find(fs, f"{path}/absent") == storage.glob(fs, f"{path}/absent/*") == {}
    for pattern, expected in {
        "**": names,
        "*": ["a.txt", "b", "f"],
        "*/c.*": ["b/c.txt", "f/c.txt"],
        "b/**/e.txt": ["b/d/e.txt"],
        "[b-e]/*/*": ["b/d/e.txt"],
    }.items():
        assert within(storage.glob(fs, f"{path}/{pattern}")) == expected


def test_what_another_process_wrote_after_a_listing_is_read(s3: str) -> None:
    storage.write_bytes(f"{s3}/shared/before", b"")
    assert storage.list_names(f"{s3}/shared") == ["before"]
    another = fsspec.filesystem("s3", skip_instance_cache=True)
    another.pipe_file("storage/shared/after", b"after")
    assert storage.read_bytes(f"{s3}/shared/after") == b"after"
    assert storage.list_names(f"{s3}/shared") == ["after", "before"]


def test_an_interrupted_write_leaves_what_was_there(folder: str) -> None:
    def write() -> None:
        with storage.open_atomic(uri) as file:
            file.write(b"half of it")
            raise KeyboardInterrupt

    uri, other = storage.join(folder, "x"), storage.join(folder, "other")
    storage.write_bytes(other, b"")
    with pytest.raises(KeyboardInterrupt):
        write()
    assert storage.list_names(folder) == ["other"]
    storage.write_bytes(uri, b"before")
    with pytest.raises(KeyboardInterrupt):
        write()
    assert storage.read_bytes(uri) == b"before"
    assert storage.list_names(folder) == ["other", "x"]


def test_a_local_file_is_renamed_or_not_written(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        storage.write_bytes(str(tmp_path / "x"), b"content")
    assert [path.name for path in tmp_path.rglob("*")] == ["x"]


def test_a_written_file_and_the_folders_made_for_it_outlive_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, done = tmp_path / "a" / "b", list[str | Path]()
    sync, replace = os.fsync, os.replace

    def note_sync(number: int) -> None:
        done.append(Path(f"/proc/self/fd/{number}").readlink())
        sync(number)

    def note_rename(old: str, new: str) -> None:
        done.append("renamed")
        replace(old, new)

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr("os.replace", note_rename)
    storage.write_bytes(str(folder / "x"), b"content")
    *made, content, renamed, named = done
    assert made == [tmp_path, folder.parent]
    assert (Path(content).suffix, renamed, named) == (".tmp", "renamed", folder)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_need_not_sync_but_one_that_fails_is_told(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    with nullcontext() if number == errno.EINVAL else pytest.raises(OSError, match="output error"):
        storage.write_bytes(str(tmp_path / "x"), b"content")
    assert storage.list_names(str(tmp_path)) == (["x"] if number == errno.EINVAL else [])


def test_a_disk_that_fills_up_is_named_by_the_file_that_was_written(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=rf"No space.*: '{tmp_path}/x'$"),
        storage.open_atomic(str(tmp_path / "x")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write says it


@pytest.mark.parametrize("name", ["long", "short"])
def test_a_file_has_no_name_before_it_is_whole_whatever_another_thread_writes(
    name: str, folder: str
) -> None:
    long, short = storage.join(folder, "long"), storage.join(folder, name)
    with storage.open_atomic(long) as file:
        file.write(b"half of it, ")
        assert not storage.exists(long)
        other = threading.Thread(target=storage.write_bytes, args=(short, b"all of it"))
        other.start()
        other.join()
        assert storage.read_bytes(short) == b"all of it"
        assert storage.exists(long) == (name == "long")
        file.write(b"and the rest")
    assert storage.read_bytes(long) == b"half of it, and the rest"


def test_only_one_of_several_processes_creates_a_file(folder: str) -> None:
    uri = storage.join(folder, "x")
    assert storage.create(uri, b"first")
    assert not storage.create(uri, b"second")
    assert storage.read_bytes(uri) == b"first"


def test_a_local_uri_is_a_path_and_means_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.local_path("/data/a") == storage.local_path("file:///data/a") == Path("/data/a")
    assert storage.local_path("memory://data/a") is None
    monkeypatch.chdir(tmp_path)
    assert storage.absolute("a/../b") == str(tmp_path / "b")
    assert storage.absolute("memory://a") == "memory://a"


def test_two_colons_in_a_name_are_no_chain_of_file_systems(folder: str) -> None:
    uri = storage.join(folder, "a::b.txt")
    storage.write_bytes(uri, b"text")
    assert storage.read_bytes(uri) == b"text"
    assert storage.list_names(folder) == ["a::b.txt"]


def test_an_unknown_protocol_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(errors.SourceError, match=r"nowhere://x: .*nowhere.* the part before '://'"):
        storage.exists("nowhere://x")


@pytest.fixture(scope="module")
def ended() -> str:
    """The name of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return f"{storage.machine_name()}-{process.pid}-0123abcd"


def test_only_files_of_ended_processes_of_this_machine_are_removed(
    ended: str, tmp_path: Path
) -> None:
    abandoned = {f".scratch-{ended}", f".a.arrow~{ended}.tmp"}
    kept = {
        f".scratch-{storage.process_name()}",
        f".b.arrow~{storage.process_name()}.tmp",
        f".scratch-other-{ended}",
        f".scratch-{storage.machine_name()}-1-0123abcd",
        f"shard-{ended}",
        *("x", ".scratch-", "a-b-c", "4711", "c.arrow"),
    }
    for name in abandoned | kept:
        (tmp_path / name).touch()
        assert storage.is_abandoned(name) == (name in abandoned)
    assert not storage.is_abandoned("")
    storage.remove_abandoned(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_what_another_host_or_container_made_is_not_abandoned(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.is_abandoned(f".scratch-{ended}")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "pid_namespace", lambda: "the same boot, pid:[4026532001]")
        assert not storage.is_abandoned(f".scratch-{ended}")
    pid = ended.split("-")[-2]
    monkeypatch.setattr(socket, "gethostname", lambda: "node-1")
    for host in ("node-2", "big-node-1", "1", "xnode-1"):
        assert not storage.is_abandoned(f".scratch-{host}-{pid}-0123abcd"), host
        assert not storage.is_abandoned(f".shard~{host}-{pid}-0123abcd.tmp"), host


def test_nothing_is_there_only_if_the_store_says_so(folder: str) -> None:
    storage.write_bytes(storage.join(folder, "a"), b"abc")
    assert storage.is_there(storage.join(folder, "a"))
    assert storage.is_there(storage.join(folder, "b")) is False
    for as_file in (False, True):
        assert storage.is_there(storage.join(folder, "a"), as_file=as_file)
        assert storage.is_there(folder, as_file=as_file) is not as_file


def test_below_a_file_nothing_is_there_and_of_a_store_that_fails_it_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    assert storage.is_there(f"{tmp_path}/a/b") is False

    def fail(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.info", fail)
    assert storage.is_there(f"{tmp_path}/a") is None


def test_a_web_server_tells_that_nothing_is_there_by_its_status() -> None:
    class Answers(BaseHTTPRequestHandler):
        """Answers with the status that the path names."""

        def do_GET(self) -> None:
            self.send_response(int(self.path[1:]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        told = {status: storage.is_there(f"{uri}/{status}") for status in (200, 404, 410, 403, 503)}
        found = {status: storage.exists(f"{uri}/{status}") for status in (200, 404, 403)}
        with pytest.raises(FileNotFoundError) as out_of_order:
            storage.exists(f"{uri}/503")
        server.shutdown()
    assert told == {200: True, 404: False, 410: False, 403: None, 503: None}
    assert found == {200: True, 404: False, 403: False}
    assert is_transient(out_of_order.value)
    assert storage.is_there(f"{uri}/200") is None
    with pytest.raises(FileNotFoundError) as closed:
        storage.exists(f"{uri}/200")
    assert is_transient(closed.value)
