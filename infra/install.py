"""Installs this project with the versions and the hashes of ``requirements.lock``.

``python infra/install.py EXTRA...``, with the interpreter of a virtual environment, in any folder.
pip refuses a file that is not of the hash which the lock has of it, and every package that the lock
lacks. It needs no more than Python and pip. Options that it does not know are pip's.

PyPI's torch for Linux brings CUDA's libraries, 4 GB that only an NVIDIA GPU can use. Elsewhere
torch is PyTorch's own build for the CPU.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
TORCH_CPU = PROJECT / "infra" / "torch_cpu.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PROJECT_NAME = "albert-pretraining"
_OF_CUDA = re.compile("torch|triton|nvidia-.*|cuda-.*")


def name_of(requirement: str) -> str:
    """Return the normalized name at the start of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def blocks(lock: str) -> dict[str, str]:
    """Return what a lock says of each package: its versions with their hashes and origins."""
    found: dict[str, str] = {}
    for block in re.split(r"^(?=\w)", lock, flags=re.MULTILINE)[1:]:
        found[name_of(block)] = found.get(name_of(block), "") + block
    return found


def requirements_of(project: Mapping[str, Any], extras: Collection[str]) -> Iterator[str]:
    """Yield the requirements that ``pyproject.toml`` gives the project with extras.

    Raises:
        SystemExit: The project has no extra of a name.
    """
    optional = project["project"]["optional-dependencies"]
    yield from project["build-system"]["requires"]
    yield from project["project"]["dependencies"]
    for extra in extras:
        if extra not in optional:
            sys.exit(f"no extra {extra!r}: pyproject.toml has {', '.join(optional)}")
        for requirement in optional[extra]:
            if name_of(requirement) == _PROJECT_NAME:
                inner = re.findall(r"[\w-]+", requirement.partition("[")[2])
                yield from requirements_of(project, inner)
            else:
                yield requirement


def needed(lock: Mapping[str, str], roots: Collection[str]) -> list[str]:
    """Return the names of packages in a lock, and of all that they need.

    Raises:
        SystemExit: The lock lacks one of the packages.
    """
    if missing := sorted(set(roots) - lock.keys()):
        sys.exit(f"requirements.lock has no {', '.join(missing)}: run `make lock`, or use pip")
    origins = {
        name: {name_of(origin) for origin in ", ".join(re.findall("# via (.*)", block)).split(", ")}
        for name, block in lock.items()
    }
    found = set(roots)
    while more := {name for name in origins.keys() - found if origins[name] & found}:
        found |= more
    return sorted(found)


def _pip(*arguments: str, requirements: str = "", quiet: bool = False) -> int:
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *arguments], input=requirements, text=True, capture_output=quiet, check=False
    )
    return done.returncode


def main() -> int:
    """Install what the arguments of the command say; return the exit status of pip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda", "none"], default="auto")
    parser.add_argument("--no-project", action="store_true", help="only what the project needs")
    arguments, options = parser.parse_known_args()
    lock = blocks((PROJECT / "requirements.lock").read_text())
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    names = needed(lock, {name_of(each) for each in requirements_of(project, arguments.extras)})
    torch = arguments.torch
    if torch == "auto":
        torch = "cuda" if shutil.which("nvidia-smi") or sys.platform != "linux" else "cpu"
    with_torch = "torch" in names
    if torch != "cuda":
        names = [name for name in names if not _OF_CUDA.fullmatch(name)]
    # The lock is complete; pip alone, with hashes, stumbles over what others need with extras.
    hashed = (*options, "--no-deps", "--require-hashes", "--requirement")
    status = _pip(*hashed, "/dev/stdin", requirements="".join(lock[name] for name in names))
    if not status and with_torch and torch == "cpu":
        of_torch = (*hashed, str(TORCH_CPU))
        # From where pip is told to look, a mirror perhaps; and from PyTorch, if it is not there.
        status = _pip(*of_torch, quiet=True) and _pip("--index-url", TORCH_CPU_INDEX, *of_torch)
        if status:
            sys.stderr.write(
                f"PyTorch's build for the CPU can't be installed from {TORCH_CPU_INDEX}. Name a "
                "place that has it in PIP_EXTRA_INDEX_URL, or give make TORCH=cuda for PyPI's "
                "build, or TORCH=none to install it yourself.\n"
            )
    if not status and not arguments.no_project:
        project_only = ("--no-deps", "--no-build-isolation", "--editable", str(PROJECT))
        status = _pip(*options, *project_only)
    return status


if __name__ == "__main__":
    sys.exit(main())
