"""Every error that a user can cause or meet, as one tree; and which errors are worth a retry.

AlbertError            something a user can fix; shown as one message, without a traceback
├── ConfigError        a setting is unknown, of the wrong type or impossible
├── SourceError        a source is missing, empty or not what it was declared to be
├── VocabularyError    the text is too small or too varied for the vocabulary asked for
├── IntegrityError     a file is not the one that its manifest describes
├── AccountingError    the counts of a stage do not add up
├── ShapeError         tensors do not fit each other
├── TaskError          a downstream task's file is missing or malformed
├── TrainingError      a run cannot continue (non-finite loss, no examples, another data set)
├── RegistryError      a model version cannot be registered, promoted or found
├── StageError         a stage's process ended without its manifest
└── OutageError        a store, server or worker is unavailable: run the same command again later
"""

import errno
import urllib.request
from collections.abc import Iterator

from albert_core.stage.credentials import redacted


class AlbertError(Exception):
    """Base of all errors with a message for the user: where, what was found, what to do.

    Messages are shown and kept, so credentials are removed from them.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(AlbertError):
    """A setting is unknown, of the wrong type or impossible."""


class SourceError(AlbertError):
    """A source is missing, empty or not what it was declared to be."""


class VocabularyError(AlbertError):
    """The text is too small or too varied for the vocabulary asked for."""


class IntegrityError(AlbertError):
    """A file is not the one that its manifest describes."""


class AccountingError(AlbertError):
    """The counts of a stage do not add up."""


class ShapeError(AlbertError):
    """Tensors do not fit each other."""


class TaskError(AlbertError):
    """A downstream task's file is missing or malformed."""


class TrainingError(AlbertError):
    """A run cannot continue."""


class RegistryError(AlbertError):
    """A model version cannot be registered, promoted or found."""


class StageError(AlbertError):
    """A stage's process ended without its manifest."""


class OutageError(AlbertError):
    """A store, server or worker is unavailable; the same command continues from what is done."""


_ANSWER_SECONDS = 5
_MAX_CAUSES = 20
_ERRNOS = {errno.EBUSY, errno.ESTALE, getattr(errno, "EREMOTEIO", errno.ESTALE)}
"""s3fs's for "slow down" and "internal error", and NFS's for a server that restarted."""
_CLASSES = {
    "aiohttp": {"ClientConnectionError"},
    "botocore": {"ConnectionError", "HTTPClientError"},
    "httpx": {"TransportError"},
    "requests": {"ConnectionError", "Timeout"},
    "sqlalchemy": {"OperationalError"},
}
"""By package, so that none of them is imported for the check."""
_MLFLOW_STATUSES = {429, 502, 503, 504}


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later, judged by the error and its causes.

    A mistake in the settings never does, even if it shows as a server that does not answer.
    """
    return not isinstance(error, ConfigError) and any(map(_is_outage, _causes(error)))


def answers(url: str) -> bool:
    """Return whether one of our servers answers at an http address, with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    now: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if now is None:
            return
        yield now
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | OutageError):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    if any(kind.__name__ in _CLASSES.get(_package(kind), ()) for kind in type(error).__mro__):
        return True
    status = getattr(error, "get_http_status_code", None)
    return _package(type(error)) == "mlflow" and status is not None and status() in _MLFLOW_STATUSES


def _package(kind: type[BaseException]) -> str:
    return kind.__module__.partition(".")[0]
