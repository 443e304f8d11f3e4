"""Where results go: the option, else the environment, else ``work``."""

import os

from albert_core.contract import storage


def work_folder(work: str | None) -> str:
    """Return the folder for all results, absolute."""
    return storage.absolute(work or os.environ.get("ALBERT_WORK") or "work")
