"""Where results go: the option, else the environment, else ``work``."""

import os

from albert_core.contract import storage
from albert_core.contract.settings import refuse_credentials


def work_folder(work: str | None) -> str:
    """Return the folder for all results, absolute.

    Raises:
        ConfigError: its URI has credentials in it.
    """
    folder = work or os.environ.get("ALBERT_WORK") or "work"
    refuse_credentials(folder, "the work folder")
    return storage.absolute(folder)
