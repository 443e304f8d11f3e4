"""A Prefect plugin: `prefect deployment run NAME` means NAME/NAME.

Prefect names a deployment FLOW/DEPLOYMENT and refuses a name without a slash. Here each
deployment has its flow's name, so the short name is enough. Prefect loads the plugin through the
entry point group `prefect.plugins` where PREFECT_PLUGINS_ENABLED is set: in the root of the
repository, and by the line that `albert serve` prints. NAME/NAME works without it.
"""

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from prefect.plugins import register_hook


def complete_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `prefect` with a short name right after `deployment run` completed.

    >>> complete_name(["deployment", "run", "pretrain-albert", "--watch"])
    ['deployment', 'run', 'pretrain-albert/pretrain-albert', '--watch']
    """
    words = list(arguments)
    for place in range(2, len(words)):
        name = words[place]
        if words[place - 2 : place] == ["deployment", "run"] and re.fullmatch(r"[^-/][^/]*", name):
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
