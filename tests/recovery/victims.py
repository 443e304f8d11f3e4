"""The processes of a deployed run, found by what the kernel shows of them."""

import os
from pathlib import Path

from infra.services import family, marked


def flow_process(run_id: str) -> int | None:
    """Return the process that runs the flow; None if there is none now."""
    inside = marked("PREFECT__FLOW_RUN_ID", run_id)
    flows = [pid for pid in inside if "prefect" in command(pid) and "-c" not in words(pid)]
    return max(flows, default=None)


def stage_process(work: Path, module: str = "") -> int | None:
    """Return the process of the stage in ``module``, or of any, that works in ``work``."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        line = words(pid)
        if f"--work={work}" in line and "-m" in line[:3] and (not module or module in line):
            return pid
    return None


def stage_name(work: Path) -> str:
    """Return the module of the stage that runs now, or a dash."""
    pid = stage_process(work)
    line = words(pid) if pid else []
    return line[line.index("-m") + 1] if "-m" in line else "-"


def beam_worker(work: Path) -> int | None:
    """Return a worker process of the Beam stage that works in ``work``."""
    stage = stage_process(work)
    if stage is None:
        return None
    workers = [pid for pid in family(stage) if "sdk_worker_main" in command(pid)]
    return max(workers, default=None)


def is_there(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False


def words(pid: int | None) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def command(pid: int) -> str:
    """Return the command line of a process as one text."""
    return " ".join(words(pid))


def kill(pid: int) -> None:
    """Kill a process, as the kernel does for want of memory."""
    os.kill(pid, 9)
