"""The command `albert`: its commands, and the meaning of its exit status.

0: done. 1: done, and the answer is no: an audit found a fault, a rebuilt model differs, a document
is nowhere; or a defect, with its traceback. 2: a mistake to mend first, told in one message. 75:
something is unavailable; the same command goes on from there. 130: interrupted.
"""

import os
from collections.abc import Sequence

import typer

from flows.commands import models, run

_GROUPS = {
    "Runs": (run.demo, run.pretrain, run.refresh, run.evaluate, run.plan),
    "Models": (models.models, models.promote, models.rollback),
    "Provenance": (models.lineage, models.trace, models.rebuild),
    "Services": (run.serve, run.production),
    "Upkeep": (models.audit, models.convert, models.retention, models.send_journals),
}

app = typer.Typer(
    name="albert",
    help="ALBERT from raw text to a registered model.",
    epilog="Every stage runs by hand too, with the command line that --verbose prints.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _group, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(rich_help_panel=_group)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status.

    What this process and its children write is for their owner only.
    """
    os.umask(0o077)
    try:
        app(arguments, prog_name="albert")
    except SystemExit as ended:
        return int(ended.code or 0)
    except Exception as error:  # noqa: BLE001 - a defect is raised again
        from albert_core.stage.command import tell_failure

        return tell_failure(error)
    return 0
