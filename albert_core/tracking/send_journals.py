"""Send to MLflow what runs could not.

``python -m albert_core.tracking.send_journals --work work``
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri, work_folder
from albert_core.stage.errors import ConfigError
from albert_core.tracking.journal import journal_folder
from albert_core.tracking.sender import ServerAwayError, send_left

log = logging.getLogger("tracking")


def main(argv: Sequence[str] | None = None) -> int:
    """Send the journals that runs left in a work folder; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m albert_core.tracking.send_journals", description=main.__doc__
    )
    parser.add_argument("--work", help="folder for all results (ALBERT_WORK, else 'work')")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    try:
        work = work_folder(options.work)
        found = send_left(work)
    except ConfigError as error:
        log.error("error: %s", error)  # noqa: TRY400  its message says it all
        return 1
    except ServerAwayError as error:
        log.error(  # noqa: TRY400  its message says it all
            "error: MLflow at %s does not answer (%s). Start it, or set %s; nothing is lost.",
            shown_tracking_uri(work),
            error,
            TRACKING_URI,
        )
        return 1
    log.info(
        "%d sent, %d of living processes, %d for another server than %s; they are in %s",
        len(found.run_ids),
        found.num_busy,
        found.num_elsewhere,
        shown_tracking_uri(work),
        journal_folder(work),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
