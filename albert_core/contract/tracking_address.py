"""Where MLflow keeps runs and models; the same for a stage, for a flow and for whoever reads."""

import os
from pathlib import Path

from albert_core.contract import storage
from albert_core.contract.credentials import redacted

TRACKING_URI = "MLFLOW_TRACKING_URI"


def tracking_uri(work: str) -> str:
    """Return where MLflow keeps runs and models.

    That is ``MLFLOW_TRACKING_URI`` when it is set, else a SQLite file in ``work``; in the
    working directory when ``work`` is not on this machine.
    """
    folder = storage.local_path(work) or Path()
    return os.environ.get(TRACKING_URI) or f"sqlite:///{folder.absolute() / 'mlflow.db'}"


def shown_tracking_uri(work: str) -> str:
    """Return `tracking_uri` for a message: without a user's name and password."""
    return redacted(tracking_uri(work))
