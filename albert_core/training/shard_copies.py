"""Shards as files on a disk of this host, for all of its ranks to map.

Shards that lie elsewhere are copied to the folder for temporary files (TMPDIR): once, whichever
rank comes first, and checked there by their digests, once a start. Memory that is mapped from a
file is not a rank's own, so a rank's memory does not grow with the shards.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.stage.manifest import Shard, check_shard, digest_of

_CHUNK_BYTES = 8 << 20
_in_use: dict[str, int] = {}
"""Open files whose locks keep copies, until the kernel closes them at this process's end."""

log = logging.getLogger(__name__)


def shards_here(shards: Sequence[Shard], folder: str) -> list[str]:
    """Return the path on this host of a file for each of ``shards``, whose content was checked.

    Those of a local folder are where they are. For others there must be room in TMPDIR. Copies that
    no process uses, of other shards, are removed.

    Args:
        shards: of one data set.
        folder: URI that their paths are relative to.

    Raises:
        ConfigError: there is no room, or another user has made the folder for the copies.
        IntegrityError: a shard is missing, or is not the one that was written.
    """
    if storage.local_path(folder) is not None:
        for shard in shards:
            check_shard(shard, folder)
        return [storage.join(folder, shard.path) for shard in shards]
    copies = _folder_for([shard.sha256 for shard in shards])
    files = [copies / f"{shard.sha256}.arrow" for shard in shards]
    missing = [s for s, file in zip(shards, files, strict=True) if not file.exists()]
    _check_room(copies, sum(shard.num_bytes for shard in missing))
    rank, num_ranks = (
        int(os.environ.get(name, default))
        for name, default in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )
    if missing and rank == 0:
        log.info("copying %d shards of %s to %s", len(missing), folder, copies)
    # Each rank begins at another place, so that they copy side by side.
    first = len(shards) * rank // num_ranks
    for place in range(first, first + len(shards)):
        _copy(shards[place % len(shards)], folder, files[place % len(shards)])
    return [str(file) for file in files]


def _folder_for(digests: Sequence[str]) -> Path:
    """Return the folder of these copies, locked for this process; remove those not in use."""
    root = Path(tempfile.gettempdir(), f"albert-shards-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise ConfigError(f"{root} belongs to another user. Set TMPDIR to a folder of your own.")
    name = digest_of(list(digests))[:16]
    if name not in _in_use:
        _in_use[name] = os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(_in_use[name], fcntl.LOCK_SH)
    for lock in root.glob("*.lock"):
        if lock.stem == name:
            continue
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    (root / name).mkdir(exist_ok=True)
    storage.remove_abandoned(str(root / name))
    return root / name


def _check_room(copies: Path, needed: int) -> None:
    free = shutil.disk_usage(copies).free
    if needed > free:
        raise ConfigError(
            f"{copies} has room for {free / 1e9:,.1f} GB, but the copies of the examples' shards "
            f"take {needed / 1e9:,.1f} GB more. Set TMPDIR to a folder on a larger local disk."
        )


def _copy(shard: Shard, folder: str, file: Path) -> None:
    """Copy ``shard`` to ``file``, unless it is there; check it, unless another rank has."""
    launch = os.environ.get("TORCHELASTIC_RUN_ID") or uuid4().hex  # the same for all ranks
    checked = file.with_suffix(".checked")
    with FileLock(file.with_suffix(".lock")):
        if checked.exists() and checked.read_text() == launch:
            return
        if file.exists() and storage.sha256_of(str(file)) != shard.sha256:
            log.warning("%s was damaged, and is copied again", file)
            file.unlink()
        if not file.exists():
            _fetch(shard, folder, file)
        checked.write_text(launch)


def _fetch(shard: Shard, folder: str, file: Path) -> None:
    uri = storage.join(folder, shard.path)
    fs, path = storage.filesystem(uri)
    if not fs.exists(path):
        check_shard(shard, folder)
    with (
        fs.open(path, "rb", block_size=_CHUNK_BYTES) as source,
        storage.open_atomic(str(file)) as copy,
    ):
        shutil.copyfileobj(source, copy, _CHUNK_BYTES)
    if storage.sha256_of(str(file)) != shard.sha256:
        file.unlink()
        check_shard(shard, folder)
        raise IntegrityError(
            f"{uri} is as it was written, but its copy {file} is not. Check the disk, and run the "
            "same command again."
        )
