import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from albert_core.stage import storage
from albert_core.stage.errors import SourceError
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


def names_in(folder: str) -> list[str]:
    return [str(entry["name"]).rsplit("/", 1)[-1] for entry in storage.list_folder(folder)]


def interrupt_writing(uri: str) -> None:
    def write() -> None:
        with storage.open_atomic(uri) as file:
            file.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()


def test_what_is_written_is_read_back(folder: str) -> None:
    uri = storage.join(folder, "a", "b.bin")
    storage.write_bytes(uri, b"\x00content")
    assert storage.exists(uri)
    assert storage.read_bytes(uri) == b"\x00content"
    assert names_in(storage.join(folder, "a")) == ["b.bin"]


def test_an_interrupted_write_leaves_nothing(folder: str) -> None:
    storage.write_bytes(storage.join(folder, "other"), b"")
    interrupt_writing(storage.join(folder, "x"))
    assert names_in(folder) == ["other"]


def test_what_one_thread_writes_is_not_shown_when_another_has_written(folder: str) -> None:
    long, short = storage.join(folder, "long"), storage.join(folder, "short")
    with storage.open_atomic(long) as file:
        file.write(b"half of it, ")
        other = threading.Thread(target=storage.write_bytes, args=(short, b"all of it"))
        other.start()
        other.join()
        assert storage.read_bytes(short) == b"all of it"
        assert not storage.exists(long)
        file.write(b"and the rest")
    assert storage.read_bytes(long) == b"half of it, and the rest"


def test_an_interrupted_overwrite_leaves_what_was_there(folder: str) -> None:
    uri = storage.join(folder, "x")
    storage.write_bytes(uri, b"before")
    interrupt_writing(uri)
    assert storage.read_bytes(uri) == b"before"
    assert names_in(folder) == ["x"]


def test_writing_goes_on_after_an_interrupted_write(folder: str) -> None:
    uri = storage.join(folder, "x")
    interrupt_writing(uri)
    storage.write_bytes(uri, b"whole")
    assert storage.read_bytes(uri) == b"whole"


def test_a_file_has_no_name_before_it_is_whole(folder: str) -> None:
    uri = storage.join(folder, "x")
    with storage.open_atomic(uri) as file:
        file.write(b"half of it, ")
        assert not storage.exists(uri)
        file.write(b"and the rest")
    assert storage.read_bytes(uri) == b"half of it, and the rest"


def test_of_writers_at_the_same_time_one_wins_whole(folder: str) -> None:
    uri = storage.join(folder, "x")
    contents = [bytes([n]) * 300_000 for n in range(8)]
    threads = [
        threading.Thread(target=storage.write_bytes, args=(uri, content)) for content in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.read_bytes(uri) in contents
    assert names_in(folder) == ["x"]


def test_a_write_that_overlaps_another_disturbs_neither(folder: str) -> None:
    uri = storage.join(folder, "x")
    with storage.open_atomic(uri) as file:
        file.write(b"slow")
        other = threading.Thread(target=storage.write_bytes, args=(uri, b"quick"))
        other.start()
        other.join()
        assert storage.read_bytes(uri) == b"quick"
    assert storage.read_bytes(uri) == b"slow"


def test_the_digest_is_sha256(folder: str) -> None:
    uri = storage.join(folder, "x")
    storage.write_bytes(uri, b"abc")
    # Source: FIPS 180-2, appendix B.1.
    assert storage.sha256_of(uri) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_folder_is_listed_by_name(folder: str) -> None:
    for name in ("b", "c", "a"):
        storage.write_bytes(storage.join(folder, name), b"")
    assert names_in(folder) == ["a", "b", "c"]


def test_a_folder_that_is_absent_is_empty(folder: str) -> None:
    assert storage.list_folder(storage.join(folder, "absent")) == []


def test_files_and_folders_are_removed_and_what_is_absent_is_no_matter(folder: str) -> None:
    storage.write_bytes(storage.join(folder, "a", "b", "c"), b"")
    storage.write_bytes(storage.join(folder, "d"), b"")
    storage.remove(storage.join(folder, "a"))
    storage.remove(storage.join(folder, "d"))
    storage.remove(storage.join(folder, "absent"))
    assert names_in(folder) == []


@pytest.mark.parametrize(
    ("uri", "parts", "expected"),
    [
        ("/data", ("a", "b"), "/data/a/b"),
        ("/data/", ("a",), "/data/a"),
        ("/", ("a",), "/a"),
        ("data", ("a",), "data/a"),
        ("s3://bucket", ("a", "b"), "s3://bucket/a/b"),
        ("s3://bucket/", ("a",), "s3://bucket/a"),
    ],
)
def test_parts_are_joined_by_single_slashes(
    uri: str, parts: tuple[str, ...], expected: str
) -> None:
    assert storage.join(uri, *parts) == expected


def test_a_local_uri_is_a_path_and_another_is_none() -> None:
    assert storage.local_path("/data/a") == Path("/data/a")
    assert storage.local_path("file:///data/a") == Path("/data/a")
    assert storage.local_path("memory://data/a") is None


def test_a_relative_path_means_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.absolute("a/../b") == str(tmp_path / "b")
    assert storage.absolute("memory://a") == "memory://a"


def test_an_unknown_protocol_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(SourceError, match=r"nowhere://x: .*nowhere.* the part before '://'"):
        storage.exists("nowhere://x")


def test_no_two_calls_give_the_same_process_name() -> None:
    assert len({storage.process_name() for _ in range(100)}) == 100


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_what_a_living_process_made_is_not_abandoned() -> None:
    assert not storage.is_abandoned(f".scratch-{storage.process_name()}")
    assert not storage.is_abandoned(f".scratch-{storage.machine_name()}-1-0123abcd")


def test_what_an_ended_process_of_this_host_made_is_abandoned() -> None:
    made_by = f"{storage.machine_name()}-{ended_process()}-0123abcd"
    assert storage.is_abandoned(f".scratch-{made_by}")
    assert storage.is_abandoned(f".shard.arrow~{made_by}.tmp")


def test_a_file_that_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    made_by = f"{storage.machine_name()}-{ended_process()}-0123abcd"
    for name in (f".a.arrow~{made_by}.tmp", f".b.arrow~{storage.process_name()}.tmp", "c.arrow"):
        (tmp_path / name).touch()
    storage.remove_abandoned(str(tmp_path))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".arrow", ".tmp"]


def test_what_another_host_made_is_not_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = ended_process()
    monkeypatch.setattr(socket, "gethostname", lambda: "node-1")
    for host in ("node-2", "big-node-1", "1", "xnode-1"):
        assert not storage.is_abandoned(f".scratch-{host}-{pid}-0123abcd"), host
        assert not storage.is_abandoned(f".shard~{host}-{pid}-0123abcd.tmp"), host


def test_what_another_container_of_the_same_name_made_is_not_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_by = f"{storage.machine_name()}-{ended_process()}-0123abcd"
    assert storage.is_abandoned(f".scratch-{made_by}")
    monkeypatch.setattr(storage, "machine", lambda: "the same boot, pid:[4026532001]")
    assert not storage.is_abandoned(f".scratch-{made_by}")


def test_threads_that_write_to_one_store_at_once_do_not_show_each_others_halves() -> None:
    begun, ended = threading.Barrier(2), threading.Event()

    def write_slowly() -> None:
        with storage.open_atomic("memory://threads/slow") as file:
            file.write(b"ha")
            begun.wait()
            ended.wait()
            file.write(b"lf")

    thread = threading.Thread(target=write_slowly)
    thread.start()
    begun.wait()
    with storage.open_atomic("memory://threads/quick") as file:
        file.write(b"whole")
    assert not storage.exists("memory://threads/slow")
    ended.set()
    thread.join()
    assert storage.read_bytes("memory://threads/slow") == b"half"
    assert storage.list_names("memory://threads") == ["quick", "slow"]


@pytest.mark.parametrize("name", ["", "x", ".scratch-", "a-b-c", "4711"])
def test_a_name_of_another_form_is_not_abandoned(name: str) -> None:
    assert not storage.is_abandoned(name)
