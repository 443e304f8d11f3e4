"""Checkpoints: written whole or not at all, checked when read, the newest good one wins."""

import io
import json
import logging
from typing import Any

import torch

from albert_core.contract import storage
from albert_core.contract.errors import IntegrityError, TrainingError

STATE, RECORD = "state.pt", "checkpoint.json"
"""Tensors; and what they are, written last: a folder without it is no checkpoint."""

log = logging.getLogger(__name__)


def save_checkpoint(
    folder: str, step: int, state: dict[str, Any], record: dict[str, Any], keep: int
) -> str:
    """Write the checkpoint of ``step`` below ``folder`` and remove all but the last ``keep``.

    Args:
        folder: URI of the run's checkpoints.
        step: updates done.
        state: tensors and plain values, as `torch.load(weights_only=True)` accepts them.
        record: plain values that describe the state, for JSON.
        keep: checkpoints to keep, this one included.

    Returns:
        The URI of the checkpoint.
    """
    uri = storage.join(folder, f"step-{step:08d}")
    with storage.open_atomic(storage.join(uri, STATE)) as file:
        torch.save(state, file)
    digest = storage.sha256_of(storage.join(uri, STATE))
    content = json.dumps({"step": step, "sha256": digest, **record})
    storage.write_bytes(storage.join(uri, RECORD), content.encode())
    for old in list_checkpoints(folder)[:-keep]:
        storage.remove(old)
    return uri


def list_checkpoints(folder: str) -> list[str]:
    """Return the URIs of the finished checkpoints below ``folder``, oldest first."""
    names = storage.list_names(folder)
    uris = (storage.join(folder, name) for name in names if name.startswith("step-"))
    return [uri for uri in uris if storage.exists(storage.join(uri, RECORD))]


def load_checkpoint(uri: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state and the record at ``uri``, tensors on the CPU.

    Raises:
        IntegrityError: the state is not the one that was written.
    """
    record = json.loads(storage.read_bytes(storage.join(uri, RECORD)))
    if not isinstance(record, dict) or not {"step", "sha256"} <= record.keys():
        raise IntegrityError(f"{storage.join(uri, RECORD)} describes no checkpoint.")
    path = storage.join(uri, STATE)
    if not storage.exists(path) or storage.sha256_of(path) != record["sha256"]:
        raise IntegrityError(
            f"{path} is not the file that {RECORD} describes: it changed after it was written."
        )
    content = io.BytesIO(storage.read_bytes(path))
    return torch.load(content, map_location="cpu", weights_only=True), record


def load_newest(folder: str, examples: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the newest good checkpoint below ``folder``, or None where there is none.

    Args:
        folder: URI of the run's checkpoints.
        examples: digest of the examples that the run is to go on with.

    Raises:
        TrainingError: the checkpoint was trained on other examples.
    """
    for uri in reversed(list_checkpoints(folder)):
        try:
            state, record = load_checkpoint(uri)
        except (IntegrityError, ValueError) as error:
            log.warning("passing over %s: %s", uri, error)
            continue
        if record["examples"] != examples:
            raise TrainingError(
                f"{uri} was trained on examples {record['examples'][:12]}, but these are "
                f"{examples[:12]}. Give the same examples, or train in another folder."
            )
        log.info("resuming from %s", uri)
        return state, record
    return None
