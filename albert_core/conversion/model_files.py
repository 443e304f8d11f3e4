"""The files of a model folder, without torch: their names, their digest, what task.json says."""

import json
from typing import Any

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import digest_of

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
TASK = "task.json"
MODEL_CONTENT = ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json")
"""The files of a model folder that its scores depend on."""


def model_digest(model_folder: str) -> str:
    """Return a digest of the model in ``model_folder``: the same wherever it lies.

    Raises:
        IntegrityError: a file is missing.
    """
    for name in MODEL_CONTENT:
        if not storage.exists(storage.join(model_folder, name)):
            raise IntegrityError(
                f"{storage.join(model_folder, name)} is missing: a model folder holds "
                f"{', '.join(MODEL_CONTENT)}. Give the folder of a finished pretraining, or "
                "models:/<name>@champion."
            )
    return digest_of(
        [[name, storage.sha256_of(storage.join(model_folder, name))] for name in MODEL_CONTENT]
    )


def read_task(folder: str) -> dict[str, Any]:
    """Return the content of the folder's task.json: "task" and "settings".

    Raises:
        IntegrityError: it is missing, or is not what `save_finetuned` writes.
    """
    uri = storage.join(folder, TASK)
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing: {folder} is not the folder of a fine-tuned model. Give the folder "
            "that a fine-tuning wrote."
        )
    try:
        described: dict[str, Any] = json.loads(storage.read_bytes(uri))
        if not {"task", "settings"} <= described.keys():
            raise ValueError('it has no "task" or no "settings"')
    except (ValueError, AttributeError) as error:
        raise IntegrityError(
            f"{uri} does not describe a task ({error}). Copy or write it again."
        ) from error
    return described
