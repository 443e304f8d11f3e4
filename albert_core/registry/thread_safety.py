"""Whether the code that a version carries is right for several threads, as MLflow's server has.

A version goes on with the code that it was registered with. Some carry a word table without a
lock: where two threads meet new words together, both get a wrong number, and the model answers
wrongly from then on, or fails. Only models that answer by spans do not ask that table.
"""

import json
import shlex
import tempfile
from importlib.util import find_spec
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.stage.errors import RegistryError

THREADS_TAG = "threads"
"""Of a version: that its code was looked at when it was registered, and is `RIGHT`."""
RIGHT = "right"
WORD_TABLE = "albert_core.text.word_table"
FAULT = "answers wrongly where a server asks it from several threads"
_WORD_TABLE_FILE = "code/albert_core/contract/word_table.py"
_TASK_FILE = "artifacts/model/task.json"
_FINETUNING_TAG = "manifest.finetuning"


def has_lock(word_table: str) -> bool:
    """Return whether this source of the module `WORD_TABLE` is right for several threads."""
    return "threading.Lock" in word_table


def check_word_table(source: str) -> None:
    """Refuse to register a version that would carry this source of the module `WORD_TABLE`.

    Raises:
        RegistryError: it is wrong for several threads.
    """
    if not has_lock(source):
        spec = find_spec(WORD_TABLE)
        raise RegistryError(
            f"{WORD_TABLE if spec is None else spec.origin} has no lock, so that a model with it "
            f"{FAULT}. Register with this project's present code: update that checkout, or "
            "install the project again."
        )


def is_right(client: MlflowClient, version: ModelVersion) -> bool:
    """Return whether ``version`` gives each of several threads the answers that one would get.

    Of a version without `THREADS_TAG` a file or two of a few kB are read. One that does not carry
    the word table, like a pretrained model's, does not use it.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if version.tags.get(THREADS_TAG) == RIGHT:
        return True
    table = _read(client, version, _WORD_TABLE_FILE)
    if table is None or has_lock(table):
        return True
    task = _read(client, version, _TASK_FILE)
    return task is not None and json.loads(task)["task"]["kind"] == "spans"


def fault_of(client: MlflowClient, version: ModelVersion) -> str:
    """Return what ``version`` does or has that it should not, as a verb and more; "" if nothing."""
    try:
        return "" if is_right(client, version) else FAULT
    except (MlflowException, OSError) as error:
        return f"has code that can't be read now ({type(error).__name__})"


def check_is_right(client: MlflowClient, version: ModelVersion) -> None:
    """Refuse to make ``version`` champion if its code is wrong for several threads.

    Raises:
        RegistryError: it is, with what its owner does.
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if not is_right(client, version):
        raise RegistryError(
            f"version {version.version} of {version.name} {FAULT}. {remedy(version)}"
        )


def remedy(version: ModelVersion) -> str:
    """Return what the owner of a version does whose code is wrong."""
    finetuning = version.tags.get(_FINETUNING_TAG, "<manifest>").partition(", ")[0]
    work = finetuning.rpartition("/finetuning/")[0] or "<work>"
    name = shlex.quote(str(version.name))
    return (
        "Register its fine-tuning again with the present code: `python -m "
        f"albert_core.registry.register_finetuned --recipe={work}/recipes/<...>.json "
        f"--finetuning={finetuning} --name={name} --work={work}`. Where the gate finds the new "
        f"version no better than this one, `albert promote {name} <its number> --work={work} "
        "--reason=...` makes it champion. Then start its servers anew."
    )


def _read(client: MlflowClient, version: ModelVersion, path: str) -> str | None:
    """Return the text of a file of the version; None if there is none."""
    place = client.get_model_version_download_uri(version.name, version.version)
    if place.startswith("models:/"):
        place = client.get_logged_model(place.removeprefix("models:/")).artifact_location
    uri, server = f"{place}/{path}", client.tracking_uri
    beside = mlflow.artifacts.list_artifacts(uri.rpartition("/")[0], tracking_uri=server)
    if Path(path).name not in {Path(file.path).name for file in beside}:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        found = mlflow.artifacts.download_artifacts(uri, dst_path=scratch, tracking_uri=server)
        return Path(found).read_text(encoding="utf-8")
