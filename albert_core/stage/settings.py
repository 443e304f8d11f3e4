"""Settings: the strict base class of a recipe's, and those of a machine in its environment."""

import ctypes
import difflib
import os
import shutil
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from inspect import isclass
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from albert_core.stage import credentials
from albert_core.stage.errors import ConfigError

_MAX_OFFERED = 16


def _check_texts(schema: dict[str, Any]) -> None:
    """Make a JSON schema refuse credentials in every string, at any depth."""
    if schema.get("type") == "string" and "enum" not in schema:
        schema.setdefault("pattern", credentials.WITHOUT_CREDENTIALS)
    tables = (schema.get(name) for name in ("items", "additionalProperties"))
    for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", []), *tables):
        if isinstance(inner, dict):
            _check_texts(inner)


class Settings(BaseModel):
    """A frozen, strict record. Unknown keys and wrong types are errors that name their path.

    Its JSON schema, against which Prefect validates forms, refuses credentials too.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,  # JSON has neither
        json_schema_extra=_check_texts,
    )

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> Self:
        """Return the settings in ``values``.

        Args:
            values: parsed TOML or JSON.
            where: the file they come from, for messages.

        Raises:
            ConfigError: names every setting that is unknown, missing, impossible or contains
                credentials.
        """
        refuse_credentials(values, where)
        try:
            found = cls.model_validate(values)
            found.model_dump_json()  # settings are saved, and a shell may give any bytes
        except ValidationError as error:
            raise ConfigError(f"{where}: {describe(error, cls)}") from None
        except PydanticSerializationError as error:
            raise ConfigError(f"{where}: a setting is not UTF-8 ({error}).") from None
        return found


def refuse_credentials(values: Any, where: str) -> None:
    """Refuse URIs with passwords, tokens or signatures, because settings are saved and shown.

    Args:
        values: strings, at any depth of tables and lists.
        where: what they are, for messages.

    Raises:
        ConfigError: names the setting, without its value.
    """
    for path, text in credentials.texts_in(values):
        if credentials.has_credentials(text):
            raise ConfigError(
                f"{', '.join((where, *path))}: {credentials.redacted(text)} contains credentials, "
                "but settings are saved with every result. Remove them here and give them in the "
                "environment: AWS_... for s3, FSSPEC_HTTP_CLIENT_KWARGS or a netrc file for http, "
                "MLFLOW_TRACKING_USERNAME and ..._PASSWORD for MLflow."
            )


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """Return a line per mistake: the path of the setting, what was expected, what was found."""
    lines: dict[str, str] = {}
    for mistake in error.errors():
        path = ".".join(map(str, _path_of(mistake["loc"], model))) or "the settings"
        found = f", got {mistake['input']!r}"
        if mistake["type"] == "extra_forbidden":
            lines[path] = f"unknown setting {path!r}{_known_near(path.split('.'), model)}"
        elif mistake["type"] == "missing":
            lines[path] = f"setting {path!r} is missing"
        elif isinstance(mistake["input"], dict):  # the message names what in the section is wrong
            lines[path] = f"{path}: {mistake['msg'].removeprefix('Value error, ')}"
        elif path in lines:  # another kind of value that it may have
            kind = mistake["msg"].removeprefix("Input should be ")
            lines[path] = f"{lines[path].removesuffix(found)}, or {kind}{found}"
        else:
            lines[path] = f"{path}: {mistake['msg']}{found}"
    return "\n  ".join(lines.values())


def _path_of(location: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str | int, ...]:
    """Return the path of a setting, without the kind of value that pydantic adds to it.

    It does where a value may be of several kinds, as in ``vocabulary.vocab_size.constrained-int``.
    """
    for depth, part in enumerate(location):
        field = model.model_fields.get(str(part))
        kinds = {*get_args(field.annotation)} - {NoneType} if field else set()
        if field and get_origin(field.annotation) in (Union, UnionType) and len(kinds) > 1:
            return location[: depth + 1] + location[depth + 2 :]
        if not (field and isclass(field.annotation) and issubclass(field.annotation, BaseModel)):
            break
        model = field.annotation
    return location


def _known_near(path: Sequence[str], model: type[BaseModel]) -> str:
    """Return a hint at which setting of ``model`` a wrong path may have meant."""
    *sections, name = path
    for section in sections:
        field = model.model_fields.get(section)
        if not (field and isinstance(field.annotation, type)):
            return "; remove it or correct its spelling"
        model = field.annotation
    prefix = "".join(f"{section}." for section in sections)
    return near(prefix + name, [prefix + known for known in model.model_fields])


def near(name: str, known: Sequence[str]) -> str:
    """Return a hint for the end of a message: the known name that was probably meant, or all."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(known[:_MAX_OFFERED])}"


def whole_number(variable: str, default: int) -> int:
    """Return the number in an environment variable, at least 1; ``default`` if it is not set.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{variable}={text!r} must be a whole number, at least 1")
    return int(text)


TRAINING_PROCESSES = "ALBERT_TRAINING_PROCESSES"
"""Variable: how many processes a flow starts for a training run on each host."""
TRAINING_HOSTS = "ALBERT_TRAINING_HOSTS"
"""Variable: how many hosts train together."""
MEETING_FILE = "ALBERT_MEETING_FILE"
"""Variable: the rendezvous file of the ranks of one host, set by the launcher."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_FIRST_WITH_BFLOAT16 = 8
"""Major compute capability of Ampere."""
_CPU_INFO = Path("/proc/cpuinfo")
_CPUS_WITH_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo of Intel, AMD and Arm."""
STOP_SECONDS = "ALBERT_STOP_SECONDS"
"""Variable: seconds that a process has between SIGTERM and SIGKILL."""


def stop_seconds() -> int:
    """Return ALBERT_STOP_SECONDS, by default 120, the notice that clouds give before preemption.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(STOP_SECONDS, 120)


def visible_devices() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them, without torch.

    CUDA numbers them from 0, whatever the driver calls them: a pod with ``/dev/nvidia2`` and
    ``/dev/nvidia5`` has the devices 0 and 1.
    """
    if VISIBLE in os.environ:
        names = os.environ[VISIBLE].split(",")
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [str(number) for number in range(len(_capabilities()))]


def has_fast_bfloat16() -> bool:
    """Return whether all GPUs here, or else the CPU, multiply natively in bfloat16, without torch.

    False on a TPU, which multiplies float32 that way anyway.
    """
    if "PJRT_DEVICE" in os.environ:
        return False
    if visible_devices():
        return min(_capabilities(), default=0) >= _FIRST_WITH_BFLOAT16
    told = _CPU_INFO.read_text(errors="replace") if _CPU_INFO.exists() else ""
    return not _CPUS_WITH_BFLOAT16.isdisjoint(told.split())


def compilation_pays() -> bool:
    """Return whether torch.compile is faster here and has what it needs, without torch.

    So it is on GPUs that multiply in bfloat16, where there are Triton and what it builds with: a C
    compiler and Python's headers. XLA compiles everything itself.
    """
    if not (visible_devices() and has_fast_bfloat16() and find_spec("triton")):
        return False
    has_compiler = any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang")))
    return has_compiler and Path(sysconfig.get_path("include"), "Python.h").exists()


def _capabilities() -> list[int]:
    """Return the major compute capability of each GPU of this host; none without a driver."""
    count, device, found = ctypes.c_uint(0), ctypes.c_void_p(), []
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2() == 0:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for number in range(count.value):
            nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device))
            both = ctypes.byref(major), ctypes.byref(minor)
            nvml.nvmlDeviceGetCudaComputeCapability(device, *both)
            found.append(major.value)
        nvml.nvmlShutdown()
    return found


def training_processes(batch_size: int) -> int:
    """Return how many ranks a flow starts: ALBERT_TRAINING_PROCESSES, or one per visible device.

    Args:
        batch_size: examples per update; by default there are no more ranks than that.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(TRAINING_PROCESSES, max(1, min(len(visible_devices()), batch_size)))


def worker_count() -> int:
    """Return how many worker processes a stage may use: ALBERT_WORKERS, or one per core.

    Raises:
        ConfigError: ALBERT_WORKERS is not a whole number above 0.
    """
    return whole_number("ALBERT_WORKERS", len(os.sched_getaffinity(0)))
