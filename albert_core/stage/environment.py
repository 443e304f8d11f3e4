"""Settings from environment variables: whole numbers, the work folder, MLflow's address."""

import ctypes
import os
from itertools import takewhile
from pathlib import Path

from albert_core.stage import storage
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import ConfigError
from albert_core.stage.settings import refuse_credentials


def whole_number(variable: str, default: int) -> int:
    """Return the number in an environment variable, at least 1; ``default`` if it is not set.

    Raises:
        ConfigError: it is not such a number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{variable}={text!r} must be a whole number, at least 1")
    return int(text)


TRAINING_PROCESSES = "ALBERT_TRAINING_PROCESSES"
"""Variable with the number of processes that a flow starts for a training."""
TRAINING_HOSTS = "ALBERT_TRAINING_HOSTS"
"""Variable with the number of hosts that train together, each with so many processes."""
MEETING_FILE = "ALBERT_MEETING_FILE"
"""Variable with the file in which the ranks of one host meet; the launcher sets it."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
STOP_SECONDS = "ALBERT_STOP_SECONDS"
"""Variable with the time that a process has from SIGTERM until it is killed."""


def stop_seconds() -> int:
    """Return ALBERT_STOP_SECONDS, else 120: what a cloud gives before it takes a machine back.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(STOP_SECONDS, 120)


def visible_devices() -> list[str]:
    """Return the GPUs that this process may use as CUDA_VISIBLE_DEVICES names them, without torch.

    CUDA numbers them from 0, whatever the driver calls them: a pod with ``/dev/nvidia2`` and
    ``/dev/nvidia5`` has the devices 0 and 1.
    """
    if VISIBLE in os.environ:
        names = os.environ[VISIBLE].split(",")
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    count = ctypes.c_uint(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:  # no driver
        return []
    if nvml.nvmlInit_v2() == 0:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlShutdown()
    return [str(number) for number in range(count.value)]


def training_processes(batch_size: int) -> int:
    """Return how many ranks a flow starts: ALBERT_TRAINING_PROCESSES, else one a visible device.

    Args:
        batch_size: in examples; by default there is at least one of them for each rank.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(TRAINING_PROCESSES, max(1, min(len(visible_devices()), batch_size)))


def work_folder(work: str | None) -> str:
    """Return the folder for all results, absolute.

    Raises:
        ConfigError: its URI has credentials in it.
    """
    folder = work or os.environ.get("ALBERT_WORK") or "work"
    refuse_credentials(folder, "the work folder")
    return storage.absolute(folder)


TRACKING_URI = "MLFLOW_TRACKING_URI"


def tracking_uri(work: str) -> str:
    """Return where MLflow keeps runs and models.

    That is ``MLFLOW_TRACKING_URI`` when it is set, else a SQLite file in ``work``; in the
    working directory when ``work`` is not on this machine.
    """
    folder = storage.local_path(work) or Path()
    return os.environ.get(TRACKING_URI) or f"sqlite:///{folder.absolute() / 'mlflow.db'}"


def shown_tracking_uri(work: str) -> str:
    """Return `tracking_uri` without user name and password, for messages."""
    return redacted(tracking_uri(work))
