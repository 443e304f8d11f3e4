"""Which processes of this machine belong together: by group, by parent, by a mark they bear."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def family(root: int) -> list[int]:
    """Return ``root``, the processes of its group and all below them, whatever their sessions."""
    processes = _processes()
    found: list[int] = []
    queue = [root, *(pid for pid, _, group in processes if group == root)]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.append(pid)
            queue += [child for child, parent, _ in processes if parent == pid]
    return found


def marked(variable: str, value: str) -> list[int]:
    """Return the processes that were started with this variable in their environment.

    A process that outlives its parent, in a session of its own, is in no family; this finds it.
    Only Linux shows the environment of others: elsewhere none is found.
    """
    wanted = f"{variable}={value}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue  # it has just ended, or is another user's
    return found


def is_alive(pid: int) -> bool:
    """Return whether there is such a process."""
    return bool(send_signal([pid], 0))


def send_signal(pids: Sequence[int], number: int) -> list[int]:
    """Send a signal to each process; return those that were there."""
    there = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        there.append(pid)
    return there


def _processes() -> list[tuple[int, int, int]]:
    """Return the number of each process of this machine, of its parent and of its group."""
    if sys.platform == "linux":
        return [found for stat in Path("/proc").glob("[0-9]*/stat") if (found := _numbers(stat))]
    ps = ["ps", "-A", "-o", "pid=,ppid=,pgid="]
    lines = subprocess.run(ps, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(pid), int(parent), int(group)) for pid, parent, group in map(str.split, lines)]


def _numbers(stat: Path) -> tuple[int, int, int] | None:
    try:
        _, parent, group, *_ = stat.read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has just ended
    return int(stat.parent.name), int(parent), int(group)
