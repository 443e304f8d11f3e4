"""A Prefect plugin: `prefect deployment run NAME` means NAME/NAME.

Prefect names a deployment FLOW/DEPLOYMENT and refuses a name without a slash. Here each
deployment bears its flow's name, so the short name says it all. Loaded by Prefect through the
entry point group `prefect.plugins`, where PREFECT_PLUGINS_ENABLED is set: in the root of the
repository, and by the line that `albert serve` prints. NAME/NAME works without it.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from prefect.plugins import register_hook

_COMMAND = ["deployment", "run"]
_GLOBAL_OPTIONS = {"--prompt": 0, "--no-prompt": 0, "--profile": 1, "-p": 1}
"""Option -> number of its values, before the command."""
_OPTIONS = {"--watch": 0, "--no-watch": 0} | dict.fromkeys(
    (
        *("--job-variable", "--param", "-p", "--params", "--start-in", "--start-at", "--tag"),
        *("--watch-interval", "--watch-timeout", "--flow-run-name"),
    ),
    1,
)
"""The same after the command."""


def complete_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the command `prefect` with a deployment's short name completed.

    Everything but `deployment run NAME` is returned unchanged, and so is a command with an option
    that is not known here, `--id` among them.

    >>> complete_name(["deployment", "run", "pretrain-albert", "--watch"])
    ['deployment', 'run', 'pretrain-albert/pretrain-albert', '--watch']
    """
    words = list(arguments)
    start = _after_options(words, 0, _GLOBAL_OPTIONS)
    place = _after_options(words, start + len(_COMMAND), _OPTIONS)
    if words[start : start + len(_COMMAND)] != _COMMAND or place >= len(words):
        return words
    name = words[place]
    is_short = not name.startswith("-") and "/" not in name
    if is_short and _after_options(words, place + 1, _OPTIONS) >= len(words):
        words[place] = f"{name}/{name}"
    return words


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


def _after_options(words: Sequence[str], place: int, options: Mapping[str, int]) -> int:
    """Return the place of the first word, from ``place`` on, that is neither option nor value."""
    while place < len(words):
        option, equals, _ = words[place].partition("=")
        if option not in options:
            break
        place += 1 if equals else 1 + options[option]
    return place
