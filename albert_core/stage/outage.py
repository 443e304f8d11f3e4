"""Servers, stores and networks that are away for a while: which errors say so, and who answers."""

import errno
import urllib.request
from collections.abc import Iterator

from albert_core.stage.errors import ConfigError, OutageError

_ANSWER_SECONDS = 5
_MAX_CAUSES = 20
_ERRNOS = {errno.EBUSY, errno.ESTALE, getattr(errno, "EREMOTEIO", errno.ESTALE)}
"""s3fs's for "slow down" and "internal error", and NFS's for a server that began anew."""
_CLASSES = {
    "aiohttp": {"ClientConnectionError"},
    "botocore": {"ConnectionError", "HTTPClientError"},
    "httpx": {"TransportError"},
    "requests": {"ConnectionError", "Timeout"},
    "sqlalchemy": {"OperationalError"},
}
"""By package, so that none of them is imported to ask."""
_MLFLOW_STATUSES = {429, 502, 503, 504}


def is_passing(error: BaseException) -> bool:
    """Return whether trying again later may well succeed, by the error or one that caused it.

    A mistake in the settings never passes, even if it shows as a server that does not answer.
    """
    return not isinstance(error, ConfigError) and any(map(_passes, _causes(error)))


def answers(url: str) -> bool:
    """Return whether a server of ours answers at an http address, with status 200."""
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


def _passes(error: BaseException) -> bool:
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
