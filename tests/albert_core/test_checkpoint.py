import json
import math
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from albert_core import checkpoint
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError, TrainingError


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {"weight": torch.randn(3, 2, generator=generator)},
        "optimizer": {"step": step, "lr": 0.1, "moments": [torch.zeros(2, dtype=torch.bfloat16)]},
    }


def save(folder: str | Path, *steps: int, keep: int = 10) -> list[str]:
    return [
        checkpoint.save_checkpoint(str(folder), state_of(step), {"step": step}, keep)
        for step in steps
    ]


def steps_in(folder: str | Path) -> list[int]:
    return [int(uri.rpartition("-")[2]) for uri in checkpoint.list_checkpoints(str(folder))]


def newest_step(folder: str | Path) -> int | None:
    found = checkpoint.load_newest(str(folder))
    return None if found is None else int(found[1]["step"])


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_checkpoint_is_read_back_as_it_was_written(where: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints") if where == "local" else f"memory://{uuid4().hex}"
    [uri] = save(folder, 7)
    assert uri == f"{folder}/step-00000007"
    state, record = checkpoint.load_checkpoint(uri)
    torch.testing.assert_close(state, state_of(7), rtol=0, atol=0)
    assert record["step"] == 7


def test_the_newest_checkpoint_is_that_of_the_last_step_and_only_the_last_ones_are_kept(
    tmp_path: Path,
) -> None:
    save(tmp_path, 900, 10_000, 1000, 1000, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00001000", "step-00010000"]
    assert newest_step(tmp_path) == 10_000


def test_what_was_just_written_stays_where_a_damaged_later_one_lies(tmp_path: Path) -> None:
    [later] = save(tmp_path, 8, keep=1)
    damage(Path(later, checkpoint.STATE))
    save(tmp_path, 5, 6, keep=1)
    assert newest_step(tmp_path) == 6
    assert steps_in(tmp_path) == [6, 8]


def test_a_half_written_checkpoint_is_none_and_can_be_written_again(tmp_path: Path) -> None:
    [_, uri] = save(tmp_path, 1, 2)
    Path(uri, checkpoint.RECORD).unlink()
    Path(uri, checkpoint.STATE).write_bytes(b"half")
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003" / f".{checkpoint.STATE}.host-1-01234567.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").touch()
    assert steps_in(tmp_path) == [1]
    assert newest_step(tmp_path) == 1
    save(tmp_path, 2)
    assert newest_step(tmp_path) == 2


def test_what_a_killed_write_left_is_gone_after_the_next(tmp_path: Path) -> None:
    [whole] = save(tmp_path, 1)
    left = f".{checkpoint.STATE}~{storage.machine_name()}-999999999-ab.tmp"
    elsewhere = f".{checkpoint.STATE}~otherhost-1-ab.tmp"
    names = (f"step-00000002/{checkpoint.STATE}", f"step-00000003/{elsewhere}")
    for name in (*names, f"{Path(whole).name}/{left}", "notes.txt"):
        storage.write_bytes(str(tmp_path / name), b"half")
    save(tmp_path, 4)
    kept = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    of_step = [checkpoint.RECORD, checkpoint.STATE]
    expected = [f"step-0000000{step}/{name}" for step in (1, 4) for name in of_step]
    assert list(map(str, kept)) == ["notes.txt", *expected]


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        (checkpoint.STATE, damage),
        (checkpoint.STATE, Path.unlink),
        (checkpoint.RECORD, cut_in_half),
        *((checkpoint.RECORD, partial(Path.write_bytes, data=data)) for data in (b"{}", b"null")),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, harm: Callable[[Path], Any]
) -> None:
    [_, uri] = save(tmp_path, 1, 2)
    harm(Path(uri, name))
    assert newest_step(tmp_path) == 1
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"passing over {uri}: " in warning.getMessage()


@pytest.mark.parametrize("name", [checkpoint.RECORD, checkpoint.STATE])
def test_where_another_run_removes_what_is_being_read_its_newer_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    [first] = save(tmp_path, 1)
    read = storage.read_bytes

    def slow(uri: str) -> bytes:
        if uri == f"{first}/{name}" and steps_in(tmp_path) == [1]:
            save(tmp_path, 2, keep=1)
        return read(uri)

    monkeypatch.setattr(storage, "read_bytes", slow)
    assert newest_step(tmp_path) == 2
    assert steps_in(tmp_path) == [2]


def test_without_a_good_checkpoint_a_run_stops_once_and_then_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for uri in save(folder, 1, 2):
        damage(Path(uri, checkpoint.STATE))
    with pytest.raises(IntegrityError, match=r"none of the 2 checkpoints in .* next run begins"):
        newest_step(folder)
    assert newest_step(folder) is None
    assert len(list((tmp_path / "damaged").rglob(checkpoint.STATE))) == 2


def test_the_damaged_checkpoints_of_another_run_are_left_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for uri in save(folder, 1, 2):
        damage(Path(uri, checkpoint.STATE))
    assert checkpoint.load_newest(str(folder), is_own=False) is None
    assert steps_in(folder) == [1, 2]


# While the training goes on


def test_a_checkpoint_is_of_the_moment_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = torch.save

    def slow(*arguments: Any) -> None:
        assert may_write.wait(10)
        write(*arguments)

    monkeypatch.setattr("torch.save", slow)
    writer = checkpoint.CheckpointWriter(str(tmp_path), keep=2)
    state = state_of(1)
    writer.save(state, {"step": 1})
    state["model"]["weight"].zero_()
    state["optimizer"]["moments"][0].fill_(7)
    assert checkpoint.list_checkpoints(str(tmp_path)) == []
    may_write.set()
    writer.wait()
    found, _ = checkpoint.load_checkpoint(str(tmp_path / "step-00000001"))
    torch.testing.assert_close(found, state_of(1), rtol=0, atol=0)


class FullFile:
    """A file that has room for its first bytes only."""

    def __init__(self, file: Any) -> None:
        self.file, self.flush = file, file.flush

    def write(self, content: bytes) -> int:
        if self.file.tell() > 500:
            raise OSError(28, "No space left on device")
        return int(self.file.write(content))


def test_a_write_that_failed_is_an_error_of_the_storage_and_leaves_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write = checkpoint.CheckpointWriter(str(tmp_path), keep=1), torch.save
    writer.save(state_of(1), {"step": 1})
    writer.wait()
    full_file: Any = FullFile
    monkeypatch.setattr("torch.save", lambda state, file: write(state, full_file(file)))
    writer.save(state_of(2), {"step": 2})
    with pytest.raises(
        TrainingError,
        match=r"step 2 could not be written .*: OSError: .* No space left on device\. "
        r"The 1 older ones .* newest is .*step-00000001\. Make room",
    ):
        writer.save(state_of(3), {"step": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


# The best


def test_the_best_is_kept_besides_the_last_ones(tmp_path: Path) -> None:
    for step, loss in enumerate([math.nan, 3.0, None, 4.0, 3.5], start=1):
        record = {"step": step, checkpoint.HELD_OUT_LOSS: loss}
        checkpoint.save_checkpoint(str(tmp_path), state_of(step), record, keep=2)
    assert steps_in(tmp_path) == [2, 4, 5]
    assert checkpoint.best_checkpoint(str(tmp_path)) == (3.0, f"{tmp_path}/step-00000002")


# An address


@pytest.mark.parametrize(
    "address",
    ["run/", "run/manifest.json", "run/checkpoints", "run/checkpoints/step-00000002"],
)
def test_a_run_means_its_newest_good_checkpoint(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is found by digests: its tensors are not loaded."""
    [*_, bad] = save(tmp_path / "run" / "checkpoints", 1, 2, 3)
    damage(Path(bad, checkpoint.STATE))
    monkeypatch.delattr(torch, "load")
    found = checkpoint.find_checkpoint(f"{tmp_path}/{address}")
    assert found == str(tmp_path / "run" / "checkpoints" / "step-00000002")
    record = json.loads(Path(found, checkpoint.RECORD).read_bytes())
    assert checkpoint.checkpoint_digest(found) == record["sha256"]


def test_an_address_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no good checkpoint at .*run\. Give the folder of a run"
    ):
        checkpoint.find_checkpoint(str(tmp_path / "run"))


def test_loading_runs_no_code(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    uri = storage.join(str(tmp_path), "step-00000001")
    with storage.open_atomic(storage.join(uri, checkpoint.STATE)) as file:
        torch.save({"model": Payload()}, file)
    record = {"step": 1, "sha256": storage.sha256_of(storage.join(uri, checkpoint.STATE))}
    storage.write_bytes(storage.join(uri, checkpoint.RECORD), json.dumps(record).encode())
    with pytest.raises(Exception, match=r"[Ww]eights"):
        checkpoint.load_checkpoint(uri)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_memory_is_too_small_for_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", load)
        with pytest.raises(RuntimeError, match="can't allocate"):
            checkpoint.load_newest(str(tmp_path))
    assert checkpoint.load_newest(str(tmp_path)) is not None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"no state"])
def test_what_torch_cannot_load_is_an_error_that_names_the_file(
    content: bytes, tmp_path: Path
) -> None:
    [uri] = save(tmp_path, 1)
    storage.write_bytes(storage.join(uri, checkpoint.STATE), content)
    record = {"step": 1, "sha256": storage.sha256_of(storage.join(uri, checkpoint.STATE))}
    storage.write_bytes(storage.join(uri, checkpoint.RECORD), json.dumps(record).encode())
    with pytest.raises(
        IntegrityError, match=f"{checkpoint.STATE} is not the state of a checkpoint"
    ):
        checkpoint.load_checkpoint(uri)
