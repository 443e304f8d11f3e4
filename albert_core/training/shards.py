"""The shards of examples on this host: checked, and mapped where they are not compressed."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from filelock import FileLock

from albert_core.stage import errors, manifest, results, storage
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import Ints
from albert_core.training.batches import BatchShape, Rows
from albert_core.training.order import padded_length
from albert_core.training.ranks import Ranks

_COLUMNS = (
    "input_ids",
    "segment_b_start",
    "masked_lm_positions",
    "masked_lm_labels",
    "sentence_order_label",
)
_in_use: dict[str, int] = {}
"""Open files whose locks keep copies of shards, until the kernel closes them at this process's end.
"""

log = logging.getLogger(__name__)


class ExampleShards:
    """The examples of one kind by number. Shards that are not compressed are mapped.

    Those in an object store are copied to a disk of this host, for all of its ranks to map.

    Args:
        manifest_uri: of the stage "examples".
        kind: train or held_out.

    Raises:
        ConfigError: this host has no room for copies of the shards.
        IntegrityError: a shard is missing or is not the one that was written.
        TrainingError: there is no example.
    """

    def __init__(self, manifest_uri: str, kind: str) -> None:
        self.manifest = manifest.read_manifest(manifest_uri)
        self.result = self.manifest.result_as(results.ExamplesResult)
        folder = manifest_uri.rpartition("/")[0]
        self._blocks: list[pa.RecordBatch] = []
        self._document_ids: list[pa.Array] = []
        for path in _files_here(self.manifest.shards_of(kind), folder):
            table = read_arrow(path)
            self._blocks += [block for block in table.select(_COLUMNS).to_batches() if len(block)]
            self._document_ids += table["document_id"].chunks
        self._ends = np.cumsum([len(block) for block in self._blocks])
        if not self._blocks:
            raise errors.TrainingError(f"{manifest_uri} has no {kind} examples: give more text.")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def sizes(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of pieces and of predictions of the examples, int64 (R,) each."""
        lengths, num_predictions = np.empty_like(indices), np.empty_like(indices)
        for block, numbers, places in self._by_block(indices):
            for name, sizes in (("input_ids", lengths), ("masked_lm_labels", num_predictions)):
                offsets = block[name].offsets.to_numpy()
                sizes[places] = offsets[numbers + 1] - offsets[numbers]
        return lengths, num_predictions

    def rows(self, indices: Ints) -> Rows:
        """Return the examples with these numbers, in this order: at least one, int64 (R,)."""
        taken = [(b.take(pa.array(numbers)), p) for b, numbers, p in self._by_block(indices)]
        found = taken[0][0]
        if len(taken) > 1:
            order = np.argsort(np.concatenate([places for _, places in taken]))
            found = pa.concat_batches([block for block, _ in taken]).take(pa.array(order))

        def sizes(name: str) -> Ints:
            numbers: Ints = np.diff(found[name].offsets.to_numpy()).astype(np.int64)
            return numbers

        return Rows(
            input_ids=found["input_ids"].values.to_numpy(),
            lengths=sizes("input_ids"),
            segment_b_starts=found["segment_b_start"].to_numpy().astype(np.int64),
            positions=found["masked_lm_positions"].values.to_numpy(),
            labels=found["masked_lm_labels"].values.to_numpy(),
            num_predictions=sizes("masked_lm_labels"),
            sentence_order_labels=found["sentence_order_label"].to_numpy().astype(np.int64),
        )

    def document_ids(self) -> list[str]:
        """Return the document of each example."""
        return [name for chunk in self._document_ids for name in chunk.to_pylist()]

    def shape_for(self, ranks: Ranks, num_sequences: int) -> BatchShape | None:
        """Return the shape of batches of up to ``num_sequences``; None: they are packed."""
        if not ranks.num_chips:
            return None
        return BatchShape(
            num_sequences=-(-num_sequences // ranks.num_chips) * ranks.num_chips,
            length=padded_length(self.result.max_seq_length),
            num_predictions=self.result.max_predictions,
        )

    def _by_block(self, indices: Ints) -> Iterator[tuple[pa.RecordBatch, Ints, Ints]]:
        """Yield each block with some of the examples, their numbers in it, and their places."""
        block_of = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(block_of, kind="stable")
        numbers, first = np.unique(block_of[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            block = self._blocks[number]
            yield block, indices[places] - (self._ends[number] - len(block)), places


# Copies of shards that lie elsewhere


def _files_here(shards: Sequence[manifest.Shard], folder: str) -> list[str]:
    """Return the path on this host of a file for each of ``shards``, whose content was checked.

    Those of a local folder are where they are. For others there must be room in TMPDIR; the first
    rank of a host to come here copies and checks them. Copies that no process uses, of other
    shards, are removed.

    Args:
        shards: of one data set.
        folder: URI that their paths are relative to.

    Raises:
        ConfigError: there is no room, or another user has made the folder for the copies.
        IntegrityError: a shard is missing, or is not the one that was written.
    """
    if storage.local_path(folder) is not None:
        for shard in shards:
            manifest.check_shard(shard, folder)
        return [storage.join(folder, shard.path) for shard in shards]
    copies = _folder_for([shard.sha256 for shard in shards])
    files = {copies / f"{shard.sha256}.arrow": shard for shard in shards}
    launch = os.environ.get("TORCHELASTIC_RUN_ID") or uuid4().hex  # the same for all ranks
    checked = copies / "checked"
    with FileLock(copies / "lock"):
        if not checked.exists() or checked.read_text() != launch:
            _copy(files, folder, copies)
            checked.write_text(launch)
    return [str(file) for file in files]


def _folder_for(digests: list[str]) -> Path:
    """Return the folder of these copies, locked for this process; remove those not in use."""
    root = storage.own_folder("albert-shards")
    name = manifest.digest_of(digests)[:16]
    if name not in _in_use:
        _in_use[name] = os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(_in_use[name], fcntl.LOCK_SH)
    for lock in root.glob("*.lock"):
        with lock.open("a") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    (root / name).mkdir(exist_ok=True)
    return root / name


def _copy(files: dict[Path, manifest.Shard], folder: str, copies: Path) -> None:
    """Copy the shards of ``folder`` whose ``files`` are missing or damaged."""
    missing = _not_as_written(files)
    if not missing:
        return
    needed, free = sum(s.num_bytes for s in missing.values()), shutil.disk_usage(copies).free
    if needed > free:
        raise errors.ConfigError(
            f"{copies} has room for {free / 1e9:,.1f} GB, but the copies of the examples' shards "
            f"take {needed / 1e9:,.1f} GB more. Set TMPDIR to a folder on a larger local disk."
        )
    log.info("copying %d shards of %s to %s", len(missing), folder, copies)
    fs, path = storage.filesystem(folder)
    sources = [storage.join(path, shard.path) for shard in missing.values()]
    with suppress(FileNotFoundError):  # the check below names the shard
        fs.get(sources, list(map(str, missing)))
    for file, shard in _not_as_written(missing).items():
        manifest.check_shard(shard, folder)
        raise errors.IntegrityError(
            f"{storage.join(folder, shard.path)} is as it was written, but its copy {file} is not. "
            "Check the disk, and run the same command again."
        )


def _not_as_written(files: dict[Path, manifest.Shard]) -> dict[Path, manifest.Shard]:
    """Return those of ``files`` that are missing or differ from their shard; remove the latter."""

    def is_good(file: Path) -> bool:
        good = file.exists() and storage.sha256_of(str(file)) == files[file].sha256
        if not good:
            file.unlink(missing_ok=True)
        return good

    with ThreadPoolExecutor() as threads:
        are_good = threads.map(is_good, files)
        return {f: files[f] for f, good in zip(files, are_good, strict=True) if not good}
