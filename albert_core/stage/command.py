"""A stage as a process: its command line, the lines that it prints, and its exit status.

A stage is a function ``run(source: SourceSettings, ..., corpus: str, work: str) -> str``. Its
command line is made from its own signature: parameters that are settings are read from the section
of that name in a recipe file (JSON, as saved beside every run), the others are options. The last
line printed is the manifest's URI.

Log lines are text for people, or JSON with the ids of the runs for programs:
``ALBERT_LOG_FORMAT=json`` makes every line an object with ``time``, ``level``, ``stage``,
``flow_run_id``, ``mlflow_run_id``, ``logger`` and ``message``, as far as they are known. A stage
also prints lines of progress if the process that started it asks for them.
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
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, NoReturn, Self, TextIO

from pythonjsonlogger.json import JsonFormatter

from albert_core.stage import credentials, errors, lock, provenance, storage
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
        say(credentials.redacted(traceback.format_exc()).rstrip(), sys.stderr, logging.ERROR)
        status = DEFECT_STATUS
    # The interpreter's own shutdown can hang on a thread that a library left running, or on a
    # lock that such a thread (of gRPC) held when it was stopped.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_command_line(run: Stage, argv: Sequence[str]) -> int:
    """Run a stage with ``argv``, print its result or its error, and return the exit status."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    try:
        set_up_log(_module_of(run))
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
    say(f"{RESULT}{manifest}", sys.stdout)
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
    say(f"{FAILURE}{message}", sys.stderr, logging.ERROR)
    if transient:
        return RUN_AGAIN_STATUS
    return FAILURE_STATUS if isinstance(error, errors.AlbertError) else SYSTEM_STATUS


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


FORMAT = "ALBERT_LOG_FORMAT"
FLOW_RUN = "ALBERT_FLOW_RUN"
"""Variable: the id of the flow run that started a stage."""

_FORMATS = ("text", "json")

_ids: dict[str, str] = {}


class _JsonLines(JsonFormatter):
    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        time = datetime.fromtimestamp(record.created, UTC)
        log_data["time"] = time.isoformat(timespec="milliseconds")
        log_data["level"] = record.levelname
        log_data.update(_ids)
        log_data["logger"] = record.name
        super().add_fields(log_data, record, message_dict)


def is_json() -> bool:
    """Return whether log lines are JSON.

    Raises:
        ConfigError: ALBERT_LOG_FORMAT is neither text nor json.
    """
    asked = os.environ.get(FORMAT) or _FORMATS[0]
    if asked not in _FORMATS:
        raise errors.ConfigError(f"{FORMAT}={asked!r} must be one of {', '.join(_FORMATS)}")
    return asked == "json"


def set_up_log(stage: str) -> None:
    """Send this process's log to stdout, in the requested format and without credentials.

    Args:
        stage: name of the stage's module.

    Raises:
        ConfigError: see `is_json`.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    credentials.hide_credentials_in_logs()
    _ids.clear()
    note_ids(stage=stage, flow_run_id=os.environ.get(FLOW_RUN, ""))
    use_format(logging.getLogger())


def use_format(logger: logging.Logger) -> None:
    """Make the handlers of a logger write JSON if that is the requested format.

    Raises:
        ConfigError: see `is_json`.
    """
    if is_json():
        for handler in logger.handlers:
            handler.setFormatter(_JsonLines("%(message)s"))


def note_ids(**ids: str) -> None:
    """Add ids to the later lines of this process; an id that is set already stays."""
    for name, value in ids.items():
        if value:
            _ids.setdefault(name, value)


def say(text: str, stream: TextIO, level: int = logging.INFO) -> None:
    """Print something that is not a log record, such as a result, in the format of the log."""
    if os.environ.get(FORMAT) == "json":
        record = logging.LogRecord("albert", level, __file__, 0, text, None, None)
        text = _JsonLines("%(message)s").format(record)
    print(text, file=stream, flush=True)


def read_line(line: str) -> tuple[int, str, Mapping[str, Any]]:
    """Return the level, message and ids of a line in either format."""
    if not line.startswith("{"):
        return logging.INFO, line, {}
    try:
        fields = json.loads(line)
        level = logging.getLevelNamesMapping()[fields["level"]]
        message = str(fields["message"])
    except (ValueError, KeyError, TypeError):
        return logging.INFO, line, {}
    if error := fields.get("exc_info"):
        message = f"{message}\n{error}"
    ids = {name: fields[name] for name in ("stage", "mlflow_run_id") if name in fields}
    return level, message, ids


PROGRESS = "progress: "
"""Prefix of a progress report in a stage's output."""
ASKED_FOR = "ALBERT_REPORTS_PROGRESS"
"""Variable: set if the process that reads the output filters these lines out."""
_SECONDS_BETWEEN = 2.0

_last_time = -_SECONDS_BETWEEN


@dataclass(frozen=True)
class StageProgress:
    """How much of a stage's work is done."""

    done: float
    total: float
    unit: str
    """What is counted, such as steps or bytes."""

    @property
    def share(self) -> float:
        """The share that is done, 0..1."""
        return min(1.0, self.done / self.total) if self.total else 1.0

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """Parse a line that `report_progress` printed; None for any other line."""
        if not line.startswith(PROGRESS):
            return None
        try:
            return cls(**json.loads(line.removeprefix(PROGRESS)))
        except (ValueError, TypeError):
            return None


def report_progress(done: float, total: float, unit: str) -> None:
    """Print the progress if it is asked for, at most every two seconds."""
    global _last_time  # noqa: PLW0603 - a process has one output
    now = time.monotonic()
    if ASKED_FOR not in os.environ or now - _last_time < _SECONDS_BETWEEN:
        return
    _last_time = now
    print(f"{PROGRESS}{json.dumps(asdict(StageProgress(done, total, unit)))}", flush=True)
