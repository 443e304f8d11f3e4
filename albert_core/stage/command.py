"""A stage as a process: its command line, the lines that it prints, and its exit status.

A stage is a function ``run(source: SourceSettings, ..., corpus: str, work: str) -> str``. Its
command line is made from its own signature: parameters that are settings are read from the section
of that name in a recipe file (JSON, as saved beside every run), the others are options. The last
line printed is the manifest's URI.
"""

import argparse
import importlib
import inspect
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from albert_core.stage import credentials, errors, lock, log, provenance, storage
from albert_core.stage.settings import Settings, refuse_credentials

Stage = Callable[..., str]
RESULT = "manifest: "
"""Prefix of the manifest's URI on the last line of a stage's output."""
NO_RESULT = "none"
"""Stands in for the URI if a command found nothing to do."""
FAILURE = "error: "
"""Prefix of the message of a stage that failed."""
FAILURE_STATUS = 2
"""Exit status of a stage that can't do what it is asked to."""
SYSTEM_STATUS = os.EX_OSERR
"""Exit status (71) after a fault of the machine or a store, such as a full disk."""
DEFECT_STATUS = 1
_QUIETER = {
    "apache_beam": logging.ERROR,
    "aiobotocore.credentials": logging.WARNING,
    "botocore.credentials": logging.WARNING,
}
"""Logger of a library -> the level from which a stage shows its lines. Boto tells where it found
the credentials, at each start."""
RUN_AGAIN_STATUS = os.EX_TEMPFAIL
"""Exit status (75) after a transient failure: an unavailable server, a lost worker process, or a
request to stop. The same command continues from what is done."""


class RunAgain(SystemExit):
    """Ends a run that was preempted or left by another rank and can continue from a checkpoint."""

    def __init__(self) -> None:
        super().__init__(RUN_AGAIN_STATUS)


class StopRequest:
    """Records whether this process was told to stop."""

    def __init__(self) -> None:
        self.arrived = False
        self._ends_at_once = False

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Note SIGTERM, which training checks for between micro-batches."""
        self.arrived = True
        if self._ends_at_once:
            self._ends_at_once = False
            raise RunAgain

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """End the run as soon as SIGTERM arrives in the block, where there is nothing to save.

        Raises:
            RunAgain: SIGTERM arrived, in the block or before it.
        """
        self._ends_at_once = True
        try:
            if self.arrived:
                raise RunAgain
            yield
        finally:
            self._ends_at_once = False


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Note SIGTERM instead of ending, which Python allows only in the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: Any = signal.signal(signal.SIGTERM, request.note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)


def stage_main(run: Stage) -> NoReturn:
    """Run a stage with the arguments of this process, and end the process with its status.

    The status is that of `run_command_line`, or 1 after a bug, whose traceback is printed.
    """
    try:
        # Workers have another `__main__`: only classes of the module's own name can travel to them.
        run = getattr(importlib.import_module(_module_of(run)), run.__name__)
        status = run_command_line(run, sys.argv[1:])
    except RunAgain:
        status = RUN_AGAIN_STATUS
    except Exception:  # noqa: BLE001
        log.say(credentials.redacted(traceback.format_exc()).rstrip(), sys.stderr, logging.ERROR)
        status = DEFECT_STATUS
    # The interpreter's own shutdown can hang on a thread that a library left running, or on a
    # lock that such a thread (of gRPC) held when it was stopped.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_command_line(run: Stage, argv: Sequence[str]) -> int:
    """Run a stage with ``argv``, print its result or its error, and return the exit status."""
    for noisy, level in _QUIETER.items():
        logging.getLogger(noisy).setLevel(level)
    try:
        log.set_up_log(_module_of(run))
        arguments, recipe = _arguments(run, argv)
        with provenance.called_as(_call(run, arguments, recipe)):
            manifest = run(**arguments)
    except Exception as error:  # noqa: BLE001 - a bug is raised again
        if uri := lock.deleted():  # whatever failed for it
            said = f"{uri} was deleted, perhaps with the whole work folder, while the stage ran"
            why = errors.StageError(f"{said}. Run the same command: it makes what is missing.")
            return tell_failure(why)
        return tell_failure(error)
    finally:
        lock.release_all()
    log.say(f"{RESULT}{manifest}", sys.stdout)
    return 0


def tell_failure(error: Exception) -> int:
    """Print the message of an error that a user can fix or retry, and return the exit status.

    Any other error is a bug and is raised again.
    """
    transient = errors.is_transient(error)
    message = str(error) if isinstance(error, errors.AlbertError) else errors.explained(error)
    if transient and not message:
        said = credentials.redacted(f"{type(error).__name__}: {error}".partition("\n")[0])
        message = f"a server or store is unavailable ({said})"
    if not message:
        raise error
    log.say(f"{FAILURE}{message}", sys.stderr, logging.ERROR)
    if transient:
        return RUN_AGAIN_STATUS
    is_of_user = isinstance(error, errors.AlbertError) and not errors.lacks_room(error)
    return FAILURE_STATUS if is_of_user else SYSTEM_STATUS


def stage_argv(module: str, recipe: str, **inputs: str) -> list[str]:
    """Return the command line that runs the stage in ``module``."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in inputs.items()]
    return [sys.executable, "-m", module, f"--recipe={recipe}", *options]


def _arguments(run: Stage, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of ``run``, and the whole recipe."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {run.__module__}", description=inspect.getdoc(run)
    )
    parser.add_argument("--recipe", required=True, help="resolved recipe, JSON")
    sections: dict[str, type[Settings]] = {}
    for name, parameter in inspect.signature(run, eval_str=True).parameters.items():
        kind, default = parameter.annotation, parameter.default
        if inspect.isclass(kind) and issubclass(kind, Settings):
            sections[name] = kind
        else:
            is_required = default is inspect.Parameter.empty
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, required=is_required, default=default)
    options = vars(parser.parse_args(argv))
    refuse_credentials(options, "the command line")
    recipe_uri = options.pop("recipe")
    recipe = _read_recipe(recipe_uri)
    refuse_credentials(recipe, recipe_uri)
    return options | {
        name: section.read(recipe.get(name, {}), f"{recipe_uri}, section {name}")
        for name, section in sections.items()
    }, recipe


def _call(run: Stage, arguments: Mapping[str, Any], recipe: Mapping[str, Any]) -> provenance.Call:
    sections = {
        n: v.model_dump(mode="json") for n, v in arguments.items() if isinstance(v, Settings)
    }
    others = {n: str(v) for n, v in arguments.items() if n not in sections and n != "work"}
    rest = {name: values for name, values in recipe.items() if name not in sections}
    return provenance.Call(module=_module_of(run), recipe=sections, options=others, rest=rest)


def _module_of(run: Stage) -> str:
    spec = getattr(sys.modules[run.__module__], "__spec__", None)  # of "__main__" too
    return run.__module__ if spec is None else str(spec.name)


def _read_recipe(uri: str) -> dict[str, Any]:
    if not uri or not storage.exists(uri):
        raise errors.ConfigError(f"{uri!r} is missing: give --recipe a resolved recipe (JSON).")
    try:
        recipe = json.loads(storage.read_bytes(uri))
    except (ValueError, RecursionError) as error:
        raise errors.ConfigError(f"{uri} is not JSON: {error}. Give a resolved recipe.") from error
    if not isinstance(recipe, dict):
        raise errors.ConfigError(f"{uri} is not a JSON object of sections. Give a resolved recipe.")
    return recipe
