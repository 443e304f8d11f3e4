"""The files of a model folder, without torch: names, digest, and the content of task.json."""

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from albert_core.stage import errors, storage
from albert_core.stage.manifest import (
    MANIFEST,
    Manifest,
    checked,
    digest_of,
    is_in_result,
    modified_at,
    read_manifest,
    sha256_of,
)

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
TASK = "task.json"
MODEL_CONTENT = (CONFIG, WEIGHTS, "spiece.model", TOKENIZER_CONFIG)
"""The files of a model folder that its scores depend on."""
_OTHER_WEIGHTS = re.compile(r"(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
"""Names that `transformers` gives to files of weights."""
_LOADED = (*MODEL_CONTENT, "tokenizer.json", "special_tokens_map.json")
"""The files of a registered model that loading it needs; a fine-tuned one's `TASK` too."""


def is_model(names: Iterable[str]) -> bool:
    """Return whether a folder with files of these names has all of a registered model."""
    return set(_LOADED) <= set(names)


def model_digest(model_folder: str) -> str:
    """Return a digest of the model in ``model_folder``: the same wherever the folder is.

    The search for finished work needs it quickly, so in a result's folder the digests are those of
    its manifest; any other file is read once per process. Before the model itself is used,
    `check_model` reads everything.

    Raises:
        IntegrityError: a file is missing.
    """
    noted, found = _noted(model_folder), []
    for name in MODEL_CONTENT:
        uri = storage.join(model_folder, name)
        fs, path = storage.filesystem(uri)
        if not fs.exists(path):
            raise missing(model_folder, name)
        info = fs.info(path)
        found.append([name, noted.get(name) or _sha256(uri, info["size"], modified_at(info))])
    return digest_of(found)


def missing(model_folder: str, name: str) -> errors.IntegrityError:
    """Return the error that a file of a model folder is missing.

    It tells where the weights are instead if `transformers` wrote them in several files, or an old
    version as .bin.
    """
    uri, names = storage.join(model_folder, name), storage.list_names(model_folder)
    others = list(filter(_OTHER_WEIGHTS.fullmatch, names)) if name == WEIGHTS else []
    if others:
        where = "in several files, such as" if len(others) > 1 else "in"
        return errors.IntegrityError(
            f"{uri} is missing: the weights are {where} {others[0]}, expected {WEIGHTS} with all. "
            "Load the folder with the class of transformers that its config.json names, and write "
            "it again: model.save_pretrained(folder, max_shard_size='100GB')."
        )
    return errors.IntegrityError(
        f"{uri} is missing: a model folder contains {', '.join(MODEL_CONTENT)}. Copy the missing "
        "file there, or give the folder of a finished pretraining, or models:/<name>@champion."
    )


def noted_digest(made: Manifest) -> str | None:
    """Return the `model_digest` of the model that a stage made, by its manifest; None without."""
    noted = _noted_in(made, str(made.result.get("model_folder")))
    if not set(MODEL_CONTENT) <= noted.keys():
        return None
    return digest_of([[name, noted[name]] for name in MODEL_CONTENT])


def check_model(model_folder: str, digest: str) -> None:
    """Raise IntegrityError unless the content of ``model_folder`` has this `model_digest`."""
    uris = {name: storage.join(model_folder, name) for name in MODEL_CONTENT}
    try:
        found = digest_of([[name, sha256_of(uri)] for name, uri in uris.items()])
    except FileNotFoundError:  # another process has just set a damaged one aside
        found = ""
    if found != digest:
        raise errors.IntegrityError(
            f"{model_folder} does not contain the model that was found there first: a file "
            "changed after it was written. Copy or make the model again."
        )


def manifest_beside(folder: str) -> str | None:
    """Return the manifest of the stage that wrote ``folder``, in it or beside it, if any."""
    folder = folder.rstrip("/")
    places = (
        storage.join(place, MANIFEST) for place in (folder, folder.rpartition("/")[0]) if place
    )
    return next((uri for uri in places if storage.exists(uri)), None)


def _noted(model_folder: str) -> dict[str, str]:
    """Return the digests of the files of a model folder in a result, by name."""
    uri = manifest_beside(model_folder)
    if uri is None or not is_in_result(uri):
        return {}
    return _noted_in(read_manifest(uri), model_folder.rstrip("/").rpartition("/")[2])


def _noted_in(made: Manifest, folder: str) -> dict[str, str]:
    """Return the digests of the files of a result, those in its ``folder`` by their name there."""
    return {shard.path.removeprefix(f"{folder}/"): shard.sha256 for shard in made.shards}


@cache
def _sha256(uri: str, size: int, modified: float) -> str:
    """Return the digest of the file at ``uri``, which is known if size and time are the same."""
    return storage.sha256_of(uri)


def read_task(folder: str) -> dict[str, Any]:
    """Return the content of the folder's task.json: "task" and "settings".

    Raises:
        IntegrityError: it is missing, or `save_finetuned` did not write it.
    """
    uri = storage.join(folder, TASK)
    if not storage.exists(uri):
        raise errors.IntegrityError(
            f"{uri} is missing: {folder} is not the folder of a fine-tuned model. Give the folder "
            "that a fine-tuning wrote."
        )
    try:
        described: dict[str, Any] = json.loads(storage.read_bytes(checked(uri)))
        if not {"task", "settings"} <= described.keys():
            raise ValueError('it has no "task" or no "settings"')
    except (ValueError, AttributeError, RecursionError) as error:
        raise errors.IntegrityError(
            f"{uri} does not describe a task ({error}). Copy or write it again."
        ) from error
    return described
