"""A Prefect plugin: `prefect deployment run NAME` means NAME/NAME.

Prefect names a deployment FLOW/DEPLOYMENT and refuses a name without a slash. Here each
deployment bears its flow's name, so the short name says it all. Loaded by Prefect through the
entry point group `prefect.plugins`, where plugins are enabled; NAME/NAME works without it.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from prefect.plugins import register_hook

_COMMAND = ["deployment", "run"]
_GLOBAL_FLAGS = {"--prompt", "--no-prompt"}
_GLOBAL_OPTIONS = {"--profile", "-p"}
_FLAGS = {"--watch", "--no-watch"}
_OPTIONS = {
    *("--job-variable", "--param", "-p", "--params", "--start-in", "--start-at", "--tag"),
    *("--watch-interval", "--watch-timeout", "--flow-run-name"),
}


def complete_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the command `prefect` with a deployment's short name completed.

    Everything but `deployment run NAME` comes back as it was; so does what has an option that
    is not known here, `--id` among them.

    >>> complete_name(["deployment", "run", "pretrain-albert", "--watch"])
    ['deployment', 'run', 'pretrain-albert/pretrain-albert', '--watch']
    """
    completed = list(arguments)
    start = _after_options(completed, 0, _GLOBAL_FLAGS, _GLOBAL_OPTIONS)
    command = completed[start : start + len(_COMMAND)]
    place = _after_options(completed, start + len(_COMMAND), _FLAGS, _OPTIONS)
    if command != _COMMAND or place >= len(completed) or not _known(completed[place:]):
        return completed
    name = completed[place]
    if "/" not in name:
        completed[place] = f"{name}/{name}"
    return completed


def is_prefect(original: Sequence[str]) -> bool:
    """Return whether the interpreter's command line runs Prefect's: `prefect` or `-m prefect`."""
    for before, word in pairwise(original):
        if before in {"-m", "-c"}:
            return before == "-m" and word == "prefect"
        if not word.startswith("-"):
            return Path(word).stem == "prefect"
    return False


@register_hook
def setup_environment(*, ctx: object) -> None:
    """Complete the name in this process's arguments, before Prefect reads them."""
    if is_prefect(sys.orig_argv):
        sys.argv[1:] = complete_name(sys.argv[1:])


def _after_options(arguments: Sequence[str], place: int, flags: set[str], options: set[str]) -> int:
    """Return the place of the first argument, from ``place`` on, that is of no option."""
    while place < len(arguments):
        option, equals, _ = arguments[place].partition("=")
        if option in flags or (option in options and equals):
            place += 1
        elif option in options:
            place += 2
        else:
            break
    return place


def _known(arguments: Sequence[str]) -> bool:
    """Return whether there are a name and known options, and nothing else."""
    if arguments[0].startswith("-"):
        return False
    return _after_options(arguments, 1, _FLAGS, _OPTIONS) >= len(arguments)
