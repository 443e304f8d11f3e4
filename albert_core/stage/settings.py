"""Settings: their strict base class, and messages that name a wrong one and what was meant."""

import difflib
from collections.abc import Sequence
from inspect import isclass
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
