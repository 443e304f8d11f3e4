import errno
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage.command import RUN_AGAIN_STATUS, run_command_line
from albert_core.stage.errors import ConfigError, RegistryError, SourceError, is_passing
from albert_core.stage.settings import Settings


def refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def of_botocore() -> Exception:
    kinds: Any = import_module("botocore.exceptions")
    error: Exception = kinds.EndpointConnectionError(endpoint_url="http://store")
    return error


def of_requests() -> Exception:
    from requests.exceptions import ConnectTimeout

    return ConnectTimeout("no answer")


def of_a_database() -> Exception:
    from sqlalchemy.exc import OperationalError

    return OperationalError("select 1", {}, Exception("the server closed the connection"))


def of_mlflow(code: str) -> Callable[[], Exception]:
    def make() -> Exception:
        from mlflow.exceptions import MlflowException

        return MlflowException("no", error_code=getattr(codes(), code))

    return make


def codes() -> object:
    from mlflow.protos import databricks_pb2

    return databricks_pb2


def caused_by(cause: BaseException, error: Exception) -> Exception:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


@pytest.mark.parametrize(
    "make",
    [
        refused,
        TimeoutError,
        of_botocore,
        of_requests,
        of_a_database,
        of_mlflow("TEMPORARILY_UNAVAILABLE"),
        lambda: OSError(errno.EBUSY, "SlowDown"),
        lambda: caused_by(refused(), RegistryError("the registry does not answer")),
    ],
)
def test_what_is_away_passes(make: Callable[[], Exception]) -> None:
    assert is_passing(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: SourceError("no file"),
        lambda: FileNotFoundError(errno.ENOENT, "no file"),
        lambda: PermissionError(errno.EACCES, "no"),
        lambda: ValueError("a defect"),
        of_mlflow("RESOURCE_DOES_NOT_EXIST"),
        lambda: caused_by(ValueError("a defect"), RegistryError("refused")),
        lambda: caused_by(refused(), ConfigError("nothing answers at this address")),
    ],
)
def test_a_mistake_does_not_pass(make: Callable[[], Exception]) -> None:
    assert not is_passing(make())


def test_an_error_that_was_dealt_with_is_no_cause() -> None:
    with pytest.raises(SourceError) as caught:
        raise_after_dealing_with_another()
    assert not is_passing(caught.value)


def raise_after_dealing_with_another() -> None:
    try:
        raise refused()
    except OSError:
        raise SourceError("the file has no text") from None


class ShapeSettings(Settings):
    size: int = 1


@pytest.mark.parametrize("error", [refused(), caused_by(refused(), RegistryError("no answer"))])
def test_a_stage_ends_with_a_status_that_says_run_it_again(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(shape: ShapeSettings, work: str) -> str:
        raise error

    (tmp_path / "recipe.json").write_text("{}")
    logging_before = logging.root.handlers[:]
    status = run_command_line(run, [f"--recipe={tmp_path}/recipe.json", f"--work={tmp_path}"])
    logging.root.handlers[:] = logging_before
    assert status == RUN_AGAIN_STATUS == 75
    assert capsys.readouterr().err.startswith("error: ")
