"""The command `albert`: its commands, and the meaning of its exit status.

0: done. 1: done, and the answer is no: an audit found a fault, a rebuilt model differs, a document
is unknown; or a defect, with its traceback. 2: a mistake to correct first, told in one message. 75:
something is unavailable; the same command continues. 130: interrupted.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from copy import copy
from typing import Annotated, Any, get_args

import typer

from flows import commands
from flows.commands import models, run

_GROUPS = {
    "Runs": (run.demo, run.pretrain, run.refresh, run.evaluate, run.plan),
    "Models": (models.models, models.promote, models.rollback),
    "Provenance": (models.lineage, models.trace, models.rebuild),
    "Services": (run.serve, run.production),
    "Upkeep": (models.audit, models.convert, models.retention, models.send_journals),
}
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)

app = typer.Typer(
    name="albert",
    help="ALBERT from raw text to a registered model.",
    epilog="Every stage runs by hand too, with the command line that --verbose prints.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _helps(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its `Args`, and the help of each of these."""
    text, _, arguments = inspect.cleandoc(docstring or "").partition("\n\nArgs:\n")
    return text, {name: " ".join(said.split()) for name, said in _ARGUMENT.findall(arguments)}


def _add(command: Callable[..., None], group: str) -> None:
    """Add a command, whose help and that of its options are docstrings.

    A flag has no opposite. Each option of a service has an environment variable, but the source:
    typer would split a path with spaces.
    """
    text, helps = _helps(command.__doc__)
    helps = _helps(commands.__doc__)[1] | helps
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in helps:
            continue
        kind: Any = parameter.annotation
        plain, *given = get_args(kind) if hasattr(kind, "__metadata__") else (kind,)
        names = [f"--{name.replace('_', '-')}"] if plain is bool else []
        is_argument = parameter.default is inspect.Parameter.empty
        option = typer.Argument() if is_argument else typer.Option(*names)
        option = copy(given[0]) if given else option
        option.help = helps[name]
        if group == "Services" and name != "source":
            option.envvar = option.envvar or run.variable_of(name)
        command.__annotations__[name] = Annotated[plain, option]
    app.command(help=text, rich_help_panel=group)(command)


for _group, _commands in _GROUPS.items():
    for _command in _commands:
        _add(_command, _group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    What this process and its children write is for their owner only.
    """
    from albert_core.stage.credentials import hide_credentials_in_logs
    from albert_core.stage.settings import refuse_credentials

    os.umask(0o077)
    hide_credentials_in_logs()
    try:
        refuse_credentials(sys.argv[1:] if arguments is None else arguments, "the command line")
        app(arguments, prog_name="albert")
    except SystemExit as ended:
        return int(ended.code or 0)
    except Exception as error:  # noqa: BLE001 - a defect is raised again
        from albert_core.stage.command import tell_failure

        return tell_failure(error)
    return 0
