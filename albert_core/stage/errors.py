"""All errors that a user can cause or meet, and which of them are worth a retry.

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
import re
import signal
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from albert_core.stage.credentials import redacted


class AlbertError(Exception):
    """Base of all errors with a message for the user: where, what was found, what to do.

    Credentials are removed from messages, because they are shown and stored. Lines after the first
    are indented; other line ends, as a file's name may have them, are escaped. Of a message that
    quotes a setting of megabytes, the middle is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shown(arg) if isinstance(arg, str) else arg for arg in args))


def _shown(message: str) -> str:
    shown = re.sub(r"\n(?!  )", r"\\n", redacted(message))
    half = _MAX_CHARACTERS // 2
    return shown if len(shown) <= 2 * half else f"{shown[:half]} [...] {shown[-half:]}"


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


_MAX_CHARACTERS = 20_000
"""Of a message: more than the tail of a log that is quoted."""
_MAX_CAUSES = 20
_ERRNOS = {errno.EBUSY, errno.ESTALE, getattr(errno, "EREMOTEIO", errno.ESTALE)}
"""Of s3fs for "slow down" and "internal error", and of NFS after a restart of the server."""
_CLASSES = {
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "botocore": {"ConnectionError", "FlexibleChecksumError", "HTTPClientError"},
    "gcsfs": {"ChecksumError"},
    "google": {"TransportError"},
    "httpx": {"TransportError"},
    "requests": {"ConnectionError", "Timeout"},
    "sqlalchemy": {"OperationalError"},
}
"""Transient errors by package, so that none of the packages is imported for the check."""
_STATUSES = (429, 500, 502, 503, 504)
"""HTTP statuses of a server or store that may answer later."""
_MLFLOW_STATUSES = {429, 502, 503, 504}
_NO_CREDENTIALS = {
    "botocore": {"NoCredentialsError", "PartialCredentialsError"},
    "google": {"DefaultCredentialsError"},
}
_REFUSED = (401, 403, 407)
"""HTTP statuses of a server that asks for other credentials."""
_OTHER_TIME = "RequestTimeTooSkewed"
"""Code of an S3 store whose clock differs from this machine's by more than a quarter of an hour."""
_NO_BUCKET = "NoSuchBucket"
"""Code of an S3 store."""
_IMPOSSIBLE_BUCKET = re.compile('Invalid bucket name "([^"]*)"')
"""Matches botocore's error about a name that no bucket can have."""
_BUCKET_OF_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o\b")
"""Matches the address that gcsfs uploads to, which is missing only if the bucket is."""
_FORBIDDEN = "Forbidden: "
"""How the plain OSError begins that gcsfs raises for status 403."""
_OF_THE_DISK = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or raise the quota",
    errno.EFBIG: "raise the limit (`ulimit -f`), or take a disk for larger files",
    errno.EROFS: "give a folder that can be written to",
    errno.EACCES: "give this user the right to it, or another folder",
    errno.EPERM: "give this user the right to it, or another folder",
    errno.EMFILE: "raise the limit (`ulimit -n`)",
    errno.ENFILE: "raise the limit of the system",
    errno.EIO: "check the disk, which is failing",
    errno.ENOLCK: "mount the work folder with file locks, or give another folder",
}
"""Error numbers that a user or a disk causes -> what to do."""
MORE_MEMORY = "lower micro_batch_size, ALBERT_WORKERS or what else runs here, or take more memory"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_NO_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|out of memory", re.IGNORECASE
)
"""Matches what torch and the system say when memory runs out."""
_TOLD_BY_A_WORKER = re.compile(r"\[Errno (\d+)\] [^\n]*")
"""Matches such an error quoted in the text of another one."""
_OF_A_CACHE = re.compile(r"FileNotFoundError\b.*\b((?:units|parts)/[0-9a-f]{32}[\w./~-]*)")
"""Matches that a cached file is missing, which a stage had found or made before."""
_OF_A_DATABASE = {
    "database or disk is full": errno.ENOSPC,
    "attempt to write a readonly database": errno.EROFS,
    "unable to open database file": errno.EACCES,
    "disk I/O error": errno.EIO,
}
"""How SQLite words such errors, which SQLAlchemy and MLflow take for outages."""
_DAMAGED_DATABASE = re.compile(
    r"database disk image is malformed|malformed database schema|file is not a database|"
    r"Could not decode to UTF-8 column|table \w+ already exists|no such (?:table|column)"
)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed, judged by the error and its causes.

    A mistake in the settings is never transient, even if it shows as a server that does not answer;
    neither is a database that is damaged or full.
    """
    causes = list(_causes(error))
    is_ours = isinstance(error, ConfigError) or any(
        _said_of_database(cause) or is_of_damage(cause) for cause in causes
    )
    return not is_ours and any(map(_is_outage, causes))


def explained(error: BaseException) -> str:
    """Return what a user can do about an error of a library or the system; "" if unknown."""
    causes = list(_causes(error))
    # s3fs gives the error number of a failing disk to an answer that it does not know.
    is_of_server = any(_status(cause) in _STATUSES for cause in causes)
    for cause in causes:
        if refusal := _refusal(cause):
            return refusal
        if gone := _missing_of_cache(cause):
            return (
                f"{gone} was deleted while the stage ran. Run the same command: it makes what is "
                "missing."
            )
        if is_of_damage(cause):
            return (
                f"a database is damaged ({_line_of(cause)}). Restore a backup of mlflow.db or "
                "prefect.db, or move it away; its runs and versions are then no longer listed."
            )
        if _is_no_memory(cause):
            told = _line_of(cause) or type(cause).__name__
            return f"memory ran out ({told}): {MORE_MEMORY}, then run the same command: it goes on."
        number, said = _fault_of_disk(cause)
        if number in _OF_THE_DISK and not is_of_server:
            return f"{said}: {_OF_THE_DISK[number]}, then run the same command: it goes on."
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out."""
    return any(map(_is_no_memory, _causes(error)))


def _is_no_memory(cause: BaseException) -> bool:
    return isinstance(cause, MemoryError) or _NO_MEMORY.search(str(cause)) is not None


def _refusal(cause: BaseException) -> str:
    """Return what to do if a server or store asks for other credentials; "" if none does."""
    if type(cause).__name__ in _NO_CREDENTIALS.get(_package(type(cause)), ()):
        return (
            f"the store asks for credentials, but there are none ({redacted(str(cause))}). Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your store expects."
        )
    if refusal := _missing_bucket(cause) or _refusal_of_google(cause):
        return refusal
    if answer := _answer_of_s3(cause):
        is_clock = answer["Error"].get("Code") == _OTHER_TIME
        if is_clock or _status(cause) in _REFUSED:
            remedy = "Set this machine's clock" if is_clock else "Give credentials for it"
            return f"the store refuses the request ({_line_of(cause)}). {remedy}."
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in _REFUSED and _package(type(cause)) in ("httpx", "prefect"):
        return (
            f"Prefect's server refuses the request ({_line_of(cause)}). Set "
            "PREFECT_API_AUTH_STRING to its name and password, which `albert serve` keeps in "
            "secrets/prefect-auth of its work folder."
        )
    if type(cause).__name__ == "ClientResponseError" and _is_not_http(cause.__cause__):
        address = redacted(str(vars(cause)["request_info"].real_url))
        return (
            f"the answer to {address} is not HTTP, as when it is longer than its Content-Length. "
            "Correct the server, or download its files and give their folder."
        )
    if _status(cause) in _REFUSED:
        return (
            f"the server refuses the request ({_line_of(cause)}). Give credentials that have "
            "access to it (FSSPEC_HTTP_CLIENT_KWARGS for http), or another address."
        )
    return ""


def _is_not_http(error: BaseException | None) -> bool:
    """Return whether aiohttp could not parse an answer."""
    return any(kind.__name__ == "HttpProcessingError" for kind in type(error).__mro__)


def _missing_bucket(cause: BaseException) -> str:
    """Return what to do if a store does not have the bucket; "" if it does not say so."""
    if impossible := _IMPOSSIBLE_BUCKET.search(str(cause)):
        return f"no bucket can have the name {impossible[1]!r}. Correct it."
    answer = _answer_of_s3(cause).get("Error", {})
    found = isinstance(cause, FileNotFoundError) and _BUCKET_OF_UPLOAD.search(str(cause))
    if answer.get("Code") != _NO_BUCKET and not found:
        return ""
    name = found[1] if found else answer.get("BucketName", "")
    return f"the store has no such bucket ({name or _line_of(cause)}). Correct it, or create it."


def _refusal_of_google(cause: BaseException) -> str:
    """Return what to do if Google refuses the credentials, or their renewal; "" if it does not."""
    names = {kind.__name__ for kind in type(cause).__mro__ if _package(kind) == "google"}
    is_expired = "RefreshError" in names and not any(map(_is_outage, _causes(cause)))
    is_refused = _package(type(cause)) == "gcsfs" and _status(cause) in _REFUSED
    is_forbidden = type(cause) is OSError and str(cause).startswith(_FORBIDDEN)
    if not (is_expired or is_refused or is_forbidden):
        return ""
    said = " ".join(redacted(str(cause)).split())  # the second line says who lacks which right
    return (
        f"the store refuses the request ({said}). Give credentials that have access to it "
        "(`gcloud auth application-default login`), or correct the bucket's name."
    )


def killed(number: int) -> str:
    """Return that a process was killed by the signal ``number``, and perhaps what to do."""
    kernel = f", perhaps by the kernel as memory ran out: then {MORE_MEMORY}"
    return (
        f"was killed by {signal.Signals(number).name}{kernel if number == signal.SIGKILL else ''}"
    )


def lacks_room(error: BaseException) -> bool:
    """Return whether a disk or a database is full or read-only."""
    return any(_fault_of_disk(cause)[0] in _NO_ROOM for cause in _causes(error))


def _fault_of_disk(error: BaseException) -> tuple[int, str]:
    """Return the number and message of a system error, possibly quoted in ``error``; or 0."""
    if of_database := _said_of_database(error):
        return _OF_A_DATABASE[of_database], of_database
    told = _TOLD_BY_A_WORKER.search(str(error))
    number = getattr(error, "errno", None) or (int(told[1]) if told else 0)
    return number, redacted(told[0] if told else str(error))


def _said_of_database(error: BaseException) -> str:
    """Return what SQLite says about its file, here or at a server; "" if nothing."""
    if _package(type(error)) not in ("sqlite3", "sqlalchemy", "mlflow"):
        return ""
    return next((said for said in _OF_A_DATABASE if said in str(error)), "")


def is_of_damage(error: BaseException) -> bool:
    """Return whether a database is damaged, which its driver may report as undecodable text."""
    if _DAMAGED_DATABASE.search(str(error)):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, UnicodeDecodeError) and any(
        str(frame.f_globals.get("__name__")).startswith("sqlalchemy.") for frame, _ in frames
    )


def _line_of(error: BaseException) -> str:
    """Return the first line of an error's message, without credentials."""
    return redacted(str(error)).partition("\n")[0]


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
    if _missing_of_cache(error) or _status(error) in _STATUSES:
        return True
    if _package(type(error)) == "google" and getattr(error, "retryable", False):
        return True
    if any(kind.__name__ in _CLASSES.get(_package(kind), ()) for kind in type(error).__mro__):
        return True
    status = getattr(error, "get_http_status_code", None)
    return _package(type(error)) == "mlflow" and status is not None and status() in _MLFLOW_STATUSES


def _answer_of_s3(error: BaseException) -> Mapping[str, Any]:
    """Return the answer of an S3 store that an error of botocore quotes; empty if none."""
    answer = getattr(error, "response", None)
    return answer if _package(type(error)) == "botocore" and isinstance(answer, dict) else {}


def _status(error: BaseException) -> object:
    """Return the HTTP status that a server or store answered with; None if an error has none."""
    if answer := _answer_of_s3(error):
        return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = getattr(error, "code" if _package(type(error)) == "gcsfs" else "status", None)
    return int(code) if isinstance(code, str) and code.isdecimal() else code


def _missing_of_cache(error: BaseException) -> str:
    """Return the missing cached file that an error, here or in a worker, names; "" if none."""
    found = _OF_A_CACHE.search(f"{type(error).__name__}: {error}")
    return found[1] if found else ""


def _package(kind: type[BaseException]) -> str:
    return kind.__module__.partition(".")[0]
