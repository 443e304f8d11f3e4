"""The tree of errors, and which of them are transient."""

import errno
import inspect
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from sqlalchemy import create_engine, text
from yarl import URL

from albert_core.stage import errors

PAGE = URL("http://a/b")
ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and kind is not errors.AlbertError
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_in_the_tree_and_no_value_error_so_that_pydantic_lets_it_through(
    kind: type[Exception],
) -> None:
    assert issubclass(kind, errors.AlbertError)
    assert not issubclass(kind, ValueError | AssertionError)
    assert f"─ {kind.__name__} " in str(errors.__doc__)


def test_of_a_message_of_megabytes_the_beginning_and_what_to_do_are_said() -> None:
    said = str(errors.SourceError(f"source {['/data/x.txt'] * 500_000} has no file. Give another."))
    assert len(said) < 30_000
    assert said.startswith("source ['/data/x.txt', ")
    assert said.endswith("'] has no file. Give another.")


def refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def library_error(module: str, name: str, *args: Any, **options: Any) -> Callable[[], Exception]:
    def make() -> Exception:
        error: Exception = getattr(import_module(module), name)(*args, **options)
        return error

    return make


def mlflow_error(code: str) -> Callable[[], Exception]:
    def make() -> Exception:
        number = getattr(import_module("mlflow.protos.databricks_pb2"), code)
        return library_error("mlflow.exceptions", "MlflowException", "no", error_code=number)()

    return make


def database_error(said: str) -> Callable[[], Exception]:
    return library_error("sqlalchemy.exc", "OperationalError", "select 1", {}, Exception(said))


def s3_answers(code: str, status: int, **told: str) -> Exception:
    """Return the error of s3fs for an answer of its store."""
    answer = {"Error": {"Code": code, **told}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = library_error("botocore.exceptions", "ClientError", answer, "PutObject")()
    return library_error("s3fs.errors", "translate_boto_error", error)()


def gcs_answers(status: int | str) -> Exception:
    """Return an error like the one of gcsfs, which the tests do without."""
    members = {"__module__": "gcsfs.retry", "code": status}
    error: Exception = type("HttpError", (Exception,), members)(f"as the store words it, {status}")
    return error


def web_server_answers(status: int) -> Callable[[], Exception]:
    return library_error("aiohttp", "ClientResponseError", Mock(), (), status=status)


def caused_by(cause: BaseException, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


PART = f"/w/units/{'0a' * 16}/00000.arrow"
GONE = [
    FileNotFoundError(errno.ENOENT, "No such file or directory", PART),
    RuntimeError(
        f"FileNotFoundError: [Errno 2] Failed to open local file '{PART}'. Detail: [errno 2]"
    ),
]
"""As Python and, in a worker of Beam, Arrow say that a cached file was deleted amid a stage."""


@pytest.mark.parametrize(
    "make",
    [
        *(lambda gone=gone: gone for gone in GONE),
        refused,
        TimeoutError,
        errors.OutageError,
        library_error(
            "botocore.exceptions", "EndpointConnectionError", endpoint_url="http://store"
        ),
        library_error("requests.exceptions", "ConnectTimeout", "no answer"),
        library_error("botocore.exceptions", "FlexibleChecksumError", error_msg="cut short"),
        database_error("closed"),
        database_error("database is locked"),
        mlflow_error("TEMPORARILY_UNAVAILABLE"),
        lambda: OSError(errno.EBUSY, "SlowDown"),
        *(lambda status=status: s3_answers(str(status), status) for status in (500, 502, 503, 504)),
        *(lambda status=status: gcs_answers(status) for status in (429, 500, 503, "504")),
        library_error("google.auth.exceptions", "TransportError", "no metadata server"),
        library_error("google.auth.exceptions", "RefreshError", "later", retryable=True),
        lambda: caused_by(
            library_error("google.auth.exceptions", "TransportError", "no metadata server")(),
            library_error("google.auth.exceptions", "RefreshError", "no metadata server")(),
        ),
        web_server_answers(429),
        library_error("aiohttp", "ClientPayloadError", "Response payload is not completed"),
        lambda: caused_by(web_server_answers(503)(), FileNotFoundError("http://a/b")),
        lambda: caused_by(refused(), errors.RegistryError("the registry does not answer")),
    ],
)
def test_an_outage_is_transient(make: Callable[[], Exception]) -> None:
    assert errors.is_transient(make())
    assert "the disk" not in errors.explained(make())
    assert "credentials" not in errors.explained(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: errors.SourceError("no file"),
        lambda: FileNotFoundError(errno.ENOENT, "no file"),
        lambda: PermissionError(errno.EACCES, "no"),
        lambda: ValueError("a defect"),
        web_server_answers(403),
        lambda: s3_answers("AccessDenied", 403),
        lambda: gcs_answers(404),
        library_error("google.auth.exceptions", "RefreshError", "invalid_grant: revoked"),
        mlflow_error("RESOURCE_DOES_NOT_EXIST"),
        lambda: caused_by(ValueError("a defect"), errors.RegistryError("refused")),
        lambda: caused_by(refused(), errors.ConfigError("nothing answers at this address")),
        lambda: caused_by(
            database_error("database or disk is full")(), errors.RegistryError("refused")
        ),
        database_error("table datasets already exists"),
    ],
)
def test_a_mistake_is_not_transient(make: Callable[[], Exception]) -> None:
    assert not errors.is_transient(make())


@pytest.mark.parametrize("is_hidden", [True, False])
def test_an_error_that_was_dealt_with_is_no_cause(is_hidden: bool) -> None:
    error = errors.SourceError("the file has no text")
    error.__context__, error.__suppress_context__ = refused(), is_hidden
    assert errors.is_transient(error) is not is_hidden


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/w/x"), r"No space .*/w/x'?: make room"),
        (OSError(errno.EROFS, "Read-only file system"), "give a folder that can be written to"),
        (OSError(errno.EMFILE, "Too many open files"), r"ulimit -n"),
        (OSError(errno.ENOLCK, "No locks available"), "with file locks, or give another folder"),
        (RuntimeError("OSError: [Errno 28] No space left on device\n at"), "device: make room"),
        (
            library_error("botocore.exceptions", "NoCredentialsError")(),
            "there are none .Unable to locate credentials.*AWS_ACCESS_KEY_ID",
        ),
        (
            s3_answers("AccessDenied", 403),
            r"request \(.*AccessDenied.*credentials for it",
        ),
        (
            s3_answers("NoSuchBucket", 404, BucketName="bukket"),
            r"no such bucket \(bukket\)\. Correct it, or create it",
        ),
        (
            library_error(
                "botocore.exceptions",
                "ParamValidationError",
                report='Invalid bucket name "Ab!c": Bucket name must match the regex',
            )(),
            r"^no bucket can have the name 'Ab!c'\. Correct it\.$",
        ),
        (
            FileNotFoundError("https://storage.googleapis.com/upload/storage/v1/b/bukket/o?name=x"),
            r"no such bucket \(bukket\)\. Correct it, or create it",
        ),
        (
            OSError("Forbidden: b/bukket/o\nann@x.com may not list, or it does not exist."),
            r"request \(Forbidden: b/bukket/o ann@x.com may not list.*or correct the bucket's name",
        ),
        (gcs_answers(401), r"the store refuses the request \(.*401\)\. Give credentials"),
        (
            library_error("google.auth.exceptions", "RefreshError", "invalid_grant: revoked")(),
            r"the store refuses the request \(invalid_grant.*gcloud auth application-default",
        ),
        (OSError(errno.EIO, "Input/output error"), "check the disk, which is failing"),
        (s3_answers("RequestTimeTooSkewed", 403), r"\(.*TooSkewed.*\)\. Set this machine's clock"),
        (database_error("database or disk is full")(), "^database or disk is full: make room"),
        *((gone, r"^units/[0a]*/00000.arrow was deleted while the stage ran") for gone in GONE),
        (MemoryError(), r"^memory ran out \(MemoryError\): lower micro_batch_size"),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 9"), "^memory ran"),
        (library_error("torch", "OutOfMemoryError", "CUDA out of memory. Tried")(), "^memory ran"),
        (
            aiohttp.ClientResponseError(
                aiohttp.RequestInfo(PAGE, "GET", CIMultiDictProxy(CIMultiDict()), PAGE),
                (),
                status=401,
            ),
            r"server refuses the request \(401.*http://a/b'\)\. Give credentials",
        ),
        (
            caused_by(
                library_error("aiohttp.http_exceptions", "BadHttpMessage", "Data after")(),
                aiohttp.ClientResponseError(
                    aiohttp.RequestInfo(PAGE, "GET", CIMultiDictProxy(CIMultiDict()), PAGE), ()
                ),
            ),
            r"^the answer to http://a/b is not HTTP, .* download its files",
        ),
        (
            library_error(
                "httpx", "HTTPStatusError", "401", request=None, response=Mock(status_code=401)
            )(),
            r"Prefect's server refuses the request \(.*401.*PREFECT_API_AUTH_STRING",
        ),
        *(
            (library_error("sqlite3", "DatabaseError", told)(), "a database is damaged .*mlflow.db")
            for told in (
                "database disk image is malformed",
                'malformed database schema (tags) - unrecognized token: "\x14"',
                "no such column: source_iD",
            )
        ),
    ],
)
def test_a_fault_of_a_user_or_a_disk_is_one_sentence(error: Exception, said: str) -> None:
    for each in (error, caused_by(error, ValueError("a library's own"))):
        assert re.search(said, errors.explained(each))
        assert "\n" not in errors.explained(each)


def test_a_defect_is_not_explained_away() -> None:
    assert (
        errors.explained(ValueError("x")) == errors.explained(FileNotFoundError(2, "no", "x")) == ""
    )


def test_bytes_that_are_no_text_are_a_damage_of_a_database_only_where_one_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table runs (name text)")
        database.execute("insert into runs values (cast(x'ff' as text))")
        database.commit()
    with (
        closing(create_engine(f"sqlite:///{path}").connect()) as connection,
        pytest.raises(Exception, match="decode") as raised,
    ):
        connection.execute(text("select name from runs")).all()
    assert "a database is damaged" in errors.explained(raised.value)
    with pytest.raises(UnicodeDecodeError) as elsewhere:
        b"\xff".decode()
    assert errors.explained(elsewhere.value) == ""
