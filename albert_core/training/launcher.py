"""torchrun, with an exit status that says whether to run again.

``python -m albert_core.training.launcher OPTIONS ...``

torchrun itself ends with status 1 whatever happened. Here the status is 75 if the same command may
succeed when it is run again: the run was told to stop and its ranks saved a checkpoint, a rank was
killed, or the hosts did not meet. If a rank failed on its own, it is 1. Options are torchrun's.

The ranks of one host meet in a file that only their user can read, and speak over the loopback
address, unless GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME name another interface. torchrun would
open a store on all interfaces, which unpickles what anyone writes to it. Several hosts do need
that store: ``--nnodes``, ``--node-rank``, ``--master-addr`` and ``--master-port`` say where.
"""

import argparse
import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from albert_core.stage.command import DEFECT_STATUS, NO_RESULT, RESULT, RUN_AGAIN_STATUS
from albert_core.stage.errors import killed
from albert_core.stage.log import say
from albert_core.stage.machine import MEETING_FILE, stop_seconds

_MEETING_SECONDS = 1800
"""How long hosts wait for each other, unless ``--rdzv-conf=timeout=...`` says otherwise: one that
must be started first may take a quarter of an hour."""

log = logging.getLogger(__name__)


def launch(argv: Sequence[str]) -> int:
    """Run torchrun with ``argv``; return the status to end with."""
    args = parse_args(list(argv))
    if args.shutdown_timeout is None:
        args.shutdown_timeout = stop_seconds()
    if args.nnodes not in ("1", "1:1"):
        _meet_others(args)
        return _run(args)
    with TemporaryDirectory(prefix="albert-ranks-") as folder:
        _meet_here(args, folder)
        return _run(args)


def _meet_here(args: argparse.Namespace, folder: str) -> None:
    """Have the launcher and its ranks meet in files in ``folder``, without a port."""
    args.standalone, args.rdzv_backend, args.rdzv_conf = False, "c10d", "store_type=file"
    args.rdzv_endpoint, args.rdzv_id = f"{folder}/launcher", Path(folder).name
    os.environ[MEETING_FILE] = f"{folder}/ranks"
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")


def _meet_others(args: argparse.Namespace) -> None:
    """Name the meeting by what is run, if it has no name, so that no other run's hosts join."""
    os.environ.pop(MEETING_FILE, None)
    if args.rdzv_id == "none":
        what = "\0".join([args.training_script, *args.training_script_args])
        args.rdzv_id = hashlib.sha256(what.encode()).hexdigest()[:16]
    if "timeout=" not in args.rdzv_conf:
        args.rdzv_conf = f"{args.rdzv_conf},timeout={_MEETING_SECONDS}".lstrip(",")


def _run(args: argparse.Namespace) -> int:
    try:
        run(args)
    except ChildFailedError as error:
        return status_of(error.failures)
    except SignalException as error:
        # torchrun told the ranks to stop and waited for them: each has saved and left.
        log.warning("%s; the same command goes on from the newest checkpoint", error)
        return RUN_AGAIN_STATUS
    except DistError as error:
        met = f"{args.nnodes} hosts did not meet at {args.master_addr}:{args.master_port}"
        log.warning("the %s (%s); start them again", met, str(error).partition("\n")[0])
        return RUN_AGAIN_STATUS
    if args.node_rank:
        say(f"{RESULT}{NO_RESULT}", sys.stdout)  # the first host has it
    return 0


def status_of(failures: Mapping[int, ProcessFailure]) -> int:
    """Return the status of a run with these failures, by rank.

    A rank that failed on its own would fail again; one that was killed, or lost another, may not.
    """
    for rank, failure in failures.items():
        code = failure.exitcode
        ending = killed(-code) if code < 0 else f"ended with status {code}"
        log.warning("rank %d %s", rank, ending)
    own = [f for f in failures.values() if f.exitcode > 0 and f.exitcode != RUN_AGAIN_STATUS]
    return DEFECT_STATUS if own else RUN_AGAIN_STATUS


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    status = launch(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
