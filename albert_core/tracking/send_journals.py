"""Send to MLflow what runs could not: what `albert send-journals` does."""

from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri
from albert_core.stage.errors import OutageError
from albert_core.tracking.journal import journal_folder
from albert_core.tracking.sender import ServerAwayError, send_left


def send_journals(work: str) -> str:
    """Send the journals that runs left in a work folder; return what became of them.

    Raises:
        ConfigError: the tracking server's address is none.
        OutageError: the server does not answer. What did not arrive is kept.
    """
    try:
        found = send_left(work)
    except ServerAwayError as error:
        raise OutageError(
            f"MLflow at {shown_tracking_uri(work)} does not answer ({error}). Start it, or set "
            f"{TRACKING_URI}; nothing is lost."
        ) from error
    return (
        f"{len(found.run_ids)} sent, {found.num_busy} of living processes, {found.num_elsewhere} "
        f"for another server than {shown_tracking_uri(work)}; they are in {journal_folder(work)}"
    )
