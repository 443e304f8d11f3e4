"""torchrun with an exit status that says whether to run again.

``python -m albert_core.training.launcher OPTIONS ...``

torchrun itself ends with status 1 whatever happened. Here a run that may be run again ends with
status 75: when it was told to stop and its ranks saved a checkpoint, or when a rank was killed. If
a rank failed on its own, the status is 1. Options are torchrun's.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import main as torchrun

from albert_core.stage.command import DEFECT_STATUS, NO_RESULT, RESULT, RUN_AGAIN_STATUS
from albert_core.stage.log import say

log = logging.getLogger(__name__)


def launch(argv: Sequence[str]) -> int:
    """Run torchrun with ``argv``; return the status to end with."""
    try:
        torchrun(list(argv))
    except ChildFailedError as error:
        return status_of(error.failures)
    except SignalException as error:
        # torchrun told the ranks to stop and waited for them: each has saved and left.
        log.warning("%s; the same command goes on from the newest checkpoint", error)
        return RUN_AGAIN_STATUS
    except DistError as error:
        log.warning("the hosts did not meet (%s)", str(error).partition("\n")[0])
        return RUN_AGAIN_STATUS
    if any(option.startswith("--node-rank=") and option[12:] != "0" for option in argv):
        say(f"{RESULT}{NO_RESULT}", sys.stdout)  # the first host has it
    return 0


def status_of(failures: Mapping[int, ProcessFailure]) -> int:
    """Return the status of a run with these failures, by rank.

    A rank that failed on its own would fail again; one that was killed, or lost another, may not.
    """
    for rank, failure in failures.items():
        log.warning("rank %d %s", rank, _ended(failure.exitcode))
    own = [f for f in failures.values() if f.exitcode > 0 and f.exitcode != RUN_AGAIN_STATUS]
    return DEFECT_STATUS if own else RUN_AGAIN_STATUS


def _ended(exitcode: int) -> str:
    return f"was killed by signal {-exitcode}" if exitcode < 0 else f"ended with status {exitcode}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    status = launch(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
