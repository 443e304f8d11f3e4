"""Two network namespaces as two hosts, where this process may make them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Host(NamedTuple):
    """One of two hosts that reach each other."""

    address: str
    inside: list[str]
    """Words before a command that runs there."""
    interface: str


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Give two network namespaces that reach each other.

    Raises:
        PermissionError: this process may not make them.
    """
    names = [f"albert-{os.getpid()}-{side}" for side in "ab"]
    wires = [f"al{os.getpid() % 100_000}{side}" for side in "ab"]
    addresses = [f"10.77.{os.getpid() % 250}.{number}" for number in (1, 2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        ends = ("netns", names[0], "type", "veth", "peer", "name", wires[1], "netns", names[1])
        _ip("link", "add", wires[0], *ends)
        for name, wire, address in zip(names, wires, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", wire)
            _ip("-n", name, "link", "set", wire, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        inside = [["ip", "netns", "exec", name] for name in names]
        yield [Host(*each) for each in zip(addresses, inside, wires, strict=True)]
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _ip(*arguments: str) -> None:
    if shutil.which("ip") is None:
        raise PermissionError("there is no command ip")
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise PermissionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
