"""The log of a stage: text for people, or JSON with the ids of the runs for programs.

``ALBERT_LOG_FORMAT=json`` makes every line an object with ``time``, ``level``, ``stage``,
``flow_run_id``, ``mlflow_run_id``, ``logger`` and ``message``, as far as they are known.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from albert_core.stage import credentials, errors

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
