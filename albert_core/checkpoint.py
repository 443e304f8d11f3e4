"""Checkpoints: written whole or not at all, checked when read; the newest good one counts.

The last ones are kept, and the best: the one whose record has the lowest held-out masked LM loss.
"""

import io
import logging
import math
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from albert_core.stage import errors, manifest, storage

STATE, RECORD = "state.pt", "checkpoint.json"
"""Tensors; and their description, written last: a folder without it is no checkpoint."""
CHECKPOINTS = "checkpoints"
"""A run's folder of checkpoints."""
HELD_OUT_LOSS = "held_out_loss"
"""In a record: masked LM loss on held-out examples, in nats; None where it was not measured."""

Content = TypeVar("Content")

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes checkpoints while the training goes on, one at a time.

    `save` copies the state to the CPU, and a thread writes the copy. A write that failed is an
    error at the next call, and leaves the older checkpoints as they are.

    Args:
        folder: URI of the run's checkpoints.
        keep: how many of the last to keep; the best is kept besides.
    """

    def __init__(self, folder: str, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.seconds = 0.0
        """How long the training has waited for copies and for writes that had not ended."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._step, self._written = 0, Future[str]()
        self._written.set_result("")

    def save(self, state: dict[str, Any] | None, record: dict[str, Any]) -> None:
        """Write the checkpoint of ``record["step"]`` after the one before.

        Args:
            state: tensors and plain values, as `torch.load(weights_only=True)` accepts them; None
                if that of this step was saved: only its record is written again.
            record: plain values that describe the state, for JSON.

        Raises:
            TrainingError: the checkpoint before could not be written.
        """
        self.wait()
        began = time.perf_counter()
        copy = pytree.tree_map_only(Tensor, lambda t: t.detach().to("cpu", copy=True), state)
        write = partial(save_checkpoint, self.folder, copy, record, self.keep)
        self._step, self._written = record["step"], self._thread.submit(write)
        self.seconds += time.perf_counter() - began

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            TrainingError: a checkpoint could not be written.
        """
        began = time.perf_counter()
        futures.wait([self._written])
        self.seconds += time.perf_counter() - began
        self.check()

    def check(self) -> None:
        """Raise TrainingError if a checkpoint could not be written; do not wait."""
        if not self._written.done() or (error := self._written.exception()) is None:
            return
        # When a write fails halfway, torch's own error hides the storage's.
        root: BaseException | None = error
        while root is not None and not isinstance(root, OSError):
            root = root.__cause__ or root.__context__
        root = root or error
        older = list_checkpoints(self.folder)
        rest = "There is no older one"
        if older:
            rest = f"The {len(older)} older ones are as they were; the newest is {older[-1]}"
        raise errors.TrainingError(
            f"the checkpoint of step {self._step:,} could not be written to {self.folder}: "
            f"{type(root).__name__}: {root}. {rest}. Make room or mend the storage, then run "
            "the same command: it goes on from there."
        ) from root


def save_checkpoint(
    folder: str, state: dict[str, Any] | None, record: dict[str, Any], keep: int
) -> str:
    """Write a checkpoint below ``folder``; keep only the last ``keep`` and the best.

    What a write that was killed has left is removed first, to have its room.

    Args:
        folder: URI of the run's checkpoints.
        state: tensors and plain values, as `torch.load(weights_only=True)` accepts them; None
            for that which is there.
        record: plain values that describe the state, for JSON: "step", the updates done; and
            perhaps `HELD_OUT_LOSS`.
        keep: checkpoints to keep, this one included.

    Returns:
        The URI of the checkpoint.
    """
    uri = storage.join(folder, f"step-{record['step']:08d}")
    for step in _steps_in(folder):
        storage.remove_abandoned(step)
        if not storage.exists(storage.join(step, RECORD)):
            storage.remove(step)
    try:
        if state is None:
            digest = checkpoint_digest(uri)
        else:
            with storage.open_atomic(storage.join(uri, STATE)) as file:
                torch.save(state, file)
            digest = storage.sha256_of(storage.join(uri, STATE))
        # On one line, which is made many times as fast: the history may be long.
        sealed = manifest.sealed(record | {"sha256": digest}, indent=None)
        storage.write_bytes(storage.join(uri, RECORD), sealed)
    except Exception:
        if not storage.exists(storage.join(uri, RECORD)):
            storage.remove(uri)
        raise
    best = best_checkpoint(folder)
    for old in list_checkpoints(folder)[:-keep]:
        if old != uri and (best is None or old != best[1]):  # a later one may be damaged
            storage.remove(old)
    return uri


def best_checkpoint(folder: str) -> tuple[float, str] | None:
    """Return loss and URI of the checkpoint with the lowest held-out loss below ``folder``.

    None if no checkpoint has one.
    """
    measured: list[tuple[float, str]] = []
    for uri in list_checkpoints(folder):
        with suppress(errors.IntegrityError, ValueError, FileNotFoundError):
            loss = read_record(uri).get(HELD_OUT_LOSS)
            if loss is not None and math.isfinite(loss):
                measured.append((loss, uri))
    return min(measured, default=None)


def find_checkpoint(uri: str) -> str:
    """Return the URI of the checkpoint that ``uri`` means.

    Args:
        uri: a checkpoint's folder; or a run's folder, its folder of checkpoints or its manifest,
            which mean its newest good checkpoint.

    Raises:
        ConfigError: there is none.
    """
    folder = uri.rpartition("/")[0] if uri.endswith(f"/{manifest.MANIFEST}") else uri.rstrip("/")
    if storage.exists(storage.join(folder, RECORD)):
        return folder
    for place in (storage.join(folder, CHECKPOINTS), folder):
        newest, _ = _newest_good(place, _read_checked)
        if newest:
            return newest[0]
    raise errors.ConfigError(
        f"there is no good checkpoint at {uri}. Give the folder of a run, its {manifest.MANIFEST}, "
        f"or a checkpoint: a folder with {RECORD}."
    )


def list_checkpoints(folder: str) -> list[str]:
    """Return the URIs of the finished checkpoints below ``folder``, oldest first."""
    return [uri for uri in _steps_in(folder) if storage.exists(storage.join(uri, RECORD))]


def _steps_in(folder: str) -> list[str]:
    names = storage.list_names(folder)
    return [storage.join(folder, name) for name in names if name.startswith("step-")]


def load_checkpoint(uri: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state and the record at ``uri``, tensors on the CPU.

    Raises:
        IntegrityError: the state is not the one that was written, or torch can't load it.
    """
    record = _read_checked(uri)
    path = storage.join(uri, STATE)
    content = io.BytesIO(storage.read_bytes(path))
    try:
        return torch.load(content, map_location="cpu", weights_only=True), record
    except Exception as error:  # whatever its unpickler meets in a file that it did not write
        if errors.is_out_of_memory(error):  # and the checkpoint is good
            raise
        raise errors.IntegrityError(f"{path} is not the state of a checkpoint: {error}") from error


def _read_checked(uri: str) -> dict[str, Any]:
    """Return the record at ``uri``, after comparing the state with it.

    Raises:
        IntegrityError: the state is not the one that was written.
    """
    record, path = read_record(uri), storage.join(uri, STATE)
    if not storage.exists(path) or storage.sha256_of(path) != record["sha256"]:
        raise errors.IntegrityError(
            f"{path} is not the file that {RECORD} describes: it changed after it was written."
        )
    return record


def checkpoint_digest(uri: str) -> str:
    """Return the digest of the state at ``uri``, as its record has it."""
    return str(read_record(uri)["sha256"])


def read_record(uri: str) -> dict[str, Any]:
    """Return the record of the checkpoint at ``uri``.

    Raises:
        IntegrityError: it describes no checkpoint, or changed after it was written.
    """
    record = manifest.unsealed(storage.join(uri, RECORD))
    if not {"step", "sha256"} <= record.keys():
        raise errors.IntegrityError(f"{storage.join(uri, RECORD)} describes no checkpoint.")
    return record


def load_newest(folder: str, is_own: bool = True) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the newest good checkpoint below ``folder``, or None if there is none.

    Args:
        folder: URI of the run's checkpoints.
        is_own: whether the run is the one that asks. If there are checkpoints, and all of them are
            damaged, they are then set aside; those of another run are left where they are.

    Raises:
        IntegrityError: there are checkpoints of its own, but all of them are damaged.
    """
    newest, damaged = _newest_good(folder, load_checkpoint)
    if newest:
        log.info("resuming from %s", newest[0])
        return newest[1]
    if damaged and is_own:
        fs, path = storage.filesystem(folder)
        aside = f"{path.rpartition('/')[0]}/{manifest.DAMAGED}"
        fs.makedirs(aside, exist_ok=True)
        fs.mv(path, f"{aside}/{CHECKPOINTS}-{time.time_ns()}", recursive=True)
        raise errors.IntegrityError(
            f"none of the {len(damaged)} checkpoints in {folder} is as it was written. They are "
            f"set aside in the folder {manifest.DAMAGED} beside it; the next run begins anew."
        )
    return None


def _newest_good(
    folder: str, read: Callable[[str], Content]
) -> tuple[tuple[str, Content] | None, list[str]]:
    """Return the newest checkpoint that ``read`` accepts, and what it returns; and the URIs of all.

    After each that can't be read they are listed again: a run that writes another removes older
    ones.
    """
    tried: set[str] = set()
    while True:
        listed = list_checkpoints(folder)
        untried = [uri for uri in listed if uri not in tried]
        if not untried:
            return None, listed
        uri = untried[-1]
        tried.add(uri)
        try:
            return (uri, read(uri)), listed
        except FileNotFoundError:  # removed since it was listed
            continue
        except (errors.IntegrityError, ValueError) as error:
            log.warning("passing over %s: %s", uri, error)
